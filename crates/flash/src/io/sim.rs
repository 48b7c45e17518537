//! A simulated disk. One seed decides the order of completions, what a power failure loses, and
//! which faults occur.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fastrand::Rng;

use super::{Completion, Disk, IoCommand, IoFault, IoId, Waker};
use crate::{buffers::Buffer, format::BLOCK_SIZE};

/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

type Block = [u8; BLOCK_SIZE];

/// Rates of faults, per thousand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultRates {
    /// A command fails.
    pub failed: u32,
    /// A read fails.
    pub read_failed: u32,
    /// A sync fails, and makes nothing durable.
    pub sync_failed: u32,
    /// A write finds no space.
    pub no_space: u32,
    /// A command transfers fewer bytes and reports it.
    pub short: u32,
    /// A write is reported as done but is lost.
    pub lost: u32,
    /// A write goes to another offset.
    pub misdirected: u32,
    /// A bit of a read is flipped.
    pub flipped: u32,
}

/// A simulated disk.
pub struct SimDisk {
    random: Rng,
    size: u64,
    faults: FaultRates,
    /// What a read sees.
    current: BTreeMap<u64, Arc<Block>>,
    /// What a power failure leaves.
    durable: BTreeMap<u64, Arc<Block>>,
    /// Unsynced blocks, in the order of writing.
    unsynced: Vec<(u64, Arc<Block>)>,
    pending: Vec<Pending>,
    completed: u64,
}

struct Pending {
    command: IoCommand,
    /// Number of unsynced blocks when the command was submitted.
    unsynced: usize,
}

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64, size: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            size,
            faults: FaultRates::default(),
            current: BTreeMap::new(),
            durable: BTreeMap::new(),
            unsynced: Vec::new(),
            pending: Vec::new(),
            completed: 0,
        }
    }

    /// Sets the fault rates.
    pub fn set_fault_rates(&mut self, faults: FaultRates) {
        self.faults = faults;
    }

    /// Number of completed commands.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether no command is pending.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The pending commands.
    pub fn pending(&self) -> impl Iterator<Item = &IoCommand> {
        self.pending.iter().map(|pending| &pending.command)
    }

    /// A block as a crash would leave it now, if no unsynced write survived.
    pub fn durable_block(&self, offset: u64) -> Vec<u8> {
        self.durable.get(&(offset / BLOCK_SIZE as u64)).map_or(vec![0; BLOCK_SIZE], |b| b.to_vec())
    }

    /// Writes durably, without a command, as formatting does.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        let unsynced = self.unsynced.len();
        self.store(offset, bytes);
        for (at, block) in self.unsynced.drain(unsynced..) {
            self.durable.insert(at, block);
        }
    }

    /// Reads without a command.
    pub fn get(&self, offset: u64) -> Vec<u8> {
        self.block(offset / BLOCK_SIZE as u64).to_vec()
    }

    /// The disk after a power failure. Synced writes are complete. Of the others, any subset of
    /// sectors has been written, in any order.
    #[must_use]
    pub fn crash(mut self) -> Self {
        let mut doubtful = std::mem::take(&mut self.unsynced);
        for pending in std::mem::take(&mut self.pending) {
            if let IoCommand::Write { offset, bytes, .. } = pending.command {
                doubtful.extend(blocks(offset, &bytes));
            }
        }
        self.random.shuffle(&mut doubtful);
        let mut blocks = std::mem::take(&mut self.durable);
        for (at, new) in doubtful {
            let mut block = blocks.get(&at).map_or([0; BLOCK_SIZE], |block| **block);
            let whole = self.random.bool();
            for (old, new) in block.chunks_mut(SECTOR).zip(new.chunks(SECTOR)) {
                if whole || self.random.bool() {
                    old.copy_from_slice(new);
                }
            }
            if self.random.u8(..4) > 0 {
                blocks.insert(at, Arc::new(block));
            }
        }
        self.current.clone_from(&blocks);
        self.durable = blocks;
        self
    }

    /// The disk after its process was killed. Completed writes are there, pending ones are not.
    #[must_use]
    pub fn kill(mut self) -> Self {
        self.pending.clear();
        self
    }

    /// The disk with another size. Blocks beyond it are lost.
    #[must_use]
    pub fn resized(mut self, size: u64) -> Self {
        assert!(self.is_idle(), "no command is pending");
        self.size = size;
        self.current.retain(|block, _| block * (BLOCK_SIZE as u64) < size);
        self.durable.retain(|block, _| block * (BLOCK_SIZE as u64) < size);
        self
    }

    fn block(&self, at: u64) -> Block {
        self.current.get(&at).map_or([0; BLOCK_SIZE], |block| **block)
    }

    fn store(&mut self, offset: u64, bytes: &[u8]) {
        for (at, block) in blocks(offset, bytes) {
            self.current.insert(at, Arc::clone(&block));
            self.unsynced.push((at, block));
        }
    }

    fn happens(&mut self, in_a_thousand: u32) -> bool {
        in_a_thousand > 0 && self.random.u32(..1000) < in_a_thousand
    }

    fn fault(&mut self, is_write: bool, failed: u32) -> Option<IoFault> {
        if self.happens(self.faults.failed) || self.happens(failed) {
            Some(IoFault::Failed(5))
        } else if self.happens(self.faults.short) {
            Some(IoFault::Short)
        } else if is_write && self.happens(self.faults.no_space) {
            Some(IoFault::NoSpace)
        } else {
            None
        }
    }

    fn execute(&mut self, Pending { command, unsynced }: Pending) -> Completion {
        self.completed += 1;
        match command {
            IoCommand::Read { id, offset, mut buffer, length } => {
                let fault = self.fault(false, self.faults.read_failed);
                self.read(offset, &mut buffer, length);
                let result = fault.map_or(Ok(()), Err);
                Completion { id, buffer: Some(buffer), result }
            }
            IoCommand::Write { id, offset, bytes } => {
                let fault = self.fault(true, 0);
                if fault.is_some() {
                    // A failed write may have written some blocks.
                    let some = self.random.usize(..=bytes.len() / BLOCK_SIZE) * BLOCK_SIZE;
                    self.store(offset, &bytes[..some]);
                } else if self.happens(self.faults.misdirected) {
                    let blocks = (self.size - bytes.len() as u64) / BLOCK_SIZE as u64;
                    let elsewhere = self.random.u64(..=blocks) * BLOCK_SIZE as u64;
                    self.store(elsewhere, &bytes);
                } else if !self.happens(self.faults.lost) {
                    self.store(offset, &bytes);
                }
                done(id, fault)
            }
            IoCommand::Sync { id } => {
                let fault = self.fault(true, self.faults.sync_failed);
                if fault.is_none() {
                    for (at, block) in self.unsynced.drain(..unsynced.min(self.unsynced.len())) {
                        self.durable.insert(at, block);
                    }
                }
                done(id, fault)
            }
            IoCommand::Discard { id, offset, length } => {
                let (first, last) =
                    (offset / BLOCK_SIZE as u64, (offset + length) / BLOCK_SIZE as u64);
                let kept = |at: u64| !(first..last).contains(&at);
                self.current.retain(|at, _| kept(*at));
                self.durable.retain(|at, _| kept(*at));
                self.unsynced.retain(|(at, _)| kept(*at));
                done(id, None)
            }
        }
    }

    fn read(&mut self, offset: u64, buffer: &mut Buffer, length: usize) {
        for (number, into) in buffer[..length].chunks_mut(BLOCK_SIZE).enumerate() {
            into.copy_from_slice(&self.block(offset / BLOCK_SIZE as u64 + number as u64));
        }
        if self.happens(self.faults.flipped) {
            let at = self.random.usize(..length);
            buffer[at] ^= 1 << self.random.u8(..8);
        }
    }
}

fn done(id: IoId, fault: Option<IoFault>) -> Completion {
    Completion { id, buffer: None, result: fault.map_or(Ok(()), Err) }
}

fn blocks(offset: u64, bytes: &[u8]) -> Vec<(u64, Arc<Block>)> {
    let (chunks, rest) = bytes.as_chunks::<BLOCK_SIZE>();
    assert!(rest.is_empty() && offset.is_multiple_of(BLOCK_SIZE as u64), "whole blocks");
    let first = offset / BLOCK_SIZE as u64;
    chunks.iter().zip(first..).map(|(block, at)| (at, Arc::new(*block))).collect()
}

impl Disk for SimDisk {
    fn submit(&mut self, commands: &mut Vec<IoCommand>) {
        for command in commands.drain(..) {
            let (offset, length) = match &command {
                IoCommand::Read { offset, buffer, length, .. } => {
                    assert!(*length <= buffer.len(), "the read fits into the buffer");
                    (*offset, *length as u64)
                }
                IoCommand::Write { offset, bytes, .. } => (*offset, bytes.len() as u64),
                IoCommand::Discard { offset, length, .. } => (*offset, *length),
                IoCommand::Sync { .. } => (0, 0),
            };
            assert!(offset + length <= self.size, "promise 6: never beyond the device");
            assert!(
                offset.is_multiple_of(BLOCK_SIZE as u64)
                    && length.is_multiple_of(BLOCK_SIZE as u64),
                "whole blocks"
            );
            let unsynced = self.unsynced.len();
            self.pending.push(Pending { command, unsynced });
        }
    }

    /// Completes one pending command, chosen at random.
    fn wait(&mut self, _timeout: Option<Duration>, done: &mut Vec<Completion>) {
        if self.pending.is_empty() {
            return;
        }
        let next = self.random.usize(..self.pending.len());
        let pending = self.pending.swap_remove(next);
        let completion = self.execute(pending);
        done.push(completion);
    }

    fn waker(&self) -> Waker {
        Arc::new(|| {})
    }
}
