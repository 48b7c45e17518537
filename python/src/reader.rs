//! Bytes of items, for any process and thread of a job.
//!
//! Connections lie in a pool and are taken out while they are used. The pool's lock is held only for that
//! and with the GIL, never during I/O, so a fork by Python finds it free; connections that a fork has
//! copied are dropped by the child, which opens its own.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use forebay_client::ClientError;
use forebay_core::digest::ItemPlace;
use pyo3::{prelude::*, types::PyBytes};

use crate::{
    digest::Digest,
    errors::agent_error,
    links::{Ends, Links},
    ranges::{buffers, ranges},
};

/// Presence is not asked for more often,
const PRESENCE_AGE_MIN: Duration = Duration::from_millis(50);
/// nor for more than one part in so many of the time: large datasets take longer to answer.
const PRESENCE_SHARE: u32 = 20;

/// Reads items through the node and the agent.
#[pyclass(frozen, module = "forebay._native")]
pub struct Reader {
    digest: Py<Digest>,
    ends: Ends,
    pool: Mutex<Vec<Links>>,
    presence: Mutex<Presence>,
}

/// What the node held a moment ago.
#[derive(Default, Clone)]
struct Presence {
    bits: Option<Arc<[u8]>>,
    /// When to ask again.
    next: Option<Instant>,
}

#[pymethods]
impl Reader {
    #[new]
    fn new(digest: Py<Digest>, node: Option<PathBuf>, agent: PathBuf, job: String) -> Self {
        let ends = Ends { digest: digest.get().digest.clone(), node, agent, job };
        Self { digest, ends, pool: Mutex::default(), presence: Mutex::default() }
    }

    /// The bytes of each item, in order.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn get<'py>(&self, py: Python<'py>, items: Vec<u64>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let places = self.places(&items)?;
        let contents = self.with_links(py, |links, ends| {
            let mut buffers = buffers(&places);
            links.get(ends, &ranges(&places), &mut buffers).map(|()| buffers)
        })?;
        Ok(contents.iter().map(|content| PyBytes::new(py, content)).collect())
    }

    /// A bit for each blob that the node holds, lowest first, as of a moment ago; `None` without a node.
    fn presence<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.recent_presence(py)?.map(|bits| PyBytes::new(py, &bits)))
    }

    /// Tells the agent which items will be asked for soon, in that order.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn want(&self, py: Python<'_>, items: Vec<u64>) -> PyResult<()> {
        let mut blobs: Vec<u64> = self.places(&items)?.iter().map(|place| place.blob.0).collect();
        blobs.dedup();
        self.with_links(py, |links, ends| links.want(ends, &blobs))
    }

    /// What the node (`None` without one) and the agent have counted.
    fn stats(&self, py: Python<'_>) -> PyResult<BTreeMap<&str, Option<BTreeMap<String, u64>>>> {
        let (node, agent) = self.with_links(py, Links::stats)?;
        let both = [("node", node), ("agent", Some(agent))];
        Ok(both.map(|(name, pairs)| (name, pairs.map(|p| p.into_iter().collect()))).into())
    }
}

impl Reader {
    /// Where each item's bytes are.
    fn places(&self, items: &[u64]) -> PyResult<Vec<ItemPlace>> {
        items.iter().map(|item| self.digest.get().place(*item)).collect()
    }

    /// Whether an item's blob was resident a moment ago.
    pub fn residents(&self, py: Python<'_>) -> PyResult<impl Fn(u64) -> bool> {
        let bits = self.recent_presence(py)?;
        Ok(move |item| {
            let Some(bits) = &bits else { return false };
            // A row that is damaged is nobody's: whoever reads it is told.
            let Ok(place) = self.digest.get().place(item) else { return false };
            let byte = usize::try_from(place.blob.0 / 8).ok().and_then(|at| bits.get(at));
            byte.is_some_and(|byte| byte >> (place.blob.0 % 8) & 1 == 1)
        })
    }

    fn recent_presence(&self, py: Python<'_>) -> PyResult<Option<Arc<[u8]>>> {
        let known = lock(&self.presence).clone();
        if known.next.is_some_and(|next| Instant::now() < next) {
            return Ok(known.bits);
        }
        let began = Instant::now();
        let bits = self.with_links(py, |links, ends| Ok(links.presence(ends)))?;
        let bits: Option<Arc<[u8]>> = bits.map(Into::into);
        let pause = PRESENCE_AGE_MIN.max(began.elapsed() * PRESENCE_SHARE);
        *lock(&self.presence) = Presence { bits: bits.clone(), next: Some(Instant::now() + pause) };
        Ok(bits)
    }

    /// Speaks to the other side without the GIL.
    fn with_links<T: Send>(
        &self,
        py: Python<'_>,
        speak: impl FnOnce(&mut Links, &Ends) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        let mut links = {
            let mut pool = lock(&self.pool);
            pool.retain(Links::is_own);
            pool.pop().unwrap_or_else(Links::new)
        };
        let outcome = py.detach(|| speak(&mut links, &self.ends));
        lock(&self.pool).push(links);
        outcome.map_err(|error| agent_error(&error))
    }
}

/// What these locks guard is whole at any time, also after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
