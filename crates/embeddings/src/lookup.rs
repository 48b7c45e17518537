//! Lookup: rows of all tables for a batch of samples, from memory and disk.
//!
//! A lookup has five steps, and holds locks only where noted:
//!
//! 1. The **policy** receives the keys of every sample and decides what should be resident (lock on
//!    the policy).
//! 2. Bags whose rows are all in **memory** are finished. Of the others, resident rows are copied
//!    and missing rows noted (shared lock on the resident rows: lookups do this in parallel).
//! 3. All missing rows are **read** in one batch (shared locks on the files, against our own
//!    writes).
//! 4. The waiting bags are **finished**.
//! 5. The **decisions** are applied: rows that were read and should be resident are kept, evicted
//!    rows removed (both locks, briefly).
//!
//! **Invariant:** a row is copied under a lock that its replacement holds exclusively, so no lookup
//! sees half of a row.

use std::{ops::Range, sync::Arc, sync::atomic::Ordering::Relaxed, thread};

use forebay_core::embeddings::{Evicted, Policy, Slot};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    bags::Bags,
    error::{LookupError, ReadError},
    fetch::Fetched,
    file::BLOCK,
    format::{Dtype, Layout},
    io::{Cost, Io, Reader},
    output::{Gathered, Output, Pooled, Pooling},
    resident::{Resident, View},
    stats::Counts,
    tables::{PolicyState, Scratch, Tables, key},
};

/// Samples after which the policy's lock is offered to other lookups.
const SAMPLES_PER_LOCK: usize = 64;
/// Keys per additional thread, up to the number of cores: starting a thread costs as much as
/// copying two thousand rows.
const KEYS_PER_THREAD: usize = 16 << 10;
/// Distance in keys between the row that is copied and the row that is prefetched into the CPU
/// cache: of 8, 16 and 32, the last two were equally good.
const KEYS_AHEAD: usize = 16;

impl Tables {
    /// Looks up a bag of every table for each sample, and pools each bag into one row. `out` has
    /// the rows of one table after the other, for each in the order of the samples. An empty bag
    /// gives zeros. All tables must be of float32 or quantised.
    pub fn lookup(
        &self,
        bags: &[Bags<'_>],
        pooling: Pooling,
        out: &mut [f32],
    ) -> Result<(), LookupError> {
        let samples = self.check(bags)?;
        let is_pooled =
            |layout: &Layout| layout.dtype == Dtype::F32 || layout.dtype.quantised().is_some();
        if let Some(table) = self.layouts.iter().position(|layout| !is_pooled(layout)) {
            return Err(LookupError::Dtype { table, dtype: self.layouts[table].dtype });
        }
        let expected = samples.saturating_mul(self.columns());
        if out.len() != expected {
            return Err(LookupError::Output { given: out.len(), expected });
        }
        let (columns, codes) = (&self.columns, &self.codes);
        self.serve(bags, samples, &mut Pooled { pooling, columns, codes, samples, before: 0, out })
    }

    /// Looks up every key by itself. `out` has the bytes of all rows in the order of the keys, one
    /// table after the other; quantised rows are written as float32. Rows of padding keys are not
    /// written.
    pub fn gather(&self, bags: &[Bags<'_>], out: &mut [u8]) -> Result<(), LookupError> {
        let samples = self.check(bags)?;
        let mut expected = 0_usize;
        let mut tables = Vec::with_capacity(bags.len());
        for (bags, layout) in bags.iter().zip(&self.layouts) {
            let width = layout.answer_bytes();
            tables.push((expected, width));
            expected = expected.saturating_add(bags.keys().len().saturating_mul(width));
        }
        if out.len() != expected {
            return Err(LookupError::Output { given: out.len(), expected });
        }
        self.serve(bags, samples, &mut Gathered { tables: &tables, codes: &self.codes, out })
    }

    /// Checks the arguments of a lookup and returns the number of samples.
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
        let mut scratch = self.idle.lock().take();
        self.decide(bags, samples, &mut scratch);
        let mut counts = self.take_resident(bags, samples, &mut scratch, output);
        let read = self.read_missing(&mut scratch);
        if let Ok(cost) = &read {
            (counts.reads, counts.bytes_read) = (cost.reads, cost.bytes);
            counts.rows_read = scratch.fetched.missing().len() as u64;
            self.finish_waiting(bags, &scratch, output);
        }
        self.apply_decisions(&scratch.fetched, read.is_ok());
        self.counters.add(&counts);
        self.idle.lock().give(scratch);
        read?;
        Ok(())
    }

    /// Step 1: the policy decides.
    fn decide(&self, bags: &[Bags<'_>], samples: usize, scratch: &mut Scratch) {
        let Scratch { keys, slots_at, slots, outcome, .. } = scratch;
        slots.clear();
        slots.resize(bags.iter().map(|bags| bags.keys().len()).sum(), None);
        let Some(state) = &self.policy else { return };
        let mut state = state.lock();
        for sample in 0..samples {
            keys.clear();
            slots_at.clear();
            let mut first = 0;
            for (table, bags) in bags.iter().enumerate() {
                if !self.pinned[table] {
                    let (start, bag) = bags.bag(sample);
                    for (index, row) in bag_rows(bags, bag) {
                        keys.push(key(table, row));
                        slots_at.push(first + start + index);
                    }
                }
                first += bags.keys().len();
            }
            let PolicyState { policy, evicted } = &mut *state;
            policy.request(keys, outcome);
            evicted.append(&mut outcome.evicted);
            for (at, slot) in slots_at.iter().zip(&outcome.slots) {
                slots[*at] = *slot;
            }
            if (sample + 1).is_multiple_of(SAMPLES_PER_LOCK) {
                MutexGuard::bump(&mut state);
            }
        }
    }

    /// Step 2: bags whose rows are all in memory are finished.
    fn take_resident(
        &self,
        bags: &[Bags<'_>],
        samples: usize,
        scratch: &mut Scratch,
        output: &mut impl Output,
    ) -> Counts {
        let Scratch { missed, waiting, fetched, slots, .. } = scratch;
        missed.clear();
        missed.resize(samples, false);
        waiting.clear();
        fetched.clear(bags.len());
        let resident = self.resident.read();
        let mut rest = &slots[..];
        let table_slots: Vec<&[Option<Slot>]> = bags
            .iter()
            .map(|bags| {
                let (own, others) = rest.split_at(bags.keys().len());
                rest = others;
                own
            })
            .collect();
        let bags: Vec<Slotted<'_>> =
            bags.iter().zip(table_slots).map(|(bags, slots)| Slotted { bags, slots }).collect();
        let threads = (slots.len() / KEYS_PER_THREAD).clamp(1, self.threads);
        let mut parts = output.parts(samples * bags.len(), threads);
        let mut counts = Counts { samples: samples as u64, ..Counts::default() };
        let first = if parts.is_empty() { None } else { Some(parts.remove(0)) };
        thread::scope(|scope| {
            let others: Vec<_> = parts
                .into_iter()
                .map(|(part, mut output)| {
                    let (resident, bags) = (&resident, &bags);
                    scope.spawn(move || take_part(bags, samples, part, resident, &mut output))
                })
                .collect();
            // This thread takes the first part.
            let own = first
                .map(|(part, mut output)| take_part(&bags, samples, part, &resident, &mut output));
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
            let Slotted { bags, slots } = bags[table];
            let (start, bag) = bags.bag(sample);
            for (index, row) in bag_rows(bags, bag) {
                match view.find(row, slots[start + index]) {
                    Some(found) => fetched.add_resident(key(table, row), found),
                    None => add_missing(fetched, &resident, view, table, row),
                }
            }
        }
        counts.perfect = missed.iter().filter(|missed| !**missed).count() as u64;
        counts
    }

    /// Step 3: all missing rows are read.
    pub(crate) fn read_missing(&self, scratch: &mut Scratch) -> Result<Cost, ReadError> {
        if scratch.fetched.missing().is_empty() {
            return Ok(Cost::default());
        }
        let mut reader = match scratch.reader.take().filter(Reader::is_ours) {
            Some(reader) => reader,
            None => self.reader()?,
        };
        let read = scratch.fetched.read(&mut reader);
        scratch.reader = Some(reader);
        read
    }

    fn reader(&self) -> Result<Reader, ReadError> {
        if self.ring_works.load(Relaxed) {
            match Reader::ring() {
                Ok(reader) => return Ok(reader),
                // There are too many rings, or they have been forbidden since. Existing ones stay
                // in use.
                Err(_) if self.io == Io::Auto => self.ring_works.store(false, Relaxed),
                Err(source) => return Err(ReadError::Io { path: "io_uring".into(), source }),
            }
        }
        Reader::pread().map_err(|source| ReadError::Io { path: "memory".into(), source })
    }

    /// Step 4: the waiting bags are finished.
    fn finish_waiting(&self, bags: &[Bags<'_>], scratch: &Scratch, output: &mut impl Output) {
        for &(table, sample) in &scratch.waiting {
            let (start, bag) = bags[table].bag(sample);
            let width = self.layouts[table].row_bytes() as usize;
            let rows = bag_rows(&bags[table], bag)
                .map(|(index, row)| (index, scratch.fetched.row(key(table, row), width)));
            output.bag(table, sample, start, rows);
        }
    }

    /// Step 5: the policy's decisions are applied. After a failed read no row is kept, but evicted
    /// rows are removed.
    pub(crate) fn apply_decisions(&self, fetched: &Fetched, read_succeeded: bool) {
        let missing = if read_succeeded { fetched.missing() } else { &[] };
        let mut state = self.policy.as_ref().map(Mutex::lock);
        let nothing_evicted = state.as_ref().is_none_or(|state| state.evicted.is_empty());
        if missing.is_empty() && nothing_evicted {
            return;
        }
        let mut resident = self.resident.write();
        if let Some(state) = &mut state {
            let PolicyState { policy, evicted } = &mut **state;
            apply_evictions(&mut resident, &**policy, evicted);
        }
        for &key in missing {
            let table = usize::from(key.table().0);
            // A row that was read before a replacement is not kept after it.
            if !Arc::ptr_eq(resident.table(table), fetched.table(key)) {
                continue;
            }
            let width = self.layouts[table].row_bytes() as usize;
            if self.pinned[table] {
                resident.insert_pinned(key, fetched.row(key, width));
            } else if let Some(slot) = state.as_ref().and_then(|state| state.policy.slot(key)) {
                resident.insert(key, slot, fetched.row(key, width));
            }
        }
        let used = resident.packed_bytes();
        assert!(used <= self.memory, "{used} bytes of rows in a memory of {}", self.memory);
    }
}

/// Removes the rows that the policy has evicted from their slots.
pub(crate) fn apply_evictions(
    resident: &mut Resident,
    policy: &dyn Policy,
    evicted: &mut Vec<Evicted>,
) {
    for Evicted { key, slot } in evicted.drain(..) {
        // It may be back in the same slot.
        if policy.slot(key) != Some(slot) {
            resident.remove(key, slot);
        }
    }
    resident.truncate(policy.slot_count());
}

/// The bags of a table, and the slot of each of their keys.
#[derive(Clone, Copy)]
struct Slotted<'a> {
    bags: &'a Bags<'a>,
    slots: &'a [Option<Slot>],
}

/// Result of step 2 for a part of the bags.
#[derive(Default)]
struct Taken {
    keys: u64,
    hits: u64,
    /// Bags with missing rows: table and sample.
    waiting: Vec<(usize, usize)>,
}

/// Step 2 for a range of bags, which are numbered table by table.
fn take_part(
    bags: &[Slotted<'_>],
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
        take_table(bags[table], table, first..last, resident, output, &mut taken, &mut rows);
        next += last - first;
    }
    taken
}

/// Step 2 for a range of bags of one table.
fn take_table<'a>(
    Slotted { bags, slots }: Slotted<'_>,
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
            view.prefetch(key.cast_unsigned());
        }
        if let [only] = bag
            && let Some(row) = bags.row(*only)
            && let Some(found) = view.find(row, slots[start])
        {
            taken.keys += 1;
            taken.hits += 1;
            output.bag(table, sample, start, std::iter::once((0, found)));
            continue;
        }
        rows.clear();
        let mut keys = 0;
        for (index, row) in bag_rows(bags, bag) {
            keys += 1;
            rows.extend(view.find(row, slots[start + index]).map(|found| (index, found)));
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

/// The rows of a bag, each with its index in the bag; padding is skipped.
fn bag_rows<'a>(bags: &'a Bags<'_>, bag: &'a [i64]) -> impl Iterator<Item = (usize, u64)> + 'a {
    bag.iter().enumerate().filter_map(|(index, key)| Some((index, bags.row(*key)?)))
}

/// Adds a row to those that are read. Of a pinned table all rows of its block are added, which
/// costs the same.
pub(crate) fn add_missing(
    fetched: &mut Fetched,
    resident: &Resident,
    view: View<'_>,
    number: usize,
    row: u64,
) {
    let table = resident.table(number);
    let rows_per_block = BLOCK / u64::from(table.layout.row_bytes());
    if !resident.is_pinned(number) || rows_per_block < 2 {
        return fetched.add_missing(key(number, row), table);
    }
    let first = row / rows_per_block * rows_per_block;
    for row in first..(first + rows_per_block).min(table.layout.rows) {
        if view.find(row, None).is_none() {
            fetched.add_missing(key(number, row), table);
        }
    }
}
