//! Sizes, rates and durations, as types and as text.
//!
//! Configuration files and command lines write sizes with a decimal or a binary unit: "15GB" is not
//! 15 GiB. "64k" is refused as ambiguous. Each error shows what would be accepted.

use std::{fmt, iter::Sum, ops::Add, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes. Not called `Bytes`, which already names a buffer.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Decimal and binary units, each with its factor, in the order in which `Display` tries them.
const DECIMAL: [(&str, u64); 5] = [
    ("PB", 1_000_000_000_000_000),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
];
const BINARY: [(&str, u64); 5] =
    [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl ByteSize {
    /// Zero bytes.
    pub const ZERO: ByteSize = ByteSize(0);

    /// `count` KiB (1024 bytes).
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// `count` MiB (1024 KiB).
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// `count` GB (10^9 bytes).
    pub const fn gb(count: u64) -> Self {
        Self(count * 1_000_000_000)
    }
}

/// A text that is not a size or a rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}: {problem}; write a number and a unit, such as {example}")]
pub struct ByteSizeError {
    what: &'static str,
    text: String,
    problem: &'static str,
    example: &'static str,
}

impl ByteSizeError {
    fn size(text: &str, problem: &'static str) -> Self {
        Self { what: "size", text: text.to_owned(), problem, example: "15GB, 256KiB or 512B" }
    }

    fn rate(text: &str, problem: &'static str) -> Self {
        Self { what: "rate", text: text.to_owned(), problem, example: "100MB/s or 1GiB/s" }
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |problem| ByteSizeError::size(text, problem);
        let trimmed = text.trim();
        let digits_end = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits_end);
        let number = number.replace('_', "");
        let unit = unit.trim();
        if number.is_empty() {
            return Err(error("it does not start with a number"));
        }
        let factor = match unit.to_ascii_lowercase().as_str() {
            "b" => 1,
            "" if number == "0" => 1,
            "" => return Err(error("the unit is missing")),
            lower => *DECIMAL
                .iter()
                .chain(&BINARY)
                .find(|(name, _)| name.eq_ignore_ascii_case(lower))
                .map(|(_, factor)| factor)
                .ok_or_else(|| error("the unit is unknown"))?,
        };
        // Exact in integers: "0.1GB" must not become 99,999,999 bytes.
        let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
        if fraction.contains('.')
            || fraction.len() > 15
            || (whole.is_empty() && fraction.is_empty())
        {
            return Err(error("the number is malformed"));
        }
        let parse = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u64>() };
        let whole = parse(whole).map_err(|_| error("the number is too large"))?;
        let scale = 10_u128.pow(u32::try_from(fraction.len()).expect("at most 15 digits"));
        let fraction = parse(fraction).map_err(|_| error("the number is malformed"))?;
        let bytes = (u128::from(whole) * scale + u128::from(fraction)) * u128::from(factor) / scale;
        u64::try_from(bytes).map(ByteSize).map_err(|_| error("the number is too large"))
    }
}

/// Three significant figures; binary units where the value is a round binary number.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        // A small multiple of a binary unit was written as one; 19,531,250 KiB was written as 20
        // GB.
        let is_round =
            |factor: u64| bytes.is_multiple_of(factor) && (1..10_000).contains(&(bytes / factor));
        let text = if let Some((name, factor)) = BINARY.iter().find(|(_, factor)| is_round(*factor))
        {
            format!("{} {name}", bytes / factor)
        } else {
            self.rounded()
        };
        f.pad(&text)
    }
}

impl ByteSize {
    /// The size in decimal units, so that the figures of a column can be compared.
    pub fn rounded(self) -> String {
        let bytes = self.0;
        let Some((name, factor)) = DECIMAL.iter().find(|(_, factor)| bytes >= *factor) else {
            return format!("{bytes} B");
        };
        let value = bytes as f64 / *factor as f64;
        let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
        format!("{value:.decimals$} {name}")
    }
}

impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByteSize({})", self.0)
    }
}

impl Add for ByteSize {
    type Output = ByteSize;

    fn add(self, other: ByteSize) -> ByteSize {
        ByteSize(self.0 + other.0)
    }
}

impl Sum for ByteSize {
    fn sum<I: Iterator<Item = ByteSize>>(sizes: I) -> ByteSize {
        sizes.fold(ByteSize::ZERO, Add::add)
    }
}

/// A plain number of bytes.
impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// Text such as "15GB", or a plain number of bytes.
impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"15GB\" or a number of bytes")
            }

            fn visit_u64<E>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes)
                    .map(ByteSize)
                    .map_err(|_| E::custom("a size cannot be negative"))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Bytes per second, written "100MB/s".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRate(pub ByteSize);

impl FromStr for ByteRate {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |problem| ByteSizeError::rate(text, problem);
        let size = text.trim().strip_suffix("/s").ok_or_else(|| error("it does not end in /s"))?;
        let size = size.parse::<ByteSize>().map_err(|size| error(size.problem))?;
        if size == ByteSize::ZERO {
            return Err(error("the rate is zero"));
        }
        Ok(ByteRate(size))
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/s", self.0))
    }
}

/// Parses a duration such as "20ms", "1.5s" or "2min".
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let error = || format!("`{text}` is not a time; write a number and ms, s or min, such as 20ms");
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(error)?;
    let (number, unit) = text.split_at(unit_at);
    let number: f64 = number.parse().map_err(|_| error())?;
    let seconds = match unit.trim() {
        "ms" => number / 1e3,
        "s" => number,
        "min" => number * 60.0,
        _ => return Err(error()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| error())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn people_write_sizes_in_many_ways() {
        for (text, bytes) in [
            ("15GB", 15_000_000_000),
            ("256 KiB", 262_144),
            ("1.5MiB", 1_572_864),
            ("0.1GB", 100_000_000),
            (" 7 b ", 7),
            ("0", 0),
            ("1_000kB", 1_000_000),
            (".5kB", 500),
            ("16pib", 16 << 50),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn malformed_sizes_are_quoted_with_a_remedy() {
        for text in ["", "GB", "15", "15 apples", "1.2.3MB", "-1MB", "99999999PB", "1e9B", "."] {
            let error = text.parse::<ByteSize>().expect_err(text).to_string();
            assert!(
                error.contains(&format!("`{text}`")) && error.contains("such as 15GB"),
                "{error}"
            );
        }
        assert!("100MB".parse::<ByteRate>().is_err());
        assert!("0B/s".parse::<ByteRate>().is_err());
        assert_eq!("100MB/s".parse(), Ok(ByteRate(ByteSize(100_000_000))));
    }

    #[test]
    fn sizes_print_short_and_round_numbers_stay_round() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1024, "1 KiB"),
            (1025, "1.02 kB"),
            (15_000_000_000, "15.0 GB"),
            (64 << 20, "64 MiB"),
            (153_600_000_123, "154 GB"),
            (20_000_000_000, "20.0 GB"),
            (300 << 30, "300 GiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn printed_sizes_parse_back_within_rounding(bytes in 0_u64..1 << 60) {
            let parsed: ByteSize = ByteSize(bytes).to_string().parse().unwrap();
            let error = parsed.0.abs_diff(bytes) as f64;
            prop_assert!(error <= bytes as f64 * 0.006, "{bytes} became {parsed:?}");
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,24}") {
            let _ = text.parse::<ByteSize>();
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2 min"), Ok(Duration::from_mins(2)));
        for bad in ["", "20", "ms", "1h", "-1s", "99999999999999999999999min"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
