//! Memory budget: the most memory that a node uses (promise 6), computed from its configuration.

use forebay_core::{ByteSize, dataset::blob_table::BlobRow, train::manager::JOB_HALF_CHUNKS_MAX};
use forebay_flash::FlashConfig;
use forebay_transport::session::PAYLOAD_IN_FLIGHT;
use forebay_wire::BODY_SIZE_MAX;

use crate::{Config, store::blob_write::WRITE_BUFFERS};

/// Code, threads, and memory that the allocator keeps.
const PROGRAM: u64 = 96 << 20;
/// Index entry and region key of one resident blob.
const INDEX_PER_BLOB: u64 = 64;
/// State of jobs in the managers: up to `JOB_HALF_CHUNKS_MAX` half-chunks of all jobs together, 48
/// bytes each.
const JOBS: u64 = JOB_HALF_CHUNKS_MAX * 48;
/// Average length of blobs that the budget assumes at least. Shorter blobs need more index.
const BLOB_LENGTH_MIN: u64 = 4 << 10;

/// The most memory that a node with this configuration uses.
///
/// `capacity` is the capacity of its devices, `rows` the number of blobs of all open datasets
/// together.
pub fn memory_max(config: &Config, capacity: ByteSize, rows: u64) -> ByteSize {
    let devices = config.devices.len().max(1) as u64;
    let flash = FlashConfig::new(Vec::new());
    let buffers = devices * (flash.staging_buffers.0 + flash.read_buffers.0);
    let index = capacity.0 / BLOB_LENGTH_MIN * INDEX_PER_BLOB;
    // Per connection: the payloads in flight to a slow client, and one incoming frame.
    let connections = config.max_connections as u64 * (PAYLOAD_IN_FLIGHT + BODY_SIZE_MAX) as u64;
    let tables = rows * size_of::<BlobRow>() as u64;
    let (cache, shm) = (config.memory_cache_size().0, config.shared_memory.0);
    let parts =
        [cache, shm, buffers, index, connections, WRITE_BUFFERS as u64, tables, JOBS, PROGRAM];
    ByteSize(parts.into_iter().fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_component_is_counted() {
        let config = Config {
            max_connections: 10,
            memory_cache: Some(ByteSize::mib(8)),
            ..Config::default()
        };
        let budget = memory_max(&config, ByteSize::gb(1), 1000);
        let more = |config: &Config| memory_max(config, ByteSize::gb(1), 1000).0 - budget.0;
        assert_eq!(
            more(&Config { memory_cache: Some(ByteSize::mib(9)), ..config.clone() }),
            1 << 20
        );
        let shared_memory = ByteSize(config.shared_memory.0 + (1 << 20));
        assert_eq!(more(&Config { shared_memory, ..config.clone() }), 1 << 20);
        let connection = more(&Config { max_connections: 11, ..config.clone() });
        assert_eq!(connection, (48 << 20) + (64 << 10));
        assert!(memory_max(&config, ByteSize::gb(2), 1000) > budget);
        assert!(memory_max(&config, ByteSize::gb(1), 2000) > budget);
    }
}
