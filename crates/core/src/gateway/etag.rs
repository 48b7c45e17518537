//! Entity tags: the origin's name for one version of an object, and lists of them in conditions.

use std::sync::Arc;

/// Longest tag that is kept. S3's have 34 to 40 bytes with their quotes.
pub const ETAG_BYTES_MAX: usize = 256;
/// Most tags of one condition that are compared. More are left to the origin.
const LIST_MAX: usize = 64;

/// A strong entity tag, with its quotes, as the origin sent it.
///
/// Weak tags and missing ones do not name bytes, so objects with such a tag are not cached.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StrongEtag(Arc<str>);

impl StrongEtag {
    /// Parses an `ETag` header. `None` for a weak or malformed one.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?.trim();
        let opaque = text.strip_prefix('"')?.strip_suffix('"')?;
        let is_valid = text.len() <= ETAG_BYTES_MAX
            && opaque.bytes().all(|byte| byte == 0x21 || (0x23..0x7f).contains(&byte));
        is_valid.then(|| Self(text.into()))
    }

    /// The tag with its quotes, as it is sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The tag without its quotes.
    fn opaque(&self) -> &str {
        &self.0[1..self.0.len() - 1]
    }
}

/// The tags of an `If-Match` or `If-None-Match` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtagList {
    /// `*`: any version.
    Any,
    /// These tags.
    Of(Vec<ListedTag>),
}

/// One tag of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTag {
    opaque: String,
    is_weak: bool,
}

impl EtagList {
    /// Parses a list of tags. S3 accepts tags without quotes, too. `None` if it is malformed, or
    /// longer than 64 tags.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let mut rest = std::str::from_utf8(value).ok()?.trim();
        if rest == "*" {
            return Some(Self::Any);
        }
        let mut tags = Vec::new();
        loop {
            let (is_weak, tag) = match rest.strip_prefix("W/") {
                Some(tag) => (true, tag),
                None => (false, rest),
            };
            let (opaque, after) = if let Some(quoted) = tag.strip_prefix('"') {
                quoted.split_once('"')?
            } else {
                let end = tag.find(',').unwrap_or(tag.len());
                (tag[..end].trim_end(), &tag[end..])
            };
            if opaque.is_empty() && !tag.starts_with('"') || tags.len() == LIST_MAX {
                return None;
            }
            tags.push(ListedTag { opaque: opaque.to_owned(), is_weak });
            rest = after.trim_start();
            if rest.is_empty() {
                return Some(Self::Of(tags));
            }
            rest = rest.strip_prefix(',')?.trim_start();
        }
    }

    /// Whether the list names this version by the strong comparison, which `If-Match` uses.
    pub fn matches_strongly(&self, etag: &StrongEtag) -> bool {
        self.matches(|tag| !tag.is_weak && tag.opaque == etag.opaque())
    }

    /// Whether the list names this version by the weak comparison, which `If-None-Match` uses.
    pub fn matches_weakly(&self, etag: &StrongEtag) -> bool {
        self.matches(|tag| tag.opaque == etag.opaque())
    }

    fn matches(&self, names: impl Fn(&ListedTag) -> bool) -> bool {
        match self {
            Self::Any => true,
            Self::Of(tags) => tags.iter().any(names),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strong(text: &str) -> Option<StrongEtag> {
        StrongEtag::parse(text.as_bytes())
    }

    #[test]
    fn only_strong_tags_name_a_version() {
        assert_eq!(strong("\"abc-2\"").unwrap().as_str(), "\"abc-2\"");
        for text in ["W/\"abc\"", "abc", "\"", "", "\"a b\"", "\"a\"b\"", "\"\u{e9}\""] {
            assert_eq!(strong(text), None, "{text}");
        }
        assert_eq!(strong(&format!("\"{}\"", "a".repeat(300))), None);
    }

    #[test]
    fn lists_compare_strongly_or_weakly() {
        let etag = strong("\"b\"").unwrap();
        let list = |text: &str| EtagList::parse(text.as_bytes()).unwrap();
        for text in ["\"b\"", "\"a\", \"b\"", "a,b", "b", "*", "\"a,c\" ,\"b\""] {
            assert!(list(text).matches_strongly(&etag), "{text}");
        }
        assert!(!list("W/\"b\"").matches_strongly(&etag));
        assert!(list("W/\"b\"").matches_weakly(&etag));
        assert!(!list("\"a\", \"c\"").matches_weakly(&etag));
    }

    #[test]
    fn malformed_lists_are_left_to_the_origin() {
        let long = vec!["\"a\""; 65].join(",");
        for text in ["", "\"a", "\"a\" \"b\"", "\"a\",", ",", long.as_str()] {
            assert_eq!(EtagList::parse(text.as_bytes()), None, "{text}");
        }
    }
}
