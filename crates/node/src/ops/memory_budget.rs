//! Memory budget: the most memory that a node uses (promise 6), computed from its configuration.
//! `forebay doctor`, the log at start-up and the metric `memory_max_bytes` show this number.

use forebay_core::ByteSize;
use forebay_flash::FlashConfig;
use forebay_transport::session::CONNECTION_OVERHEAD;

use crate::{Config, ops::memory_limit, store::stream_store::stream_memory};

/// Code, threads, and memory that the allocator keeps.
const PROGRAM: u64 = 96 << 20;
/// Index entry and region key of one resident blob.
const INDEX_PER_BLOB: u64 = 64;
/// Average length of blobs that the budget assumes at least. Digests pack small items into longer
/// blobs. Shorter ones need more index.
const BLOB_LENGTH_MIN: u64 = 16 << 10;

/// The most memory that a node with this configuration uses. `capacity` is that of its devices.
pub fn memory_max(config: &Config, capacity: ByteSize) -> ByteSize {
    let devices = config.devices.len().max(1) as u64;
    let flash = FlashConfig::new(Vec::new());
    let plan = memory_limit::plan();
    let parts = [
        config.memory_cache_size().0,
        config.shared_memory_size().0,
        config.connection_memory_size().0,
        (config.max_connections * CONNECTION_OVERHEAD) as u64,
        plan.write_buffers.0,
        plan.tables.0,
        plan.jobs.0,
        stream_memory(config).0,
        devices * (flash.staging_buffers.0 + flash.read_buffers.0),
        capacity.0 / BLOB_LENGTH_MIN * INDEX_PER_BLOB,
        PROGRAM,
    ];
    ByteSize(parts.into_iter().fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_component_is_counted() {
        let size = |mib| Some(ByteSize::mib(mib));
        let config = Config {
            max_connections: 10,
            memory_cache: size(8),
            shared_memory: size(8),
            connection_memory: size(64),
            ..Config::default()
        };
        let budget = memory_max(&config, ByteSize::gb(1));
        let more = |config: &Config| memory_max(config, ByteSize::gb(1)).0 - budget.0;
        for larger in [
            Config { memory_cache: size(9), ..config.clone() },
            Config { shared_memory: size(9), ..config.clone() },
            Config { connection_memory: size(65), ..config.clone() },
        ] {
            assert_eq!(more(&larger), 1 << 20);
        }
        // Eight slots of 4 MiB per account, and memory for writing.
        let streams = more(&Config { streams: ByteSize::gb(1), ..config.clone() });
        assert!((40 << 20..80 << 20).contains(&streams), "streams take {streams} bytes");
        let connection = more(&Config { max_connections: 11, ..config.clone() });
        assert!(connection < 256 << 10, "a connection takes {connection} bytes");
        assert!(memory_max(&config, ByteSize::gb(2)) > budget);
    }
}
