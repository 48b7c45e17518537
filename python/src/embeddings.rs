//! Embedding tables for Python: keys come as arrays, and rows are written to arrays.

use std::{collections::BTreeMap, path::PathBuf};

use forebay_core::{ByteSize, embeddings::PolicyKind};
use forebay_embeddings::{
    Bags, Io, Options, Pooling, RawRows, Source, Tables as NativeTables,
    format::{Dtype, Layout},
};
use numpy::{
    PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray1, PyReadwriteArray2,
    PyUntypedArrayMethods as _,
};
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::errors::TableError;

/// Path, tensor, and for bare rows dtype, dimension and offset.
type SourceArgument = (PathBuf, Option<String>, Option<(String, u64, u64)>);

/// Keys; offsets, or `None` and the number and length of bags; whether the last offset is the end;
/// padding key.
#[derive(FromPyObject)]
pub struct BagsArgument<'py>(
    PyReadonlyArray1<'py, i64>,
    Option<PyReadonlyArray1<'py, i64>>,
    (usize, usize),
    bool,
    Option<i64>,
);

/// Embedding tables larger than memory.
#[pyclass(frozen, module = "forebay._native")]
pub struct Tables {
    tables: NativeTables,
}

#[pymethods]
impl Tables {
    #[new]
    fn new(
        py: Python<'_>,
        sources: Vec<SourceArgument>,
        memory: &str,
        policy: &str,
        io: &str,
    ) -> PyResult<Self> {
        let io = match io {
            "auto" => Io::Auto,
            "io_uring" => Io::Uring,
            "pread" => Io::Pread,
            other => {
                let text = format!("io is `{other}`; choose auto, io_uring or pread");
                return Err(PyValueError::new_err(text));
            }
        };
        let options = Options {
            policy: policy.parse::<PolicyKind>().map_err(|error| value_error(&error))?,
            io,
            ..Options::new(memory.parse::<ByteSize>().map_err(|error| value_error(&error))?)
        };
        let sources = sources.into_iter().map(source).collect::<PyResult<Vec<_>>>()?;
        let tables = py.detach(|| NativeTables::open(&sources, &options));
        tables.map(|tables| Self { tables }).map_err(|error| table_error(&error))
    }

    /// Dtype of the answers, rows and dimension of each table. Quantised rows are answered as
    /// float32.
    fn shapes(&self) -> Vec<(&'static str, u64, u32)> {
        let shape = |layout: &Layout| {
            let dtype = if layout.dtype.quantised().is_some() { Dtype::F32 } else { layout.dtype };
            (dtype.name(), layout.rows, layout.dimension)
        };
        self.tables.layouts().iter().map(shape).collect()
    }

    /// Whether missing rows are read with `io_uring`, and whether reads bypass the page cache.
    fn reads(&self) -> (bool, bool) {
        (self.tables.uses_ring(), self.tables.is_direct())
    }

    /// Pools the bags of every table into the rows of `out`, table by table.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn lookup(
        &self,
        py: Python<'_>,
        bags: Vec<BagsArgument<'_>>,
        mode: &str,
        mut out: PyReadwriteArray1<'_, f32>,
    ) -> PyResult<()> {
        let pooling = pooling(mode)?;
        let bags = bags.iter().map(to_bags).collect::<PyResult<Vec<_>>>()?;
        let out = out.as_slice_mut()?;
        let result = py.detach(|| self.tables.lookup(&bags, pooling, out));
        result.map_err(|error| table_error(&error))
    }

    /// Pools the bags of a single table into the rows of `out`.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    #[expect(clippy::too_many_arguments, reason = "a tuple takes longer to cross from Python")]
    fn lookup_bags(
        &self,
        py: Python<'_>,
        keys: PyReadonlyArray1<'_, i64>,
        offsets: PyReadonlyArray1<'_, i64>,
        last: bool,
        padding: Option<i64>,
        mode: &str,
        mut out: PyReadwriteArray2<'_, f32>,
    ) -> PyResult<()> {
        let (keys, offsets) = (keys.as_slice()?, offsets.as_slice()?);
        let bags =
            if last { Bags::from_bounds(keys, offsets) } else { Bags::from_starts(keys, offsets) };
        let (bags, pooling) = ([bags.padded_with(padding)], pooling(mode)?);
        let out = out.as_slice_mut()?;
        let result = py.detach(|| self.tables.lookup(&bags, pooling, out));
        result.map_err(|error| table_error(&error))
    }

    /// Writes the rows of one key per table and sample to `out`, table by table. Each row of `keys`
    /// has the keys of one table.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn lookup_single(
        &self,
        py: Python<'_>,
        keys: PyReadonlyArray2<'_, i64>,
        paddings: Vec<Option<i64>>,
        mut out: PyReadwriteArray1<'_, f32>,
    ) -> PyResult<()> {
        let samples = keys.shape()[1];
        let keys = keys.as_slice()?;
        let bags: Vec<Bags<'_>> = paddings
            .iter()
            .enumerate()
            .map(|(table, padding)| {
                let keys = keys.get(table * samples..(table + 1) * samples).unwrap_or_default();
                Bags::single(keys).padded_with(*padding)
            })
            .collect();
        let out = out.as_slice_mut()?;
        // Sum, mean and maximum of one row are the row, except that a sum makes -0 a 0.
        let result = py.detach(|| self.tables.lookup(&bags, Pooling::Sum, out));
        result.map_err(|error| table_error(&error))
    }

    /// Writes the bytes of the rows of all keys to `out`.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn gather(
        &self,
        py: Python<'_>,
        bags: Vec<BagsArgument<'_>>,
        mut out: PyReadwriteArray1<'_, u8>,
    ) -> PyResult<()> {
        let bags = bags.iter().map(to_bags).collect::<PyResult<Vec<_>>>()?;
        let out = out.as_slice_mut()?;
        py.detach(|| self.tables.gather(&bags, out)).map_err(|error| table_error(&error))
    }

    /// Brings the rows of these keys, and of keys that they imply, into memory. Returns the number
    /// of rows read.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn prefetch(
        &self,
        py: Python<'_>,
        known: Vec<(usize, PyReadonlyArray1<'_, i64>)>,
    ) -> PyResult<u64> {
        let known = known.iter().map(|(table, keys)| Ok((*table, keys.as_slice()?)));
        let known = known.collect::<PyResult<Vec<_>>>()?;
        py.detach(|| self.tables.prefetch(&known)).map_err(|error| table_error(&error))
    }

    /// The learned implications: from, to, confidence.
    fn bundles(&self) -> Vec<(u16, u16, f64)> {
        let learned = self.tables.implications().into_iter();
        learned.map(|one| (one.from.0, one.to.0, one.confidence)).collect()
    }

    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn replace_rows(
        &self,
        py: Python<'_>,
        table: usize,
        first: u64,
        rows: PyReadonlyArray1<'_, u8>,
    ) -> PyResult<()> {
        let rows = rows.as_slice()?;
        let result = py.detach(|| self.tables.replace_rows(table, first, rows));
        result.map_err(|error| table_error(&error))
    }

    fn replace_table(&self, py: Python<'_>, table: usize, by: SourceArgument) -> PyResult<()> {
        let by = source(by)?;
        py.detach(|| self.tables.replace_table(table, &by)).map_err(|error| table_error(&error))
    }

    /// Counters, and what is in memory.
    fn stats(&self) -> BTreeMap<&'static str, u64> {
        let stats = self.tables.stats();
        BTreeMap::from([
            ("lookups", stats.lookups),
            ("samples", stats.samples),
            ("perfect", stats.perfect),
            ("keys", stats.keys),
            ("hits", stats.hits),
            ("rows_read", stats.rows_read),
            ("reads", stats.reads),
            ("bytes_read", stats.bytes_read),
            ("rows_prefetched", stats.rows_prefetched),
            ("rows_replaced", stats.rows_replaced),
            ("resident_rows", stats.resident_rows),
            ("resident_bytes", stats.resident_bytes),
            ("directory_bytes", stats.directory_bytes),
            ("ghost_bytes", stats.ghost_bytes),
            ("tuning_bytes", stats.tuning_bytes),
            ("buffer_bytes", stats.buffer_bytes),
            ("memory_bytes", stats.memory_bytes),
            ("pinned_tables", stats.pinned_tables),
        ])
    }
}

fn pooling(mode: &str) -> PyResult<Pooling> {
    match mode {
        "sum" => Ok(Pooling::Sum),
        "mean" => Ok(Pooling::Mean),
        "max" => Ok(Pooling::Max),
        _ => Err(PyValueError::new_err("mode has to be one of sum, mean or max")),
    }
}

fn to_bags<'a>(argument: &'a BagsArgument<'_>) -> PyResult<Bags<'a>> {
    let BagsArgument(keys, offsets, (count, length), last, padding) = argument;
    let keys = keys.as_slice()?;
    let bags = match offsets {
        None => Bags::even(keys, *count, *length),
        Some(offsets) if *last => Bags::from_bounds(keys, offsets.as_slice()?),
        Some(offsets) => Bags::from_starts(keys, offsets.as_slice()?),
    };
    Ok(bags.padded_with(*padding))
}

fn source((path, tensor, raw): SourceArgument) -> PyResult<Source> {
    let raw = raw.map(|(dtype, dimension, offset)| {
        let dtype: Dtype = dtype.parse().map_err(|error| value_error(&error))?;
        PyResult::Ok(RawRows { dtype, dimension, offset })
    });
    Ok(Source { path, tensor, raw: raw.transpose()? })
}

/// Error of an invalid argument.
fn value_error(error: &dyn std::error::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Error of a table or a key.
fn table_error(error: &dyn std::error::Error) -> PyErr {
    TableError::new_err(error.to_string())
}
