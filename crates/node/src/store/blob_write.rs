//! Blob write: a blob that is being put, from the first bytes until it is visible.
//!
//! A blob that fits in one entry is buffered until it is complete. A long blob is written part by
//! part ([`super::long_blob`]).

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{
    BlobOrdinal,
    dataset::blob_table::{BlobRow, BlobTable},
};
use forebay_flash::RequestError;
use forebay_transport::ByteChain;
use tokio::sync::OwnedSemaphorePermit;

use crate::store::{
    blob_store::{BlobStore, key},
    groups::GroupName,
    long_blob::{Head, TAG_HEAD, TAG_PART, TAG_WHOLE, part_key},
};

/// A blob that is being written.
pub(crate) struct BlobWrite {
    group: GroupName,
    row: BlobRow,
    /// Bytes that are not written yet.
    buffer: ByteChain,
    /// The memory reserved for `buffer`.
    memory: OwnedSemaphorePermit,
    /// For a long blob.
    parts: Option<Parts>,
}

/// The parts of a long blob that are written.
#[derive(Clone, Copy)]
struct Parts {
    key: [u8; 32],
    written: u64,
}

impl BlobStore {
    /// Begins to write a blob. `None` if there is no memory for its buffer.
    pub fn begin_write(
        &self,
        table: &BlobTable,
        blob: BlobOrdinal,
        row: BlobRow,
    ) -> Result<Option<BlobWrite>, RequestError> {
        let is_long = row.length > self.part_length;
        let length = row.length.min(self.part_length).max(1);
        let length = u32::try_from(length).expect("a part is short");
        let Ok(memory) = Arc::clone(&self.write_buffers).try_acquire_many_owned(length) else {
            return Ok(None);
        };
        self.on_use(table.dataset());
        let group = self.group_of(table, blob);
        let parts = if is_long {
            Some(Parts { key: self.entropy.nonce().ok_or(RequestError::Failed)?, written: 0 })
        } else {
            None
        };
        let buffer = ByteChain::new(length as usize);
        Ok(Some(BlobWrite { group, row, buffer, memory, parts }))
    }
}

impl BlobWrite {
    /// Appends bytes to the blob. Writes the parts of a long blob that are complete.
    pub async fn append(&mut self, store: &BlobStore, bytes: Bytes) -> Result<(), RequestError> {
        let Some(mut parts) = self.parts else {
            self.buffer.add(bytes);
            return Ok(());
        };
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let missing = store.part_length - self.buffer.length() as u64;
            let missing = usize::try_from(missing).expect("a part is short");
            self.buffer.add(bytes.split_to(bytes.len().min(missing)));
            if self.buffer.length() as u64 == store.part_length {
                self.write_part(store, &mut parts).await?;
            }
        }
        self.parts = Some(parts);
        Ok(())
    }

    /// Bytes of memory reserved for the buffer.
    pub fn memory(&self) -> usize {
        self.memory.num_permits()
    }

    /// Makes the blob visible. The caller has verified its bytes.
    pub async fn finish(mut self, store: &BlobStore) -> Result<(), RequestError> {
        let key = key(&self.row.address);
        let Some(mut parts) = self.parts else {
            let bytes = self.buffer.take();
            store.append(&self.group, key, TAG_WHOLE, bytes.clone()).await?;
            store.memory_cache.on_put(self.row.address, &bytes);
            return Ok(());
        };
        if self.buffer.length() > 0 {
            self.write_part(store, &mut parts).await?;
        }
        let head =
            Head { parts_key: parts.key, part_length: store.part_length, length: self.row.length };
        store.append(&self.group, key, TAG_HEAD, head.encode()).await
    }

    async fn write_part(
        &mut self,
        store: &BlobStore,
        parts: &mut Parts,
    ) -> Result<(), RequestError> {
        let key = part_key(&parts.key, parts.written);
        store.append(&self.group, key, TAG_PART, self.buffer.take()).await?;
        parts.written += 1;
        Ok(())
    }
}
