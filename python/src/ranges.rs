//! From items to the ranges that are asked for, and to the memory that their bytes go to.
//!
//! No reply is longer than [`PAYLOAD_SIZE_MAX`], so longer items are asked for in pieces. Ranges and
//! slots are cut alike, so that the n-th range belongs in the n-th slot.

use forebay_core::digest::ItemPlace;
use forebay_wire::{BlobRange, PAYLOAD_SIZE_MAX};

/// What to ask for; an empty item asks for nothing.
pub fn ranges(places: &[ItemPlace]) -> Vec<BlobRange> {
    let mut ranges = Vec::with_capacity(places.len());
    for place in places {
        let end = place.offset + place.length;
        let mut offset = place.offset;
        while offset < end {
            let length = (end - offset).min(PAYLOAD_SIZE_MAX as u64);
            ranges.push(BlobRange {
                blob: place.blob.0,
                offset,
                length: u32::try_from(length).expect("a piece fits a frame"),
            });
            offset += length;
        }
    }
    ranges
}

/// Memory for every item.
pub fn buffers(places: &[ItemPlace]) -> Vec<Vec<u8>> {
    let size = |place: &ItemPlace| usize::try_from(place.length).expect("64-bit addresses");
    places.iter().map(|place| vec![0; size(place)]).collect()
}

/// Where the bytes of each range go.
pub fn slots(buffers: &mut [Vec<u8>]) -> Vec<Option<&mut [u8]>> {
    buffers.iter_mut().flat_map(|buffer| buffer.chunks_mut(PAYLOAD_SIZE_MAX)).map(Some).collect()
}
