//! Python binding of catalogues: the hashes of a wrapped dataset's items, by key.
//!
//! All calls are short and hold the GIL, so a fork by Python never copies a half-updated catalogue.

use std::path::PathBuf;

use forebay_auth::read_key_file;
use forebay_core::{Address, Namespace};
use forebay_digest::{self as files, CatalogueEntry, CatalogueKey, publish_snapshot};
use pyo3::prelude::*;

use crate::{
    digest::Digest,
    errors::{digest_error, forebay_error},
};

/// Address, length, index and form.
type EntryArgument = ([u8; 32], u64, u64, u32);

/// A catalogue file.
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

    /// The random id of the catalogue.
    #[getter]
    fn id(&self) -> [u8; 32] {
        self.catalogue.id()
    }

    /// The entry of a key, as of the last `refresh`.
    fn find(&self, key: CatalogueKey) -> Option<EntryArgument> {
        let CatalogueEntry { address, length, index, form } = self.catalogue.find(&key)?;
        Some((*address.as_bytes(), length, index, form))
    }

    /// Reads entries that other processes have appended.
    fn refresh(&mut self) -> PyResult<()> {
        self.catalogue.refresh().map_err(|error| forebay_error(&error))
    }

    /// Appends an entry.
    fn append(&mut self, key: CatalogueKey, entry: EntryArgument) -> PyResult<()> {
        let (address, length, index, form) = entry;
        let entry = CatalogueEntry { address: Address::from_bytes(address), length, index, form };
        self.catalogue.append(&[(key, entry)]).map_err(|error| forebay_error(&error))
    }

    /// Publishes a digest of the entries of these keys, in this order. If keys have no entry,
    /// returns their number and publishes nothing.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn snapshot(&self, keys: Vec<CatalogueKey>, path: PathBuf, origin: &str) -> PyResult<usize> {
        let entries = keys.iter().filter_map(|key| self.catalogue.find(key));
        let rows: Vec<(Address, u64)> =
            entries.map(|entry| (entry.address, entry.length)).collect();
        if rows.len() == keys.len() {
            let published = publish_snapshot(&path, self.namespace.id(), origin, &rows);
            published.map_err(|error| digest_error(&error))?;
        }
        Ok(keys.len() - rows.len())
    }

    /// Writes the digest of a listing, if the addresses of all its objects are recorded. Returns
    /// the number of those that are not.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn complete(&self, py: Python<'_>, listing: &Digest, path: PathBuf) -> PyResult<u64> {
        let unknown = py.detach(|| files::complete(&path, &listing.digest, &self.catalogue));
        unknown.map_err(|error| forebay_error(&error))
    }

    /// Records the addresses of a digest's objects, as the keys of a listing.
    fn adopt(&mut self, digest: &Digest) -> PyResult<()> {
        let adopted = files::adopt(&mut self.catalogue, &digest.digest, &self.namespace);
        adopted.map_err(|error| forebay_error(&error))
    }
}

/// The namespace of a key file, or the public one.
pub fn namespace(key: Option<PathBuf>) -> PyResult<Namespace> {
    let private = key.map(|path| read_key_file(&path).map_err(|error| forebay_error(&error)));
    Ok(private.transpose()?.unwrap_or_else(Namespace::public))
}

/// The id of the namespace of a key file.
#[pyfunction]
#[pyo3(signature = (key = None))]
pub fn namespace_id(key: Option<PathBuf>) -> PyResult<String> {
    Ok(namespace(key)?.id().to_string())
}
