//! Readers of borrowed stores: the thread that asks for a block submits the reads, waits for them
//! and verifies.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use forebay_core::{
    ByteSize,
    streams::{
        BlockNumber, StreamName,
        loan::{LentStream, LoanReply, LoanRequest},
        read_ahead::{ReadAhead, Turn},
    },
};
use forebay_flash::{
    RequestError,
    buffers::{Buffer, BufferPool},
    extent::Extent,
    format::Generation,
    index::{EntryKey, Location},
    io::{Completion, IoId, ReadRing},
    shard::UnverifiedRead,
};
use parking_lot::Mutex;

use crate::{
    block::{Block, BlockBytes},
    borrowed_store::LenderLink,
    error::StreamError,
    of_process::OfProcess,
    owned_reader::slot_length,
    reader::{OpenOptions, WhenHeld},
    slots::Slots,
};

/// A reader of a stream of another process's store.
pub(crate) struct BorrowedReader {
    name: StreamName,
    stream: LentStream,
    when_held: WhenHeld,
    slot_length: usize,
    inner: OfProcess<Inner>,
    bytes: u64,
    /// The first error: later calls return it again.
    failed: Option<StreamError>,
}

/// What a forked child must not drop.
struct Inner {
    lender: Arc<LenderLink>,
    slots: Slots,
    ring: ReadRing,
    ahead: ReadAhead,
    /// Reads that have ended and wait for their turn.
    results: BTreeMap<BlockNumber, Completion>,
    /// Places of the blocks from `extents_from` on.
    extents: Vec<Extent>,
    extents_from: u64,
    /// Blocks that are read outside the slots.
    outside: Vec<BlockNumber>,
    /// Woken when the consumer drops a block, in another thread.
    waker: Arc<Mutex<Option<Waker>>>,
}

impl BorrowedReader {
    pub(crate) fn open(
        lender: &Arc<LenderLink>,
        name: StreamName,
        options: OpenOptions,
    ) -> Result<Self, StreamError> {
        if options.follow || options.consume {
            return Err(StreamError::OwnerOnly(name.to_string()));
        }
        lender.check_process()?;
        let slot_length = slot_length(lender.block_length());
        let depth = options.depth.max(1);
        let needed = slot_length.saturating_mul(depth as usize);
        let slots = Slots::reserve(&lender.memory, depth, slot_length);
        let slots = slots.ok_or_else(|| StreamError::Memory {
            depth,
            slot: ByteSize(slot_length as u64),
            needed: ByteSize(needed as u64),
            free: ByteSize(lender.memory.free_bytes() as u64),
        })?;
        let LoanReply::Lent(stream) = lender.ask(&LoanRequest::Open(name.clone()))? else {
            return Err(lender.end());
        };
        let mut ahead = ReadAhead::new(depth, options.in_flight.min(depth));
        ahead.extend(stream.blocks, true);
        let inner = Inner {
            lender: Arc::clone(lender),
            slots,
            ring: ReadRing::new(Arc::clone(&lender.device)),
            ahead,
            results: BTreeMap::new(),
            extents: Vec::new(),
            extents_from: 0,
            outside: Vec::new(),
            waker: Arc::default(),
        };
        let waker = Arc::clone(&inner.waker);
        inner.slots.on_release(move || {
            if let Some(waker) = waker.lock().take() {
                waker.wake();
            }
        });
        let when_held = options.when_held;
        let inner = OfProcess::new(inner);
        let mut reader =
            Self { name, stream, when_held, slot_length, inner, bytes: 0, failed: None };
        // The first blocks are read while the caller does something else.
        reader.start_reads()?;
        Ok(reader)
    }

    pub(crate) fn name(&self) -> &StreamName {
        &self.name
    }

    pub(crate) fn position(&self) -> BlockNumber {
        self.inner.ahead.position()
    }

    /// The next block; `None` after the last one. Waits for the device at once; the future waits
    /// only for a slot that another thread holds.
    pub(crate) async fn next_async(&mut self) -> Option<Result<Block, StreamError>> {
        if let Err(error) = self.inner.lender.check_process() {
            return Some(Err(error));
        }
        if let Some(error) = &self.failed {
            return Some(Err(error.clone()));
        }
        let block = poll_fn(|context| self.poll_block(context)).await.transpose()?;
        match &block {
            // The next call goes on where this one has ended.
            Err(StreamError::Interrupted) | Ok(_) => {}
            Err(error) => self.failed = Some(error.clone()),
        }
        Some(block)
    }

    fn poll_block(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Block>, StreamError>> {
        loop {
            self.start_reads()?;
            match self.inner.ahead.turn() {
                Turn::Ready(block) => return Poll::Ready(self.deliver(block).map(Some)),
                Turn::End if self.bytes == self.stream.bytes => return Poll::Ready(Ok(None)),
                Turn::End => {
                    let (stream, bytes, expected) = (self.text(), self.bytes, self.stream.bytes);
                    return Poll::Ready(Err(StreamError::Shorter { stream, bytes, expected }));
                }
                Turn::NeedsMemory(block) if self.when_held == WhenHeld::Wait => {
                    *self.inner.waker.lock() = Some(context.waker().clone());
                    // A slot may have been released before the waker was set.
                    let Some(buffer) = self.inner.slots.take() else {
                        return Poll::Pending;
                    };
                    self.start_read(block, buffer)?;
                }
                Turn::NeedsMemory(block) => {
                    let memory = BufferPool::new(self.slot_length).ok();
                    let buffer = memory.and_then(|memory| memory.take(self.slot_length));
                    let buffer = buffer.ok_or_else(|| self.failed_read(block))?;
                    self.start_read(block, buffer)?;
                    self.inner.outside.push(block);
                }
                Turn::Wait | Turn::AwaitWriter => {
                    let position = self.position();
                    let done = self.inner.ring.wait().map_err(|_| self.failed_read(position))?;
                    let done = done.expect("a read is in flight");
                    let block = BlockNumber(done.id.0);
                    self.inner.results.insert(block, done);
                    self.inner.ahead.on_read(block);
                }
            }
        }
    }

    /// Starts reads while there are slots.
    fn start_reads(&mut self) -> Result<(), StreamError> {
        while self.inner.ring.has_room()
            && let Some(block) = self.inner.ahead.wanted()
            && let Some(buffer) = self.inner.slots.take()
        {
            self.start_read(block, buffer)?;
        }
        Ok(())
    }

    fn start_read(&mut self, block: BlockNumber, buffer: Buffer) -> Result<(), StreamError> {
        let extent = self.extent(block)?;
        let blocks = extent.blocks(&self.inner.lender.geometry);
        let length = usize::try_from(blocks.end - blocks.start).unwrap_or(usize::MAX);
        if length > buffer.len() {
            return Err(StreamError::Lost { stream: self.text(), block });
        }
        self.inner.ahead.on_requested(block);
        self.inner.ring.start(IoId(block.0), blocks.start, buffer, length);
        Ok(())
    }

    /// Where a block lies. The owner is asked for many at a time.
    fn extent(&mut self, block: BlockNumber) -> Result<Extent, StreamError> {
        let known = |inner: &Inner| {
            let at = usize::try_from(block.0.checked_sub(inner.extents_from)?).ok()?;
            inner.extents.get(at).copied()
        };
        if let Some(extent) = known(&self.inner) {
            return Ok(extent);
        }
        let request = LoanRequest::Extents { lease: self.stream.lease, first: block };
        let LoanReply::Extents(lent) = self.inner.lender.ask(&request)? else {
            return Err(self.inner.lender.end());
        };
        let geometry = self.inner.lender.geometry;
        let extents = lent.into_iter().map(|lent| {
            let location = Location::from_bits(lent.location, &geometry)?;
            let (key, generation) = (EntryKey(lent.key), Generation(lent.generation));
            Some(Extent { key, location, generation })
        });
        self.inner.extents =
            extents.collect::<Option<_>>().ok_or_else(|| self.inner.lender.broken())?;
        self.inner.extents_from = block.0;
        known(&self.inner).ok_or_else(|| self.inner.lender.broken())
    }

    /// Verifies a block.
    fn deliver(&mut self, block: BlockNumber) -> Result<Block, StreamError> {
        self.inner.lender.check_owner()?;
        let extent = self.extent(block)?;
        let done = self.inner.results.remove(&block).expect("kept until handed out");
        self.inner.ahead.on_handed_out(block);
        let is_outside = self.inner.outside.iter().position(|other| *other == block);
        let outside = is_outside.map(|at| self.inner.outside.swap_remove(at)).is_some();
        let (Ok(()), Some(buffer)) = (done.result, done.buffer) else {
            return Err(self.failed_read(block));
        };
        let device = self.inner.lender.geometry.device;
        let read = UnverifiedRead::of_extent(&extent, device, buffer.freeze());
        let verified = read.verify().ok().filter(|read| read.tag == self.stream.number.0);
        let Some(verified) = verified else { return Err(self.lost(block)) };
        self.bytes += verified.bytes.len() as u64;
        Ok(Block {
            bytes: BlockBytes::Slot(OfProcess::new(verified.bytes)),
            number: block,
            outside,
        })
    }

    /// Why a block is not what was written: the owner knows whether the stream was destroyed.
    fn lost(&mut self, block: BlockNumber) -> StreamError {
        self.inner.extents.clear();
        match self.extent(block) {
            Ok(_) => StreamError::Lost { stream: self.text(), block },
            Err(StreamError::Refused(_)) => StreamError::Destroyed(self.text()),
            Err(StreamError::Interrupted) => {
                let lost = StreamError::Lost { stream: self.text(), block };
                self.failed = Some(lost);
                StreamError::Interrupted
            }
            Err(error) => error,
        }
    }

    fn failed_read(&self, block: BlockNumber) -> StreamError {
        StreamError::Read { stream: self.text(), block, error: RequestError::Failed }
    }

    fn text(&self) -> String {
        self.name.to_string()
    }
}

impl Drop for BorrowedReader {
    fn drop(&mut self) {
        if self.inner.is_here() {
            self.inner.lender.return_lease(self.stream.lease);
        }
    }
}
