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

use crate::store::blob_store::{BlobStore, Read, StoredAs, key};

/// Longest part. Blobs up to this length are stored as one entry.
pub(crate) const PART_LENGTH_MAX: u64 = 8 << 20;

/// Tag of an entry that is a whole blob.
pub(super) const TAG_WHOLE: u32 = 0;
/// Tag of the head of a long blob.
pub(super) const TAG_HEAD: u32 = 1;
/// Tag of a part of a long blob.
pub(super) const TAG_PART: u32 = 2;

/// Length of a head entry.
const HEAD_LENGTH: u64 = 48;

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
        let Some(entry) = self.flash.read(key, Some(0..HEAD_LENGTH)).await? else {
            return Ok(Read::Gone);
        };
        if entry.tag == TAG_WHOLE {
            // A whole blob that is shorter than the table says.
            return Ok(Read::OtherLength);
        }
        let Some(Head { parts_key, part_length, length }) = Head::decode(&entry) else {
            return Ok(Read::Gone);
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
            let read = match self.flash.read(part, Some(start..end)).await {
                Ok(Some(read)) if read.tag == TAG_PART => read,
                // A blob without all its parts is gone. A device with parts may have been removed.
                Ok(_) | Err(RequestError::Range) => return Ok(Read::Gone),
                Err(error) => return Err(error),
            };
            next = number * part_length + end;
            bytes.add(Bytes::from_owner(read.bytes));
        }
        Ok(Read::Hit(bytes.take()))
    }

    /// Forgets a blob and all its parts.
    pub(super) async fn forget(&self, row: &BlobRow) {
        let key = key(&row.address);
        let head = match self.stored_as(row) {
            Some(StoredAs::Parts) => {
                self.flash.read(key, Some(0..HEAD_LENGTH)).await.ok().flatten()
            }
            Some(StoredAs::Whole) | None => None,
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
