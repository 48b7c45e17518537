//! Values of scenario files: sizes, rates, times and shares, each with a unit.

use std::{fmt, marker::PhantomData, time::Duration};

use forebay_core::{
    ByteSize,
    units::{ByteRate, parse_duration},
};
use serde::{Deserialize, Deserializer, de};

/// Longest time. A simulation of more than a year is a typing error.
const TIME_MAX: Duration = Duration::from_hours(366 * 24);

/// A value that is written as text.
pub(crate) trait FromText: Sized {
    /// Description of a valid value.
    const EXPECTED: &'static str;

    fn from_text(text: &str) -> Result<Self, String>;
}

/// A value that was parsed from text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text<T>(pub T);

impl<'de, T: FromText> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<T: FromText> de::Visitor<'_> for Visitor<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<T>, E> {
                T::from_text(text).map(Text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor(PhantomData))
    }
}

/// Units of sizes and rates, appended to an error about an unknown unit.
const UNITS: &str = "units are B, kB, MB, GB, TB and PB, or KiB to PiB, and fractions have a point";

fn with_units(error: &impl ToString) -> String {
    let error = error.to_string();
    if error.contains("unit is unknown") { format!("{error}; {UNITS}") } else { error }
}

impl FromText for ByteSize {
    const EXPECTED: &'static str = "a size with its unit, in quotes, such as \"15GB\"";

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse::<Self>().map_err(|error| with_units(&error))
    }
}

impl FromText for ByteRate {
    const EXPECTED: &'static str = "a rate with its unit, in quotes, such as \"100MB/s\"";

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse::<Self>().map_err(|error| with_units(&error))
    }
}

impl FromText for Duration {
    const EXPECTED: &'static str = "a time with its unit, in quotes, such as \"20ms\"";

    fn from_text(text: &str) -> Result<Self, String> {
        let time = parse_duration(text)?;
        if time > TIME_MAX {
            return Err(format!("`{text}` is more than a year; write a shorter time"));
        }
        Ok(time)
    }
}

/// Size of the cache: in bytes, or as a share of all datasets that are read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Capacity {
    Bytes(ByteSize),
    Share(f64),
}

impl FromText for Capacity {
    const EXPECTED: &'static str =
        "a size or a share of the datasets, in quotes, such as \"100GB\" or \"20%\"";

    fn from_text(text: &str) -> Result<Self, String> {
        if text.trim().ends_with('%') {
            return Share::from_text(text).map(|share| Self::Share(share.0));
        }
        ByteSize::from_text(text).map(Self::Bytes)
    }
}

/// A share, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share(pub f64);

impl FromText for Share {
    const EXPECTED: &'static str = "a share, in quotes, such as \"20%\"";

    fn from_text(text: &str) -> Result<Self, String> {
        let percent =
            text.trim().strip_suffix('%').and_then(|text| text.trim().parse::<f64>().ok());
        match percent {
            Some(percent) if (0.0..=100.0).contains(&percent) => Ok(Self(percent / 100.0)),
            _ => Err(format!("`{text}` is no share; write one from 0% to 100%")),
        }
    }
}
