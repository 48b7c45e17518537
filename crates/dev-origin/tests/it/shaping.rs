//! Configured bandwidth, latency and fail rate are met exactly.

use std::time::{Duration, Instant};

use forebay_core::units::{ByteRate, ByteSize};
use object_store::{ObjectStoreExt, path::Path};

use crate::harness::{Fixture, content};

#[tokio::test]
async fn injected_failures_are_counted_and_retries_get_through() {
    let fixture = Fixture::with(|config| {
        config.fail_rate = 0.3;
        config.seed = 7;
    });
    let (store, data) = (fixture.store(), content(100_000));
    fixture.write("k", &data);
    for _ in 0..100 {
        let bytes = store.get(&"k".into()).await.unwrap().bytes().await.unwrap();
        assert_eq!(bytes, data);
        store.put(&Path::from("p"), "x".into()).await.unwrap();
    }
    let counters = fixture.origin.counters();
    assert!((40..150).contains(&counters.failures_injected), "{counters:?}");
    assert_eq!(counters.errors, 0, "injected failures are not counted as errors");
    // A truncated GET is resumed by a ranged one, so no byte is sent twice.
    assert_eq!(counters.bytes_sent, 100 * 100_000);
}

#[test]
fn failing_gets_alternate_between_slow_down_and_half_a_body() {
    let fixture = Fixture::with(|config| config.fail_rate = 1.0);
    let data = content(1_000_001);
    fixture.write("k", &data);
    for _ in 0..3 {
        let refused = fixture.raw("GET", "/bucket/k", &[], b"");
        assert_eq!((refused.status, &*refused.code()), (503, "SlowDown"));
        let cut = fixture.raw("GET", "/bucket/k", &[], b"");
        assert_eq!((cut.status, cut.header("content-length")), (200, Some("1000001")));
        assert!(cut.body == data[..500_000], "{} bytes", cut.body.len());
    }
    assert_eq!(fixture.raw("PUT", "/bucket/k", &[], b"x").status, 503);
    let counters = fixture.origin.counters();
    assert_eq!((counters.requests.get, counters.failures_injected), (6, 7));
    assert_eq!(counters.bytes_sent, 3 * 500_000);
}

#[tokio::test]
async fn all_bodies_share_the_bandwidth_in_both_directions() {
    let fixture = Fixture::with(|config| {
        config.bandwidth = Some(ByteRate(ByteSize(2_000_000)));
    });
    let (store, data) = (fixture.store(), content(250_000));
    fixture.write("a", &data);
    fixture.write("b", &data);
    let started = Instant::now();
    let (a, b) = ("a".into(), "b".into());
    let read = async |key: &Path| store.get(key).await.unwrap().bytes().await.unwrap();
    let (first, second) = tokio::join!(read(&a), read(&b));
    store.put(&"c".into(), data.clone().into()).await.unwrap();
    let took = started.elapsed();
    assert_eq!((&*first, &*second), (&*data, &*data));
    // 750 kB at 2 MB/s take 375 ms, minus a burst of 40 kB. The lower bound is exact, the upper one
    // depends on the machine.
    assert!(took >= Duration::from_millis(350), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn every_request_waits_for_the_latency() {
    /// Longer than a request takes on a busy machine.
    const LATENCY: Duration = Duration::from_secs(1);
    let fixture = Fixture::with(|config| config.latency = LATENCY);
    fixture.write("k", "x");
    let store = fixture.store();
    for _ in 0..2 {
        let started = Instant::now();
        store.head(&"k".into()).await.unwrap();
        assert!(started.elapsed() >= LATENCY);
    }
    // Requests of the operator are not delayed.
    let started = Instant::now();
    let health = format!("{}/-/health", fixture.origin.endpoint());
    assert_eq!(reqwest::get(health).await.unwrap().status(), 200);
    assert!(started.elapsed() < LATENCY);
}
