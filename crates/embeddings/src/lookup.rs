//! Tables larger than memory, looked up as if they were in it.
//!
//! A lookup goes through five steps, and holds a lock only where it says so:
//!
//! 1. The **policy** is told every sample's keys and decides what should be resident (its lock).
//! 2. Bags all of whose rows are in **memory** are done; of the others, what is there is put aside and what
//!    is not is noted (shared lock on memory: lookups do this at the same time).
//! 3. Everything missing is **read**, in one batch (shared locks on files, against our own writes).
//! 4. The waiting bags are done.
//! 5. What was read and should be resident is **kept**, what was evicted goes (both locks, briefly).
//!
//! A row is copied under a lock that whoever replaces it must have alone: nobody sees half of one.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use forebay_core::{
    ByteSize,
    embedding::{
        Budget, Capacity, Implication, Key, Outcome, Policy, PolicyKind, TableId, TableShape,
        whole_tables,
    },
};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::{
    bags::Bags,
    error::{LookupError, OpenError, ReadError, ReplaceError},
    fetch::Fetched,
    file::{BLOCK, DataFile, Source},
    format::{Dtype, Layout},
    io::{Cost, Io, Reader},
    output::{Gathered, Output, Pooled, Pooling},
    resident::{Resident, Table, View},
    stats::{Counters, Counts, Stats},
};

/// Others get the policy's lock after so many samples.
const SAMPLES_PER_LOCK: usize = 64;
/// A lookup of more keys than this takes another thread, up to as many as there are cores: starting one costs
/// as much as copying two thousand rows.
const KEYS_PER_THREAD: usize = 16 << 10;
/// While a row is copied, the one so many keys further on is on its way from memory: of 8, 16 and 32, the last two
/// were equally good.
const KEYS_AHEAD: usize = 16;
/// Pages of packed rows take at most this share of the memory, so that what they waste is small.
const PAGE_SHARE: u64 = 256;

/// How tables are opened.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How much their rows may take in memory. What is noted about each resident row comes on top:
    /// [`BOOK_BYTES_PER_ROW`].
    pub memory: ByteSize,
    /// Which rows stay.
    pub policy: PolicyKind,
    /// How rows are read.
    pub io: Io,
    /// Whether the page cache is left out of it, where that is possible.
    pub direct: bool,
}

impl Options {
    /// So much memory, our own policy, and whatever reads best.
    pub fn new(memory: ByteSize) -> Self {
        Self { memory, policy: PolicyKind::Group, io: Io::Auto, direct: true }
    }
}

/// About what a resident row costs beside its bytes: the policy's books (with a sketch of rows that went)
/// and the directory.
pub const BOOK_BYTES_PER_ROW: u64 = 200;

/// The tables of a model.
pub struct Tables {
    layouts: Vec<Layout>,
    /// Where each table's columns begin in a pooled row, and how many there are in all.
    columns: Vec<usize>,
    whole: Vec<bool>,
    memory: u64,
    decider: Option<Mutex<Decider>>,
    resident: RwLock<Resident>,
    /// Held by whoever replaces something.
    replacing: Mutex<()>,
    idle: Mutex<Vec<Worker>>,
    ring_works: AtomicBool,
    threads: usize,
    io: Io,
    direct: bool,
    counters: Counters,
}

/// Who decides what should be resident, and what it has evicted that is not gone yet.
struct Decider {
    policy: Box<dyn Policy>,
    evicted: Vec<Key>,
}

/// What a thread needs for a lookup; kept from one to the next.
#[derive(Default)]
struct Worker {
    keys: Vec<Key>,
    outcome: Outcome,
    /// Samples some of whose rows were not in memory.
    missed: Vec<bool>,
    /// Bags that wait for rows: table and sample.
    waiting: Vec<(usize, usize)>,
    fetched: Fetched,
    reader: Option<Reader>,
}

impl Tables {
    /// Opens tables. Only headers are read.
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
                // One file by two names is opened once: what we write to it, we know of.
                let known = files.values().find(|file| file.is(&opened)).cloned();
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
        let whole = whole_tables(&budget);
        let page_max = usize::try_from(memory / PAGE_SHARE).unwrap_or(usize::MAX);
        let whole_bytes: u64 =
            layouts.iter().zip(&whole).filter(|(_, whole)| **whole).map(|(l, _)| l.bytes()).sum();
        // More than there is would not be an error but the end of the process.
        if let Some(there) = machine_memory().filter(|there| whole_bytes > there.0) {
            return Err(OpenError::Memory { needed: ByteSize(whole_bytes), there });
        }
        let resident = Resident::new(tables, &whole, page_max)
            .map_err(|source| OpenError::NoMemory { needed: ByteSize(whole_bytes), source })?;
        // To the policy whole tables are nothing: their rows never ask for room.
        let shapes = layouts.iter().zip(&whole).map(|(layout, whole)| {
            if *whole { TableShape { rows: 0, row_bytes: 0 } } else { shape(layout) }
        });
        let left = memory.saturating_sub(whole_bytes).saturating_sub(resident.page_slack());
        let decider = whole.iter().any(|whole| !whole).then(|| {
            let budget = Budget::new(shapes.collect(), Capacity::Bytes(ByteSize(left)));
            let policy = options.policy.build(&budget, 0);
            Mutex::new(Decider { policy, evicted: Vec::new() })
        });
        let mut columns = vec![0];
        for layout in &layouts {
            columns.push(columns[columns.len() - 1] + layout.dimension as usize);
        }
        Ok(Self {
            layouts,
            columns,
            whole,
            memory,
            decider,
            resident: RwLock::new(resident),
            replacing: Mutex::new(()),
            idle: Mutex::new(Vec::new()),
            ring_works: AtomicBool::new(ring_works),
            threads: thread::available_parallelism().map_or(1, usize::from),
            io: options.io,
            direct: options.direct,
            counters: Counters::default(),
        })
    }

    /// The shapes of the tables, in their order.
    pub fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// How many numbers a pooled sample has: the dimensions of all tables together.
    pub fn columns(&self) -> usize {
        self.columns[self.layouts.len()]
    }

    /// Whether missing rows are read by `io_uring`.
    pub fn uses_ring(&self) -> bool {
        self.ring_works.load(Relaxed)
    }

    /// Whether every table is read past the page cache.
    pub fn is_direct(&self) -> bool {
        let resident = self.resident.read();
        (0..self.layouts.len()).all(|table| resident.table(table).file.is_direct())
    }

    /// What has been counted.
    pub fn stats(&self) -> Stats {
        let resident = self.resident.read();
        let (whole_bytes, whole_rows) = resident.whole_rows();
        Stats {
            resident_rows: resident.packed_rows() + whole_rows,
            resident_bytes: resident.packed_bytes() + whole_bytes,
            memory_bytes: self.memory,
            whole_tables: self.whole.iter().filter(|whole| **whole).count() as u64,
            ..self.counters.stats()
        }
    }

    /// Looks up a bag of every table for each sample, and pools each bag into one row. A table's rows lie
    /// one after the other in `out`, table after table; an empty bag gives noughts. All tables must be of float32.
    pub fn lookup(
        &self,
        bags: &[Bags<'_>],
        pooling: Pooling,
        out: &mut [f32],
    ) -> Result<(), LookupError> {
        let samples = self.check(bags)?;
        if let Some(table) = self.layouts.iter().position(|layout| layout.dtype != Dtype::F32) {
            return Err(LookupError::Dtype { table, dtype: self.layouts[table].dtype });
        }
        let expected = samples.saturating_mul(self.columns());
        if out.len() != expected {
            return Err(LookupError::Output { given: out.len(), expected });
        }
        let columns = &self.columns;
        self.serve(bags, samples, &mut Pooled { pooling, columns, samples, before: 0, out })
    }

    /// Looks up every key by itself: the bytes of all rows, in the order of the keys, table after table. What
    /// stands for padding is left as it is.
    pub fn gather(&self, bags: &[Bags<'_>], out: &mut [u8]) -> Result<(), LookupError> {
        let samples = self.check(bags)?;
        let mut expected = 0_usize;
        let mut tables = Vec::with_capacity(bags.len());
        for (bags, layout) in bags.iter().zip(&self.layouts) {
            let width = layout.row_bytes() as usize;
            tables.push((expected, width));
            expected = expected.saturating_add(bags.keys().len().saturating_mul(width));
        }
        if out.len() != expected {
            return Err(LookupError::Output { given: out.len(), expected });
        }
        self.serve(bags, samples, &mut Gathered { tables: &tables, out })
    }

    /// Brings rows into memory that will be asked for: those of these keys (a table's number, and keys of it), and those
    /// of all keys that they imply, as far as it has been learned which keys come together. Returns how many rows
    /// were read. What has no room, or comes too early to stay, is read again when it is asked for.
    pub fn prefetch(&self, known: &[(usize, &[i64])]) -> Result<u64, LookupError> {
        for (table, keys) in known {
            let tables = self.layouts.len();
            let layout = self.layouts.get(*table);
            let layout = layout.ok_or(LookupError::NoTable { table: *table, tables })?;
            Bags::single(keys).check(*table, layout.rows)?;
        }
        let mut worker = self.idle.lock().pop().unwrap_or_default();
        self.decide_ahead(known, &mut worker);
        self.miss_ahead(&mut worker);
        let read = self.read(&mut worker);
        let rows = worker.fetched.missing().len() as u64;
        if let Ok(cost) = &read {
            self.counters.prefetched(rows, cost.reads, cost.bytes);
        }
        self.settle(&worker.fetched, read.is_ok());
        worker.fetched.rest();
        self.idle.lock().push(worker);
        read?;
        Ok(rows)
    }

    /// Which tables' keys determine others', as far as that has been learned.
    pub fn implications(&self) -> Vec<Implication> {
        self.decider.as_ref().map_or_else(Vec::new, |decider| decider.lock().policy.implications())
    }

    /// Step 1 of a prefetch: the keys that are known or implied, and should be resident.
    fn decide_ahead(&self, known: &[(usize, &[i64])], worker: &mut Worker) {
        let Worker { keys, outcome, .. } = worker;
        keys.clear();
        for (table, rows) in known {
            keys.extend(rows.iter().map(|row| key(*table, row.cast_unsigned())));
        }
        let Some(decider) = &self.decider else { return };
        let mut decider = decider.lock();
        let Decider { policy, evicted } = &mut *decider;
        let mut implied = Vec::new();
        policy.implied(keys, &mut implied);
        keys.append(&mut implied);
        // A row that is remembered wrongly may be one that its table does not have.
        keys.retain(|key| key.row() < self.layouts[usize::from(key.table().0)].rows);
        policy.prefetch(keys, outcome);
        evicted.append(&mut outcome.evicted);
        keys.retain(|key| self.whole[usize::from(key.table().0)] || policy.contains(*key));
    }

    /// Step 2 of a prefetch: which of these keys are not in memory?
    fn miss_ahead(&self, worker: &mut Worker) {
        let Worker { keys, fetched, .. } = worker;
        fetched.clear(self.layouts.len());
        let resident = self.resident.read();
        for key in keys {
            let table = usize::from(key.table().0);
            let view = resident.view(table);
            if view.find(key.row()).is_none() {
                want(fetched, &resident, view, table, key.row());
            }
        }
    }

    /// How many samples there are, if all is as it should be.
    fn check(&self, bags: &[Bags<'_>]) -> Result<usize, LookupError> {
        if bags.len() != self.layouts.len() {
            return Err(LookupError::Tables { given: bags.len(), tables: self.layouts.len() });
        }
        let expected = bags[0].len();
        for (table, (bags, layout)) in bags.iter().zip(&self.layouts).enumerate() {
            bags.check(table, layout.rows)?;
            if bags.len() != expected {
                return Err(LookupError::Batch { table, given: bags.len(), expected });
            }
        }
        Ok(expected)
    }

    fn serve(
        &self,
        bags: &[Bags<'_>],
        samples: usize,
        output: &mut impl Output,
    ) -> Result<(), LookupError> {
        let mut worker = self.idle.lock().pop().unwrap_or_default();
        self.decide(bags, samples, &mut worker);
        let mut counts = self.take_from_memory(bags, samples, &mut worker, output);
        let read = self.read(&mut worker);
        if let Ok(cost) = &read {
            (counts.reads, counts.bytes_read) = (cost.reads, cost.bytes);
            counts.rows_read = worker.fetched.missing().len() as u64;
            self.finish(bags, &worker, output);
        }
        self.settle(&worker.fetched, read.is_ok());
        self.counters.add(&counts);
        self.idle.lock().push(worker);
        read?;
        Ok(())
    }

    /// Step 1.
    fn decide(&self, bags: &[Bags<'_>], samples: usize, worker: &mut Worker) {
        let Some(decider) = &self.decider else { return };
        let mut decider = decider.lock();
        for sample in 0..samples {
            worker.keys.clear();
            for (table, bags) in bags.iter().enumerate().filter(|(table, _)| !self.whole[*table]) {
                let rows = bags.bag(sample).1.iter().filter_map(|key| bags.row(*key));
                worker.keys.extend(rows.map(|row| key(table, row)));
            }
            let Decider { policy, evicted } = &mut *decider;
            policy.request(&worker.keys, &mut worker.outcome);
            evicted.append(&mut worker.outcome.evicted);
            if (sample + 1).is_multiple_of(SAMPLES_PER_LOCK) {
                MutexGuard::bump(&mut decider);
            }
        }
    }

    /// Step 2.
    fn take_from_memory(
        &self,
        bags: &[Bags<'_>],
        samples: usize,
        worker: &mut Worker,
        output: &mut impl Output,
    ) -> Counts {
        let Worker { missed, waiting, fetched, .. } = worker;
        missed.clear();
        missed.resize(samples, false);
        waiting.clear();
        fetched.clear(bags.len());
        let resident = self.resident.read();
        let keys: usize = bags.iter().map(|bags| bags.keys().len()).sum();
        let threads = (keys / KEYS_PER_THREAD).clamp(1, self.threads);
        let mut parts = output.parts(samples * bags.len(), threads);
        let mut counts = Counts { samples: samples as u64, ..Counts::default() };
        let first = if parts.is_empty() { None } else { Some(parts.remove(0)) };
        thread::scope(|scope| {
            let others: Vec<_> = parts
                .into_iter()
                .map(|(part, mut output)| {
                    let resident = &resident;
                    scope.spawn(move || take_part(bags, samples, part, resident, &mut output))
                })
                .collect();
            // This thread does its part, too.
            let own = first
                .map(|(part, mut output)| take_part(bags, samples, part, &resident, &mut output));
            let others = others.into_iter().map(|other| other.join().expect("it does not panic"));
            for taken in own.into_iter().chain(others) {
                counts.keys += taken.keys;
                counts.hits += taken.hits;
                waiting.extend(taken.waiting);
            }
        });
        for &(table, sample) in &*waiting {
            missed[sample] = true;
            let view = resident.view(table);
            for (_, row) in places(&bags[table], bags[table].bag(sample).1) {
                match view.find(row) {
                    Some(found) => fetched.keep(key(table, row), found),
                    None => want(fetched, &resident, view, table, row),
                }
            }
        }
        counts.perfect = missed.iter().filter(|missed| !**missed).count() as u64;
        counts
    }

    /// Step 3.
    fn read(&self, worker: &mut Worker) -> Result<Cost, ReadError> {
        if worker.fetched.missing().is_empty() {
            return Ok(Cost::default());
        }
        let mut reader = match worker.reader.take().filter(Reader::is_ours) {
            Some(reader) => reader,
            None => self.reader()?,
        };
        let read = worker.fetched.read(&mut reader);
        worker.reader = Some(reader);
        read
    }

    fn reader(&self) -> Result<Reader, ReadError> {
        if self.ring_works.load(Relaxed) {
            match Reader::ring() {
                Ok(reader) => return Ok(reader),
                // Too many rings, or they have been forbidden since: others keep theirs.
                Err(_) if self.io == Io::Auto => self.ring_works.store(false, Relaxed),
                Err(source) => return Err(ReadError::Io { path: "io_uring".into(), source }),
            }
        }
        Reader::pread().map_err(|source| ReadError::Io { path: "memory".into(), source })
    }

    /// Step 4.
    fn finish(&self, bags: &[Bags<'_>], worker: &Worker, output: &mut impl Output) {
        for &(table, sample) in &worker.waiting {
            let (start, bag) = bags[table].bag(sample);
            let width = self.layouts[table].row_bytes() as usize;
            let rows = places(&bags[table], bag)
                .map(|(place, row)| (place, worker.fetched.row(key(table, row), width)));
            output.bag(table, sample, start, rows);
        }
    }

    /// Step 5. After a failure nothing is kept, but what was evicted goes all the same.
    fn settle(&self, fetched: &Fetched, read: bool) {
        let missing = if read { fetched.missing() } else { &[] };
        let mut decider = self.decider.as_ref().map(Mutex::lock);
        let nothing_evicted = decider.as_ref().is_none_or(|decider| decider.evicted.is_empty());
        if missing.is_empty() && nothing_evicted {
            return;
        }
        let mut resident = self.resident.write();
        if let Some(decider) = &mut decider {
            let Decider { policy, evicted } = &mut **decider;
            for key in evicted.drain(..).filter(|key| !policy.contains(*key)) {
                resident.remove(key);
            }
        }
        for &key in missing {
            let table = usize::from(key.table().0);
            let wanted = self.whole[table]
                || decider.as_ref().is_some_and(|decider| decider.policy.contains(key));
            // What was read before a replacement is not kept after it.
            if wanted && Arc::ptr_eq(resident.table(table), fetched.table(key)) {
                resident.insert(key, fetched.row(key, self.layouts[table].row_bytes() as usize));
            }
        }
        let used = resident.packed_bytes();
        assert!(used <= self.memory, "{used} bytes of rows in a memory of {}", self.memory);
    }

    /// Replaces rows of a table, on disk and in memory, while lookups go on: each sees a row as it was or as
    /// it is, never half of both. They are durable when this returns; what a crash meanwhile leaves of them
    /// is anything, and so is what another process sees that serves the same file.
    pub fn replace_rows(&self, table: usize, first: u64, bytes: &[u8]) -> Result<(), ReplaceError> {
        let layout = self.layout(table)?;
        let row_bytes = layout.row_bytes();
        if !bytes.len().is_multiple_of(row_bytes as usize) {
            return Err(ReplaceError::Uneven { given: bytes.len(), row_bytes });
        }
        let count = (bytes.len() / row_bytes as usize) as u64;
        if first.checked_add(count).is_none_or(|end| end > layout.rows) {
            return Err(ReplaceError::Rows { first, count, rows: layout.rows });
        }
        let _one_at_a_time = self.replacing.lock();
        let now = Table::clone(self.resident.read().table(table));
        let offset = now.layout.row_offset(first);
        now.file
            .write(offset, bytes)
            .map_err(|source| ReplaceError::Io { path: now.file.path().to_owned(), source })?;
        let mut resident = self.resident.write();
        for shared in 0..self.layouts.len() {
            let other = Table::clone(resident.table(shared));
            if !Arc::ptr_eq(&other.file, &now.file) || !other.layout.overlaps(&now.layout) {
                continue;
            }
            // Several tables may be the same rows of one file.
            if other.layout == now.layout {
                for (row, bytes) in (first..).zip(bytes.chunks_exact(row_bytes as usize)) {
                    resident.overwrite(key(shared, row), bytes);
                }
            } else {
                resident.clear(shared);
            }
            resident.set_table(shared, other);
        }
        self.counters.replaced(count);
        Ok(())
    }

    /// Reads a table from another file from now on, or from the same file as it is now. It must have as many
    /// rows, of the same dimension and dtype.
    pub fn replace_table(&self, table: usize, source: &Source) -> Result<(), ReplaceError> {
        let old = self.layout(table)?;
        let file = Arc::new(DataFile::open(&source.path, self.direct)?);
        let new = file.layout(source)?;
        if (Layout { offset: old.offset, ..new }) != old {
            return Err(ReplaceError::Shape { old, new });
        }
        let _one_at_a_time = self.replacing.lock();
        let mut resident = self.resident.write();
        // Whoever writes to a file has to know all tables in it.
        let mut others = (0..self.layouts.len()).map(|other| &resident.table(other).file);
        let shared = others.find(|other| other.is_as(&file)).map(Arc::clone);
        let file = shared.unwrap_or(file);
        resident.set_table(table, Table { file, layout: new });
        resident.clear(table);
        self.counters.replaced(new.rows);
        Ok(())
    }

    fn layout(&self, table: usize) -> Result<Layout, ReplaceError> {
        let tables = self.layouts.len();
        self.layouts.get(table).copied().ok_or(ReplaceError::NoTable { table, tables })
    }
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").field("layouts", &self.layouts).finish_non_exhaustive()
    }
}

fn key(table: usize, row: u64) -> Key {
    let table = TableId(u16::try_from(table).expect("table ids are 16-bit"));
    Key::new(table, row).expect("rows of a table can be named")
}

/// What came of a part of the bags.
#[derive(Default)]
struct Taken {
    keys: u64,
    hits: u64,
    /// Bags some of whose rows are not in memory.
    waiting: Vec<(usize, usize)>,
}

/// Does those of some bags all of whose rows are in memory. Bags are numbered table by table.
fn take_part(
    bags: &[Bags<'_>],
    samples: usize,
    part: Range<usize>,
    resident: &Resident,
    output: &mut impl Output,
) -> Taken {
    let mut taken = Taken::default();
    let mut rows: Vec<(usize, &[u8])> = Vec::new();
    let mut next = part.start;
    while next < part.end {
        let (table, first) = (next / samples, next % samples);
        let last = samples.min(first + part.end - next);
        take_table(&bags[table], table, first..last, resident, output, &mut taken, &mut rows);
        next += last - first;
    }
    taken
}

/// Does those bags of a table all of whose rows are in memory.
fn take_table<'a>(
    bags: &Bags<'_>,
    table: usize,
    samples: Range<usize>,
    resident: &'a Resident,
    output: &mut impl Output,
    taken: &mut Taken,
    rows: &mut Vec<(usize, &'a [u8])>,
) {
    let view = resident.view(table);
    for sample in samples {
        let (start, bag) = bags.bag(sample);
        for key in bags.ahead(start, bag.len(), KEYS_AHEAD) {
            view.expect(key.cast_unsigned());
        }
        if let [only] = bag
            && let Some(row) = bags.row(*only)
            && let Some(found) = view.find(row)
        {
            taken.keys += 1;
            taken.hits += 1;
            output.bag(table, sample, start, std::iter::once((0, found)));
            continue;
        }
        rows.clear();
        let mut keys = 0;
        for (place, row) in places(bags, bag) {
            keys += 1;
            rows.extend(view.find(row).map(|found| (place, found)));
        }
        taken.keys += keys as u64;
        taken.hits += rows.len() as u64;
        if rows.len() == keys {
            output.bag(table, sample, start, rows.iter().copied());
        } else {
            taken.waiting.push((table, sample));
        }
    }
}

/// The rows that a bag names, each with its place in the bag.
fn places<'a>(bags: &'a Bags<'_>, bag: &'a [i64]) -> impl Iterator<Item = (usize, u64)> + 'a {
    bag.iter().enumerate().filter_map(|(place, key)| Some((place, bags.row(*key)?)))
}

/// Wants a row read; of a table that is kept whole, its whole block, which costs the same.
fn want(fetched: &mut Fetched, resident: &Resident, view: View<'_>, number: usize, row: u64) {
    let table = resident.table(number);
    let together = BLOCK / u64::from(table.layout.row_bytes());
    if !resident.is_whole(number) || together < 2 {
        return fetched.want(key(number, row), table);
    }
    let first = row / together * together;
    for row in first..(first + together).min(table.layout.rows) {
        if view.find(row).is_none() {
            fetched.want(key(number, row), table);
        }
    }
}

/// What this machine has, where it says so.
fn machine_memory() -> Option<ByteSize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"));
    Some(ByteSize::kib(kib?.trim().parse().ok()?))
}
