//! Python binding of stores and families.

use std::{
    collections::BTreeMap,
    error::Error,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use forebay_auth::Credentials;
use forebay_client::{NodeStreams, node_of_store};
use forebay_core::{ByteSize, streams::Lifetime};
use forebay_streams::{
    BorrowedStore, CreateOptions, Family, FullPolicy, OpenOptions, OpenedStore, Store, StoreConfig,
    StoreError, WhenHeld,
};
use pyo3::{exceptions::PyValueError, prelude::*};

use super::{
    InfoTuple, StreamReader, StreamWriter, info_tuple, interrupted, node_interrupt,
    owner_interrupt, signals, stream_error, wait,
};
use crate::errors::{StreamError, shown};

/// Word of a lifetime, and the seconds of a lease.
type LifetimeArgument = (String, Option<f64>);

/// A store of streams that this process owns, borrows from its owner, or has on a node.
#[pyclass(frozen, module = "forebay._native")]
pub struct StreamStore {
    directory: PathBuf,
    memory: ByteSize,
    /// `None` after it has been closed. Locked with the GIL, so a fork finds it free.
    store: Mutex<Option<Place>>,
}

/// Where streams are.
#[derive(Clone)]
enum Place {
    Local(OpenedStore),
    Node(NodeStreams),
}

#[pymethods]
impl StreamStore {
    /// Opens a store, or borrows it if another process has it open. Without a capacity, it has to
    /// exist.
    #[new]
    fn new(
        py: Python<'_>,
        directory: PathBuf,
        capacity: Option<&str>,
        memory: &str,
    ) -> PyResult<Self> {
        let capacity = capacity.map(size).transpose()?;
        let memory = size(memory)?;
        let node = node_of_store(&directory);
        if let Some(node) = node.map_err(|error| PyValueError::new_err(shown(&error)))? {
            if capacity.is_some() {
                return Err(PyValueError::new_err(
                    "capacity is for directories; the space of a node is `streams` in its \
                     configuration",
                ));
            }
            let credentials = Credentials::from_environment();
            let credentials = credentials.map_err(|error| StreamError::new_err(shown(&error)))?;
            let streams = NodeStreams::new(node, credentials, "python");
            let place = Place::Node(streams.with_interrupt(node_interrupt()));
            return Ok(Self { directory, memory, store: Mutex::new(Some(place)) });
        }
        let store = py.detach(|| {
            let config = match capacity {
                Some(capacity) => StoreConfig::new(&directory, capacity),
                None => StoreConfig::existing(&directory)?,
            };
            let interrupt = owner_interrupt();
            StoreConfig { memory, interrupt, ..config }.open_or_borrow()
        });
        let store = store.map_err(|error| store_error(&error))?;
        let store = Mutex::new(Some(Place::Local(store)));
        Ok(Self { directory, memory, store })
    }

    /// Whether this process owns the store.
    #[getter]
    fn is_owner(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(matches!(self.place(py)?, Place::Local(OpenedStore::Owned(_))))
    }

    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn create(
        &self,
        py: Python<'_>,
        name: &str,
        lifetime: LifetimeArgument,
        full: &str,
    ) -> PyResult<StreamWriter> {
        let options =
            CreateOptions { lifetime: parse_lifetime(&lifetime)?, full: full_policy(full)? };
        let writer = match self.place(py)? {
            Place::Node(_) if options.full == FullPolicy::Wait => {
                return Err(not_on_a_node("full=\"wait\""));
            }
            Place::Node(node) => py.detach(|| node.create(name, options.lifetime)),
            Place::Local(store) => {
                let store = owned(store)?;
                py.detach(|| store.create(name, options))
            }
        };
        writer.map(StreamWriter::new).map_err(|error| stream_error(&error))
    }

    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn family(
        &self,
        py: Python<'_>,
        name: &str,
        lifetime: LifetimeArgument,
    ) -> PyResult<StreamFamily> {
        let lifetime = parse_lifetime(&lifetime)?;
        let store = match self.place(py)? {
            Place::Node(_) => return Err(not_on_a_node("a family")),
            Place::Local(store) => owned(store)?,
        };
        let family = py.detach(|| store.family(name, lifetime));
        family.map(|family| StreamFamily { family }).map_err(|error| stream_error(&error))
    }

    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn open(
        &self,
        py: Python<'_>,
        name: &str,
        depth: u32,
        in_flight: u32,
        when_held: &str,
        follow: bool,
        consume: bool,
    ) -> PyResult<StreamReader> {
        let when_held = match when_held {
            "outside" => WhenHeld::OutsideSlots,
            "wait" => WhenHeld::Wait,
            other => {
                let text = format!("when_held is {other:?}; choose \"outside\" or \"wait\"");
                return Err(PyValueError::new_err(text));
            }
        };
        let options = OpenOptions { depth, in_flight, when_held, follow, consume };
        let reader = match self.place(py)? {
            Place::Node(_) if follow => return Err(not_on_a_node("follow")),
            Place::Node(node) => py.detach(|| node.open(name, consume)),
            Place::Local(OpenedStore::Owned(store)) => py.detach(|| store.open(name, options)),
            Place::Local(OpenedStore::Borrowed(store)) => py.detach(|| store.open(name, options)),
        };
        reader.map(StreamReader::new).map_err(|error| stream_error(&error))
    }

    /// Destroys a stream. Waits for its readers for these seconds; a node waits for 5 s.
    fn destroy(&self, py: Python<'_>, name: &str, timeout: f64) -> PyResult<()> {
        // An endless wait is a timeout that no clock reaches.
        let timeout =
            if timeout == f64::INFINITY { Duration::MAX } else { duration(timeout, "timeout")? };
        let destroyed = match self.place(py)? {
            Place::Node(node) => py.detach(|| node.destroy(name)),
            Place::Local(store) => {
                let store = owned(store)?;
                py.detach(|| store.destroy_unless(name, timeout, signals))?
            }
        };
        destroyed.map_err(|error| stream_error(&error))
    }

    fn list(&self, py: Python<'_>) -> PyResult<Vec<InfoTuple>> {
        let place = self.place(py)?;
        let listed = py.detach(|| match place {
            Place::Node(node) => node.list(),
            Place::Local(OpenedStore::Owned(store)) => Ok(store.list()),
            Place::Local(OpenedStore::Borrowed(store)) => store.list(),
        });
        let listed = listed.map_err(|error| stream_error(&error))?;
        Ok(listed.iter().map(info_tuple).collect())
    }

    fn facts(&self, py: Python<'_>) -> PyResult<BTreeMap<&'static str, u64>> {
        let store = match self.place(py)? {
            Place::Node(node) => {
                let facts = py.detach(|| node.facts());
                let (account, block_length) = facts.map_err(|error| stream_error(&error))?;
                return Ok(BTreeMap::from([
                    ("capacity_bytes", account.budget.0),
                    ("free_bytes", account.budget.0.saturating_sub(account.used.0)),
                    ("streams", account.streams),
                    ("readers", account.readers),
                    ("block_bytes", block_length),
                ]));
            }
            Place::Local(OpenedStore::Owned(store)) => store,
            Place::Local(OpenedStore::Borrowed(store)) => {
                let (memory, free) = store.read_memory_sizes();
                return Ok(BTreeMap::from([
                    ("capacity_bytes", store.capacity().0),
                    ("block_bytes", store.block_length()),
                    ("read_memory_bytes", memory.0),
                    ("read_memory_free_bytes", free.0),
                ]));
            }
        };
        let facts = py.detach(|| store.facts());
        Ok(BTreeMap::from([
            ("capacity_bytes", facts.capacity.0),
            ("free_bytes", facts.free.0),
            ("streams", facts.streams),
            ("block_bytes", facts.block_length.0),
            ("write_memory_bytes", facts.write_memory.0),
            ("write_memory_free_bytes", facts.write_memory_free.0),
            ("read_memory_bytes", facts.read_memory.0),
            ("read_memory_free_bytes", facts.read_memory_free.0),
            ("written_bytes", facts.written.0),
            ("device_written_bytes", facts.device_written.0),
            ("read_bytes", facts.read.0),
            ("outside_slots_bytes", facts.outside_slots.0),
            ("blocks_lost", facts.blocks_lost),
        ]))
    }

    /// First address of the memory for reading, and the address after its end.
    fn read_memory(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let memory = match self.place(py)? {
            Place::Node(_) => return Err(not_on_a_node("memory of the store")),
            Place::Local(OpenedStore::Owned(store)) => store.read_memory(),
            Place::Local(OpenedStore::Borrowed(store)) => store.read_memory(),
        };
        Ok((memory.start, memory.end))
    }

    /// Releases this handle. The device is closed with the last reader, writer and block.
    fn close(&self, py: Python<'_>) {
        let store = self.lock().take();
        py.detach(|| drop(store));
    }
}

impl StreamStore {
    fn lock(&self) -> MutexGuard<'_, Option<Place>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store, unless it is closed. A forked child borrows it from its parent.
    fn place(&self, py: Python<'_>) -> PyResult<Place> {
        let closed = || StreamError::new_err("the store is closed: open it again");
        let store = self.lock().clone().ok_or_else(closed)?;
        let own = match &store {
            Place::Node(_) => Ok(()),
            Place::Local(OpenedStore::Owned(store)) => store.check_process(),
            Place::Local(OpenedStore::Borrowed(store)) => store.check_process(),
        };
        let Err(forked) = own else { return Ok(store) };
        let borrowed =
            py.detach(|| BorrowedStore::connect(&self.directory, self.memory, owner_interrupt()));
        let borrowed = borrowed.map_err(|error| store_error(&error))?;
        let borrowed = borrowed.ok_or_else(|| stream_error(&forked))?;
        let store = Place::Local(OpenedStore::Borrowed(borrowed));
        *self.lock() = Some(store.clone());
        Ok(store)
    }
}

/// The store, if this process owns it.
fn owned(store: OpenedStore) -> PyResult<Store> {
    match store {
        OpenedStore::Owned(store) => Ok(store),
        OpenedStore::Borrowed(_) => Err(StreamError::new_err(
            "the store belongs to another process, which alone can create and destroy streams: \
             read its streams here, or open a store of your own",
        )),
    }
}

fn not_on_a_node(what: &str) -> PyErr {
    StreamError::new_err(format!(
        "a node has no {what}: use a store in a directory, or leave it out"
    ))
}

/// A family of streams.
#[pyclass(frozen, module = "forebay._native")]
pub struct StreamFamily {
    family: Family,
}

#[pymethods]
impl StreamFamily {
    fn create(&self, py: Python<'_>, name: &str, full: &str) -> PyResult<StreamWriter> {
        let full = full_policy(full)?;
        let writer = py.detach(|| self.family.create(name, full));
        writer.map(StreamWriter::new).map_err(|error| stream_error(&error))
    }

    fn destroy(&self, py: Python<'_>) -> PyResult<()> {
        let destroyed = wait(py, self.family.clone().destroy_async())?;
        destroyed.map_err(|error| stream_error(&error))
    }
}

fn size(text: &str) -> PyResult<ByteSize> {
    text.parse().map_err(|error| PyValueError::new_err(shown(&error)))
}

fn full_policy(word: &str) -> PyResult<FullPolicy> {
    match word {
        "error" => Ok(FullPolicy::Error),
        "wait" => Ok(FullPolicy::Wait),
        other => {
            let text = format!("full is {other:?}; choose \"error\" or \"wait\"");
            Err(PyValueError::new_err(text))
        }
    }
}

fn parse_lifetime((word, seconds): &LifetimeArgument) -> PyResult<Lifetime> {
    match (word.as_str(), seconds) {
        ("process", None) => Ok(Lifetime::Process),
        ("kept", None) => Ok(Lifetime::Kept),
        ("lease", Some(seconds)) => Ok(Lifetime::Lease(duration(*seconds, "lifetime")?)),
        (other, _) => {
            let text = format!(
                "lifetime is {other:?}; choose \"process\", \"kept\", or the seconds of a lease"
            );
            Err(PyValueError::new_err(text))
        }
    }
}

fn duration(seconds: f64, what: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        let text = format!("{what} is {seconds} seconds; use 0 or more, up to 1e19");
        PyValueError::new_err(text)
    })
}

/// The exception of a store that cannot be opened: the error and its causes, in one line.
fn store_error(error: &StoreError) -> PyErr {
    if matches!(error, StoreError::Interrupted) {
        return interrupted();
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    StreamError::new_err(shown(&text))
}
