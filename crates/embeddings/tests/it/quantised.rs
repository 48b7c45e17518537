//! Quantised tables: written by `quantize`, served as they are, and equal to their decoded rows.

use std::fs;

use forebay_core::ByteSize;
use forebay_embeddings::{
    Bags, Io, Options, Pooling, QuantizeError, ReplaceError, Source, Tables,
    codes::{Code, RangeChoice},
    format::Dtype,
    quantize,
};

use crate::{model::npy, open};

const CODES: [(Code, Dtype); 4] = [
    (Code::I8, Dtype::I8),
    (Code::I4, Dtype::I4),
    (Code::I8Tbe, Dtype::I8Tbe),
    (Code::I4Tbe, Dtype::I4Tbe),
];

fn bytes(row: &[f32]) -> Vec<u8> {
    row.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Rows of a table of which few fit into the least memory.
const ROWS: usize = 12_000;

/// Every answer is the pooled decoded rows, bit for bit, with few rows in memory and with all.
#[test]
fn a_quantised_table_is_served_from_its_file() {
    let mut random = fastrand::Rng::with_seed(1);
    let directory = tempfile::tempdir().unwrap();
    for dimension in [1_usize, 7, 36] {
        let rows: Vec<Vec<f32>> =
            (0..ROWS).map(|_| (0..dimension).map(|_| random.f32() - 0.5).collect()).collect();
        let exact = directory.path().join("exact.npy");
        let coded: Vec<Vec<u8>> = rows.iter().map(|row| bytes(row)).collect();
        fs::write(&exact, npy(Dtype::F32, dimension, &coded)).unwrap();
        for (code, dtype) in CODES {
            let path = directory.path().join(code.name());
            let result = quantize(&Source::file(&exact), &path, code, RangeChoice::Searched);
            let result = result.unwrap();
            assert_eq!((result.rows, result.dimension as usize), (ROWS as u64, dimension));
            assert!(f64::from(result.max_error) >= result.mean_error && result.max_error < 0.2);
            let decoded: Vec<Vec<f32>> = fs::read(&path)
                .unwrap()
                .chunks_exact(usize::try_from(result.row_bytes).unwrap())
                .map(|bytes| {
                    let mut row = vec![0.0; dimension];
                    code.decode(bytes, &mut row);
                    row
                })
                .collect();
            let source = Source::file(&path).raw(dtype, dimension as u64);
            for (memory, io) in [(0, Io::Pread), (1000, Io::Auto), (4 << 20, Io::Auto)] {
                let options = Options { io, ..Options::new(ByteSize::ZERO) };
                let tables = open(std::slice::from_ref(&source), options, memory);
                for _ in 0..20 {
                    let keys: Vec<i64> = (0..12).map(|_| random.i64(0..300)).collect();
                    let starts = [0, 1, 1, 5];
                    let bags = [Bags::from_starts(&keys, &starts)];
                    for pooling in [Pooling::Sum, Pooling::Mean, Pooling::Max] {
                        let mut out = vec![f32::NAN; 4 * dimension];
                        tables.lookup(&bags, pooling, &mut out).unwrap();
                        let ends = [1, 1, 5, 12];
                        for (bag, (start, end)) in starts.into_iter().zip(ends).enumerate() {
                            let keys = &keys[usize::try_from(start).unwrap()..end];
                            let expected = pooled(&decoded, keys, pooling, dimension);
                            let found = &out[bag * dimension..][..dimension];
                            assert_eq!(found, expected, "{code}, {pooling:?}, {keys:?}");
                        }
                    }
                    let mut out = vec![0; keys.len() * dimension * 4];
                    tables.gather(&bags, &mut out).unwrap();
                    let expected: Vec<u8> =
                        keys.iter().flat_map(|key| bytes(&decoded[row_of(*key)])).collect();
                    assert_eq!(out, expected);
                }
            }
        }
    }
}

fn row_of(key: i64) -> usize {
    usize::try_from(key).expect("keys are not negative")
}

fn pooled(rows: &[Vec<f32>], keys: &[i64], pooling: Pooling, dimension: usize) -> Vec<f32> {
    let mut out = vec![0.0_f32; dimension];
    for (index, key) in keys.iter().enumerate() {
        for (out, number) in out.iter_mut().zip(&rows[row_of(*key)]) {
            *out = match pooling {
                Pooling::Max if index == 0 => *number,
                Pooling::Max => out.max(*number),
                Pooling::Sum | Pooling::Mean => *out + number,
            };
        }
    }
    if pooling == Pooling::Mean && keys.len() > 1 {
        for sum in &mut out {
            *sum /= keys.len() as f32;
        }
    }
    out
}

#[test]
fn rows_that_cannot_be_quantised_are_named_and_no_file_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let exact = directory.path().join("exact");
    let out = directory.path().join("out");
    let row = [0.1_f32, 0.2, 0.3];
    let bad = [0.1, f32::NAN, 0.3];
    fs::write(&exact, [bytes(&row), bytes(&row), bytes(&bad)].concat()).unwrap();
    let source = Source::file(&exact).raw(Dtype::F32, 3);
    let error = quantize(&source, &out, Code::I4, RangeChoice::Full).unwrap_err();
    assert!(error.to_string().starts_with("row 2 of"), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "only the table is there");
    let itself = quantize(&source, &exact, Code::I4, RangeChoice::Full);
    assert!(matches!(itself, Err(QuantizeError::Same { .. })));
    fs::write(&exact, [0; 8]).unwrap();
    let wide = Source::file(&exact).raw(Dtype::F64, 1);
    let wide = quantize(&wide, &out, Code::I4, RangeChoice::Full).unwrap_err().to_string();
    assert!(wide.contains("is of float64; quantize a table of float32"), "{wide}");
}

#[test]
fn truncated_and_foreign_quantised_tables_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("coded");
    fs::write(&path, vec![0; 22 * 5 - 1]).unwrap();
    let open = |dtype, dimension| {
        let source = Source::file(&path).raw(dtype, dimension);
        Tables::open(&[source], &Options::new(ByteSize::mib(1)))
    };
    let error = open(Dtype::I4, 36).unwrap_err().to_string();
    assert!(error.contains("no multiple of a row's 22; check dtype and dimension"), "{error}");
    assert!(open(Dtype::I8, 0).is_err(), "a row has numbers");
    fs::write(&path, vec![0; 22 * 5]).unwrap();
    let tables = open(Dtype::I4, 36).unwrap();
    let replaced = tables.replace_rows(0, 0, &[0; 22]);
    assert!(matches!(replaced, Err(ReplaceError::Quantised { table: 0, .. })));
}
