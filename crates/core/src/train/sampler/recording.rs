//! Recordings: the batches that were yielded, to yield them again bit for bit: to repeat an
//! experiment, or to find out whether the order was the cause.
//!
//! **Format** (as in [`super::state`], with its versions): magic `forebay records`. Body: dataset
//! id, fingerprint of the half-chunk map, plan; items of the dataset (4); number of batches
//! (varint); of each batch the number of its items and of those that are padding, which come last
//! (varints), and the items, each in as many bytes as the number of items of the dataset needs.

use super::{
    Batch, EpochPlan, InvalidCall, ItemSource, Sampler,
    envelope::{Format, FormatError, push_varint},
    state::{DataIdentity, decode_plan, encode_plan, plan_version},
};

const FORMAT: Format = Format { name: "recording", magic: *b"forebay records", version: 2 };

/// The batches of one rank's epoch, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    pub(super) of: DataIdentity,
    pub(super) plan: EpochPlan,
    /// Items of the dataset.
    items: u32,
    batches: Vec<Recorded>,
    /// The items of all batches, padding last in each.
    order: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recorded {
    length: u32,
    padding: u32,
}

/// Why a recording cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    /// An item that the dataset does not have.
    #[error("the recording has item {item} of a dataset of {items}; record the epoch again")]
    NoSuchItem {
        /// The item.
        item: u32,
        /// Items of the dataset.
        items: u64,
    },
    /// An item occurs twice.
    #[error("the recording has item {item} twice; record the epoch again")]
    ItemTwice {
        /// The item.
        item: u32,
    },
}

impl Recording {
    /// An empty recording of what this sampler will yield.
    pub fn new(sampler: &Sampler) -> Self {
        let (of, plan) = (sampler.of, sampler.plan);
        Self { of, plan, items: sampler.items, batches: Vec::new(), order: Vec::new() }
    }

    /// The next batch was yielded. Another batch than the next changes nothing.
    pub fn push(&mut self, batch: &Batch) -> Result<(), InvalidCall> {
        let expected = self.batches.len() as u64;
        if batch.number() != expected {
            return Err(InvalidCall::NotNext { number: batch.number(), expected, drawn: 0 });
        }
        let narrow =
            |number: usize| u32::try_from(number).expect("a batch has fewer than 2^32 items");
        let (length, padding) = (narrow(batch.items().len()), batch.count(ItemSource::Padding));
        self.batches.push(Recorded { length, padding });
        let items = batch.items().iter();
        self.order.extend(items.map(|item| u32::try_from(item.0).expect("an item of the map")));
        Ok(())
    }

    /// Number of batches.
    pub fn batches(&self) -> u64 {
        self.batches.len() as u64
    }

    /// Number of items, with padding.
    pub fn items(&self) -> u64 {
        self.order.len() as u64
    }

    /// The items of each batch, and the number of those, at the end, that are padding.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u32], u32)> {
        let mut rest = &self.order[..];
        self.batches.iter().map(move |batch| {
            let (items, after) = rest.split_at(batch.length as usize);
            rest = after;
            (items, batch.padding)
        })
    }

    /// Distinguishes recordings.
    pub(super) fn fingerprint(&self) -> u64 {
        let hash = blake3::hash(&self.encode());
        u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash is longer"))
    }

    /// Encoded: three bytes per item for millions of items.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        self.of.encode(&mut body);
        encode_plan(&self.plan, &mut body);
        body.extend_from_slice(&self.items.to_le_bytes());
        push_varint(&mut body, u32::try_from(self.batches.len()).expect("fewer than items"));
        let width = width(self.items);
        for (items, padding) in self.iter() {
            push_varint(&mut body, u32::try_from(items.len()).expect("decoded from a u32"));
            push_varint(&mut body, padding);
            for item in items {
                body.extend_from_slice(&item.to_le_bytes()[..width]);
            }
        }
        FORMAT.seal(plan_version(&self.plan), &body)
    }

    /// Decodes what [`Recording::encode`] wrote. Replaying it checks that it is of the same
    /// dataset.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = FORMAT.open(bytes)?;
        let of = DataIdentity::decode(&mut body)?;
        let plan = decode_plan(&mut body)?;
        let items = body.u32()?;
        let width = width(items);
        let count = body.count()?;
        let (mut batches, mut order) = (Vec::with_capacity(count), Vec::new());
        for _ in 0..count {
            let (length, padding) = (body.varint()?, body.varint()?);
            if length == 0 || padding > length {
                return Err(body.damaged());
            }
            let bytes = (length as usize).checked_mul(width).ok_or_else(|| body.damaged())?;
            for item in body.slice(bytes)?.chunks_exact(width) {
                let mut wide = [0; 4];
                wide[..width].copy_from_slice(item);
                order.push(u32::from_le_bytes(wide));
            }
            batches.push(Recorded { length, padding });
        }
        body.end()?;
        Ok(Self { of, plan, items, batches, order })
    }
}

/// Bytes per item, for a dataset of this number of items.
fn width(items: u32) -> usize {
    (4 - items.leading_zeros() as usize / 8).max(1)
}
