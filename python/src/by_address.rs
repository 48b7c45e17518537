//! Blobs by their addresses, for one thread of a job.
//!
//! Whoever waits lets Python look for signals now and then, so that a Ctrl-C ends it.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use forebay_client::{self as client, Interrupt, Pick, Right, Settled};
use forebay_core::Address;
use forebay_identity::Credentials;
use pyo3::{IntoPyObjectExt as _, prelude::*, types::PyBytes};

use crate::{catalogue::namespace, digest::Digest, errors::forebay_error, reader::contacts};

/// Address, length, and the ordinal in the digest.
type PickArgument = ([u8; 32], u64, u64);

/// A way to blobs.
#[pyclass(module = "forebay._native")]
pub struct Picks {
    picks: client::Picks,
    /// What a signal's handler has raised meanwhile.
    raised: Arc<Mutex<Option<PyErr>>>,
}

#[pymethods]
impl Picks {
    #[new]
    fn new(
        node: PathBuf,
        namespace_key: Option<PathBuf>,
        digest: Option<Py<Digest>>,
        job: &str,
    ) -> PyResult<Self> {
        let credentials = Credentials::from_environment().map_err(|error| forebay_error(&error))?;
        let digest = digest.map(|digest| digest.get().digest.clone());
        let picks =
            client::Picks::new(Some(contacts(node)?), namespace(namespace_key)?, digest, job);
        let raised = Arc::<Mutex<Option<PyErr>>>::default();
        let told = Arc::clone(&raised);
        let interrupt = Interrupt::new(move || {
            let error = Python::attach(|py| py.check_signals().err());
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            *told = told.take().or(error);
            told.is_some()
        });
        Ok(Self { picks: picks.known_by(credentials).interrupted_by(interrupt), raised })
    }

    /// What bytes are called.
    fn address(&self, py: Python<'_>, content: &[u8]) -> [u8; 32] {
        *py.detach(|| self.picks.address(content)).as_bytes()
    }

    /// Those that are resident.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn get<'py>(
        &mut self,
        py: Python<'py>,
        wanted: Vec<PickArgument>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let wanted = picks(&wanted);
        let contents = self.act(py, |picks| picks.get(&wanted))?;
        let bytes = |content: Option<Vec<u8>>| content.map(|content| PyBytes::new(py, &content));
        Ok(contents.into_iter().map(bytes).collect())
    }

    /// Who may read each of these: `claim` (we), `others`, or everyone for itself: `outside`, `alone`.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn claim(&mut self, py: Python<'_>, wanted: Vec<PickArgument>) -> PyResult<Vec<&'static str>> {
        let wanted = picks(&wanted);
        let rights = self.act(py, |picks| picks.claim(&wanted))?;
        Ok(rights.into_iter().map(word).collect())
    }

    /// Waits for what others read: its bytes, or who may read it now.
    fn settle<'py>(
        &mut self,
        py: Python<'py>,
        wanted: PickArgument,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.act(py, |picks| picks.settle(&pick(&wanted)))? {
            Settled::Bytes(bytes) => Ok(PyBytes::new(py, &bytes).into_any()),
            Settled::Read(right) => word(right).into_bound_py_any(py),
        }
    }

    /// Hands over what was claimed; says whether the node has taken it. Either way the claim is over.
    fn put(&mut self, py: Python<'_>, wanted: PickArgument, content: &[u8]) -> PyResult<bool> {
        let content = Bytes::copy_from_slice(content);
        self.act(py, |picks| picks.put(&pick(&wanted), &content))
    }

    /// Gives claims back.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn release(&mut self, py: Python<'_>, wanted: Vec<PickArgument>) -> PyResult<()> {
        let wanted = picks(&wanted);
        self.act(py, |picks| picks.release(&wanted))
    }

    /// Whether the node has failed since this was last asked, and is worth starting anew.
    fn node_fell(&mut self) -> bool {
        self.picks.node_fell()
    }

    /// Answers that did not hash to their address.
    #[getter]
    fn wrong(&self) -> u64 {
        self.picks.wrong()
    }

    /// What the nodes have counted; `None` without one.
    fn stats(&mut self, py: Python<'_>) -> PyResult<Option<BTreeMap<String, u64>>> {
        Ok(self.act(py, client::Picks::node_stats)?.map(BTreeMap::from_iter))
    }
}

impl Picks {
    /// Does something that may take long, without the GIL.
    fn act<T: Send>(
        &mut self,
        py: Python<'_>,
        act: impl FnOnce(&mut client::Picks) -> T + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| act(&mut self.picks));
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        raised.map_or(Ok(done), Err)
    }
}

fn word(right: Right) -> &'static str {
    match right {
        Right::Claim => "claim",
        Right::Others => "others",
        Right::Outside => "outside",
        Right::Alone => "alone",
    }
}

fn pick(wanted: &PickArgument) -> Pick {
    let (address, length, ordinal) = *wanted;
    Pick { address: Address::from_bytes(address), length, ordinal }
}

fn picks(wanted: &[PickArgument]) -> Vec<Pick> {
    wanted.iter().map(pick).collect()
}
