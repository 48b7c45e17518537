//! A digest, as Python sees it.

use std::path::PathBuf;

use arrow_array::{Array, BooleanArray, Float64Array, Int64Array, StringArray};
use forebay_core::{ItemOrdinal, digest};
use pyo3::{
    exceptions::{PyIndexError, PyKeyError},
    prelude::*,
    types::PyList,
};

use crate::errors::{DigestError, digest_error};

/// A digest file, mapped and checked.
#[pyclass(frozen, module = "forebay._native")]
pub struct Digest {
    pub digest: digest::Digest,
}

#[pymethods]
impl Digest {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let file =
            py.detach(|| forebay_digest::open(&path)).map_err(|error| digest_error(&error))?;
        Ok(Self { digest: file.digest })
    }

    fn __len__(&self) -> PyResult<usize> {
        usize::try_from(self.digest.summary().items).map_err(Into::into)
    }

    /// What all who share the dataset agree on.
    #[getter]
    fn dataset(&self) -> String {
        self.digest.summary().dataset.to_string()
    }

    /// `public`, or the id of the namespace.
    #[getter]
    fn namespace(&self) -> &str {
        &self.digest.summary().namespace
    }

    /// Where the objects lie.
    #[getter]
    fn origin(&self) -> &str {
        &self.digest.summary().origin
    }

    /// How many blobs there are.
    #[getter]
    fn blobs(&self) -> u64 {
        self.digest.summary().blobs
    }

    /// How long all blobs are together.
    #[getter]
    fn bytes(&self) -> u64 {
        self.digest.summary().bytes
    }

    /// The names of the user's columns.
    #[getter]
    fn columns(&self) -> Vec<&str> {
        self.digest.columns().iter().map(|(name, _)| name.as_str()).collect()
    }

    /// The object that an item is of, below the digest's origin.
    fn object(&self, item: u64) -> PyResult<String> {
        let [item] = self.ordinals(&[item])?[..] else { unreachable!("one for one") };
        let object = self.digest.object(item).map_err(|error| damaged(&error))?;
        Ok(object.to_owned())
    }

    /// The values of a column, one for each item; `None` where nothing was said.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        let pieces = py.detach(|| self.digest.column(name)).map_err(|error| damaged(&error))?;
        let pieces = pieces.ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
        let values = PyList::empty(py);
        for piece in pieces {
            append(&values, piece.as_ref())?;
        }
        Ok(values)
    }
}

impl Digest {
    /// Items that there are.
    pub fn ordinals(&self, items: &[u64]) -> PyResult<Vec<ItemOrdinal>> {
        let count = self.digest.summary().items;
        match items.iter().find(|item| **item >= count) {
            Some(item) => Err(PyIndexError::new_err(format!("there is no item {item}"))),
            None => Ok(items.iter().map(|item| ItemOrdinal::new(*item)).collect()),
        }
    }
}

fn damaged(error: &digest::DigestError) -> PyErr {
    DigestError::new_err(format!("this is {error}"))
}

fn append(values: &Bound<'_, PyList>, piece: &dyn Array) -> PyResult<()> {
    let any = piece.as_any();
    if let Some(piece) = any.downcast_ref::<BooleanArray>() {
        piece.iter().try_for_each(|value| values.append(value))
    } else if let Some(piece) = any.downcast_ref::<Int64Array>() {
        piece.iter().try_for_each(|value| values.append(value))
    } else if let Some(piece) = any.downcast_ref::<Float64Array>() {
        piece.iter().try_for_each(|value| values.append(value))
    } else if let Some(piece) = any.downcast_ref::<StringArray>() {
        piece.iter().try_for_each(|value| values.append(value))
    } else {
        unreachable!("a digest has columns of four types")
    }
}
