//! One fetch for all that wait (promise 3), against a real S3 server; and what becomes of waiters.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::ByteSize;
use forebay_dev_origin::{ACCESS_KEY, Config, DevOrigin, SECRET_KEY};
use forebay_gateway::objects::ObjectCacheSettings;
use http::Method;
use http_body_util::BodyExt as _;

use super::{
    harness::{
        BUCKET, Gateway, SEGMENT, content, identity, origin_client, scripted_identities, settings,
    },
    scripted_origin::{Fault, ScriptedOrigin},
};

/// Promise 3: one fetch. Each of 64 readers of one cold object, which begin at different places,
/// receives its bytes, and the origin sends each byte of the object once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_readers_of_one_cold_object_fetch_each_segment_once() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join(BUCKET)).unwrap();
    let bytes = content(1, 20 * SEGMENT + 77);
    std::fs::write(root.path().join(BUCKET).join("a"), &bytes).unwrap();
    let origin = DevOrigin::start(Config::new(root.path())).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), vec![identity(ACCESS_KEY, SECRET_KEY)]);
    let gateway = Arc::new(Gateway::open(client, &settings(directory.path())).await);
    let mut readers = Vec::new();
    for reader in 0..64_usize {
        let (gateway, bytes) = (Arc::clone(&gateway), bytes.clone());
        readers.push(tokio::spawn(async move {
            let start = if reader.is_multiple_of(2) { 0 } else { reader * SEGMENT / 4 };
            let range = format!("bytes={start}-");
            let answer = gateway.get(0, "a", &[("range", &range)]).await;
            assert_eq!(answer.status, 206);
            assert!(answer.body == bytes.slice(start..), "reader {reader}");
        }));
    }
    for reader in readers {
        reader.await.unwrap();
    }
    gateway.settled().await;
    let counters = origin.counters();
    assert_eq!(counters.objects[&format!("{BUCKET}/a")].bytes_sent, bytes.len() as u64);
    assert_eq!(counters.errors, 0);
    assert!(counters.requests.head <= 64, "at most a probe for each GET");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_stream_is_resumed_for_all_its_waiters() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let gateway = Arc::new(Gateway::open(client, &settings(directory.path())).await);
    let bytes = content(1, 8 * SEGMENT);
    origin.write("a", Some(bytes.clone()), false);
    origin.script.lock().faults =
        [Fault::CutBody, Fault::Status(503), Fault::CutBody, Fault::CutBody].into();
    origin.script.lock().chunk_pause = Duration::from_millis(1);
    let read = |of: u32| {
        let gateway = Arc::clone(&gateway);
        tokio::spawn(async move { gateway.get(of, "a", &[]).await })
    };
    let first = read(0);
    while gateway.cache.segments_fetching() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let others: Vec<_> = (1..3).map(read).collect();
    for answer in std::iter::once(first).chain(others) {
        let answer = answer.await.unwrap();
        assert!(answer.body == bytes && !answer.is_cut);
    }
    let ranges: Vec<_> = origin.seen().into_iter().filter_map(|seen| seen.range).collect();
    assert_eq!(ranges.len(), 5, "{ranges:?}");
    assert_eq!(ranges[0], format!("bytes=0-{}", 8 * SEGMENT - 1));
    assert!(ranges[1..].iter().all(|range| !range.starts_with("bytes=0-")), "{ranges:?}");
    assert!(origin.seen().iter().all(|seen| seen.range.is_none() || seen.if_match.is_some()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_fetcher_is_refused_fetches_by_itself() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let gateway = Arc::new(Gateway::open(client, &settings(directory.path())).await);
    let bytes = content(1, 2 * SEGMENT);
    origin.write("a", Some(bytes.clone()), false);
    let slow = Fault::SlowHead(Duration::from_millis(300));
    origin.script.lock().faults = [slow].into();
    let first = {
        let gateway = Arc::clone(&gateway);
        tokio::spawn(async move { gateway.get(0, "a", &[]).await })
    };
    while gateway.cache.segments_fetching() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The fill of principal 0 is on its way, and will be refused.
    let second = {
        let gateway = Arc::clone(&gateway);
        tokio::spawn(async move { gateway.get(1, "a", &[]).await })
    };
    origin.deny("key-0", "a");
    assert_eq!(first.await.unwrap().status, 403);
    let second = second.await.unwrap();
    // It is not passed on: the waiter's own right was known.
    assert_eq!((second.status.as_u16(), second.cache()), (200, "fill"));
    assert!(second.body == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_costs_the_segment_that_has_begun() {
    let origin = ScriptedOrigin::start().await;
    origin.script.lock().chunk_pause = Duration::from_millis(10);
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let gateway = Gateway::open(client, &settings(directory.path())).await;
    origin.write("a", Some(content(1, 32 * SEGMENT)), false);
    let response = gateway.cache.serve(gateway.request(0, "a", &[])).await;
    let mut body = response.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(!first.is_empty());
    drop(body);
    gateway.settled().await;
    let stored = gateway.cache.counters().segments_stored.load(std::sync::atomic::Ordering::SeqCst);
    assert!((1..=8).contains(&stored), "{stored} of 32 segments");
    assert_eq!(
        gateway.cache.counters().fills_abandoned.load(std::sync::atomic::Ordering::SeqCst),
        1
    );
}

/// An object that is read in full by one reader costs a request for each 8 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_read_costs_few_requests() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let settings = ObjectCacheSettings { memory: ByteSize(0), ..settings(directory.path()) };
    let gateway = Gateway::open(client, &settings).await;
    let bytes: Bytes = content(1, 100 * SEGMENT);
    origin.write("a", Some(bytes.clone()), false);
    assert!(gateway.get(0, "a", &[]).await.body == bytes);
    assert_eq!(origin.count(&Method::GET), 4);
    gateway.settled().await;
    origin.forget();
    let warm = gateway.get(0, "a", &[]).await;
    assert!(warm.body == bytes && warm.cache() == "hit");
    assert_eq!(origin.count(&Method::GET), 0);
}
