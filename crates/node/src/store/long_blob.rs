//! Long blobs: blobs that are too long for one entry, stored in parts.
//!
//! Parts are written before the blob is verified, under random keys that no client can guess. The
//! last write is the *head*: an entry under the blob's address that names the parts. Parts without
//! a head are never found, and are evicted with their regions.

use std::ops::Range;

use bytes::Bytes;
use forebay_core::dataset::blob_table::BlobRow;
use forebay_flash::{EntryKey, RequestError, VerifiedRead};
use forebay_transport::ByteChain;

use crate::store::blob_store::{BlobStore, Read, key};

/// Longest part. Blobs up to this length are stored as one entry.
pub(crate) const PART_LENGTH_MAX: u64 = 8 << 20;

/// Tag of an entry that is a whole blob.
pub(super) const TAG_WHOLE: u32 = 0;
/// Tag of the head of a long blob.
pub(super) const TAG_HEAD: u32 = 1;
/// Tag of a part of a long blob.
pub(super) const TAG_PART: u32 = 2;

/// The content of a head entry.
pub(super) struct Head {
    /// Key from which the keys of the parts are derived.
    pub parts_key: [u8; 32],
    /// Length of all parts but the last.
    pub part_length: u64,
    /// Length of the blob.
    pub length: u64,
}

impl BlobStore {
    /// Reads a range of a long blob.
    pub(super) async fn read_parts(
        &self,
        row: BlobRow,
        range: Range<u64>,
    ) -> Result<Read, RequestError> {
        let key = key(&row.address);
        let Some(head) = self.flash.read(key, None).await? else { return Ok(self.on_gone(key)) };
        let Some(Head { parts_key, part_length, length }) = Head::decode(&head) else {
            return Ok(Read::OtherLength);
        };
        if length != row.length {
            return Ok(Read::OtherLength);
        }
        let expected = usize::try_from(range.end - range.start).expect("a range of a frame");
        let mut bytes = ByteChain::new(expected);
        let mut next = range.start;
        while next < range.end {
            let (number, start) = (next / part_length, next % part_length);
            let end = (range.end - number * part_length).min(part_length);
            let part = part_key(&parts_key, number);
            let Some(read) = self.flash.read(part, Some(start..end)).await? else {
                // A blob without all its parts is gone.
                return Ok(self.on_gone(key));
            };
            next = number * part_length + end;
            bytes.add(Bytes::from_owner(read.bytes));
        }
        Ok(Read::Hit(bytes.take()))
    }

    /// Forgets a blob and all its parts.
    pub(super) async fn forget(&self, row: &BlobRow) {
        let key = key(&row.address);
        let head = if row.length > self.part_length && self.flash.contains(&key) {
            self.flash.read(key, None).await.ok().flatten()
        } else {
            None
        };
        let head = head.as_ref().and_then(Head::decode).filter(|head| head.length == row.length);
        if let Some(Head { parts_key, part_length, length }) = head {
            for number in 0..length.div_ceil(part_length) {
                self.flash.forget(part_key(&parts_key, number));
            }
        }
        self.flash.forget(key);
    }
}

impl Head {
    pub fn encode(&self) -> Bytes {
        let Self { parts_key, part_length, length } = self;
        [&parts_key[..], &part_length.to_le_bytes(), &length.to_le_bytes()].concat().into()
    }

    fn decode(entry: &VerifiedRead) -> Option<Self> {
        let (parts_key, rest) = entry.bytes.split_first_chunk::<32>()?;
        let (part_length, length) = rest.split_first_chunk::<8>()?;
        let length = u64::from_le_bytes(length.try_into().ok()?);
        let part_length = u64::from_le_bytes(*part_length);
        let is_head = entry.tag == TAG_HEAD && part_length > 0;
        is_head.then_some(Self { parts_key: *parts_key, part_length, length })
    }
}

/// The key of one part's entry.
pub(super) fn part_key(parts_key: &[u8; 32], number: u64) -> EntryKey {
    let mut hasher = blake3::Hasher::new_keyed(parts_key);
    hasher.update(&number.to_le_bytes());
    EntryKey(*hasher.finalize().as_bytes())
}
