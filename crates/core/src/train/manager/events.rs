//! Events of a manager: what jobs and nodes report, and what follows for half-chunks.

use std::{collections::BTreeSet, time::Duration};

use super::{
    CacheClass, DatasetReader, HalfChunkBytes, HalfChunkOrder, JobProfile, Manager, MeasuredBatch,
    Orders, new_rotation,
};
use crate::{
    ByteSize, HalfChunk, HalfChunkRange,
    dataset::chunking::ChunkOrdinal,
    train::{
        benefit::{BatchTime, Mode},
        placement::{Allocation, ROTATING},
        rotation::{InvalidEvent, JobNumber, RotationEvent},
    },
    units::ByteRate,
};

impl Manager {
    /// A job starts to read, or starts again. Everything is unread, except as `unread` states.
    pub fn on_joined(
        &mut self,
        now: Duration,
        job: JobNumber,
        profile: JobProfile,
        unread: &[HalfChunkBytes],
        pace: ByteRate,
    ) -> Orders {
        self.check_unread(unread, |half_chunk| self.half_chunks.size(half_chunk), job)?;
        let mut orders = self.send_if_member(now, RotationEvent::Left { job }, job)?;
        // A job that comes back keeps its measured benefit.
        let known = self.readers.remove(&job).filter(|known| known.profile == profile);
        let mut reader = known.unwrap_or_else(|| DatasetReader::new(profile, &self.half_chunks));
        reader.on_regrouped();
        reader.begin_epoch(&self.half_chunks, unread);
        (reader.pace, reader.last_event_at) = (pace, now);
        let is_cached = reader.benefit.is_cached();
        if is_cached {
            orders.extend(self.send(now, RotationEvent::Joined { job })?);
        }
        self.readers.insert(job, reader);
        self.last_read_at = now;
        self.demand_revision += 1;
        if is_cached {
            orders.extend(self.send_all_unread(now, job)?);
        }
        Ok(orders)
    }

    /// A job ends.
    pub fn on_left(&mut self, now: Duration, job: JobNumber) -> Orders {
        self.live_reader(now, job)?;
        let mut orders = self.send_if_member(now, RotationEvent::Left { job }, job)?;
        self.readers.remove(&job);
        self.last_read_at = now;
        self.demand_revision += 1;
        orders.extend(self.check_loaded(now)?);
        orders.extend(self.free_drained(now));
        Ok(orders)
    }

    /// A job is alive.
    pub fn on_renewed(&mut self, now: Duration, job: JobNumber) -> Orders {
        self.live_reader(now, job)?;
        let orders = self.send_if_member(now, RotationEvent::Renewed { job }, job)?;
        self.touch(now, job);
        Ok(orders)
    }

    /// A job starts its next epoch. Everything is unread, except as `unread` states.
    pub fn on_next_epoch(
        &mut self,
        now: Duration,
        job: JobNumber,
        unread: &[HalfChunkBytes],
    ) -> Orders {
        self.live_reader(now, job)?;
        self.check_unread(unread, |half_chunk| self.half_chunks.size(half_chunk), job)?;
        let mut orders = self.send_if_member(now, RotationEvent::NextEpoch { job }, job)?;
        if let Some(reader) = self.readers.get_mut(&job) {
            reader.benefit.on_next_epoch();
            reader.begin_epoch(&self.half_chunks, unread);
        }
        if !unread.is_empty() && self.is_member(job) {
            orders.extend(self.send_all_unread(now, job)?);
        }
        self.touch(now, job);
        Ok(orders)
    }

    /// A job has drawn batches. `unread` has what is left of the half-chunks that it drew from;
    /// `pace` is the rate at which it draws, without its stalls.
    pub fn on_drawn(
        &mut self,
        now: Duration,
        job: JobNumber,
        unread: &[HalfChunkBytes],
        pace: ByteRate,
    ) -> Orders {
        let reader = self.live_reader(now, job)?;
        self.check_unread(
            unread,
            |half_chunk| self.half_chunks.size(half_chunk).map(|_| reader.unread_of(half_chunk)),
            job,
        )?;
        let mut chunks: Vec<ChunkOrdinal> =
            unread.iter().map(|unread| self.half_chunks.chunk_of(unread.half_chunk)).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let mut orders = Vec::new();
        let is_member = self.is_member(job);
        for chunk in chunks.iter().filter(|_| is_member) {
            let reader = self.readers.get_mut(&job).expect("checked above");
            if reader.offered.contains(chunk) && reader.referenced.insert(*chunk) {
                orders.extend(self.send(now, RotationEvent::Referenced { job, chunk: *chunk })?);
            }
        }
        if let Some(reader) = self.readers.get_mut(&job) {
            reader.drawn(unread);
            reader.pace = pace;
        }
        if is_member {
            orders.extend(self.send_unread(now, job, chunks)?);
            orders.extend(self.check_loaded(now)?);
        }
        self.touch(now, job);
        Ok(orders)
    }

    /// A job has yielded the last items of these half-chunks.
    pub fn on_released(
        &mut self,
        now: Duration,
        job: JobNumber,
        half_chunks: &[HalfChunk],
    ) -> Orders {
        self.live_reader(now, job)?;
        let mut orders = Vec::new();
        for half_chunk in half_chunks {
            self.size_of(*half_chunk)?;
            let reader = self.readers.get_mut(&job).expect("checked above");
            if let Some(chunk) = reader.on_half_chunk_done(&self.half_chunks, *half_chunk) {
                orders.extend(self.send_if_member(
                    now,
                    RotationEvent::Exhausted { job, chunk },
                    job,
                )?);
            }
        }
        self.touch(now, job);
        orders.extend(self.free_drained(now));
        Ok(orders)
    }

    /// A job has computed a mini-batch.
    pub fn on_computed(
        &mut self,
        now: Duration,
        job: JobNumber,
        mode: Mode,
        time: BatchTime,
    ) -> Orders {
        self.on_all_computed(now, job, &[MeasuredBatch { mode, time }])
    }

    /// A job has computed mini-batches. A job that turns out to gain nothing leaves the rotation. A
    /// job outside it that might gain after all joins it again. That is decided once, after the
    /// last one: joining and leaving take time for every chunk. Only the latest `BATCHES_MAX` are
    /// measured; estimates keep fewer.
    pub fn on_all_computed(
        &mut self,
        now: Duration,
        job: JobNumber,
        batches: &[MeasuredBatch],
    ) -> Orders {
        const BATCHES_MAX: usize = 512;
        let was_cached = self.live_reader(now, job)?.benefit.is_cached();
        self.touch(now, job);
        let reader = self.readers.get_mut(&job).expect("checked above");
        for MeasuredBatch { mode, time } in &batches[batches.len().saturating_sub(BATCHES_MAX)..] {
            reader.benefit.on_batch(*mode, *time);
        }
        let is_cached = reader.benefit.is_cached();
        if is_cached == was_cached {
            return Ok(Vec::new());
        }
        reader.on_regrouped();
        self.demand_revision += 1;
        if is_cached {
            let mut orders = self.send(now, RotationEvent::Joined { job })?;
            orders.extend(self.send_all_unread(now, job)?);
            Ok(orders)
        } else {
            self.send_if_member(now, RotationEvent::Left { job }, job)
        }
    }

    /// Number of the job's next mini-batches that are to miss, whatever is resident: a probe. Each
    /// probe is returned once.
    pub fn take_probe(&mut self, now: Duration, job: JobNumber) -> Result<u32, InvalidEvent> {
        self.live_reader(now, job)?;
        let reader = self.readers.get_mut(&job).expect("checked above");
        Ok(reader.benefit.start_probe(now).map_or(0, |probe| probe.batches))
    }

    /// `bytes` more of a half-chunk have arrived, for any job.
    pub fn on_arrived(&mut self, now: Duration, half_chunk: HalfChunk, bytes: ByteSize) -> Orders {
        self.size_of(half_chunk)?;
        let chunk = self.half_chunks.chunk_of(half_chunk);
        if self.is_whole() || self.class_of(half_chunk) != CacheClass::Uncached {
            self.present.insert(half_chunk);
        }
        let size = self.half_chunks.rotating_size(chunk);
        let Some(load) = self.loads.get_mut(&chunk) else { return Ok(Vec::new()) };
        let (update, is_whole) = (load.on_arrived(bytes, size), load.is_whole(size));
        let mut orders = match update {
            Some(bytes) => self.send(now, RotationEvent::Loading { chunk, bytes })?,
            None => Vec::new(),
        };
        if is_whole {
            orders.extend(self.check_loaded(now)?);
        }
        Ok(orders)
    }

    /// A job has nothing left to fetch of these half-chunks: all that it has not read is resident.
    pub fn on_filled(
        &mut self,
        now: Duration,
        job: JobNumber,
        half_chunks: &[HalfChunk],
    ) -> Orders {
        self.live_reader(now, job)?;
        for half_chunk in half_chunks {
            self.size_of(*half_chunk)?;
        }
        let reader = self.readers.get_mut(&job).expect("checked above");
        reader.filled.extend(half_chunks);
        self.check_loaded(now)
    }

    /// The space of half-chunks that were to be evicted is free.
    pub fn on_evicted(&mut self, now: Duration, half_chunks: HalfChunkRange) -> Orders {
        // The freed space is another dataset's: see `space.rs`.
        self.demand_revision += u64::from(self.is_over_allocated());
        let mut is_former = false;
        for half_chunk in half_chunks {
            self.size_of(half_chunk)?;
            is_former |= self.clearing.remove(&half_chunk);
        }
        if is_former {
            return if self.clearing.is_empty() { self.budget(now) } else { Ok(Vec::new()) };
        }
        let chunk = self.half_chunks.chunk_of(half_chunks.start);
        self.send(now, RotationEvent::Evicted { chunk })
    }

    /// Takes over from another manager: these half-chunks are on the nodes. Their chunks stay in
    /// the keep set until the first allocation.
    pub fn take_over(
        &mut self,
        now: Duration,
        found: impl IntoIterator<Item = HalfChunk>,
    ) -> Orders {
        let mut chunks = BTreeSet::new();
        for half_chunk in found {
            self.size_of(half_chunk)?;
            chunks.insert(self.half_chunks.chunk_of(half_chunk));
            self.present.insert(half_chunk);
        }
        self.last_read_at = now;
        if chunks.is_empty() {
            return Ok(Vec::new());
        }
        let count =
            u32::try_from(chunks.len()).expect("fewer chunks than half-chunks").max(ROTATING);
        self.allocation = Allocation::Chunks(count);
        let mut orders = self.budget(now)?;
        for chunk in chunks {
            orders.extend(self.send(now, RotationEvent::Found { chunk })?);
        }
        Ok(orders)
    }

    /// The dataset gets this allocation.
    pub fn set_allocation(&mut self, now: Duration, allocation: Allocation) -> Orders {
        if allocation == self.allocation {
            return Ok(Vec::new());
        }
        let mut orders = self.register_present(now)?;
        orders.push(HalfChunkOrder::Keep);
        // What this dataset gives up may be another's growth.
        self.demand_revision += u64::from(allocation < self.allocation);
        self.allocation = allocation;
        let resident: Vec<HalfChunkRange> =
            self.rotation.occupied().map(|chunk| self.half_chunks.of(chunk)).collect();
        if !self.half_chunks.regroup(allocation) {
            if self.clearing.is_empty() {
                orders.extend(self.budget(now)?);
            }
            return Ok(orders);
        }
        // Another grouping: everything is evicted, and another rotation starts when that is
        // complete.
        self.counted_before = self.counters();
        self.rotation = new_rotation(self.policy, self.lease, self.load_rate, &self.half_chunks);
        self.loads.clear();
        self.draining.clear();
        self.clearing.extend(resident.iter().copied().flatten());
        self.readers.values_mut().for_each(DatasetReader::on_regrouped);
        let members: Vec<JobNumber> = self.members().collect();
        for job in &members {
            self.rotation.on_event(now, RotationEvent::Joined { job: *job })?;
        }
        for job in members {
            self.send_all_unread(now, job)?;
        }
        self.present.clear();
        self.update_classes();
        // A regrouping before the last one may still be clearing.
        if self.clearing.is_empty() {
            orders.extend(self.budget(now)?);
        }
        orders.extend(resident.into_iter().map(HalfChunkOrder::Evict));
        Ok(orders)
    }

    /// While the whole dataset has space, everything that is put is kept, whether rotation ordered
    /// it or not. Before that ends, rotation learns of all chunks that are present.
    fn register_present(&mut self, now: Duration) -> Orders {
        let mut orders = Vec::new();
        if self.is_whole() && self.clearing.is_empty() {
            let resident: BTreeSet<ChunkOrdinal> = self.rotation.occupied().collect();
            for chunk in self.chunks_present().difference(&resident) {
                orders.extend(self.send(now, RotationEvent::Found { chunk: *chunk })?);
            }
        }
        Ok(orders)
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Duration) -> Orders {
        let mut orders = self.send(now, RotationEvent::Tick)?;
        orders.extend(self.check_loaded(now)?);
        Ok(orders)
    }
}
