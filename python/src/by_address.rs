//! Python binding of blobs by address, for one thread of a job.
//!
//! A wait checks Python's signals periodically, so that Ctrl-C interrupts it.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use forebay_auth::Credentials;
use forebay_client::{self as client, BlobRef, Interrupt, ReadReason, Resolution};
use forebay_core::{Address, BlobOrdinal};
use pyo3::{IntoPyObjectExt as _, prelude::*, types::PyBytes};

use crate::{catalogue::namespace, digest::Digest, errors::forebay_error, reader::seeds};

/// Address, length, and ordinal in the digest.
type BlobArgument = ([u8; 32], u64, u64);

/// Connections to nodes for blobs by address.
#[pyclass(module = "forebay._native")]
pub struct BlobsByAddress {
    blobs: client::BlobsByAddress,
    /// An exception that a signal handler has raised during a wait.
    raised: Arc<Mutex<Option<PyErr>>>,
}

#[pymethods]
impl BlobsByAddress {
    #[new]
    fn new(
        node: PathBuf,
        namespace_key: Option<PathBuf>,
        digest: Option<Py<Digest>>,
        job: &str,
    ) -> PyResult<Self> {
        let credentials = Credentials::from_environment().map_err(|error| forebay_error(&error))?;
        let digest = digest.map(|digest| digest.get().digest.clone());
        let blobs =
            client::BlobsByAddress::new(Some(seeds(node)?), namespace(namespace_key)?, digest, job);
        let raised = Arc::<Mutex<Option<PyErr>>>::default();
        let slot = Arc::clone(&raised);
        let interrupt = Interrupt::new(move || {
            let error = Python::attach(|py| py.check_signals().err());
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            *slot = slot.take().or(error);
            slot.is_some()
        });
        Ok(Self { blobs: blobs.with_credentials(credentials).with_interrupt(interrupt), raised })
    }

    /// The address of some bytes.
    fn address(&self, py: Python<'_>, content: &[u8]) -> [u8; 32] {
        *py.detach(|| self.blobs.address(content)).as_bytes()
    }

    /// The bytes of each blob that is resident.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn get<'py>(
        &mut self,
        py: Python<'py>,
        blobs: Vec<BlobArgument>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let picks = picks(&blobs);
        let contents = self.act(py, |blobs| blobs.get(&picks))?;
        let bytes = |content: Option<Vec<u8>>| content.map(|content| PyBytes::new(py, &content));
        Ok(contents.into_iter().map(bytes).collect())
    }

    /// Claims blobs. The right to each is `claim` (this process reads it), `others` (another
    /// process reads it), `outside` (the node will not keep it) or `alone` (the node did not
    /// answer).
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn claim(&mut self, py: Python<'_>, blobs: Vec<BlobArgument>) -> PyResult<Vec<&'static str>> {
        let picks = picks(&blobs);
        let rights = self.act(py, |blobs| blobs.claim(&picks))?;
        Ok(rights.into_iter().map(right_name).collect())
    }

    /// Waits for a blob that another process reads: its bytes, or the right to it.
    fn settle<'py>(&mut self, py: Python<'py>, blob: BlobArgument) -> PyResult<Bound<'py, PyAny>> {
        match self.act(py, |blobs| blobs.resolve(&pick(&blob)))? {
            Resolution::Bytes(bytes) => Ok(PyBytes::new(py, &bytes).into_any()),
            Resolution::Read(right) => right_name(right).into_bound_py_any(py),
        }
    }

    /// Puts a claimed blob, which ends the claim. Returns whether the node has accepted it.
    fn put(&mut self, py: Python<'_>, blob: BlobArgument, content: &[u8]) -> PyResult<bool> {
        let content = Bytes::copy_from_slice(content);
        self.act(py, |blobs| blobs.put(&pick(&blob), &content))
    }

    /// Releases claims.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn release(&mut self, py: Python<'_>, blobs: Vec<BlobArgument>) -> PyResult<()> {
        let picks = picks(&blobs);
        self.act(py, |blobs| blobs.release(&picks))
    }

    /// Whether the node has failed since the last call, and is worth starting again.
    fn take_node_failure(&mut self) -> bool {
        self.blobs.take_restart_hint()
    }

    /// Number of answers that did not match their address.
    #[getter]
    fn wrong(&self) -> u64 {
        self.blobs.hash_mismatches()
    }

    /// Counters of the nodes; `None` without one.
    fn stats(&mut self, py: Python<'_>) -> PyResult<Option<BTreeMap<String, u64>>> {
        Ok(self.act(py, client::BlobsByAddress::node_stats)?.map(BTreeMap::from_iter))
    }
}

impl BlobsByAddress {
    /// Calls `act` without the GIL; raises what a signal handler has raised meanwhile.
    fn act<T: Send>(
        &mut self,
        py: Python<'_>,
        act: impl FnOnce(&mut client::BlobsByAddress) -> T + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| act(&mut self.blobs));
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        raised.map_or(Ok(done), Err)
    }
}

fn right_name(right: ReadReason) -> &'static str {
    match right {
        ReadReason::Claim => "claim",
        ReadReason::OtherJob => "others",
        ReadReason::Uncached => "uncached",
        ReadReason::NoNode => "alone",
    }
}

fn pick(blob: &BlobArgument) -> BlobRef {
    let (address, length, ordinal) = *blob;
    BlobRef { address: Address::from_bytes(address), length, ordinal: BlobOrdinal::new(ordinal) }
}

fn picks(blobs: &[BlobArgument]) -> Vec<BlobRef> {
    blobs.iter().map(pick).collect()
}
