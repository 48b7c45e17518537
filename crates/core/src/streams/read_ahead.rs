//! Read-ahead: which block a reader requests next, and which it hands out.
//!
//! A reader has a ring of `depth` slots, the paper's stream buffer. It requests blocks in order,
//! keeps up to `in_flight` requests running, and hands blocks out in order. A slot is busy from the
//! request until the consumer drops the block. With `in_flight` = 1 the completion of one block
//! starts the next, which is the schedule of the paper's chained blocks ("Reading a stream with
//! stream buffer").
//!
//! The first request runs alone, because requests share the bandwidth of the device: the first
//! block arrives soonest. Each completion then allows one more.
//!
//! **Invariant:** a consumer that holds every slot and asks for more is never left waiting for
//! itself: [`Turn::NeedsMemory`] asks the driver for memory outside the ring.

use std::collections::BTreeSet;

use super::BlockNumber;

/// Position and requests of one reader.
#[derive(Debug)]
pub struct ReadAhead {
    depth: u64,
    in_flight_max: u64,
    /// Blocks that can be read.
    written: u64,
    /// Whether no more blocks will be written.
    is_complete: bool,
    next_request: u64,
    next_out: u64,
    in_flight: u64,
    /// Requests that have ended.
    ended: u64,
    ready: BTreeSet<u64>,
}

/// What a reader's next call leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// This block has been read: hand it out.
    Ready(BlockNumber),
    /// The next block is being read.
    Wait,
    /// All slots are held by the consumer: read this block into other memory.
    NeedsMemory(BlockNumber),
    /// The writer has yet to write the next block.
    AwaitWriter,
    /// All blocks have been handed out.
    End,
}

impl ReadAhead {
    /// A reader at the beginning of a stream. `depth` and `in_flight` are at least one.
    pub fn new(depth: u32, in_flight: u32) -> Self {
        Self {
            depth: u64::from(depth.max(1)),
            in_flight_max: u64::from(in_flight.max(1)),
            written: 0,
            is_complete: false,
            next_request: 0,
            next_out: 0,
            in_flight: 0,
            ended: 0,
            ready: BTreeSet::new(),
        }
    }

    /// The stream has this number of blocks, and more to come unless it is complete.
    pub fn extend(&mut self, written: u64, is_complete: bool) {
        // Two threads may report a writer's progress in either order.
        self.written = self.written.max(written);
        self.is_complete |= is_complete;
    }

    /// The block to request now, if a slot is free.
    pub fn wanted(&self) -> Option<BlockNumber> {
        let has_room = self.in_flight < self.in_flight_max.min(self.ended + 1)
            && self.next_request < self.next_out + self.depth
            && self.next_request < self.written;
        has_room.then_some(BlockNumber(self.next_request))
    }

    /// The block has been requested.
    pub fn on_requested(&mut self, BlockNumber(block): BlockNumber) {
        assert_eq!(block, self.next_request, "blocks are requested in order");
        self.next_request += 1;
        self.in_flight += 1;
    }

    /// The request for a block has ended.
    pub fn on_read(&mut self, BlockNumber(block): BlockNumber) {
        assert!(block < self.next_request && self.ready.insert(block), "read once");
        self.in_flight -= 1;
        self.ended += 1;
    }

    /// What the next call leads to. The driver has requested all [`ReadAhead::wanted`] blocks for
    /// which slots are free.
    pub fn turn(&self) -> Turn {
        let next = self.next_out;
        if self.ready.contains(&next) {
            Turn::Ready(BlockNumber(next))
        } else if next < self.next_request {
            Turn::Wait
        } else if next < self.written {
            Turn::NeedsMemory(BlockNumber(next))
        } else if self.is_complete {
            Turn::End
        } else {
            Turn::AwaitWriter
        }
    }

    /// The block has been handed out.
    pub fn on_handed_out(&mut self, BlockNumber(block): BlockNumber) {
        assert!(block == self.next_out && self.ready.remove(&block), "handed out in order");
        self.next_out += 1;
    }

    /// The next block to hand out.
    pub fn position(&self) -> BlockNumber {
        BlockNumber(self.next_out)
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every block once and in order, within `depth` slots and `in_flight` requests, whatever the
    /// order of completions and however many blocks the consumer holds.
    #[test]
    fn blocks_come_in_order_within_the_limits() {
        for seed in 0..2000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (depth, in_flight) = (random.u32(1..6), random.u32(1..6));
            let total = random.u64(..40);
            let mut ahead = ReadAhead::new(depth, in_flight);
            ahead.extend(0, total == 0);
            let (mut running, mut held, mut written) = (Vec::new(), Vec::new(), 0);
            let (mut out, mut outside, mut slots) = (0, 0, depth);
            loop {
                match random.u8(..4) {
                    0 => {
                        written = (written + random.u64(..5)).min(total);
                        ahead.extend(written, written == total);
                    }
                    1 if !running.is_empty() => {
                        let (block, slot) = running.swap_remove(random.usize(..running.len()));
                        ahead.on_read(block);
                        held.push((block, slot));
                    }
                    2 if random.bool() => {
                        // The consumer drops blocks that it was given.
                        held.retain(|(BlockNumber(block), slot)| {
                            let dropped = *block < out && random.bool();
                            slots += u32::from(dropped && *slot);
                            !dropped
                        });
                    }
                    _ => match ahead.turn() {
                        Turn::Ready(block) => {
                            assert_eq!(block, BlockNumber(out));
                            ahead.on_handed_out(block);
                            out += 1;
                        }
                        Turn::NeedsMemory(block) => {
                            if slots == 0 {
                                ahead.on_requested(block);
                                running.push((block, false));
                                outside += 1;
                            }
                        }
                        Turn::End => break,
                        Turn::Wait => assert!(!running.is_empty(), "it waits for a request"),
                        Turn::AwaitWriter => assert!(written < total),
                    },
                }
                while slots > 0
                    && let Some(block) = ahead.wanted()
                {
                    slots -= 1;
                    ahead.on_requested(block);
                    running.push((block, true));
                }
                assert!(ahead.in_flight() <= u64::from(in_flight).max(1) + u64::from(outside > 0));
            }
            assert_eq!(out, total, "all blocks, none twice");
        }
    }

    /// The paper's schedule: one request at a time, the next one at once.
    #[test]
    fn with_one_in_flight_a_completion_starts_the_next_block() {
        let mut ahead = ReadAhead::new(3, 1);
        ahead.extend(9, true);
        for block in 0..3 {
            assert_eq!(ahead.wanted(), Some(BlockNumber(block)));
            ahead.on_requested(BlockNumber(block));
            assert_eq!(ahead.wanted(), None, "one is in flight");
            ahead.on_read(BlockNumber(block));
        }
        assert_eq!(ahead.wanted(), None, "the ring is full");
        ahead.on_handed_out(BlockNumber(0));
        assert_eq!(ahead.wanted(), Some(BlockNumber(3)));
    }

    /// The first block does not share the device with others.
    #[test]
    fn requests_in_flight_grow_by_one_with_each_completion() {
        let mut ahead = ReadAhead::new(8, 3);
        ahead.extend(9, true);
        let mut requested = 0;
        let mut request_all = |ahead: &mut ReadAhead| {
            while let Some(block) = ahead.wanted() {
                ahead.on_requested(block);
                requested += 1;
            }
            requested
        };
        let mut counts = vec![request_all(&mut ahead)];
        for block in 0..3 {
            ahead.on_read(BlockNumber(block));
            counts.push(request_all(&mut ahead));
        }
        assert_eq!(counts, [1, 3, 5, 6]);
    }
}
