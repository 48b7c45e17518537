//! What was seen of a user's own dataset, as Python sees it.
//!
//! Everything here is quick and is done with the GIL held, so that a fork by Python never finds it half done.

use std::path::PathBuf;

use forebay_core::{Address, Namespace};
use forebay_digest::{self as files, Key, Seen, publish_snapshot};
use forebay_identity::read_key_file;
use pyo3::prelude::*;

use crate::errors::{digest_error, forebay_error};

/// Address, length, index and form.
type SeenArgument = ([u8; 32], u64, u64, u32);

/// A catalogue of one's own.
#[pyclass(module = "forebay._native")]
pub struct Catalogue {
    catalogue: files::Catalogue,
    namespace: Namespace,
}

#[pymethods]
impl Catalogue {
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn new(path: PathBuf, namespace_key: Option<PathBuf>) -> PyResult<Self> {
        let namespace = namespace(namespace_key)?;
        let catalogue = files::Catalogue::open(&path, namespace.id());
        Ok(Self { catalogue: catalogue.map_err(|error| forebay_error(&error))?, namespace })
    }

    fn __len__(&self) -> usize {
        self.catalogue.len()
    }

    /// What tells it from others.
    #[getter]
    fn id(&self) -> [u8; 32] {
        self.catalogue.id()
    }

    /// What is known of a key, as far as the catalogue has been read.
    fn find(&self, key: Key) -> Option<SeenArgument> {
        let Seen { address, length, index, form } = self.catalogue.find(&key)?;
        Some((*address.as_bytes(), length, index, form))
    }

    /// Reads what others have appended.
    fn refresh(&mut self) -> PyResult<()> {
        self.catalogue.refresh().map_err(|error| forebay_error(&error))
    }

    /// Remembers what was seen.
    fn append(&mut self, key: Key, seen: SeenArgument) -> PyResult<()> {
        let (address, length, index, form) = seen;
        let seen = Seen { address: Address::from_bytes(address), length, index, form };
        self.catalogue.append(&[(key, seen)]).map_err(|error| forebay_error(&error))
    }

    /// Publishes a digest of what is known of these keys, in this order. Returns how many are not known: then there is
    /// none.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn snapshot(&self, keys: Vec<Key>, path: PathBuf, origin: &str) -> PyResult<usize> {
        let seen = keys.iter().filter_map(|key| self.catalogue.find(key));
        let rows: Vec<(Address, u64)> = seen.map(|seen| (seen.address, seen.length)).collect();
        if rows.len() == keys.len() {
            let published = publish_snapshot(&path, self.namespace.id(), origin, &rows);
            published.map_err(|error| digest_error(&error))?;
        }
        Ok(keys.len() - rows.len())
    }
}

/// The namespace of a key file; without one, the public one.
pub fn namespace(key: Option<PathBuf>) -> PyResult<Namespace> {
    let named = key.map(|path| read_key_file(&path).map_err(|error| forebay_error(&error)));
    Ok(named.transpose()?.unwrap_or_else(Namespace::public))
}

/// What tells namespaces apart.
#[pyfunction]
#[pyo3(signature = (key = None))]
pub fn namespace_id(key: Option<PathBuf>) -> PyResult<String> {
    Ok(namespace(key)?.id().to_string())
}
