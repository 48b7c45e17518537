//! Tables: the open tables of a model, with their hot rows in memory.
//!
//! [`Tables`] owns the files, the policy, the resident rows and the counters. What it does is in
//! three further modules: `lookup.rs` (the five steps of a lookup, with their locks), `prefetch.rs`
//! and `replace.rs`.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use forebay_core::{
    ByteSize,
    embeddings::{
        Budget, Capacity, Implication, Key, Outcome, Policy, PolicyKind, TableId, TableShape,
        pinned_tables,
    },
};
use parking_lot::{Mutex, RwLock};

use crate::{
    codes::Code,
    error::OpenError,
    fetch::Fetched,
    file::{DataFile, Source},
    format::Layout,
    io::{Io, Reader},
    resident::{Resident, Table},
    stats::{Counters, Stats},
};

/// A page of packed rows takes at most 1/256 of the memory, so that little of it is wasted.
const PAGE_SHARE: u64 = 256;

/// Memory per resident row beside its bytes, about: the policy's bookkeeping, its share of the
/// ghost table, and the directory of rows.
pub const BOOKKEEPING_BYTES_PER_ROW: u64 = 200;

/// Options for opening tables.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Memory for the bytes of rows. Bookkeeping comes on top:
    /// [`BOOKKEEPING_BYTES_PER_ROW`] per resident row.
    pub memory: ByteSize,
    /// Replacement policy.
    pub policy: PolicyKind,
    /// How rows are read.
    pub io: Io,
    /// Whether reads bypass the page cache, where the file system supports it.
    pub direct: bool,
}

impl Options {
    /// This much memory, the policy `group`, the fastest available `io`, and direct reads.
    pub fn new(memory: ByteSize) -> Self {
        Self { memory, policy: PolicyKind::Group, io: Io::Auto, direct: true }
    }
}

/// The open tables of a model.
pub struct Tables {
    pub(crate) layouts: Vec<Layout>,
    /// First column of each table in a pooled sample, and the total number of columns.
    pub(crate) columns: Vec<usize>,
    /// The code of each quantised table.
    pub(crate) codes: Vec<Option<Code>>,
    /// Whether each table is pinned.
    pub(crate) pinned: Vec<bool>,
    pub(crate) memory: u64,
    /// `None` if all tables are pinned.
    pub(crate) policy: Option<Mutex<PolicyState>>,
    pub(crate) resident: RwLock<Resident>,
    /// Held during a replacement, so that there is one at a time.
    pub(crate) replacement: Mutex<()>,
    /// Scratch space of lookups that are done, for the next ones.
    pub(crate) idle: Mutex<Vec<Scratch>>,
    pub(crate) ring_works: AtomicBool,
    pub(crate) threads: usize,
    pub(crate) io: Io,
    pub(crate) direct: bool,
    pub(crate) counters: Counters,
}

/// The policy, and its evictions that have not been applied yet.
pub(crate) struct PolicyState {
    pub policy: Box<dyn Policy>,
    pub evicted: Vec<Key>,
}

/// Scratch space of one lookup, reused by later ones.
#[derive(Default)]
pub(crate) struct Scratch {
    pub keys: Vec<Key>,
    pub outcome: Outcome,
    /// For each sample: whether some of its rows were not in memory.
    pub missed: Vec<bool>,
    /// Bags that wait for rows: table and sample.
    pub waiting: Vec<(usize, usize)>,
    pub fetched: Fetched,
    pub reader: Option<Reader>,
}

impl Tables {
    /// Opens tables. Reads headers only.
    pub fn open(sources: &[Source], options: &Options) -> Result<Self, OpenError> {
        if sources.is_empty() {
            return Err(OpenError::None);
        }
        if sources.len() > usize::from(u16::MAX) {
            return Err(OpenError::TooMany { count: sources.len() });
        }
        let mut files: BTreeMap<PathBuf, Arc<DataFile>> = BTreeMap::new();
        let mut tables: Vec<Arc<Table>> = Vec::with_capacity(sources.len());
        for source in sources {
            let file = if let Some(file) = files.get(&source.path) {
                Arc::clone(file)
            } else {
                let opened = DataFile::open(&source.path, options.direct)?;
                // A file with two names is opened once, so that its lock covers all our writes.
                let known = files.values().find(|file| file.is_same_file(&opened)).cloned();
                known.unwrap_or_else(|| Arc::new(opened))
            };
            let layout = file.layout(source)?;
            files.insert(source.path.clone(), Arc::clone(&file));
            tables.push(Arc::new(Table { file, layout }));
        }
        let ring_works = match options.io {
            Io::Pread => false,
            Io::Auto => Reader::ring().is_ok(),
            Io::Uring => match Reader::ring() {
                Ok(_) => true,
                Err(source) => return Err(OpenError::NoRing { source }),
            },
        };
        Self::with(tables, options, ring_works)
    }

    fn with(
        tables: Vec<Arc<Table>>,
        options: &Options,
        ring_works: bool,
    ) -> Result<Self, OpenError> {
        let layouts: Vec<Layout> = tables.iter().map(|table| table.layout).collect();
        let shape =
            |layout: &Layout| TableShape { rows: layout.rows, row_bytes: layout.row_bytes() };
        let memory = options.memory.0;
        let budget =
            Budget::new(layouts.iter().map(shape).collect(), Capacity::Bytes(options.memory));
        let pinned = pinned_tables(&budget);
        let page_max = usize::try_from(memory / PAGE_SHARE).unwrap_or(usize::MAX);
        let is_pinned = layouts.iter().zip(&pinned).filter(|(_, pinned)| **pinned);
        let pinned_bytes: u64 = is_pinned.map(|(layout, _)| layout.bytes()).sum();
        // Allocating more than the machine has would not fail; it would get the process killed.
        if let Some(available) = machine_memory().filter(|memory| pinned_bytes > memory.0) {
            return Err(OpenError::Memory { needed: ByteSize(pinned_bytes), available });
        }
        let resident = Resident::new(tables, &pinned, page_max)
            .map_err(|source| OpenError::NoMemory { needed: ByteSize(pinned_bytes), source })?;
        // The policy sees pinned tables as empty: their rows use none of its capacity.
        let shapes = layouts.iter().zip(&pinned).map(|(layout, pinned)| {
            if *pinned { TableShape { rows: 0, row_bytes: 0 } } else { shape(layout) }
        });
        let left = memory.saturating_sub(pinned_bytes).saturating_sub(resident.page_slack());
        let policy = pinned.iter().any(|pinned| !pinned).then(|| {
            let budget = Budget::new(shapes.collect(), Capacity::Bytes(ByteSize(left)));
            let policy = options.policy.build(&budget, 0);
            Mutex::new(PolicyState { policy, evicted: Vec::new() })
        });
        let mut columns = vec![0];
        for layout in &layouts {
            columns.push(columns[columns.len() - 1] + layout.dimension as usize);
        }
        Ok(Self {
            codes: layouts.iter().map(|layout| layout.dtype.quantised()).collect(),
            layouts,
            columns,
            pinned,
            memory,
            policy,
            resident: RwLock::new(resident),
            replacement: Mutex::new(()),
            idle: Mutex::new(Vec::new()),
            ring_works: AtomicBool::new(ring_works),
            threads: thread::available_parallelism().map_or(1, usize::from),
            io: options.io,
            direct: options.direct,
            counters: Counters::default(),
        })
    }

    /// The layouts of the tables, in order.
    pub fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Numbers in a pooled sample: the dimensions of all tables together.
    pub fn columns(&self) -> usize {
        self.columns[self.layouts.len()]
    }

    /// Whether missing rows are read with `io_uring`.
    pub fn uses_ring(&self) -> bool {
        self.ring_works.load(Relaxed)
    }

    /// Whether reads of all tables bypass the page cache.
    pub fn is_direct(&self) -> bool {
        let resident = self.resident.read();
        (0..self.layouts.len()).all(|table| resident.table(table).file.is_direct())
    }

    /// The implications between tables that the policy has learned.
    pub fn implications(&self) -> Vec<Implication> {
        self.policy.as_ref().map_or_else(Vec::new, |state| state.lock().policy.implications())
    }

    /// Counters, and what is in memory now.
    pub fn stats(&self) -> Stats {
        let resident = self.resident.read();
        let (pinned_bytes, pinned_rows) = resident.pinned_rows();
        Stats {
            resident_rows: resident.packed_rows() + pinned_rows,
            resident_bytes: resident.packed_bytes() + pinned_bytes,
            memory_bytes: self.memory,
            pinned_tables: self.pinned.iter().filter(|pinned| **pinned).count() as u64,
            ..self.counters.stats()
        }
    }
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").field("layouts", &self.layouts).finish_non_exhaustive()
    }
}

/// The key of a row of a table.
pub(crate) fn key(table: usize, row: u64) -> Key {
    let table = TableId(u16::try_from(table).expect("table ids are 16-bit"));
    Key::new(table, row).expect("a layout has at most Key::ROWS_MAX rows")
}

/// Memory of this machine, if the system reports it.
fn machine_memory() -> Option<ByteSize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    Some(ByteSize::kib(kib?.trim().parse().ok()?))
}
