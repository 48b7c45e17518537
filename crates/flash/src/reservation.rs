//! Reservations: entries that the caller fills in place, in memory that the device writes from.
//!
//! A reservation is memory only. It takes no space on the device before it is committed, so a
//! dropped one leaves nothing that can be found. A committed entry begins and ends at a block
//! boundary, because its buffer is written unchanged.

use std::sync::Arc;

use crate::{
    buffers::{Buffer, BufferPool, View},
    format::{
        BLOCK_SIZE, EntryHeader, EntryShape, FRAME_SIZE, Footer, UNIT, copy_frame, frame_checksums,
        round_down, round_up,
    },
};

/// Default length of a stream's block: 4 MiB - 12 KiB. With header and checksums it takes 4 MiB -
/// 8 KiB, so that together with a region's header and footer one of them fills a region of 4 MiB.
pub const STREAM_BLOCK: u64 = (4 << 20) - (12 << 10);

/// The longest block, up to [`STREAM_BLOCK`], with which a stream fills regions of this size.
pub fn stream_block_length(region_size: u64) -> u64 {
    let block = BLOCK_SIZE as u64;
    let count = (region_size >> 22).max(1);
    let footer = Footer::size(usize::try_from(count).expect("few blocks per region"));
    let each = round_down((region_size - block - footer) / count, block);
    let head = EntryShape::of(each).payload();
    STREAM_BLOCK.min(round_down(each - head, UNIT as u64))
}

/// Memory for one entry, to be filled by the caller.
#[derive(Debug)]
pub struct Reservation {
    buffer: Buffer,
    length: usize,
}

/// An entry that is ready to be committed.
#[derive(Debug)]
pub struct FilledEntry {
    buffer: Buffer,
    length: usize,
    checksums: Vec<u32>,
}

impl Reservation {
    /// Bytes of memory that a reservation of `length` bytes takes.
    pub fn memory(length: usize) -> usize {
        in_memory(round_up(EntryShape::of(length as u64).size(), BLOCK_SIZE as u64))
    }

    /// Reserves room for `length` bytes. `None` if the pool has no run of that length.
    pub fn new(pool: &Arc<BufferPool>, length: usize) -> Option<Self> {
        pool.take(Self::memory(length)).map(|buffer| Self::on(buffer, length))
    }

    /// A reservation in memory that was taken before, of at least [`Reservation::memory`] bytes.
    pub fn on(buffer: Buffer, length: usize) -> Self {
        assert!(buffer.len() >= Self::memory(length), "the entry fits into its buffer");
        Self { buffer, length }
    }

    /// The bytes to fill. They begin at a multiple of [`UNIT`] and hold arbitrary values.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let start = payload_offset(self.length);
        &mut self.buffer[start..start + self.length]
    }

    /// Copies a payload of the reserved length. Each frame's checksum is computed while the frame
    /// is in the processor's cache.
    pub fn fill(mut self, payload: &[u8]) -> FilledEntry {
        assert_eq!(payload.len(), self.length, "a payload of the reserved length");
        let frames = self.bytes_mut().chunks_mut(FRAME_SIZE).zip(payload.chunks(FRAME_SIZE));
        let checksums = frames.map(|(to, from)| copy_frame(to, from)).collect();
        FilledEntry { buffer: self.buffer, length: self.length, checksums }
    }

    /// Ends the filling: the first `length` bytes are the entry's payload. Computes their
    /// checksums. A payload that is much shorter than the reservation is moved once, because its
    /// table of checksums is shorter too.
    pub fn finish(mut self, length: usize) -> FilledEntry {
        assert!(length <= self.length, "at most the reserved bytes");
        let (from, to) = (payload_offset(self.length), payload_offset(length));
        if from != to {
            self.buffer.copy_within(from..from + length, to);
        }
        let checksums = frame_checksums(&self.buffer[to..to + length]);
        FilledEntry { buffer: self.buffer, length, checksums }
    }
}

impl FilledEntry {
    /// A copy of a payload, with the checksums of its frames. `None` if the pool has no run of that
    /// length.
    pub fn copy_of(pool: &Arc<BufferPool>, payload: &[u8], checksums: Vec<u32>) -> Option<Self> {
        let length = payload.len();
        let mut reservation = Reservation::new(pool, length)?;
        reservation.bytes_mut().copy_from_slice(payload);
        Some(Self { buffer: reservation.buffer, length, checksums })
    }

    /// Length of the payload.
    pub fn length(&self) -> u64 {
        self.length as u64
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        let start = payload_offset(self.length);
        &self.buffer[start..start + self.length]
    }

    /// The whole entry in whole blocks, with this header.
    pub(crate) fn encode(mut self, header: &EntryHeader) -> View {
        let shape = EntryShape::of(self.length as u64);
        let head = header.encode(&self.checksums);
        self.buffer[..head.len()].copy_from_slice(&head);
        let end = in_memory(round_up(shape.size(), BLOCK_SIZE as u64));
        self.buffer[head.len() + self.length..end].fill(0);
        self.buffer.freeze().slice(0..end)
    }
}

/// The payload.
impl AsRef<[u8]> for FilledEntry {
    fn as_ref(&self) -> &[u8] {
        self.payload()
    }
}

fn payload_offset(length: usize) -> usize {
    in_memory(EntryShape::of(length as u64).payload())
}

fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).expect("an entry fits into memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{REGION_SIZE_MAX, REGION_SIZE_MIN};

    /// Blocks of the default length leave at most 1 % of a region unused, at every region size.
    #[test]
    fn default_blocks_fill_regions_of_every_size() {
        let mut size = REGION_SIZE_MIN;
        while size <= REGION_SIZE_MAX {
            let length = stream_block_length(size);
            let entry = Reservation::memory(in_memory(length)) as u64;
            let footer = |count| Footer::size(in_memory(count));
            let room = size - BLOCK_SIZE as u64;
            let count =
                (1..1000).take_while(|count| count * entry + footer(*count) <= room).count();
            let used = count as u64 * length;
            assert!(count as u64 == (size >> 22).max(1), "{count} blocks in {size}");
            assert!(size * 100 <= used * 101, "{used} of {size}");
            assert!(size < 4 << 20 || length == STREAM_BLOCK, "{length} in {size}");
            size *= 2;
        }
    }

    #[test]
    fn a_shorter_payload_moves_to_where_its_shape_expects_it() {
        let pool = BufferPool::new(2 << 20).unwrap();
        for length in [0, 1, 16_384, 262_144, 262_145, 700_000, 1_000_000] {
            let mut reservation = Reservation::new(&pool, 1_000_000).unwrap();
            let mut random = fastrand::Rng::with_seed(length as u64);
            reservation.bytes_mut().fill_with(|| random.u8(..));
            let expected = reservation.bytes_mut()[..length].to_vec();
            let filled = reservation.finish(length);
            assert!(filled.payload() == expected, "{length}");
            assert_eq!(filled.checksums, frame_checksums(&expected));
            let copied = Reservation::new(&pool, length).unwrap().fill(&expected);
            assert!(copied.payload() == expected && copied.checksums == filled.checksums);
        }
    }
}
