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
        Budget, Capacity, Evicted, Implication, Key, Outcome, Policy, PolicyKind, Slot, TableId,
        TableShape, pinned_tables,
    },
};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;

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

/// Sizes tried to find the least memory, each an eighth larger: up to a row of the greatest width.
const LEAST_STEPS: usize = 160;

/// Bytes of bookkeeping per row that the policy counts with it, at most.
const ROW_BYTES_BESIDE: u64 = 1024;

/// Buffers that are kept from one lookup to the next take at most 1/32 of the memory, within these
/// limits. Below 32 MiB of memory they are not part of it.
const BUFFERS_SHARE: u64 = 32;
const BUFFERS_MIN: u64 = 1 << 20;
const BUFFERS_MAX: u64 = 16 << 20;

/// Bytes of buffers that are kept, at most, and how many of them are part of the memory.
fn buffers(memory: u64) -> (u64, u64) {
    let share = memory / BUFFERS_SHARE;
    let most = share.clamp(BUFFERS_MIN, BUFFERS_MAX);
    (most, if share < BUFFERS_MIN { 0 } else { most })
}

/// Options for opening tables.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Memory for rows, for the bookkeeping of all of them, and for buffers that are kept from one
    /// lookup to the next. A lookup's own buffers come on top while it runs. 0 keeps no row.
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

/// How the memory divides once it is full. All but the pinned tables are known only for the policy
/// `group`, which plans its bookkeeping.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MemoryDivision {
    /// Tables that are kept whole.
    pub pinned_tables: u64,
    /// Their bytes, with a bit per row.
    pub pinned_bytes: u64,
    /// Rows of the other tables that fit, about.
    pub rows: u64,
    /// Their bytes.
    pub row_bytes: u64,
    /// Bytes that say which rows are in memory, where, and in which rank.
    pub directory_bytes: u64,
    /// Bytes about rows that are not in memory.
    pub ghost_bytes: u64,
    /// Bytes from which the policy's settings and implications are learned.
    pub tuning_bytes: u64,
    /// Limit on the buffers that are kept for the next lookups.
    pub buffer_bytes: u64,
}

/// Memory that tables leave to rows and bookkeeping, without the buffers.
pub fn memory_without_buffers(memory: ByteSize) -> ByteSize {
    ByteSize(memory.0 - buffers(memory.0).1)
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
    pub(crate) division: MemoryDivision,
    /// `None` if all tables are pinned, or there is no memory.
    pub(crate) policy: Option<Mutex<PolicyState>>,
    pub(crate) resident: RwLock<Resident>,
    /// Held during a replacement, so that there is one at a time.
    pub(crate) replacement: Mutex<()>,
    /// Scratch space of lookups that are done, for the next ones.
    pub(crate) idle: Mutex<Idle>,
    pub(crate) ring_works: AtomicBool,
    pub(crate) threads: usize,
    pub(crate) io: Io,
    pub(crate) direct: bool,
    pub(crate) counters: Counters,
}

/// The policy, and its evictions that have not been applied yet.
pub(crate) struct PolicyState {
    pub policy: Box<dyn Policy>,
    pub evicted: Vec<Evicted>,
}

/// Scratch space of one lookup, reused by later ones.
#[derive(Default)]
pub(crate) struct Scratch {
    pub keys: Vec<Key>,
    /// Where the slot of each of `keys` goes in `slots`.
    pub slots_at: Vec<usize>,
    /// The slot of every key of the lookup, table by table.
    pub slots: Vec<Option<Slot>>,
    pub outcome: Outcome,
    /// For each sample: whether some of its rows were not in memory.
    pub missed: Vec<bool>,
    /// Bags that wait for rows: table and sample.
    pub waiting: Vec<(usize, usize)>,
    pub fetched: Fetched,
    pub reader: Option<Reader>,
}

impl Scratch {
    /// Bytes allocated.
    fn bytes(&self) -> u64 {
        let lists = self.keys.capacity() * size_of::<Key>()
            + self.slots_at.capacity() * size_of::<usize>()
            + (self.slots.capacity() + self.outcome.slots.capacity()) * size_of::<Option<Slot>>()
            + self.waiting.capacity() * size_of::<(usize, usize)>()
            + self.missed.capacity();
        lists as u64 + self.fetched.bytes() + self.reader.as_ref().map_or(0, Reader::bytes)
    }
}

/// Scratch space that is not in use, within a limit on its bytes.
pub(crate) struct Idle {
    scratches: Vec<Scratch>,
    bytes: u64,
    bytes_max: u64,
}

impl Idle {
    /// Takes some scratch space.
    pub fn take(&mut self) -> Scratch {
        let scratch = self.scratches.pop().unwrap_or_default();
        self.bytes -= scratch.bytes();
        scratch
    }

    /// Keeps scratch space for later, if it is within the limit.
    pub fn give(&mut self, scratch: Scratch) {
        let bytes = scratch.bytes();
        if self.bytes + bytes <= self.bytes_max {
            self.bytes += bytes;
            self.scratches.push(scratch);
        }
    }
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
        let (buffers_max, buffers_within) = buffers(memory);
        let left = memory - buffers_within;
        let shapes: Vec<TableShape> = layouts.iter().map(shape).collect();
        let pinned = pinned(&shapes, left);
        let page_max = usize::try_from(memory / PAGE_SHARE).unwrap_or(usize::MAX);
        let is_pinned = shapes.iter().zip(&pinned).filter(|(_, pinned)| **pinned);
        let pinned_bytes: u64 = is_pinned.map(|(shape, _)| pinned_table_bytes(shape)).sum();
        // Allocating more than the machine has would not fail; it would get the process killed.
        if let Some(available) = machine_memory().filter(|memory| pinned_bytes > memory.0) {
            return Err(OpenError::Memory { needed: ByteSize(pinned_bytes), available });
        }
        let dense = options.policy == PolicyKind::Group;
        let resident = Resident::new(tables, &pinned, page_max, dense)
            .map_err(|source| OpenError::NoMemory { needed: ByteSize(pinned_bytes), source })?;
        let policy = if memory == 0 || pinned.iter().all(|pinned| *pinned) {
            None
        } else {
            // The policy sees pinned tables as empty: their rows use none of its capacity.
            let empty = TableShape { rows: 0, row_bytes: 0 };
            let seen: Vec<TableShape> = shapes
                .iter()
                .zip(&pinned)
                .map(|(shape, pinned)| if *pinned { empty } else { *shape })
                .collect();
            let build = |memory: u64| {
                let left = memory - buffers(memory).1;
                let left = left.saturating_sub(pinned_bytes).saturating_sub(resident.page_slack());
                let budget = Budget::new(seen.clone(), Capacity::Memory(ByteSize(left)))
                    .with_row_overhead(resident.overhead_bytes());
                options.policy.build(&budget, 0)
            };
            let widest = shapes.iter().map(|shape| shape.row_bytes).max().unwrap_or(0);
            let enough = u64::from(widest) + ROW_BYTES_BESIDE;
            let policy = build(memory);
            if policy.capacity() < enough {
                let larger = std::iter::successors(Some(memory), |memory| {
                    Some(memory.saturating_mul(9) / 8 + 1024)
                });
                let least =
                    larger.take(LEAST_STEPS).find(|memory| build(*memory).capacity() >= enough);
                // With more memory, more tables are pinned and pages are larger.
                let least = least.unwrap_or(memory).saturating_mul(17) / 16;
                return Err(OpenError::TooLittle { memory, least });
            }
            Some(Mutex::new(PolicyState { policy, evicted: Vec::new() }))
        };
        let planned = policy.as_ref().and_then(|state| state.lock().policy.division());
        let planned = planned.unwrap_or_default();
        let places = planned.rows * u64::from(resident.overhead_bytes());
        let division = MemoryDivision {
            pinned_tables: pinned.iter().filter(|pinned| **pinned).count() as u64,
            pinned_bytes,
            rows: planned.rows,
            row_bytes: planned.row_bytes.saturating_sub(places),
            directory_bytes: planned.bookkeeping.directory + places,
            ghost_bytes: planned.bookkeeping.ghosts,
            tuning_bytes: planned.bookkeeping.tuning,
            buffer_bytes: buffers_max,
        };
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
            division,
            policy,
            resident: RwLock::new(resident),
            replacement: Mutex::new(()),
            idle: Mutex::new(Idle { scratches: Vec::new(), bytes: 0, bytes_max: buffers_max }),
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

    /// How the memory divides once it is full.
    pub fn division(&self) -> MemoryDivision {
        self.division
    }

    /// The implications between tables that the policy has learned.
    pub fn implications(&self) -> Vec<Implication> {
        self.policy.as_ref().map_or_else(Vec::new, |state| state.lock().policy.implications())
    }

    /// Counters, and what is in memory now.
    pub fn stats(&self) -> Stats {
        let books = self.policy.as_ref().map(|state| state.lock().policy.bookkeeping());
        let books = books.unwrap_or_default();
        let buffer_bytes = self.idle.lock().bytes;
        let resident = self.resident.read();
        let (pinned_bytes, pinned_rows) = resident.pinned_rows();
        Stats {
            resident_rows: resident.packed_rows() + pinned_rows,
            resident_bytes: resident.packed_bytes() + pinned_bytes,
            directory_bytes: resident.directory_bytes() + books.directory,
            ghost_bytes: books.ghosts,
            tuning_bytes: books.tuning,
            buffer_bytes,
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

/// Which tables are pinned. Those that are have a bit per row beside their rows.
fn pinned(shapes: &[TableShape], memory: u64) -> Vec<bool> {
    let pinned =
        |memory| pinned_tables(&Budget::new(shapes.to_vec(), Capacity::Bytes(ByteSize(memory))));
    let all = shapes.iter().map(pinned_table_bytes).fold(0, u64::saturating_add);
    if all <= memory {
        return vec![true; shapes.len()];
    }
    let some = pinned(memory);
    let bits = |shape: &TableShape| shape.rows.div_ceil(64) * 8;
    // All rows fit, but not their bits.
    if some.iter().all(|pinned| *pinned) {
        return pinned(memory.saturating_sub(shapes.iter().map(bits).sum()));
    }
    some
}

/// Bytes of a pinned table.
fn pinned_table_bytes(shape: &TableShape) -> u64 {
    let rows = shape.rows.saturating_mul(u64::from(shape.row_bytes));
    rows.saturating_add(shape.rows.div_ceil(64) * 8)
}

/// Memory of this machine, if the system reports it.
fn machine_memory() -> Option<ByteSize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    Some(ByteSize::kib(kib?.trim().parse().ok()?))
}
