//! What a node takes of memory at most (promise 6), from its configuration.

use forebay_core::{ByteSize, manager::JOB_PIECES_MAX, table::Row};
use forebay_flash::Config as FlashConfig;
use forebay_wire::BODY_SIZE_MAX;

use crate::{Config, blobs::INCOMING, session::PAYLOAD_IN_FLIGHT};

/// The program, its threads and what its allocator holds back.
const PROGRAM: u64 = 96 << 20;
/// Where an entry lies, and the keys of its region: for each resident blob.
const INDEX_PER_BLOB: u64 = 64;
/// What managers keep of jobs: so many pieces of all of them together, each with what is unread of it.
const JOBS: u64 = JOB_PIECES_MAX * 48;
/// Blobs that are shorter than this are more than are reckoned with.
const BLOB_LENGTH: u64 = 4 << 10;

/// The most memory that a node of this configuration takes that holds so much, if all datasets that are open
/// have so many blobs together.
pub fn memory_max(config: &Config, capacity: ByteSize, rows: u64) -> ByteSize {
    let devices = config.devices.len().max(1) as u64;
    let flash = FlashConfig::new(Vec::new());
    let buffers = devices * (flash.staging.0 + flash.reading.0);
    let index = capacity.0 / BLOB_LENGTH * INDEX_PER_BLOB;
    // A slow reader's payload on its way out, and one frame on its way in.
    let connections = config.connections as u64 * (PAYLOAD_IN_FLIGHT + BODY_SIZE_MAX) as u64;
    let tables = rows * size_of::<Row>() as u64;
    let (memory, segments) = (config.memory.0, config.segments.0);
    let parts =
        [memory, segments, buffers, index, connections, INCOMING as u64, tables, JOBS, PROGRAM];
    ByteSize(parts.into_iter().fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_counted() {
        let config = Config { connections: 10, memory: ByteSize::mib(8), ..Config::default() };
        let bound = memory_max(&config, ByteSize::gb(1), 1000);
        let more = |config: &Config| memory_max(config, ByteSize::gb(1), 1000).0 - bound.0;
        assert_eq!(more(&Config { memory: ByteSize::mib(9), ..config.clone() }), 1 << 20);
        let segments = ByteSize(config.segments.0 + (1 << 20));
        assert_eq!(more(&Config { segments, ..config.clone() }), 1 << 20);
        let connection = more(&Config { connections: 11, ..config.clone() });
        assert_eq!(connection, (48 << 20) + (64 << 10));
        assert!(memory_max(&config, ByteSize::gb(2), 1000) > bound);
        assert!(memory_max(&config, ByteSize::gb(1), 2000) > bound);
    }
}
