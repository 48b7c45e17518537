//! Decoder of the body of `DeleteObjects`: the keys, to forget them.
//!
//! The origin decides what the body means. This decoder may find keys that the origin does not
//! delete, which costs hits only. It has to find all that the origin does: so it reads the text of
//! every `Key` element, whatever is around it, also in comments and `CDATA`.

/// Longest key.
const KEY_LENGTH_MAX: usize = 1024;
/// S3's limit.
const KEYS_MAX: usize = 1000;

/// The keys in a body.
pub fn keys_of_delete(body: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(body);
    let mut keys = Vec::new();
    let mut rest = &*text;
    while let Some(at) = rest.find("Key") {
        let (before, after) = (&rest[..at], &rest[at + 3..]);
        rest = after;
        // `<Key>`, `<s3:Key xmlns="…">`; not `</Key>`.
        let name_start = before.rfind(['<', '>']).map_or("", |start| &before[start..]);
        let is_element = name_start.starts_with('<') && !name_start.starts_with("</");
        let prefix = name_start.get(1..).unwrap_or_default();
        let is_named_key = prefix.is_empty() || prefix.ends_with(':');
        let Some(open) = after.find('>').filter(|_| is_element && is_named_key) else { continue };
        if !(after.starts_with('>') || after.starts_with(char::is_whitespace)) {
            continue;
        }
        let content = &after[open + 1..];
        let end = content.find("</").unwrap_or(content.len());
        let key = unescaped(&content[..end]);
        if (1..=KEY_LENGTH_MAX).contains(&key.len()) && keys.len() < KEYS_MAX {
            keys.push(key.into_bytes());
        }
    }
    keys
}

/// Text with its entities and `CDATA` sections resolved.
fn unescaped(text: &str) -> String {
    if let Some((before, rest)) = text.split_once("<![CDATA[") {
        let (inner, after) = rest.split_once("]]>").unwrap_or((rest, ""));
        return unescaped(before) + inner + &unescaped(after);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, entity)) = rest.split_once('&') {
        out.push_str(before);
        let (name, after) = entity.split_once(';').unwrap_or((entity, ""));
        let character = match name {
            "lt" => Some('<'),
            "gt" => Some('>'),
            "amp" => Some('&'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => {
                let code = name.strip_prefix('#').and_then(|number| {
                    number.strip_prefix(['x', 'X']).map_or_else(
                        || number.parse().ok(),
                        |hex| u32::from_str_radix(hex, 16).ok(),
                    )
                });
                code.and_then(char::from_u32)
            }
        };
        out.extend(character);
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(body: &str) -> Vec<String> {
        keys_of_delete(body.as_bytes())
            .into_iter()
            .map(|key| String::from_utf8(key).unwrap())
            .collect()
    }

    #[test]
    fn all_keys_are_found_with_their_entities() {
        let body = "<?xml version=\"1.0\"?><Delete xmlns=\"http://s3.example/doc/\">\
            <Object><Key>a/b &amp; c</Key><VersionId>1</VersionId></Object>\
            <Object>\n <Key >d&#10;&#x fc;&#xfc;</Key></Object>\
            <s3:Object><s3:Key xmlns:s3=\"x\"><![CDATA[<e>&amp;]]></s3:Key></s3:Object>\
            <Quiet>true</Quiet></Delete>";
        assert_eq!(keys(body), ["a/b & c", "d\nü", "<e>&amp;"]);
    }

    #[test]
    fn damaged_bodies_have_no_keys_or_some() {
        for body in ["", "Key", "<Key", "<Key>", "</Key>x</Key>", "<MyKey>a</MyKey>", "<Keys>a"] {
            assert!(keys(body).is_empty(), "{body}");
        }
        assert_eq!(keys("<Key>unfinished"), ["unfinished"]);
        assert!(keys(&format!("<Key>{}</Key>", "k".repeat(1025))).is_empty());
        assert_eq!(keys(&"<Key>k</Key>".repeat(2000)).len(), 1000);
    }
}
