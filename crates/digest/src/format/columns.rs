//! The user's columns: labels, sequence lengths and other values stored with each item.

use std::sync::Arc;

use arrow_array::{
    ArrayRef,
    builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder},
};
use arrow_schema::DataType;

use super::DigestError;

/// Type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnType {
    /// `true` or `false`.
    Bool,
    /// 64-bit integers.
    Int,
    /// 64-bit floating-point numbers.
    Float,
    /// UTF-8 text.
    Text,
}

/// One value of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// No value for this item.
    Missing,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(&'a str),
}

impl ColumnType {
    pub(crate) fn data_type(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int => DataType::Int64,
            Self::Float => DataType::Float64,
            Self::Text => DataType::Utf8,
        }
    }

    pub(crate) fn from_data_type(data_type: &DataType) -> Option<Self> {
        [Self::Bool, Self::Int, Self::Float, Self::Text]
            .into_iter()
            .find(|kind| kind.data_type() == *data_type)
    }

    /// Number of buffers of such a column in a record batch: validity, offsets of text, values.
    pub(crate) fn buffers(self) -> usize {
        match self {
            Self::Bool | Self::Int | Self::Float => 2,
            Self::Text => 3,
        }
    }

    /// Parses a user's text as this type. An empty text is a missing value.
    pub fn parse(self, text: &str) -> Option<Value<'_>> {
        if text.is_empty() {
            return Some(Value::Missing);
        }
        match self {
            Self::Bool => match text {
                "true" | "True" => Some(Value::Bool(true)),
                "false" | "False" => Some(Value::Bool(false)),
                _ => None,
            },
            // Only numbers that print back as the same text: 007 is a name.
            Self::Int => {
                text.parse().ok().filter(|value: &i64| value.to_string() == text).map(Value::Int)
            }
            Self::Float => {
                let digits = text.trim_start_matches(['-', '+']);
                let whole = digits.bytes().all(|byte| byte.is_ascii_digit());
                let padded =
                    digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0.");
                if padded || whole && Self::Int.parse(text).is_none() {
                    return None;
                }
                text.parse().ok().filter(|value: &f64| value.is_finite()).map(Value::Float)
            }
            Self::Text => Some(Value::Text(text)),
        }
    }
}

/// The narrowest type that fits every text seen so far.
#[derive(Debug, Clone, Copy)]
pub struct ColumnGuess {
    fits: [bool; 3],
}

impl Default for ColumnGuess {
    fn default() -> Self {
        Self { fits: [true; 3] }
    }
}

impl ColumnGuess {
    const NARROW: [ColumnType; 3] = [ColumnType::Bool, ColumnType::Int, ColumnType::Float];

    /// Adds a value of the column.
    pub fn see(&mut self, text: &str) {
        for (fits, kind) in self.fits.iter_mut().zip(Self::NARROW) {
            *fits = *fits && kind.parse(text).is_some();
        }
    }

    /// The type to use.
    pub fn kind(self) -> ColumnType {
        let narrow = self.fits.iter().zip(Self::NARROW).find(|(fits, _)| **fits);
        narrow.map_or(ColumnType::Text, |(_, kind)| kind)
    }
}

/// Collects one column of a record batch.
pub(crate) enum ColumnBuilder {
    Bool(BooleanBuilder),
    Int(Int64Builder),
    Float(Float64Builder),
    Text(StringBuilder),
}

impl ColumnBuilder {
    pub fn new(kind: ColumnType) -> Self {
        match kind {
            ColumnType::Bool => Self::Bool(BooleanBuilder::new()),
            ColumnType::Int => Self::Int(Int64Builder::new()),
            ColumnType::Float => Self::Float(Float64Builder::new()),
            ColumnType::Text => Self::Text(StringBuilder::new()),
        }
    }

    pub fn push(&mut self, value: Value<'_>) -> Result<(), DigestError> {
        match (self, value) {
            (Self::Bool(builder), Value::Missing) => builder.append_null(),
            (Self::Int(builder), Value::Missing) => builder.append_null(),
            (Self::Float(builder), Value::Missing) => builder.append_null(),
            (Self::Text(builder), Value::Missing) => builder.append_null(),
            (Self::Bool(builder), Value::Bool(value)) => builder.append_value(value),
            (Self::Int(builder), Value::Int(value)) => builder.append_value(value),
            (Self::Float(builder), Value::Float(value)) => builder.append_value(value),
            (Self::Text(builder), Value::Text(value)) => builder.append_value(value),
            (_, value) => {
                return Err(DigestError::Unwritable(format!(
                    "{value:?} in a column of another type"
                )));
            }
        }
        Ok(())
    }

    pub fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Bool(builder) => Arc::new(builder.finish()),
            Self::Int(builder) => Arc::new(builder.finish()),
            Self::Float(builder) => Arc::new(builder.finish()),
            Self::Text(builder) => Arc::new(builder.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_type_that_fits_is_taken() {
        let narrowest = |texts: &[&str]| {
            let mut guess = ColumnGuess::default();
            for text in texts {
                guess.see(text);
            }
            guess.kind()
        };
        assert_eq!(narrowest(&["1", "", "-7"]), ColumnType::Int);
        assert_eq!(narrowest(&["1", "2.5"]), ColumnType::Float);
        assert_eq!(narrowest(&["true", "False"]), ColumnType::Bool);
        assert_eq!(narrowest(&["1", "cat"]), ColumnType::Text);
        assert_eq!(narrowest(&["true", "1"]), ColumnType::Text);
        for lossy in ["007", "18446744073709551615", "nan", "inf", "00.5", "+1"] {
            assert_eq!(narrowest(&[lossy, "1"]), ColumnType::Text, "{lossy}");
        }
    }
}
