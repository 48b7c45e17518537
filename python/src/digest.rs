//! Python binding of digests.

use std::path::PathBuf;

use arrow_array::{Array, BooleanArray, Float64Array, Int64Array, StringArray};
use forebay_core::ItemOrdinal;
use forebay_digest as digests;
use pyo3::{
    exceptions::{PyIndexError, PyKeyError},
    prelude::*,
    types::PyList,
};

use crate::{
    catalogue::namespace,
    errors::{DigestError, digest_error},
};

/// A digest file, mapped and checked.
#[pyclass(frozen, module = "forebay._native")]
pub struct Digest {
    pub digest: digests::Digest,
}

#[pymethods]
impl Digest {
    #[new]
    #[pyo3(signature = (path, may_be_listing = false))]
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn new(py: Python<'_>, path: PathBuf, may_be_listing: bool) -> PyResult<Self> {
        let open = if may_be_listing { digests::open_with_listings } else { digests::open };
        let file = py.detach(|| open(&path)).map_err(|error| digest_error(&error))?;
        Ok(Self { digest: file.digest })
    }

    /// The key of an item of a listing, which stands in for its address.
    fn listing_key(&self, item: u64) -> PyResult<[u8; 32]> {
        let [item] = self.ordinals(&[item])?[..] else { unreachable!("one ordinal per item") };
        let blob = self.digest.item(item).map_err(|error| damaged(&error))?.blob;
        let row = self.digest.blob(blob).map_err(|error| damaged(&error))?;
        Ok(*row.address.as_bytes())
    }

    /// The dataset id that the listing of the digest's objects has; `None` if they could not be
    /// listed.
    #[pyo3(signature = (namespace_key = None))]
    fn listing_id(
        &self,
        py: Python<'_>,
        namespace_key: Option<PathBuf>,
    ) -> PyResult<Option<String>> {
        let namespace = namespace(namespace_key)?;
        let id = py.detach(|| digests::listing_id(&self.digest, &namespace));
        Ok(id.map_err(|error| damaged(&error))?.map(|id| id.to_string()))
    }

    fn __len__(&self) -> PyResult<usize> {
        usize::try_from(self.digest.summary().items).map_err(Into::into)
    }

    /// The dataset id.
    #[getter]
    fn dataset(&self) -> String {
        self.digest.summary().dataset.to_string()
    }

    /// `public`, or the id of the namespace.
    #[getter]
    fn namespace(&self) -> &str {
        &self.digest.summary().namespace
    }

    /// The URL of the origin.
    #[getter]
    fn origin(&self) -> &str {
        &self.digest.summary().origin
    }

    /// Number of blobs.
    #[getter]
    fn blobs(&self) -> u64 {
        self.digest.summary().blobs
    }

    /// Total length of all blobs.
    #[getter]
    fn bytes(&self) -> u64 {
        self.digest.summary().bytes
    }

    /// Names of the user's columns.
    #[getter]
    fn columns(&self) -> Vec<&str> {
        self.digest.columns().iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Name of an item's object, below the origin's URL.
    fn object(&self, item: u64) -> PyResult<String> {
        let [item] = self.ordinals(&[item])?[..] else { unreachable!("one ordinal per item") };
        let object = self.digest.object(item).map_err(|error| damaged(&error))?;
        Ok(object.to_owned())
    }

    /// The values of a column, one per item; `None` for a missing value.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        let arrays = py.detach(|| self.digest.column(name)).map_err(|error| damaged(&error))?;
        let arrays = arrays.ok_or_else(|| PyKeyError::new_err(name.to_owned()))?;
        let values = PyList::empty(py);
        for array in arrays {
            append(&values, array.as_ref())?;
        }
        Ok(values)
    }
}

impl Digest {
    /// Checks that items exist.
    pub fn ordinals(&self, items: &[u64]) -> PyResult<Vec<ItemOrdinal>> {
        let count = self.digest.summary().items;
        match items.iter().find(|item| **item >= count) {
            Some(item) => Err(PyIndexError::new_err(format!(
                "there is no item {item}; the dataset has {count}"
            ))),
            None => Ok(items.iter().map(|item| ItemOrdinal::new(*item)).collect()),
        }
    }
}

fn damaged(error: &digests::DigestError) -> PyErr {
    DigestError::new_err(format!("this is {error}"))
}

fn append(values: &Bound<'_, PyList>, array: &dyn Array) -> PyResult<()> {
    let any = array.as_any();
    if let Some(array) = any.downcast_ref::<BooleanArray>() {
        array.iter().try_for_each(|value| values.append(value))
    } else if let Some(array) = any.downcast_ref::<Int64Array>() {
        array.iter().try_for_each(|value| values.append(value))
    } else if let Some(array) = any.downcast_ref::<Float64Array>() {
        array.iter().try_for_each(|value| values.append(value))
    } else if let Some(array) = any.downcast_ref::<StringArray>() {
        array.iter().try_for_each(|value| values.append(value))
    } else {
        unreachable!("digest columns have one of four types")
    }
}
