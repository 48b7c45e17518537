//! Storage of a node: blobs on flash, the memory cache, shm regions, streams.

pub(crate) mod blob_store;
pub(crate) mod blob_write;
pub(crate) mod eviction;
mod groups;
pub(crate) mod long_blob;
pub(crate) mod memory_cache;
mod owner_id;
pub(crate) mod shm_regions;
pub(crate) mod stream_store;
#[cfg(test)]
mod tests;
