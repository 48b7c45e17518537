//! Embedding tables, as Python sees them: arrays in, arrays filled.

use std::{collections::BTreeMap, path::PathBuf};

use forebay_core::{ByteSize, embedding::PolicyKind};
use forebay_embed::{Bags, Io, Options, Pooling, RawRows, Source, Tables as Opened, format::Dtype};
use numpy::{
    PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray1, PyReadwriteArray2,
    PyUntypedArrayMethods as _,
};
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::errors::TableError;

/// Path, tensor, and for bare rows their dtype, dimension and offset.
type SourceArgument = (PathBuf, Option<String>, Option<(String, u64, u64)>);

/// Keys; offsets, or else so many bags of one length; whether the last offset is the end; padding.
#[derive(FromPyObject)]
pub struct BagsArgument<'py>(
    PyReadonlyArray1<'py, i64>,
    Option<PyReadonlyArray1<'py, i64>>,
    (usize, usize),
    bool,
    Option<i64>,
);

/// Tables larger than memory, looked up as if they were in it.
#[pyclass(frozen, module = "forebay._native")]
pub struct Tables {
    opened: Opened,
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
                let text = format!("io is `{other}`; it is auto, io_uring or pread");
                return Err(PyValueError::new_err(text));
            }
        };
        let options = Options {
            policy: policy.parse::<PolicyKind>().map_err(|error| wrong(&error))?,
            io,
            ..Options::new(memory.parse::<ByteSize>().map_err(|error| wrong(&error))?)
        };
        let sources = sources.into_iter().map(source).collect::<PyResult<Vec<_>>>()?;
        let opened = py.detach(|| Opened::open(&sources, &options));
        opened.map(|opened| Self { opened }).map_err(|error| unusable(&error))
    }

    /// Of each table its dtype, rows and dimension.
    fn shapes(&self) -> Vec<(&'static str, u64, u32)> {
        let layouts = self.opened.layouts().iter();
        layouts.map(|layout| (layout.dtype.name(), layout.rows, layout.dimension)).collect()
    }

    /// Whether missing rows are read by `io_uring`, and whether past the page cache.
    fn reads(&self) -> (bool, bool) {
        (self.opened.uses_ring(), self.opened.is_direct())
    }

    /// Pools the bags of every table into the rows of `out`, table after table.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn lookup(
        &self,
        py: Python<'_>,
        bags: Vec<BagsArgument<'_>>,
        mode: &str,
        mut out: PyReadwriteArray1<'_, f32>,
    ) -> PyResult<()> {
        let pooling = pooling(mode)?;
        let bags = bags.iter().map(cut).collect::<PyResult<Vec<_>>>()?;
        let out = out.as_slice_mut()?;
        let done = py.detach(|| self.opened.lookup(&bags, pooling, out));
        done.map_err(|error| unusable(&error))
    }

    /// Pools the bags of the only table into the rows of `out`.
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
        let done = py.detach(|| self.opened.lookup(&bags, pooling, out));
        done.map_err(|error| unusable(&error))
    }

    /// Puts the rows of one key per table and sample into `out`, table after table; a row of `keys` is a table's.
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
        // Of one row, sum, mean and maximum are the row; the sum says what becomes of -0.
        let done = py.detach(|| self.opened.lookup(&bags, Pooling::Sum, out));
        done.map_err(|error| unusable(&error))
    }

    /// Puts the rows of all keys into `out`, as bytes.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn gather(
        &self,
        py: Python<'_>,
        bags: Vec<BagsArgument<'_>>,
        mut out: PyReadwriteArray1<'_, u8>,
    ) -> PyResult<()> {
        let bags = bags.iter().map(cut).collect::<PyResult<Vec<_>>>()?;
        let out = out.as_slice_mut()?;
        py.detach(|| self.opened.gather(&bags, out)).map_err(|error| unusable(&error))
    }

    /// Brings the rows of these keys, and of those that they imply, into memory. Returns how many were read.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn prefetch(
        &self,
        py: Python<'_>,
        known: Vec<(usize, PyReadonlyArray1<'_, i64>)>,
    ) -> PyResult<u64> {
        let known = known.iter().map(|(table, keys)| Ok((*table, keys.as_slice()?)));
        let known = known.collect::<PyResult<Vec<_>>>()?;
        py.detach(|| self.opened.prefetch(&known)).map_err(|error| unusable(&error))
    }

    /// Tables whose keys determine others': from, to, confidence.
    fn bundles(&self) -> Vec<(u16, u16, f64)> {
        let learned = self.opened.implications().into_iter();
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
        let done = py.detach(|| self.opened.replace_rows(table, first, rows));
        done.map_err(|error| unusable(&error))
    }

    fn replace_table(&self, py: Python<'_>, table: usize, by: SourceArgument) -> PyResult<()> {
        let by = source(by)?;
        py.detach(|| self.opened.replace_table(table, &by)).map_err(|error| unusable(&error))
    }

    /// What has been counted.
    fn stats(&self) -> BTreeMap<&'static str, u64> {
        let stats = self.opened.stats();
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
            ("memory_bytes", stats.memory_bytes),
            ("whole_tables", stats.whole_tables),
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

fn cut<'a>(argument: &'a BagsArgument<'_>) -> PyResult<Bags<'a>> {
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
        let dtype: Dtype = dtype.parse().map_err(|error| wrong(&error))?;
        PyResult::Ok(RawRows { dtype, dimension, offset })
    });
    Ok(Source { path, tensor, raw: raw.transpose()? })
}

/// An argument that makes no sense.
fn wrong(error: &dyn std::error::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// A table or a key that cannot be used.
fn unusable(error: &dyn std::error::Error) -> PyErr {
    TableError::new_err(error.to_string())
}
