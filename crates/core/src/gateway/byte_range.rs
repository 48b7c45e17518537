//! Byte ranges: the `Range` header of RFC 9110, section 14, as S3 answers it.
//!
//! One range of the unit `bytes` is understood, in its three forms. Several ranges are left to the
//! origin. A header that is not well-formed is ignored, as S3 does: the answer is the whole object.

use std::ops::Range;

/// Longest `Range` header that is parsed. Longer ones are left to the origin.
const HEADER_BYTES_MAX: usize = 256;

/// What a `Range` header asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeHeader {
    /// The whole object: no header, another unit, or not well-formed.
    Whole,
    /// One range.
    One(ByteRange),
    /// Several ranges, or a header too long to parse. The origin answers it.
    Unsupported,
}

/// One byte range, before the length of the object is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRange {
    /// `bytes=first-last`, both inclusive.
    Bounded {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last byte; at least `first`.
        last: u64,
    },
    /// `bytes=first-`.
    From {
        /// Offset of the first byte.
        first: u64,
    },
    /// `bytes=-length`.
    Suffix {
        /// Number of bytes at the end.
        length: u64,
    },
}

/// The range does not overlap the object: `416 InvalidRange`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the range does not overlap the object of {length} bytes")]
pub struct NotSatisfiable {
    /// Length of the object.
    pub length: u64,
}

impl RangeHeader {
    /// Parses the value of a `Range` header.
    pub fn parse(value: &[u8]) -> Self {
        if value.len() > HEADER_BYTES_MAX {
            return Self::Unsupported;
        }
        let Ok(text) = std::str::from_utf8(value) else { return Self::Whole };
        let Some((unit, set)) = text.trim().split_once('=') else { return Self::Whole };
        if !unit.trim_end().eq_ignore_ascii_case("bytes") {
            return Self::Whole;
        }
        if set.contains(',') {
            return Self::Unsupported;
        }
        ByteRange::parse(set.trim()).map_or(Self::Whole, Self::One)
    }
}

impl ByteRange {
    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-')?;
        match (first.is_empty(), last.is_empty()) {
            (true, true) => None,
            (true, false) => Some(Self::Suffix { length: number(last)? }),
            (false, true) => Some(Self::From { first: number(first)? }),
            (false, false) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(Self::Bounded { first, last })
            }
        }
    }

    /// The bytes of an object of this length that the range names. Never empty, except for a
    /// suffix of an empty object, which S3 answers like the whole object.
    pub fn resolve(self, length: u64) -> Result<Range<u64>, NotSatisfiable> {
        let not_satisfiable = NotSatisfiable { length };
        match self {
            Self::Bounded { first, .. } | Self::From { first } if first >= length => {
                Err(not_satisfiable)
            }
            Self::Bounded { first, last } => Ok(first..last.saturating_add(1).min(length)),
            Self::From { first } => Ok(first..length),
            Self::Suffix { length: 0 } => Err(not_satisfiable),
            Self::Suffix { length: suffix } => Ok(length.saturating_sub(suffix)..length),
        }
    }
}

/// A decimal number. One that exceeds 64 bits lies beyond the end of every object.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

/// A `Content-Range` of a single part: `bytes first-last/length`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentRange {
    /// The bytes; never empty.
    pub bytes: Range<u64>,
    /// Length of the whole object; `None` for `*`.
    pub length: Option<u64>,
}

impl ContentRange {
    /// Parses the value of a `Content-Range` header.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let (unit, rest) = text.trim().split_once(' ')?;
        let (range, length) = rest.trim().split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let exact = |text: &str| number(text).filter(|number| *number < u64::MAX);
        let (first, last) = (exact(first)?, exact(last)?);
        let length = if length == "*" { None } else { Some(exact(length)?) };
        let is_valid = unit.eq_ignore_ascii_case("bytes")
            && first <= last
            && length.is_none_or(|length| last < length);
        is_valid.then_some(Self { bytes: first..last + 1, length })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> RangeHeader {
        RangeHeader::parse(text.as_bytes())
    }

    fn resolved(text: &str, length: u64) -> Result<Range<u64>, NotSatisfiable> {
        match parse(text) {
            RangeHeader::One(range) => range.resolve(length),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn the_three_forms_are_understood() {
        assert_eq!(resolved("bytes=0-0", 10), Ok(0..1));
        assert_eq!(resolved("bytes=2-5", 10), Ok(2..6));
        assert_eq!(resolved("bytes=2-", 10), Ok(2..10));
        assert_eq!(resolved("bytes=-3", 10), Ok(7..10));
        assert_eq!(resolved("Bytes = 2-5".replace(" = ", "=").as_str(), 10), Ok(2..6));
    }

    #[test]
    fn ranges_beyond_the_end_are_cut_or_refused() {
        assert_eq!(resolved("bytes=2-99", 10), Ok(2..10));
        assert_eq!(resolved("bytes=2-99999999999999999999999", 10), Ok(2..10));
        assert_eq!(resolved("bytes=-99", 10), Ok(0..10));
        let refused = Err(NotSatisfiable { length: 10 });
        assert_eq!(resolved("bytes=10-", 10), refused);
        assert_eq!(resolved("bytes=10-12", 10), refused);
        assert_eq!(resolved("bytes=99999999999999999999999-", 10), refused);
        assert_eq!(resolved("bytes=-0", 10), refused);
        assert_eq!(resolved("bytes=0-", 0), Err(NotSatisfiable { length: 0 }));
        assert_eq!(resolved("bytes=-5", 0), Ok(0..0));
    }

    #[test]
    fn malformed_headers_are_ignored_and_several_ranges_left_to_the_origin() {
        for text in
            ["bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=5-2", "bytes=+1-2", "lines=1-2", ""]
        {
            assert_eq!(parse(text), RangeHeader::Whole, "{text}");
        }
        for text in ["bytes=0-1,3-4", "bytes=0-1,", "bytes=,"] {
            assert_eq!(parse(text), RangeHeader::Unsupported, "{text}");
        }
        assert_eq!(parse(&format!("bytes=0-{}", "9".repeat(400))), RangeHeader::Unsupported);
        assert_eq!(RangeHeader::parse(&[0xff, 0xfe]), RangeHeader::Whole);
    }

    #[test]
    fn content_ranges_are_exact() {
        let parse = |text: &str| ContentRange::parse(text.as_bytes());
        assert_eq!(parse("bytes 2-5/10"), Some(ContentRange { bytes: 2..6, length: Some(10) }));
        assert_eq!(parse("bytes 2-5/*"), Some(ContentRange { bytes: 2..6, length: None }));
        for text in
            ["bytes */10", "bytes 5-2/10", "bytes 2-10/10", "2-5/10", "bytes 2-5", "lines 2-5/10"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_resolved_range_lies_in_the_object(
            first in 0..40_u64, last in 0..40_u64, form in 0..3, length in 0..32_u64,
        ) {
            let range = match form {
                0 if first <= last => ByteRange::Bounded { first, last },
                1 => ByteRange::From { first },
                _ => ByteRange::Suffix { length: first },
            };
            let named = |at: u64| match range {
                ByteRange::Bounded { first, last } => (first..=last).contains(&at),
                ByteRange::From { first } => at >= first,
                ByteRange::Suffix { length: suffix } => at + suffix >= length,
            };
            let bytes: Vec<_> = (0..length).filter(|at| named(*at)).collect();
            match range.resolve(length) {
                Ok(resolved) => prop_assert_eq!(resolved.collect::<Vec<_>>(), bytes),
                Err(_) => prop_assert!(bytes.is_empty()),
            }
        }

        #[test]
        fn any_bytes_are_parsed(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            RangeHeader::parse(&value);
            ContentRange::parse(&value);
        }
    }
}
