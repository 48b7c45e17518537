//! Storage: restarts, capacity, damage and eviction (promises 1, 6 and 7).

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use forebay_client::{ClientError, ReadInto};
use forebay_core::{BlobOrdinal, ByteSize};
use forebay_node::{Config, Server};
use forebay_wire::{ClaimAnswer, ErrorCode, GetAnswer};

use crate::harness::{Data, TIMEOUT, TestNode, get, put};

const NOW: Duration = Duration::ZERO;

/// Promise 7: after a stop, every entry is served again.
#[test]
fn a_restart_keeps_all_blobs_and_applies_a_new_capacity() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[100_000; 20]);
    let (mut client, handle) = node.open(&data);
    (0..20).for_each(|blob| put(&mut client, handle, &data, blob));
    drop(client);
    let node = node.restarted(|_| {});
    let (mut client, handle) = node.open(&data);
    for blob in 0..20 {
        assert_eq!(get(&mut client, handle, &data, blob, NOW).unwrap(), data.blobs[blob]);
    }
    drop(client);
    let node = node.restarted(|config| config.capacity = Some(ByteSize::mib(12)));
    assert_eq!(node.service.gauges().resident_blobs, 20, "growing loses nothing");
    let node = node.restarted(|config| config.capacity = Some(ByteSize::mib(8)));
    assert!(fs::metadata(node.device()).unwrap().len() <= 8 << 20);
    assert!(node.service.gauges().capacity_bytes <= 8 << 20);
}

/// Promise 7: after a kill every sealed entry is served again, and no partial write is.
#[test]
fn a_copy_of_the_device_at_any_moment_serves_correct_bytes() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[300_000; 12]);
    let (mut client, handle) = node.open(&data);
    for taken in 0..4 {
        (taken * 3..taken * 3 + 3).for_each(|blob| put(&mut client, handle, &data, blob));
        let other = TestNode::start_with(
            |config| {
                config.capacity = Some(ByteSize::mib(8));
                fs::create_dir_all(&config.directory).unwrap();
                for file in ["cache.flash", "node.id"] {
                    fs::copy(node.config.directory.join(file), config.directory.join(file))
                        .unwrap();
                }
            },
            Vec::new(),
        );
        let (mut client, handle) = other.open(&data);
        for blob in 0..12 {
            if let Ok(bytes) = get(&mut client, handle, &data, blob, NOW) {
                assert_eq!(bytes, data.blobs[blob], "promise 1");
            }
        }
    }
}

/// Promise 6: the capacity is a limit, on disk and in the gauges. The oldest blobs are evicted
/// first.
#[test]
fn the_oldest_blobs_are_evicted_when_the_node_is_full() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[100_000; 120]);
    let (mut client, handle) = node.open(&data);
    for blob in 0..120 {
        put(&mut client, handle, &data, blob);
        assert!(fs::metadata(node.device()).unwrap().len() <= 8 << 20);
    }
    let presence = client.presence(handle, 120).unwrap();
    let resident: Vec<usize> =
        (0..120).filter(|blob| presence[blob / 8] >> (blob % 8) & 1 == 1).collect();
    assert!(resident.len() >= 50, "{resident:?}");
    // A region that is being written or read may be skipped, so the older half is not exact.
    assert!((70..120).all(|blob| resident.contains(&blob)), "{resident:?}");
    assert_eq!(resident.len() as u64, node.service.gauges().resident_blobs);
    assert_eq!(get(&mut client, handle, &data, 0, NOW), Err(GetAnswer::Miss));
    assert_eq!(get(&mut client, handle, &data, 119, NOW).unwrap(), data.blobs[119]);
    assert!(node.service.flash_counters()[0].regions_evicted > 0);
}

#[test]
fn a_blob_that_is_too_large_is_refused_and_evicts_nothing() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[1000, 5_000_000, 0]);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    // Other jobs would wait for a claim that no put can end.
    let claimed = client.claim(handle, &[BlobOrdinal::new(1)]).unwrap();
    assert_eq!(claimed, [ClaimAnswer::Uncached]);
    match client.put(handle, BlobOrdinal::new(1), &data.blobs[1]) {
        Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, ErrorCode::NoSpace),
        other => panic!("{other:?}"),
    }
    put(&mut client, handle, &data, 2);
    assert_eq!(get(&mut client, handle, &data, 0, NOW).unwrap(), data.blobs[0]);
    assert_eq!(
        get(&mut client, handle, &data, 2, NOW).unwrap(),
        data.blobs[2],
        "an empty blob is resident"
    );
}

/// Promise 1: an entry whose checksum does not match is a miss and is counted.
#[test]
fn a_damaged_blob_is_a_miss_and_can_be_put_again() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[200_000; 3]);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 1);
    drop(client);
    // Flip a bit of the blob on disk while the node is stopped.
    let node = node.restarted(|config| {
        let device = config.directory.join("cache.flash");
        let mut bytes = fs::read(&device).unwrap();
        let content = &data.blobs[1][150_000..150_064];
        let at = bytes.windows(64).position(|window| window == content).unwrap();
        bytes[at] ^= 1;
        fs::write(&device, bytes).unwrap();
    });
    let (mut client, handle) = node.open(&data);
    assert_eq!(get(&mut client, handle, &data, 1, NOW), Err(GetAnswer::Miss));
    while node.service.flash_counters()[0].entries_damaged == 0 {
        std::thread::yield_now();
    }
    put(&mut client, handle, &data, 1);
    assert_eq!(get(&mut client, handle, &data, 1, NOW).unwrap(), data.blobs[1]);
}

/// Promise 3: a claim promises that the blob will be served. Without a device that can be read,
/// clients read the origin without a claim.
#[test]
fn a_device_that_cannot_be_read_grants_no_claims() {
    let node = TestNode::start_with(
        |config| {
            config.capacity = Some(ByteSize::mib(8));
            config.memory_cache = Some(ByteSize(0));
        },
        Vec::new(),
    );
    let data = Data::new(&[100_000; 12]);
    let (mut client, handle) = node.open(&data);
    (0..6).for_each(|blob| put(&mut client, handle, &data, blob));
    drop(client);
    let node = node.restarted(|_| {});
    let (mut client, handle) = node.open(&data);
    assert_eq!(get(&mut client, handle, &data, 5, NOW).unwrap(), data.blobs[5]);
    // Reads past the end of the file fail; writes still succeed.
    fs::File::options().write(true).open(node.device()).unwrap().set_len(0).unwrap();
    for blob in 0..6 {
        assert_eq!(get(&mut client, handle, &data, blob, NOW), Err(GetAnswer::Miss), "blob {blob}");
    }
    assert_eq!(node.service.gauges().devices_healthy, 0);
    let wanted: Vec<BlobOrdinal> = (0..12).map(BlobOrdinal::new).collect();
    assert_eq!(client.claim(handle, &wanted).unwrap(), [ClaimAnswer::Uncached; 12]);
    assert_eq!(node.service.counters().claims_uncached.get(), 12);
}

/// A device of another node is not opened.
#[test]
fn a_device_of_another_node_is_refused() {
    let node = TestNode::start(ByteSize::mib(8));
    let directory = node.directory.path().join("elsewhere");
    fs::create_dir_all(&directory).unwrap();
    fs::copy(node.device(), directory.join("cache.flash")).unwrap();
    let config = Config {
        socket: node.directory.path().join("run/other.sock"),
        directory,
        ..node.config.clone()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let refused = runtime.block_on(Server::bind(&config, Vec::new())).err().unwrap();
    assert!(format!("{refused:#}").contains("belongs to another forebay node"), "{refused:#}");
}

/// A blob that is longer than a frame is put in parts, and any range of it can be read.
#[test]
fn a_long_blob_is_put_and_read_in_parts() {
    let node = TestNode::start(ByteSize::mib(128));
    let data = Data::new(&[40 << 20]);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    let ranges = [(0, 16 << 20), (17 << 20, 5), ((40 << 20) - 65_537, 65_537), (65_535, 2)];
    let mut buffers = ranges.map(|(_, length)| vec![0; length]);
    let mut wanted: Vec<ReadInto<'_>> = ranges
        .iter()
        .zip(&mut buffers)
        .map(|((offset, _), into)| ReadInto { blob: BlobOrdinal::new(0), offset: *offset, into })
        .collect();
    assert_eq!(client.get(handle, TIMEOUT, &mut wanted).unwrap(), [GetAnswer::Hit; 4]);
    for ((offset, length), bytes) in ranges.iter().zip(&buffers) {
        let start = usize::try_from(*offset).unwrap();
        assert!(data.blobs[0][start..start + length] == bytes[..], "{offset}");
    }
}

#[test]
fn metrics_can_be_scraped() {
    let node = TestNode::start_with(
        |config| config.metrics = Some("127.0.0.1:0".parse().unwrap()),
        Vec::new(),
    );
    let data = Data::new(&[1000; 10]);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 0);
    let fetch = |path: &str| {
        let mut socket = TcpStream::connect(node.metrics.unwrap()).unwrap();
        write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        text
    };
    let metrics = fetch("/metrics");
    assert!(
        metrics.starts_with("HTTP/1.1 200") && metrics.contains("\nforebay_puts_total 1\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("# TYPE forebay_resident_blobs gauge\nforebay_resident_blobs 1\n"),
        "{metrics}"
    );
    assert!(fetch("/livez").contains("200 OK") && fetch("/nothing").contains("404"));
}

/// Evicting a dataset leaves blobs that were put for another dataset, also after a restart. Its own
/// blobs are gone.
#[test]
fn eviction_removes_only_blobs_put_for_the_dataset() {
    let node = TestNode::start(ByteSize::mib(8));
    let (all, some) = (Data::new(&[50_000; 10]), Data::new(&[50_000; 5]));
    let (mut client, handle) = node.open(&all);
    (0..10).for_each(|blob| put(&mut client, handle, &all, blob));
    let (mut other, part) = node.open(&some);
    assert!((0..5).all(|blob| get(&mut other, part, &some, blob, NOW).is_ok()));
    assert_eq!(other.evict(part).unwrap(), 0);
    drop((client, other));
    let node = node.restarted(|_| {});
    let (mut client, handle) = node.open(&all);
    assert!((0..10).all(|blob| get(&mut client, handle, &all, blob, NOW).is_ok()));
    assert_eq!(client.evict(handle).unwrap(), 500_000);
    drop(client);
    let node = node.restarted(|_| {});
    let (mut client, handle) = node.open(&some);
    assert!((0..5).all(|blob| get(&mut client, handle, &some, blob, NOW).is_err()));
}

/// Every process of the machine can connect to the metrics port, and idle connections do not block
/// others.
#[test]
fn idle_connections_do_not_block_health_probes() {
    let node = TestNode::start_with(
        |config| config.metrics = Some("127.0.0.1:0".parse().unwrap()),
        Vec::new(),
    );
    let silent: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(node.metrics.unwrap()).unwrap()).collect();
    let mut socket = TcpStream::connect(node.metrics.unwrap()).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(silent);
}
