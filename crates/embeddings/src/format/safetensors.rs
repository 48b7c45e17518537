//! Decoder of `.safetensors` headers: a length, and a JSON object with the position of each tensor.
//!
//! The crate `safetensors` needs the whole file in memory or mapped; this decoder needs the header
//! only.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};

use super::{Dtype, FormatError, Layout};

/// Longest header, as defined by the format.
pub const SAFETENSORS_HEADER_MAX: u64 = 100_000_000;

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Type of its numbers, as written in the header.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its layout, if it is a table.
    pub table: Option<Layout>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Decodes the JSON header of a file of `file` bytes: what follows the first eight bytes, which are
/// its length.
pub fn safetensors(header: &[u8], file: u64) -> Result<Vec<Tensor>, FormatError> {
    let entries: Entries =
        serde_json::from_slice(header).map_err(|error| malformed(&error.to_string()))?;
    let data_at = 8 + header.len() as u64;
    let data = file
        .checked_sub(data_at)
        .ok_or(FormatError::Truncated { needed: u128::from(data_at), file })?;
    let mut ranges = Vec::with_capacity(entries.0.len());
    let mut tensors = Vec::with_capacity(entries.0.len());
    for (name, entry) in entries.0 {
        let Entry { dtype, shape, data_offsets: (start, end) } = entry;
        if start > end {
            return Err(malformed(&format!("`{name}` ends before it begins")));
        }
        ranges.push((start, end));
        if end > data {
            let needed = u128::from(data_at) + u128::from(end);
            return Err(FormatError::Truncated { needed, file });
        }
        let table = match (known(&dtype), &shape[..]) {
            (Some(known), &[rows, dimension]) => {
                let bytes = u128::from(rows) * u128::from(known.row_bytes(dimension));
                if bytes != u128::from(end - start) {
                    let problem = format!("`{name}` has {} bytes and needs {bytes}", end - start);
                    return Err(malformed(&problem));
                }
                Layout::new(known, rows, dimension, data_at + start, file).ok()
            }
            _ => None,
        };
        tensors.push(Tensor { name, dtype, shape, table });
    }
    // Tensors must not overlap: replacing rows of one would change the other.
    ranges.sort_unstable();
    let mut filled = ranges.iter().filter(|(start, end)| start < end);
    let end = filled.try_fold(
        0,
        |before, (start, end)| {
            if *start < before { Err(*start) } else { Ok(*end) }
        },
    );
    let end = end.map_err(|at| malformed(&format!("two tensors overlap at {at}")))?;
    if end < data {
        return Err(FormatError::Longer { extra: data - end });
    }
    Ok(tensors)
}

impl Tensor {
    /// Whether a table can have such numbers.
    pub(crate) fn is_of_known_dtype(&self) -> bool {
        known(&self.dtype).is_some()
    }
}

fn known(dtype: &str) -> Option<Dtype> {
    match dtype {
        "F32" => Some(Dtype::F32),
        "F64" => Some(Dtype::F64),
        "F16" => Some(Dtype::F16),
        "BF16" => Some(Dtype::Bf16),
        _ => None,
    }
}

fn malformed(problem: &str) -> FormatError {
    FormatError::Malformed { expected: "a .safetensors file", problem: problem.to_owned() }
}

/// The header's entries in order. A repeated name is rejected as ambiguous.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;

        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut seen = std::collections::BTreeSet::new();
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(serde::de::Error::custom(format!("two tensors `{name}`")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(header: &str, data: u64) -> Result<Vec<Tensor>, FormatError> {
        safetensors(header.as_bytes(), 8 + header.len() as u64 + data)
    }

    #[test]
    fn tables_are_found_among_other_tensors() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "emb.weight":{"dtype":"F16","shape":[3,2],"data_offsets":[8,20]},
            "bias":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},
            "ids":{"dtype":"I64","shape":[1,1],"data_offsets":[20,28]}}"#;
        let tensors = decode(header, 28).unwrap();
        let tables: Vec<_> = tensors.iter().filter_map(|tensor| tensor.table).collect();
        let offset = 8 + header.len() as u64 + 8;
        assert_eq!(tables, [Layout { dtype: Dtype::F16, rows: 3, dimension: 2, offset }]);
        assert_eq!(tensors.len(), 3, "other tensors are listed too");
    }

    #[test]
    fn a_header_that_does_not_match_its_file_is_rejected() {
        let table = |start: u64, end: u64| {
            format!(r#"{{"t":{{"dtype":"F32","shape":[2,3],"data_offsets":[{start},{end}]}}}}"#)
        };
        assert!(decode(&table(0, 24), 24).is_ok());
        let rejected = |header: &str, data| decode(header, data).unwrap_err().to_string();
        assert!(rejected(&table(0, 24), 23).contains("cut off"));
        assert!(rejected(&table(0, 24), 30).contains("6 bytes longer"));
        assert!(rejected(&table(0, 20), 20).contains("20 bytes and needs 24"));
        assert!(rejected(&table(24, 0), 24).contains("ends before"));
        assert!(rejected(&table(u64::MAX - 24, u64::MAX), 24).contains("cut off"));
        assert!(rejected("[1]", 0).contains("an object of tensors"));
        assert!(rejected("{", 0).contains("EOF"));
        let twice = r#"{"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},
            "t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
        assert!(rejected(twice, 0).contains("two tensors `t`"));
        let overlapping = r#"{"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
            "b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]}}"#;
        assert!(rejected(overlapping, 12).contains("two tensors overlap at 4"));
        let empty = r#"{"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
            "b":{"dtype":"F32","shape":[0,1],"data_offsets":[4,4]}}"#;
        assert!(decode(empty, 8).is_ok(), "an empty tensor overlaps nothing");
    }

    #[test]
    fn shapes_near_the_limits_of_integers_do_not_wrap() {
        let huge = u64::MAX;
        let header =
            format!(r#"{{"t":{{"dtype":"F64","shape":[{huge},{huge}],"data_offsets":[0,8]}}}}"#);
        assert!(decode(&header, 8).is_err());
    }
}
