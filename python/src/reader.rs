//! Bytes of items, for any process and thread of a job.
//!
//! A connection serves one thread at a time, so readers lie in a pool and are taken out while they are
//! used. The pool's lock is held with the GIL and never during I/O, so a fork by Python finds it free; a
//! reader that a fork has copied notices, and connects anew. Whoever waits lets Python look for signals
//! now and then, so that a Ctrl-C ends it.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use forebay_client::{
    self as client, Asked, Client, ClientError, Experience, Interrupt, RecentPresence,
};
use forebay_core::{
    ItemOrdinal,
    manager::{Answer, Report},
    ring::Contacts,
};
use forebay_identity::Credentials;
use forebay_wire::Refusal;
use pyo3::{prelude::*, types::PyBytes};

use crate::{
    digest::Digest,
    errors::{agent_error, forebay_error},
    view::View,
};

/// Batches that may be asked for ahead: each has a connection, and a segment, of its own. That is three for each of
/// several loaders that read one dataset in turn; beyond, the oldest is given up, which closes its connection.
const ASKED_MAX: usize = 16;

/// Reads items through the node and the agent.
#[pyclass(frozen, module = "forebay._native")]
pub struct Reader {
    digest: Py<Digest>,
    node: Option<Contacts>,
    credentials: Credentials,
    agent: PathBuf,
    job: String,
    idle: Mutex<Vec<Interruptible>>,
    asked: Mutex<Vec<AskedAhead>>,
    presence: Mutex<RecentPresence>,
    /// What any of them has found out about nodes, so that no other waits for one that hangs.
    experience: Mutex<Experience>,
    node_fell: AtomicBool,
}

/// A reader, and what a signal's handler has raised while it waited.
struct Interruptible {
    reader: client::Reader,
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Interruptible {
    fn new(reader: client::Reader) -> Self {
        let raised = Arc::<Mutex<Option<PyErr>>>::default();
        let told = Arc::clone(&raised);
        let interrupt = Interrupt::new(move || {
            let error = Python::attach(|py| py.check_signals().err());
            let mut told = lock(&told);
            *told = told.take().or(error);
            told.is_some()
        });
        Self { reader: reader.interrupted_by(interrupt), raised }
    }
}

/// A batch that was asked for and not taken yet, and the reader that has asked.
struct AskedAhead {
    items: Vec<ItemOrdinal>,
    reader: Interruptible,
    asked: Asked,
}

#[pymethods]
impl Reader {
    /// What `before` knew of nodes is not found out again.
    #[new]
    #[pyo3(signature = (digest, node, agent, job, before=None))]
    fn new(
        digest: Py<Digest>,
        node: Option<PathBuf>,
        agent: PathBuf,
        job: String,
        before: Option<&Self>,
    ) -> PyResult<Self> {
        let node = node.map(contacts).transpose()?;
        let credentials = credentials()?;
        let (idle, asked, node_fell) = Default::default();
        let presence = RecentPresence::new(digest.get().digest.summary().blobs);
        let presence = Mutex::new(presence);
        let experience =
            before.map(|before| lock(&before.experience).for_a_beginning()).unwrap_or_default();
        let experience = Mutex::new(experience);
        Ok(Self {
            digest,
            node,
            credentials,
            agent,
            job,
            idle,
            asked,
            presence,
            experience,
            node_fell,
        })
    }

    /// The bytes of each item, in order.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn get<'py>(&self, py: Python<'py>, items: Vec<u64>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let views = self.take(py, &items)?;
        Ok(views.iter().map(|view| PyBytes::new(py, view)).collect())
    }

    /// The same where they lie: in memory that the node shares with this process, if it had them.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn views(&self, py: Python<'_>, items: Vec<u64>) -> PyResult<Vec<View>> {
        Ok(self.take(py, &items)?.into_iter().map(View).collect())
    }

    /// Asks the node for items that will be read soon, all of them together, and does not wait.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn ask(&self, py: Python<'_>, items: Vec<u64>) -> PyResult<()> {
        let items = self.digest.get().ordinals(&items)?;
        let mut reader = self.reader();
        reader.reader.experience().learn(&lock(&self.experience));
        let asked = py.detach(|| reader.reader.ask(&items));
        self.learn_from(&mut reader.reader);
        if let Some(error) = lock(&reader.raised).take() {
            return Err(error);
        }
        // Only ever a hint: whoever reads them is told what is wrong.
        let Ok(asked) = asked else { return Ok(()) };
        let mut ahead = lock(&self.asked);
        if ahead.len() == ASKED_MAX {
            ahead.remove(0);
        }
        ahead.push(AskedAhead { items, reader, asked });
        Ok(())
    }

    /// These will not be read after all: the connection on which they were asked for, and its segment, are given back.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn give_up(&self, items: Vec<u64>) -> PyResult<()> {
        let items = self.digest.get().ordinals(&items)?;
        drop(self.asked_for(&items));
        Ok(())
    }

    /// The same from the origin, whatever is resident: a probe.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn get_past_the_cache<'py>(
        &self,
        py: Python<'py>,
        items: Vec<u64>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let items = self.digest.get().ordinals(&items)?;
        let contents = self.with_reader(py, |reader| reader.get_past_the_cache(&items))?;
        Ok(contents.iter().map(|content| PyBytes::new(py, content)).collect())
    }

    /// A bit for each blob that the node holds, lowest first, as of a moment ago; empty without a node.
    fn presence<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.recent_presence(py)?))
    }

    /// Tells the agent which items will be asked for soon, in that order.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn want(&self, py: Python<'_>, items: Vec<u64>) -> PyResult<()> {
        let items = self.digest.get().ordinals(&items)?;
        self.with_reader(py, |reader| reader.want(&items))
    }

    /// Says that the job reads the dataset no more, if anybody is there to hear it.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.with_reader(py, |reader| {
            // Whoever does not hear it notices that the job is silent.
            let _ = reader.leave();
            Ok(())
        })
    }

    /// Whether the node has failed since this was last asked, and is worth starting anew.
    fn node_fell(&self) -> bool {
        self.node_fell.swap(false, Ordering::Relaxed)
    }

    /// What the node (`None` without one) and the agent have counted.
    fn stats(&self, py: Python<'_>) -> PyResult<BTreeMap<&str, Option<BTreeMap<String, u64>>>> {
        let stats = self.with_reader(py, |reader| {
            Ok([("node", reader.node_stats()), ("agent", Some(reader.agent_stats()?))])
        })?;
        Ok(stats.map(|(whose, pairs)| (whose, pairs.map(BTreeMap::from_iter))).into())
    }
}

impl Reader {
    /// Says how the job gets on; nothing without a node.
    pub fn report(
        &self,
        py: Python<'_>,
        report: &Report,
    ) -> PyResult<Option<Result<Answer, Refusal>>> {
        self.with_reader(py, |reader| match reader.report(report) {
            Ok(answer) => Ok(answer.map(Ok)),
            Err(ClientError::Refused(refusal)) => Ok(Some(Err(refusal))),
            Err(error) => Err(error),
        })
    }

    /// So many items were drawn: they pay for the next look.
    pub fn drew(&self, items: usize) {
        lock(&self.presence).drew(items);
    }

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

    /// Views of items that may have been asked for before.
    fn take(&self, py: Python<'_>, items: &[u64]) -> PyResult<Vec<client::View>> {
        let items = self.digest.get().ordinals(items)?;
        match self.asked_for(&items) {
            Some(AskedAhead { reader, asked, .. }) => {
                self.with(py, reader, |reader| reader.take(asked))
            }
            None => self.with_reader(py, |reader| reader.get_views(&items)),
        }
    }

    /// What was asked for ahead, if these were; it is no longer kept here.
    fn asked_for(&self, items: &[ItemOrdinal]) -> Option<AskedAhead> {
        let mut ahead = lock(&self.asked);
        let at = ahead.iter().position(|one| one.items == items)?;
        Some(ahead.remove(at))
    }

    fn reader(&self) -> Interruptible {
        let idle = lock(&self.idle).pop();
        idle.unwrap_or_else(|| {
            let digest = self.digest.get().digest.clone();
            let node = self.node.clone();
            let mut reader = client::Reader::new(digest, node, &self.agent, &self.job);
            reader.experience().clone_from(&lock(&self.experience));
            Interruptible::new(reader.known_by(self.credentials.clone()))
        })
    }

    fn learn_from(&self, reader: &mut client::Reader) {
        lock(&self.experience).learn(reader.experience());
        self.node_fell.fetch_or(reader.node_fell(), Ordering::Relaxed);
    }

    fn with_reader<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut client::Reader) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        self.with(py, self.reader(), act)
    }

    /// Does something that may take long, without the GIL.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        mut taken: Interruptible,
        act: impl FnOnce(&mut client::Reader) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        taken.reader.experience().learn(&lock(&self.experience));
        let outcome = py.detach(|| act(&mut taken.reader));
        let raised = lock(&taken.raised).take();
        self.learn_from(&mut taken.reader);
        lock(&self.idle).push(taken);
        match raised {
            Some(error) => Err(error),
            None => outcome.map_err(|error| agent_error(&error)),
        }
    }
}

/// Whether a node or an agent listens at a socket, and answers a greeting in time.
#[pyfunction]
pub fn answers(py: Python<'_>, node: PathBuf, seconds: f64) -> PyResult<bool> {
    let (nodes, credentials) = (contacts(node)?, credentials()?);
    let patience = Duration::from_secs_f64(seconds);
    Ok(py.detach(|| {
        let mut all = nodes.endpoints().iter();
        all.any(|node| Client::connect_as(&credentials, node, "", patience).is_ok())
    }))
}

/// A path, or what is no path but an endpoint, or several of them.
pub fn contacts(node: PathBuf) -> PyResult<Contacts> {
    match node.to_str() {
        Some(text) => text.parse().map_err(|error| forebay_error(&error)),
        None => Ok(node.into()),
    }
}

/// Who the job is to nodes, as the environment says.
fn credentials() -> PyResult<Credentials> {
    Credentials::from_environment().map_err(|error| forebay_error(&error))
}

/// What these locks guard is whole at any time, also after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
