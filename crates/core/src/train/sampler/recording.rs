//! What was yielded, batch by batch, so that it can be yielded again bit for bit: to repeat an experiment,
//! or to find out whether it was the order.
//!
//! **Format** (as in [`super::state`]): magic `forebay records` and version 1. Body: dataset id, fingerprint
//! of the layout, plan; how many items the dataset has (4); how many batches (varint); of each how many items
//! it has and how many of these, the last, are padding (varints), and the items, each in as many bytes as
//! that number of items takes.

use super::{
    Batch, Contradiction, Plan, Sampler, Source,
    sealed::{Format, FormatError, push_varint},
    state::{Of, decode_plan, encode_plan},
};

const FORMAT: Format = Format { name: "recording", magic: *b"forebay records", version: 1 };

/// The batches of one rank's epoch, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    pub(super) of: Of,
    pub(super) plan: Plan,
    /// How many items the dataset has.
    items: u32,
    batches: Vec<Recorded>,
    /// The items of all batches, those that are padding last in each.
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
    #[error("the recording has item {item} of a dataset of {items}; record the epoch anew")]
    NoSuchItem {
        /// The item.
        item: u32,
        /// How many there are.
        items: u64,
    },
    /// No epoch has an item twice.
    #[error("the recording has item {item} twice; record the epoch anew")]
    ItemTwice {
        /// The item.
        item: u32,
    },
}

impl Recording {
    /// Nothing yet, of what this sampler will yield.
    pub fn new(sampler: &Sampler) -> Self {
        let (of, plan) = (sampler.of, sampler.plan);
        Self { of, plan, items: sampler.items, batches: Vec::new(), order: Vec::new() }
    }

    /// The next batch was yielded. One that is not the next changes nothing.
    pub fn push(&mut self, batch: &Batch) -> Result<(), Contradiction> {
        let expected = self.batches.len() as u64;
        if batch.number() != expected {
            return Err(Contradiction::NotNext { number: batch.number(), expected, drawn: 0 });
        }
        let narrow = |number: usize| u32::try_from(number).expect("a batch is shorter");
        let (length, padding) = (narrow(batch.items().len()), batch.count(Source::Padding));
        self.batches.push(Recorded { length, padding });
        let items = batch.items().iter();
        self.order.extend(items.map(|item| u32::try_from(item.0).expect("of the layout")));
        Ok(())
    }

    /// How many batches there are.
    pub fn batches(&self) -> u64 {
        self.batches.len() as u64
    }

    /// How many items there are, padding and all.
    pub fn items(&self) -> u64 {
        self.order.len() as u64
    }

    /// The items of each batch, and how many of them, the last ones, are padding.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u32], u32)> {
        let mut rest = &self.order[..];
        self.batches.iter().map(move |batch| {
            let (items, after) = rest.split_at(batch.length as usize);
            rest = after;
            (items, batch.padding)
        })
    }

    /// Tells recordings apart.
    pub(super) fn fingerprint(&self) -> u64 {
        let hash = blake3::hash(&self.encode());
        u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash is longer"))
    }

    /// As bytes: three for an item, if there are millions.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        self.of.encode(&mut body);
        encode_plan(&self.plan, &mut body);
        body.extend_from_slice(&self.items.to_le_bytes());
        push_varint(&mut body, u32::try_from(self.batches.len()).expect("fewer than items"));
        let width = width(self.items);
        for (items, padding) in self.iter() {
            push_varint(&mut body, u32::try_from(items.len()).expect("it was a u32"));
            push_varint(&mut body, padding);
            for item in items {
                body.extend_from_slice(&item.to_le_bytes()[..width]);
            }
        }
        FORMAT.seal(&body)
    }

    /// From bytes that [`Recording::encode`] made. Whether they are of the dataset at hand is seen when
    /// they are replayed.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = FORMAT.open(bytes)?;
        let of = Of::decode(&mut body)?;
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

/// Bytes that any of so many items can be told in.
fn width(items: u32) -> usize {
    (4 - items.leading_zeros() as usize / 8).max(1)
}
