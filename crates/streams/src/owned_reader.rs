//! Readers in the process that owns the store: blocks in order, read ahead by the device's thread
//! into the reader's own slots.
//!
//! The completion of a read and the release of a slot both start the next read, on whichever thread
//! they happen. The thread that asks for a block verifies it.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
};

use forebay_core::{
    ByteSize,
    streams::{
        BlockNumber, StreamId, StreamName, StreamNumber,
        catalogue::{OpenMode, StreamState},
        read_ahead::{ReadAhead, Turn},
    },
};
use forebay_flash::{
    RequestError,
    buffers::{Buffer, BufferPool},
    device_thread::AnswerSink,
    format::{BLOCK_SIZE, EntryShape, round_up},
    index::GroupId,
    shard::{EntryName, Mismatch, RequestResult, ShardAnswer, ShardRequest, UnverifiedRead},
};
use parking_lot::Mutex;

use crate::{
    block::{Block, BlockBytes},
    error::StreamError,
    of_process::OfProcess,
    read_memory::{ReadMemory, SlotsReturned},
    reader::{OpenOptions, WhenHeld},
    shared::{OpenedStream, Shared},
    slots::Slots,
};

/// A reader of a stream of this process's store.
pub(crate) struct OwnedReader {
    inner: OfProcess<Arc<ReaderShared>>,
    options: OpenOptions,
    bytes: u64,
    /// The first error: later calls return it again, so that no block is skipped.
    failed: Option<StreamError>,
    has_ended: bool,
}

/// The part of a reader that completions of reads work on.
pub(crate) struct ReaderShared {
    shared: Arc<Shared>,
    id: StreamId,
    name: StreamName,
    group: GroupId,
    number: StreamNumber,
    slots: Slots,
    slot_length: usize,
    state: Mutex<ReaderState>,
    /// Last, so that it is dropped after the slots.
    returned: SlotsReturned,
}

struct ReaderState {
    ahead: ReadAhead,
    results: BTreeMap<BlockNumber, RequestResult>,
    /// Blocks that are read outside the slots.
    outside: Vec<BlockNumber>,
    waker: Option<Waker>,
}

/// Memory for one block of a store, wherever it begins in its first device block.
pub(crate) fn slot_length(block_length: u64) -> usize {
    let size = round_up(EntryShape::of(block_length).size(), BLOCK_SIZE as u64);
    usize::try_from(size).expect("a block fits into memory") + BLOCK_SIZE
}

impl OwnedReader {
    /// `reserve` returns a number of slots of a length.
    pub(crate) fn open(
        shared: &Arc<Shared>,
        name: &str,
        options: OpenOptions,
        reserve: impl FnOnce(&ReadMemory, u32, usize) -> Option<Slots>,
    ) -> Result<Self, StreamError> {
        let name = StreamName::new(name)?;
        shared.id_of(&name)?;
        let (depth, length) = (options.depth.max(1), slot_length(shared.block_length));
        let slots = reserve(&shared.read_memory, depth, length);
        Self::open_in(shared, name, options, slots)
    }

    /// Opens a stream with memory for its slots, if there is some.
    pub(crate) fn open_in(
        shared: &Arc<Shared>,
        name: StreamName,
        options: OpenOptions,
        slots: Option<Slots>,
    ) -> Result<Self, StreamError> {
        let (slot_length, depth) = (slot_length(shared.block_length), options.depth.max(1));
        let slots = slots.ok_or_else(|| StreamError::Memory {
            depth,
            slot: ByteSize(slot_length as u64),
            needed: ByteSize((slot_length as u64).saturating_mul(depth.into())),
            free: ByteSize(shared.read_memory.free_bytes() as u64),
        })?;
        let mode = match options {
            OpenOptions { consume: true, .. } => OpenMode::Consume,
            OpenOptions { follow: true, .. } => OpenMode::Follow,
            _ => OpenMode::Read,
        };
        let OpenedStream { id, group, number } = shared.open_stream(&name, mode)?;
        let state = ReaderState {
            ahead: ReadAhead::new(depth, options.in_flight.min(depth)),
            results: BTreeMap::new(),
            outside: Vec::new(),
            waker: None,
        };
        let reader = Arc::new(ReaderShared {
            shared: Arc::clone(shared),
            id,
            name,
            group,
            number,
            slots,
            slot_length,
            state: Mutex::new(state),
            returned: shared.read_memory.slots_returned(),
        });
        let released = Arc::downgrade(&reader);
        reader.slots.on_release(move || {
            if let Some(reader) = released.upgrade() {
                reader.pump();
            }
        });
        if options.follow {
            shared.follow(id, &reader);
        }
        reader.on_stream_changed();
        let inner = OfProcess::new(reader);
        Ok(Self { inner, options, bytes: 0, failed: None, has_ended: false })
    }

    /// The stream's name.
    pub(crate) fn name(&self) -> &StreamName {
        &self.inner.name
    }

    /// Number of the block that the next call returns.
    pub(crate) fn position(&self) -> BlockNumber {
        self.inner.state.lock().ahead.position()
    }

    /// The next block; `None` after the last one. Dropping the future loses no block.
    pub(crate) async fn next_async(&mut self) -> Option<Result<Block, StreamError>> {
        if let Err(error) = self.inner.shared.check_process() {
            return Some(Err(error));
        }
        if let Some(error) = &self.failed {
            return Some(Err(error.clone()));
        }
        if self.has_ended {
            return None;
        }
        let outcome = match poll_fn(|context| self.poll_block(context)).await {
            Ok(Some(block)) => return Some(Ok(block)),
            Ok(None) => self.end().await,
            Err(error) => Err(error),
        };
        self.has_ended = true;
        outcome.err().map(|error| {
            self.failed = Some(error.clone());
            Err(error)
        })
    }

    fn poll_block(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Block>, StreamError>> {
        let reader = Arc::clone(&self.inner);
        reader.pump();
        loop {
            let mut state = reader.state.lock();
            match state.ahead.turn() {
                Turn::Ready(block) => {
                    let result = state.results.remove(&block).expect("kept until handed out");
                    state.ahead.on_handed_out(block);
                    let is_outside = state.outside.iter().position(|other| *other == block);
                    let outside = is_outside.map(|at| state.outside.swap_remove(at)).is_some();
                    drop(state);
                    reader.pump();
                    return Poll::Ready(self.deliver(block, result, outside).map(Some));
                }
                Turn::NeedsMemory(block) if self.options.when_held == WhenHeld::OutsideSlots => {
                    state.ahead.on_requested(block);
                    state.outside.push(block);
                    drop(state);
                    reader.read_outside(block);
                }
                Turn::End => return Poll::Ready(Ok(None)),
                Turn::AwaitWriter if reader.is_abandoned() => {
                    return Poll::Ready(Err(StreamError::Abandoned(reader.name.to_string())));
                }
                Turn::Wait | Turn::AwaitWriter | Turn::NeedsMemory(_) => {
                    state.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }

    /// Verifies a block.
    fn deliver(
        &mut self,
        block: BlockNumber,
        result: RequestResult,
        outside: bool,
    ) -> Result<Block, StreamError> {
        let reader = &self.inner;
        let stream = || reader.name.to_string();
        if reader.is_removed() {
            return Err(StreamError::Destroyed(stream()));
        }
        let lost = || {
            reader.shared.on_lost(reader.id, block);
            StreamError::Lost { stream: stream(), block }
        };
        let unverified: UnverifiedRead = match result {
            Ok(ShardAnswer::Read(Some(unverified))) => unverified,
            Ok(_) => return Err(lost()),
            Err(error) => return Err(StreamError::Read { stream: stream(), block, error }),
        };
        let verified = match unverified.verify() {
            Ok(verified) if verified.tag == reader.number.0 => verified,
            Ok(_) => return Err(lost()),
            Err(mismatch) => {
                if mismatch == Mismatch::Damaged {
                    let UnverifiedRead { name, location, generation, .. } = unverified;
                    let report = ShardRequest::ReportDamage { name, location, generation };
                    reader.shared.post(report);
                }
                return Err(lost());
            }
        };
        self.bytes += verified.bytes.len() as u64;
        reader.shared.counts.read_bytes.fetch_add(verified.bytes.len() as u64, Relaxed);
        if self.options.consume
            && let Some(ordinal) = reader.shared.catalogue.lock().ordinal(reader.id, block)
        {
            reader.shared.release(reader.group, ordinal);
        }
        Ok(Block {
            bytes: BlockBytes::Slot(OfProcess::new(verified.bytes)),
            number: block,
            outside,
        })
    }

    /// The last block has been handed out. A consumed stream is destroyed.
    async fn end(&mut self) -> Result<(), StreamError> {
        let reader = &self.inner;
        let info = reader.shared.catalogue.lock().info(reader.id);
        let Some(info) = info else {
            return Err(StreamError::Destroyed(reader.name.to_string()));
        };
        if info.bytes != self.bytes {
            let (stream, bytes, expected) = (reader.name.to_string(), self.bytes, info.bytes);
            return Err(StreamError::Shorter { stream, bytes, expected });
        }
        if self.options.consume {
            let is_first = reader.shared.catalogue.lock().destroy_id(reader.id);
            if is_first {
                reader.shared.remove(reader.id, &reader.name).await?;
            }
        }
        Ok(())
    }
}

impl Drop for OwnedReader {
    fn drop(&mut self) {
        if !self.inner.is_here() {
            return;
        }
        self.inner.shared.close(self.inner.id);
        self.inner.returned.on_closed();
    }
}

impl ReaderShared {
    /// Requests blocks while there are slots.
    fn pump(self: &Arc<Self>) {
        loop {
            let (block, buffer) = {
                let mut state = self.state.lock();
                if self.returned.is_closed() {
                    return;
                }
                let Some(block) = state.ahead.wanted() else { return };
                // Without a slot, the next release continues here.
                let Some(buffer) = self.slots.take() else { return };
                state.ahead.on_requested(block);
                (block, buffer)
            };
            self.read(block, buffer);
        }
    }

    /// Reads a block into memory of its own.
    fn read_outside(self: &Arc<Self>, block: BlockNumber) {
        let memory = BufferPool::new(self.slot_length).ok();
        match memory.and_then(|memory| memory.take(self.slot_length)) {
            Some(buffer) => {
                let length = self.slot_length as u64;
                self.shared.counts.outside_bytes.fetch_add(length, Relaxed);
                self.read(block, buffer);
            }
            None => self.on_read(block, Err(RequestError::Busy)),
        }
    }

    fn read(self: &Arc<Self>, block: BlockNumber, buffer: Buffer) {
        let ordinal = self.shared.catalogue.lock().ordinal(self.id, block);
        let Some(ordinal) = ordinal else {
            drop(buffer);
            return self.on_read(block, Err(RequestError::Gone));
        };
        let name = EntryName::Ordinal(self.group, ordinal);
        let read = ShardRequest::Read { name, range: None, leased: false, into: Some(buffer) };
        let reader = Arc::clone(self);
        let reply = AnswerSink::call(move |result| reader.on_read(block, result));
        // A slot may be released inside the shard, so the shard's lock must not be taken here.
        self.shared.engine.post(reply, read);
    }

    fn on_read(self: &Arc<Self>, block: BlockNumber, result: RequestResult) {
        let waker = {
            let mut state = self.state.lock();
            state.results.insert(block, result);
            state.ahead.on_read(block);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        self.pump();
    }

    /// The stream has grown, or its state has changed.
    pub(crate) fn on_stream_changed(self: &Arc<Self>) {
        let info = self.shared.catalogue.lock().info(self.id);
        let waker = {
            let mut state = self.state.lock();
            if let Some(info) = info {
                let is_complete = matches!(info.state, StreamState::Sealed | StreamState::Consumed);
                state.ahead.extend(info.blocks, is_complete);
            }
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        self.pump();
    }

    /// Whether the stream's blocks are gone. A destroyed stream stays while a destroy waits for its
    /// readers.
    fn is_removed(&self) -> bool {
        self.shared.catalogue.lock().info(self.id).is_none()
    }

    /// Whether the stream was destroyed or its writer was dropped before the seal.
    fn is_abandoned(&self) -> bool {
        let info = self.shared.catalogue.lock().info(self.id);
        info.is_none_or(|info| info.is_destroyed())
    }
}
