//! Model: tables written in every format, and the expected results of their lookups.

use std::{fs, path::Path};

use forebay_embeddings::{Bags, Pooling, Source, format::Dtype};

/// A table that was written to a file.
pub struct Written {
    pub source: Source,
    pub dtype: Dtype,
    pub dimension: usize,
    /// The bytes of its rows.
    pub rows: Vec<Vec<u8>>,
}

impl Written {
    /// A table of random numbers, with some NaN, infinities and -0, in a random format.
    pub fn random(random: &mut fastrand::Rng, directory: &Path, name: &str, dtype: Dtype) -> Self {
        let dimension = random.usize(1..40);
        let row = |random: &mut fastrand::Rng| {
            let number = |random: &mut fastrand::Rng| match (dtype, random.u8(0..20)) {
                (Dtype::F32, 0) => f32::NAN.to_le_bytes().to_vec(),
                (Dtype::F32, 1) => f32::INFINITY.to_le_bytes().to_vec(),
                (Dtype::F32, 2) => (-0.0_f32).to_le_bytes().to_vec(),
                (Dtype::F32, _) => (random.f32() - 0.5).to_le_bytes().to_vec(),
                _ => (0..dtype.row_bytes(1)).map(|_| random.u8(..)).collect(),
            };
            (0..dimension).flat_map(|_| number(random)).collect::<Vec<u8>>()
        };
        let count = random.usize(1..400);
        let rows: Vec<Vec<u8>> = (0..count).map(|_| row(random)).collect();
        let path = directory.join(name);
        let source = match random.u8(0..3) {
            0 if dtype != Dtype::Bf16 => {
                fs::write(&path, npy(dtype, dimension, &rows)).unwrap();
                Source::file(path)
            }
            1 => {
                let other = vec![vec![9; 2]; random.usize(0..50)];
                let tensors = [("other", Dtype::F16, 1, &other), ("rows", dtype, dimension, &rows)];
                fs::write(&path, safetensors(&tensors)).unwrap();
                Source::file(path).tensor("rows")
            }
            _ => {
                fs::write(&path, rows.concat()).unwrap();
                Source::file(path).raw(dtype, dimension as u64)
            }
        };
        Self { source, dtype, dimension, rows }
    }

    /// The numbers of a row.
    pub fn numbers(&self, row: usize) -> Vec<f32> {
        let chunks = self.rows[row].chunks_exact(4);
        chunks.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }
}

pub fn npy(dtype: Dtype, dimension: usize, rows: &[Vec<u8>]) -> Vec<u8> {
    let descr = match dtype {
        Dtype::F32 => "<f4",
        Dtype::F64 => "<f8",
        Dtype::F16 => "<f2",
        other => panic!("NumPy has no {other}"),
    };
    let header = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}, {dimension}), }}",
        rows.len()
    );
    let header = format!("{header:<117}\n");
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), &rows.concat()].concat()
}

pub fn safetensors(tensors: &[(&str, Dtype, usize, &Vec<Vec<u8>>)]) -> Vec<u8> {
    let mut at = 0;
    let entries = tensors.iter().map(|(name, dtype, dimension, rows)| {
        let word = match dtype {
            Dtype::F32 => "F32",
            Dtype::F64 => "F64",
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            other => panic!("no tensor is of {other}"),
        };
        let start = at;
        at += rows.iter().map(Vec::len).sum::<usize>();
        let shape = format!("[{},{dimension}]", rows.len());
        format!(r#""{name}":{{"dtype":"{word}","shape":{shape},"data_offsets":[{start},{at}]}}"#)
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let data = tensors.iter().flat_map(|(_, _, _, rows)| rows.concat());
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// Bags of one table, owned by the test.
pub struct OwnedBags {
    pub keys: Vec<i64>,
    pub offsets: Vec<i64>,
    pub padding: Option<i64>,
}

impl OwnedBags {
    /// Bags of 0 to 4 skewed keys, possibly repeated; or of one key each.
    pub fn random(random: &mut fastrand::Rng, rows: usize, samples: usize) -> Self {
        let single = random.bool();
        let (mut keys, mut offsets) = (Vec::new(), vec![0]);
        for _ in 0..samples {
            let length = if single { 1 } else { random.usize(0..5) };
            #[expect(clippy::cast_possible_truncation, reason = "a row of a small table")]
            keys.extend((0..length).map(|_| (random.f64().powi(3) * rows as f64) as i64));
            offsets.push(i64::try_from(keys.len()).unwrap());
        }
        let padding = random.bool().then(|| random.i64(0..i64::try_from(rows).unwrap()));
        Self { keys, offsets, padding }
    }

    pub fn bags(&self) -> Bags<'_> {
        Bags::from_bounds(&self.keys, &self.offsets).padded_with(self.padding)
    }

    /// The rows of a sample.
    pub fn rows(&self, sample: usize) -> impl Iterator<Item = usize> + '_ {
        let bag = usize::try_from(self.offsets[sample]).unwrap()
            ..usize::try_from(self.offsets[sample + 1]).unwrap();
        let keys = self.keys[bag].iter().filter(|key| Some(**key) != self.padding);
        keys.map(|key| usize::try_from(*key).unwrap())
    }
}

/// The pooled row of a bag of these rows, computed in the simplest way.
pub fn pooled(table: &Written, rows: impl Iterator<Item = usize>, pooling: Pooling) -> Vec<f32> {
    let rows: Vec<Vec<f32>> = rows.map(|row| table.numbers(row)).collect();
    (0..table.dimension)
        .map(|column| {
            let mut numbers = rows.iter().map(|row| row[column]);
            match pooling {
                Pooling::Sum => numbers.fold(0.0, |sum, number| sum + number),
                Pooling::Mean => {
                    numbers.fold(0.0, |sum, number| sum + number) / rows.len().max(1) as f32
                }
                Pooling::Max => numbers
                    .next()
                    .map_or(0.0, |first| numbers.fold(first, |a, b| if b > a { b } else { a })),
            }
        })
        .collect()
}
