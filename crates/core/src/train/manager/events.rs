//! What a manager is told.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use super::{Manager, Order, Orders, Place, Reader, Who, new_rotation};
use crate::{
    ByteSize,
    benefit::Mode,
    chunking::ChunkOrdinal,
    placement::{Choice, ROTATING},
    rotation::{Contradiction, Fact, Job},
    units::ByteRate,
};

impl Manager {
    /// A job begins to read, or begins again. Everything is unread, but for what is said of some pieces.
    pub fn join(
        &mut self,
        now: Duration,
        job: Job,
        who: Who,
        unread: &[(u32, ByteSize)],
        pace: ByteRate,
    ) -> Orders {
        self.check_unread(unread, |piece| self.pieces.size(piece), job)?;
        let mut orders = self.tell_if_member(now, Fact::Left { job }, job)?;
        // Who comes back is still known for what it gains.
        let known = self.readers.remove(&job).filter(|known| known.who == who);
        let mut reader = known.unwrap_or_else(|| Reader::new(who, &self.pieces));
        reader.recut();
        reader.begin(&self.pieces, unread);
        (reader.pace, reader.heard_at) = (pace, now);
        let is_cached = reader.benefit.is_cached();
        if is_cached {
            orders.extend(self.tell(now, Fact::Joined { job })?);
        }
        self.readers.insert(job, reader);
        self.read_at = now;
        self.reasons += 1;
        if is_cached {
            orders.extend(self.tell_all_unread(now, job)?);
        }
        Ok(orders)
    }

    /// A job ends.
    pub fn leave(&mut self, now: Duration, job: Job) -> Orders {
        self.alive(now, job)?;
        let mut orders = self.tell_if_member(now, Fact::Left { job }, job)?;
        self.readers.remove(&job);
        self.read_at = now;
        self.reasons += 1;
        orders.extend(self.check_loaded(now)?);
        orders.extend(self.drained(now));
        Ok(orders)
    }

    /// A job lives.
    pub fn renew(&mut self, now: Duration, job: Job) -> Orders {
        self.alive(now, job)?;
        let orders = self.tell_if_member(now, Fact::Renewed { job }, job)?;
        self.heard(now, job);
        Ok(orders)
    }

    /// A job starts its next epoch. Everything is unread, but for what is said of some pieces.
    pub fn next_epoch(&mut self, now: Duration, job: Job, unread: &[(u32, ByteSize)]) -> Orders {
        self.alive(now, job)?;
        self.check_unread(unread, |piece| self.pieces.size(piece), job)?;
        let mut orders = self.tell_if_member(now, Fact::NextEpoch { job }, job)?;
        if let Some(reader) = self.readers.get_mut(&job) {
            reader.benefit.next_epoch();
            reader.begin(&self.pieces, unread);
        }
        if !unread.is_empty() && self.is_member(job) {
            orders.extend(self.tell_all_unread(now, job)?);
        }
        self.heard(now, job);
        Ok(orders)
    }

    /// A job has drawn a batch: what is unread now of the pieces that it drew from, and how fast it draws,
    /// or would draw if nothing held it up.
    pub fn drawn(
        &mut self,
        now: Duration,
        job: Job,
        unread: &[(u32, ByteSize)],
        pace: ByteRate,
    ) -> Orders {
        let reader = self.alive(now, job)?;
        self.check_unread(
            unread,
            |piece| self.pieces.size(piece).map(|_| reader.unread_of(piece)),
            job,
        )?;
        let mut chunks: Vec<ChunkOrdinal> =
            unread.iter().map(|(piece, _)| self.pieces.holder_of(*piece)).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let mut orders = Vec::new();
        let is_member = self.is_member(job);
        for chunk in chunks.iter().filter(|_| is_member) {
            let reader = self.readers.get_mut(&job).expect("looked at above");
            if reader.told.contains(chunk) && reader.referenced.insert(*chunk) {
                orders.extend(self.tell(now, Fact::Referenced { job, chunk: *chunk })?);
            }
        }
        if let Some(reader) = self.readers.get_mut(&job) {
            reader.drawn(unread);
            reader.pace = pace;
        }
        if is_member {
            orders.extend(self.tell_unread(now, job, chunks)?);
            orders.extend(self.check_loaded(now)?);
        }
        self.heard(now, job);
        Ok(orders)
    }

    /// The last items of these pieces were given to a job.
    pub fn released(&mut self, now: Duration, job: Job, pieces: &[u32]) -> Orders {
        self.alive(now, job)?;
        let mut orders = Vec::new();
        for piece in pieces {
            self.size_of(*piece)?;
            let reader = self.readers.get_mut(&job).expect("looked at above");
            if let Some(chunk) = reader.finish(&self.pieces, *piece) {
                orders.extend(self.tell_if_member(now, Fact::Exhausted { job, chunk }, job)?);
            }
        }
        self.heard(now, job);
        orders.extend(self.drained(now));
        Ok(orders)
    }

    /// A mini-batch took so long, of which the job waited `stalled` for its data. A job that turns out to
    /// gain nothing leaves the rotation, and one that might gain after all comes back.
    pub fn computed(
        &mut self,
        now: Duration,
        job: Job,
        mode: Mode,
        [took, stalled]: [Duration; 2],
    ) -> Orders {
        let was_cached = self.alive(now, job)?.benefit.is_cached();
        self.heard(now, job);
        let reader = self.readers.get_mut(&job).expect("looked at above");
        reader.benefit.batch(mode, took, stalled);
        let is_cached = reader.benefit.is_cached();
        if is_cached == was_cached {
            return Ok(Vec::new());
        }
        reader.recut();
        self.reasons += 1;
        if is_cached {
            let mut orders = self.tell(now, Fact::Joined { job })?;
            orders.extend(self.tell_all_unread(now, job)?);
            Ok(orders)
        } else {
            self.tell_if_member(now, Fact::Left { job }, job)
        }
    }

    /// How many of a job's next mini-batches are to miss, whatever is resident: a probe. Told once.
    pub fn probe(&mut self, now: Duration, job: Job) -> Result<u32, Contradiction> {
        self.alive(now, job)?;
        let reader = self.readers.get_mut(&job).expect("looked at above");
        Ok(reader.benefit.probe(now).map_or(0, |probe| probe.batches))
    }

    /// So many bytes more have arrived of a piece, whoever has fetched them.
    pub fn arrived(&mut self, now: Duration, piece: u32, bytes: ByteSize) -> Orders {
        self.size_of(piece)?;
        let chunk = self.pieces.holder_of(piece);
        if self.is_whole() || self.place_of(piece) != Place::None {
            self.here.insert(piece);
        }
        let size = self.pieces.rotating_size(chunk);
        let Some(load) = self.loads.get_mut(&chunk) else { return Ok(Vec::new()) };
        let (news, is_whole) = (load.arrived(bytes, size), load.is_whole(size));
        let mut orders = match news {
            Some(bytes) => self.tell(now, Fact::Loading { chunk, bytes })?,
            None => Vec::new(),
        };
        if is_whole {
            orders.extend(self.check_loaded(now)?);
        }
        Ok(orders)
    }

    /// A job has nothing left to fetch of these pieces: all that it has not read is resident.
    pub fn filled(&mut self, now: Duration, job: Job, pieces: &[u32]) -> Orders {
        self.alive(now, job)?;
        for piece in pieces {
            self.size_of(*piece)?;
        }
        let reader = self.readers.get_mut(&job).expect("looked at above");
        reader.filled.extend(pieces);
        self.check_loaded(now)
    }

    /// The space of pieces that were to be evicted is free.
    pub fn evicted(&mut self, now: Duration, pieces: &Range<u32>) -> Orders {
        let mut is_former = false;
        for piece in pieces.clone() {
            self.size_of(piece)?;
            is_former |= self.clearing.remove(&piece);
        }
        if is_former {
            return if self.clearing.is_empty() { self.budget(now) } else { Ok(Vec::new()) };
        }
        let chunk = self.pieces.holder_of(pieces.start);
        self.tell(now, Fact::Evicted { chunk })
    }

    /// Pieces are there that nobody ordered: what a manager finds when it takes over. Their chunks have their
    /// places until it is told how much space there is.
    pub fn take_over(&mut self, now: Duration, found: impl IntoIterator<Item = u32>) -> Orders {
        let mut chunks = BTreeSet::new();
        for piece in found {
            self.size_of(piece)?;
            chunks.insert(self.pieces.holder_of(piece));
            self.here.insert(piece);
        }
        self.read_at = now;
        if chunks.is_empty() {
            return Ok(Vec::new());
        }
        let count = u32::try_from(chunks.len()).expect("there are not so many").max(ROTATING);
        self.choice = Choice::Chunks(count);
        let mut orders = self.budget(now)?;
        for chunk in chunks {
            orders.extend(self.tell(now, Fact::Found { chunk })?);
        }
        Ok(orders)
    }

    /// The dataset has this much space from now on.
    pub fn place(&mut self, now: Duration, choice: Choice) -> Orders {
        if choice == self.choice {
            return Ok(Vec::new());
        }
        let mut orders = self.take_stock(now)?;
        orders.push(Order::Keep);
        self.choice = choice;
        let resident: Vec<Range<u32>> =
            self.rotation.resident().map(|chunk| self.pieces.of(chunk)).collect();
        if !self.pieces.cut(choice) {
            if self.clearing.is_empty() {
                orders.extend(self.budget(now)?);
            }
            return Ok(orders);
        }
        // Another cut: all that is there goes, and another rotation begins when it has gone.
        self.counted = self.counters();
        self.rotation = new_rotation(self.policy, self.lease, self.load_rate, &self.pieces);
        self.loads.clear();
        self.draining.clear();
        self.clearing.extend(resident.iter().flat_map(Range::clone));
        self.readers.values_mut().for_each(Reader::recut);
        let members: Vec<Job> = self.members().collect();
        for job in &members {
            self.rotation.on(now, Fact::Joined { job: *job })?;
        }
        for job in members {
            self.tell_all_unread(now, job)?;
        }
        self.here.clear();
        self.look();
        if resident.is_empty() {
            orders.extend(self.budget(now)?);
        }
        orders.extend(resident.into_iter().map(Order::Evict));
        Ok(orders)
    }

    /// While there is room for all, whatever is put is kept, ordered or not: before that ends, all that is there is
    /// given its place.
    fn take_stock(&mut self, now: Duration) -> Orders {
        let mut orders = Vec::new();
        if self.is_whole() && self.clearing.is_empty() {
            let resident: BTreeSet<ChunkOrdinal> = self.rotation.resident().collect();
            for chunk in self.chunks_here().difference(&resident) {
                orders.extend(self.tell(now, Fact::Found { chunk: *chunk })?);
            }
        }
        Ok(orders)
    }

    /// Nothing but that time has passed.
    pub fn tick(&mut self, now: Duration) -> Orders {
        let mut orders = self.tell(now, Fact::Tick)?;
        orders.extend(self.check_loaded(now)?);
        Ok(orders)
    }
}
