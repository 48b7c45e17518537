//! Finding the entries of a region that was not sealed: from its first block on, each is proved whole, up
//! to the first that is not.

use crate::layout::{
    BLOCK_SIZE, Descriptor, DeviceId, EntryHeader, EntryShape, FRAME_SIZE, Generation, HEADER_SIZE,
    UNIT, round_up,
};

/// Reads a region's bytes in order, in pieces of any length.
#[derive(Debug)]
pub struct Scan {
    device: DeviceId,
    generation: Generation,
    /// Where in the region the next entry begins.
    entry: u64,
    step: Step,
    /// What has been fed and is needed whole.
    carry: Vec<u8>,
    entries: Vec<Descriptor>,
}

#[derive(Debug)]
enum Step {
    Header,
    Checksums(EntryHeader),
    Frame { header: EntryHeader, checksums: Vec<[u8; 4]>, number: usize },
    Skip(usize),
    Over,
}

impl Scan {
    /// Where the first bytes to be fed lie in the region.
    pub const START: u64 = BLOCK_SIZE as u64;

    /// Looks for entries of this life of a region.
    pub fn new(device: DeviceId, generation: Generation) -> Self {
        let (carry, entries) = (Vec::new(), Vec::new());
        Self { device, generation, entry: Self::START, step: Step::Header, carry, entries }
    }

    /// What has been found.
    pub fn into_entries(self) -> Vec<Descriptor> {
        self.entries
    }

    /// Takes the next bytes. False if there is nothing more to be found.
    pub fn feed(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            let Some(need) = self.need() else { return false };
            let some = (need - self.carry.len()).min(bytes.len());
            self.carry.extend_from_slice(&bytes[..some]);
            bytes = &bytes[some..];
            if self.carry.len() < need {
                return true;
            }
            self.step = self.next();
        }
    }

    fn need(&self) -> Option<usize> {
        Some(match &self.step {
            Step::Header => HEADER_SIZE,
            Step::Checksums(header) => shape(header).payload().try_into().expect("in memory"),
            Step::Frame { header, number, .. } => {
                (header.length as usize - number * FRAME_SIZE).min(FRAME_SIZE)
            }
            Step::Skip(length) => *length,
            Step::Over => return None,
        })
    }

    fn next(&mut self) -> Step {
        match std::mem::replace(&mut self.step, Step::Over) {
            Step::Header => {
                let header = EntryHeader::peek(&self.carry);
                let ours = |header: &EntryHeader| {
                    header.device == self.device && header.generation == self.generation
                };
                match header.filter(ours) {
                    Some(header) => Step::Checksums(header),
                    None if self.entry.is_multiple_of(BLOCK_SIZE as u64) => Step::Over,
                    // A piece was written before it was full: the next one begins with a block.
                    None => {
                        let next = round_up(self.entry, BLOCK_SIZE as u64);
                        let skip = next - self.entry - HEADER_SIZE as u64;
                        self.entry = next;
                        self.skip(skip)
                    }
                }
            }
            Step::Checksums(_) => match EntryHeader::decode(&self.carry) {
                None => Step::Over,
                Some((header, checksums)) => {
                    let checksums = checksums.to_vec();
                    self.carry.clear();
                    self.frame(header, checksums, 0)
                }
            },
            Step::Frame { header, checksums, number } => {
                if !EntryHeader::proves(&checksums, number, &self.carry) {
                    return Step::Over;
                }
                self.carry.clear();
                self.frame(header, checksums, number + 1)
            }
            Step::Skip(_) => {
                self.carry.clear();
                Step::Header
            }
            Step::Over => Step::Over,
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
        self.carry.clear();
        Step::Skip(usize::try_from(length).expect("less than a block"))
    }
}

fn shape(header: &EntryHeader) -> EntryShape {
    EntryShape::of(u64::from(header.length))
}
