//! The scan of an unsealed region: finds its entries, from the first block to the first invalid
//! entry. Each entry is verified whole.

use crate::format::{
    BLOCK_SIZE, Descriptor, DeviceId, EntryHeader, EntryShape, FRAME_SIZE, Generation, HEADER_SIZE,
    UNIT, round_up,
};

/// A scan, which reads a region's bytes in order, in slices of any length.
#[derive(Debug)]
pub struct Scan {
    device: DeviceId,
    generation: Generation,
    /// Offset of the next entry in the region.
    entry: u64,
    step: Step,
    /// Bytes of the current step.
    buffered: Vec<u8>,
    entries: Vec<Descriptor>,
}

#[derive(Debug)]
enum Step {
    Header,
    Checksums(EntryHeader),
    Frame { header: EntryHeader, checksums: Vec<[u8; 4]>, number: usize },
    Skip(usize),
    End,
}

impl Scan {
    /// Offset in the region of the first byte to feed.
    pub const START: u64 = BLOCK_SIZE as u64;

    /// A scan for entries of this generation.
    pub fn new(device: DeviceId, generation: Generation) -> Self {
        let (buffered, entries) = (Vec::new(), Vec::new());
        Self { device, generation, entry: Self::START, step: Step::Header, buffered, entries }
    }

    /// The entries found.
    pub fn into_entries(self) -> Vec<Descriptor> {
        self.entries
    }

    /// Feeds the next bytes. False if no more entries can follow.
    pub fn feed(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            let Some(need) = self.bytes_needed() else { return false };
            let some = (need - self.buffered.len()).min(bytes.len());
            self.buffered.extend_from_slice(&bytes[..some]);
            bytes = &bytes[some..];
            if self.buffered.len() < need {
                return true;
            }
            self.step = self.next();
        }
    }

    fn bytes_needed(&self) -> Option<usize> {
        Some(match &self.step {
            Step::Header => HEADER_SIZE,
            Step::Checksums(header) => shape(header).payload().try_into().expect("in memory"),
            Step::Frame { header, number, .. } => {
                (header.length as usize - number * FRAME_SIZE).min(FRAME_SIZE)
            }
            Step::Skip(length) => *length,
            Step::End => return None,
        })
    }

    fn next(&mut self) -> Step {
        match std::mem::replace(&mut self.step, Step::End) {
            Step::Header => {
                let header = EntryHeader::peek(&self.buffered);
                let is_match = |header: &EntryHeader| {
                    header.device == self.device && header.generation == self.generation
                };
                match header.filter(is_match) {
                    Some(header) => Step::Checksums(header),
                    None if self.entry.is_multiple_of(BLOCK_SIZE as u64) => Step::End,
                    // A write was padded before it was full: the next entry begins at the next
                    // block.
                    None => {
                        let next = round_up(self.entry, BLOCK_SIZE as u64);
                        let skip = next - self.entry - HEADER_SIZE as u64;
                        self.entry = next;
                        self.skip(skip)
                    }
                }
            }
            Step::Checksums(_) => match EntryHeader::decode(&self.buffered) {
                None => Step::End,
                Some((header, checksums)) => {
                    let checksums = checksums.to_vec();
                    self.buffered.clear();
                    self.frame(header, checksums, 0)
                }
            },
            Step::Frame { header, checksums, number } => {
                if !EntryHeader::frames_match(&checksums, number, &self.buffered) {
                    return Step::End;
                }
                self.buffered.clear();
                self.frame(header, checksums, number + 1)
            }
            Step::Skip(_) => {
                self.buffered.clear();
                Step::Header
            }
            Step::End => Step::End,
        }
    }

    fn frame(&mut self, header: EntryHeader, checksums: Vec<[u8; 4]>, number: usize) -> Step {
        if number < checksums.len() {
            return Step::Frame { header, checksums, number };
        }
        self.entries.push(Descriptor {
            key: header.key,
            offset: u32::try_from(self.entry / UNIT as u64).expect("inside a region"),
            length: header.length,
            tag: header.tag,
        });
        let shape = shape(&header);
        self.entry += shape.size();
        self.skip(shape.size() - shape.payload() - u64::from(header.length))
    }

    fn skip(&mut self, length: u64) -> Step {
        self.buffered.clear();
        Step::Skip(usize::try_from(length).expect("less than a block"))
    }
}

fn shape(header: &EntryHeader) -> EntryShape {
    EntryShape::of(u64::from(header.length))
}
