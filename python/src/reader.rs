//! Python binding of readers: the bytes of items, for all threads and processes of a job.
//!
//! A connection serves one thread at a time. Idle readers are in a pool and are taken out while in
//! use. The pool's lock is held with the GIL and never during I/O, so a fork by Python finds it
//! free. A reader that was copied by a fork notices and connects again. A wait checks Python's
//! signals periodically, so that Ctrl-C interrupts it.

use std::{
    collections::BTreeMap,
    mem,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use forebay_auth::Credentials;
use forebay_client::{
    self as client, Asked, Client, ClientError, Counts, Interrupt, NodeHealth, PresenceCache,
};
use forebay_core::{
    ItemOrdinal, Namespace,
    cluster::ring::Seeds,
    dataset::verification::VerifyPolicy,
    train::manager::{Report, ReportAnswer},
};
use forebay_wire::Refusal;
use pyo3::{prelude::*, types::PyBytes};

use crate::{
    catalogue::namespace,
    digest::Digest,
    errors::{agent_error, forebay_error},
    view::View,
};

/// Batches that may be requested ahead; each has its own connection and shm region. A loader
/// requests up to three, and several loaders may read one dataset in turn. Beyond the limit the
/// oldest request is cancelled, which closes its connection.
const REQUESTED_MAX: usize = 16;

/// Reads items through the node and the agent.
#[pyclass(frozen, module = "forebay._native")]
pub struct Reader {
    digest: Py<Digest>,
    node: Option<Seeds>,
    credentials: Credentials,
    agent: PathBuf,
    job: String,
    verify: VerifyPolicy,
    namespace: Namespace,
    idle: Mutex<Vec<Interruptible>>,
    requested: Mutex<Vec<RequestedBatch>>,
    presence: Mutex<PresenceCache>,
    /// Node health that all readers of the pool share, so that only one waits for a hung node.
    node_health: Mutex<NodeHealth>,
    verified: Mutex<Verified>,
    has_node_failed: AtomicBool,
}

/// What was verified.
#[derive(Default)]
struct Verified {
    items: u64,
    unverifiable: u64,
    mismatches: u64,
}

/// A reader, and an exception that a signal handler has raised while it waited.
struct Interruptible {
    reader: client::Reader,
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Interruptible {
    fn new(reader: client::Reader) -> Self {
        let raised = Arc::<Mutex<Option<PyErr>>>::default();
        let slot = Arc::clone(&raised);
        let interrupt = Interrupt::new(move || {
            let error = Python::attach(|py| py.check_signals().err());
            let mut slot = lock(&slot);
            *slot = slot.take().or(error);
            slot.is_some()
        });
        Self { reader: reader.with_interrupt(interrupt), raised }
    }
}

/// A batch that was requested and not yet taken, with the reader that has requested it.
struct RequestedBatch {
    items: Vec<ItemOrdinal>,
    reader: Interruptible,
    asked: Asked,
}

#[pymethods]
impl Reader {
    /// `verify` says which reads are verified, with the key of the digest's namespace. Takes over
    /// the node health of `before`.
    #[new]
    #[pyo3(signature = (digest, node, agent, job, before=None, verify=None, namespace_key=None))]
    fn new(
        digest: Py<Digest>,
        node: Option<PathBuf>,
        agent: PathBuf,
        job: String,
        before: Option<&Self>,
        verify: Option<&str>,
        namespace_key: Option<PathBuf>,
    ) -> PyResult<Self> {
        let verify = verify.map(str::parse).transpose();
        let verify: Option<VerifyPolicy> = verify.map_err(|error| forebay_error(&error))?;
        let node = node.map(seeds).transpose()?;
        let credentials = credentials()?;
        let (idle, requested, verified, has_node_failed) = Default::default();
        let presence = PresenceCache::new(digest.get().digest.summary().blobs);
        let presence = Mutex::new(presence);
        let node_health =
            before.map(|before| lock(&before.node_health).without_dead()).unwrap_or_default();
        let node_health = Mutex::new(node_health);
        Ok(Self {
            digest,
            node,
            credentials,
            agent,
            job,
            verify: verify.unwrap_or_default(),
            namespace: namespace(namespace_key)?,
            idle,
            requested,
            presence,
            node_health,
            verified,
            has_node_failed,
        })
    }

    /// The bytes of each item, in order.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn get<'py>(&self, py: Python<'py>, items: Vec<u64>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let views = self.take(py, &items)?;
        Ok(views.iter().map(|view| PyBytes::new(py, view)).collect())
    }

    /// Views of the items: in shared memory, if the node had them.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn views(&self, py: Python<'_>, items: Vec<u64>) -> PyResult<Vec<View>> {
        Ok(self.take(py, &items)?.into_iter().map(View).collect())
    }

    /// Requests a batch from the node without waiting for it; a later read of the batch takes it.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn request(&self, py: Python<'_>, items: Vec<u64>) -> PyResult<()> {
        let items = self.digest.get().ordinals(&items)?;
        let mut reader = self.reader();
        reader.reader.health().merge(&lock(&self.node_health));
        let before = reader.reader.counts();
        let asked = py.detach(|| reader.reader.ask(&items));
        self.collect_health(&mut reader.reader);
        self.collect_verified(before, reader.reader.counts());
        if let Some(error) = lock(&reader.raised).take() {
            return Err(error);
        }
        // A failed request is not an error: the read that follows reports it.
        let Ok(asked) = asked else { return Ok(()) };
        let mut requested = lock(&self.requested);
        if requested.len() == REQUESTED_MAX {
            requested.remove(0);
        }
        requested.push(RequestedBatch { items, reader, asked });
        Ok(())
    }

    /// Cancels a request: its connection is closed and its shm region is returned.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn cancel(&self, items: Vec<u64>) -> PyResult<()> {
        let items = self.digest.get().ordinals(&items)?;
        drop(self.take_requested(&items));
        Ok(())
    }

    /// The bytes of each item from the origin, resident or not: a probe.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn get_past_the_cache<'py>(
        &self,
        py: Python<'py>,
        items: Vec<u64>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let items = self.digest.get().ordinals(&items)?;
        let contents = self.with_reader(py, |reader| reader.get_from_origin(&items))?;
        Ok(contents.iter().map(|content| PyBytes::new(py, content)).collect())
    }

    /// A bit per blob, lowest first: whether the node has it, as of a moment ago. Empty without a
    /// node.
    fn presence<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.recent_presence(py)?))
    }

    /// Announces items that will be read soon, in that order, to the agent.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn prefetch_hint(&self, py: Python<'_>, items: Vec<u64>) -> PyResult<()> {
        let items = self.digest.get().ordinals(&items)?;
        self.with_reader(py, |reader| reader.prefetch_hint(&items))
    }

    /// Tells the node that the job no longer reads the dataset.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.with_reader(py, |reader| {
            // A node that does not receive it notices the job's silence.
            let _ = reader.leave();
            Ok(())
        })
    }

    /// What was verified since the last call: items, items that could not be, and wrong ones.
    fn take_verified(&self) -> (u64, u64, u64) {
        let Verified { items, unverifiable, mismatches } = mem::take(&mut *lock(&self.verified));
        (items, unverifiable, mismatches)
    }

    /// Whether the node has failed since the last call, and is worth starting again.
    fn take_node_failure(&self) -> bool {
        self.has_node_failed.swap(false, Ordering::Relaxed)
    }

    /// Counters of the node (`None` without one) and of the agent.
    fn stats(&self, py: Python<'_>) -> PyResult<BTreeMap<&str, Option<BTreeMap<String, u64>>>> {
        let stats = self.with_reader(py, |reader| {
            Ok([("node", reader.node_stats()), ("agent", Some(reader.agent_stats()?))])
        })?;
        Ok(stats.map(|(component, pairs)| (component, pairs.map(BTreeMap::from_iter))).into())
    }
}

impl Reader {
    /// Sends a report to the manager; `None` without a node.
    pub fn report(
        &self,
        py: Python<'_>,
        report: &Report,
    ) -> PyResult<Option<Result<ReportAnswer, Refusal>>> {
        self.with_reader(py, |reader| match reader.report(report) {
            Ok(answer) => Ok(answer.map(Ok)),
            Err(ClientError::Refused(refusal)) => Ok(Some(Err(refusal))),
            Err(error) => Err(error),
        })
    }

    /// Counts drawn items, which determine when presence is next requested.
    pub fn drew(&self, items: usize) {
        lock(&self.presence).drew(items);
    }

    /// The presence bits, which are refreshed if enough items were drawn.
    pub fn recent_presence(&self, py: Python<'_>) -> PyResult<Arc<[u8]>> {
        let (bits, asking) = {
            let presence = lock(&self.presence);
            (presence.bits(), presence.asks())
        };
        let Some(mut asking) = asking else { return Ok(bits) };
        let (bytes, asking) = self.with_reader(py, |reader| {
            let bytes = reader.presence(&mut asking.known);
            Ok((bytes, asking))
        })?;
        let mut presence = lock(&self.presence);
        presence.answered(asking, bytes);
        Ok(presence.bits())
    }

    /// Views of items, from an earlier request if there is one.
    fn take(&self, py: Python<'_>, items: &[u64]) -> PyResult<Vec<client::View>> {
        let items = self.digest.get().ordinals(items)?;
        match self.take_requested(&items) {
            Some(RequestedBatch { reader, asked, .. }) => {
                self.with(py, reader, |reader| reader.take(asked))
            }
            None => self.with_reader(py, |reader| reader.get_views(&items)),
        }
    }

    /// Removes and returns the request for exactly these items.
    fn take_requested(&self, items: &[ItemOrdinal]) -> Option<RequestedBatch> {
        let mut requested = lock(&self.requested);
        let at = requested.iter().position(|batch| batch.items == items)?;
        Some(requested.remove(at))
    }

    fn reader(&self) -> Interruptible {
        let idle = lock(&self.idle).pop();
        idle.unwrap_or_else(|| {
            let digest = self.digest.get().digest.clone();
            let node = self.node.clone();
            let mut reader = client::Reader::new(digest, node, &self.agent, &self.job);
            reader.health().clone_from(&lock(&self.node_health));
            let namespace = Some(self.namespace.clone());
            let reader = reader.with_verification(self.verify, namespace);
            Interruptible::new(reader.with_credentials(self.credentials.clone()))
        })
    }

    fn collect_health(&self, reader: &mut client::Reader) {
        lock(&self.node_health).merge(reader.health());
        self.has_node_failed.fetch_or(reader.take_restart_hint(), Ordering::Relaxed);
    }

    fn collect_verified(&self, before: Counts, after: Counts) {
        let mut verified = lock(&self.verified);
        verified.items += after.verified - before.verified;
        verified.unverifiable += after.unverifiable - before.unverifiable;
        verified.mismatches += after.hash_mismatches - before.hash_mismatches;
    }

    fn with_reader<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut client::Reader) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        self.with(py, self.reader(), act)
    }

    /// Calls `act` without the GIL; raises what a signal handler has raised meanwhile.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        mut taken: Interruptible,
        act: impl FnOnce(&mut client::Reader) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        taken.reader.health().merge(&lock(&self.node_health));
        let before = taken.reader.counts();
        let outcome = py.detach(|| act(&mut taken.reader));
        let raised = lock(&taken.raised).take();
        self.collect_health(&mut taken.reader);
        self.collect_verified(before, taken.reader.counts());
        lock(&self.idle).push(taken);
        match raised {
            Some(error) => Err(error),
            None => outcome.map_err(|error| agent_error(&error)),
        }
    }
}

/// Whether a node or an agent answers a greeting within `seconds`.
#[pyfunction]
pub fn answers(py: Python<'_>, node: PathBuf, seconds: f64) -> PyResult<bool> {
    let (nodes, credentials) = (seeds(node)?, credentials()?);
    let timeout = Duration::from_secs_f64(seconds);
    Ok(py.detach(|| {
        let mut all = nodes.endpoints().iter();
        all.any(|node| Client::connect_as(&credentials, node, "", timeout).is_ok())
    }))
}

/// The endpoints in an argument: a path, a URL, or several of them.
pub fn seeds(node: PathBuf) -> PyResult<Seeds> {
    match node.to_str() {
        Some(text) => text.parse().map_err(|error| forebay_error(&error)),
        None => Ok(node.into()),
    }
}

/// The job's credentials from the environment.
fn credentials() -> PyResult<Credentials> {
    Credentials::from_environment().map_err(|error| forebay_error(&error))
}

/// Locks a mutex, also after a panic: its value is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
