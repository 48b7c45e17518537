//! Deadlines, and limits on concurrent requests and bytes.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use forebay_core::{ByteSize, units::ByteRate};
use forebay_origin::{Options, Origin, OriginError};
use futures::future::join_all;

use crate::{
    harness::{Fixture, listed, object, only, options, serve},
    reading::modified,
};

/// `Options::deadline`: "Longest time of one request with all its retries."
#[tokio::test]
async fn the_deadline_holds_for_every_request() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let web = format!("{endpoint}/x");
    let options = Options { deadline: Duration::from_millis(300), ..options(&endpoint) };
    let origin = Origin::new("s3://bucket/p", &options).unwrap();
    let waits: [(&str, futures::future::BoxFuture<'_, Result<(), OriginError>>); 4] = [
        ("list", Box::pin(async { listed(&origin).await.map(drop) })),
        ("read", Box::pin(async { origin.read("x", "v", 0..9).await.map(drop) })),
        ("locate", Box::pin(async { Origin::locate("s3://bucket/p", &options).await.map(drop) })),
        ("web", Box::pin(async { Origin::locate(&web, &options).await.map(drop) })),
    ];
    for (what, wait) in waits {
        let begun = Instant::now();
        let outcome = wait.await;
        let took = begun.elapsed();
        assert!(matches!(outcome, Err(OriginError::Deadline { .. })), "{what}: {outcome:?}");
        // Half of the deadline for retries, and one attempt after it.
        assert!((150..900).contains(&took.as_millis()), "{what} took {took:?}");
    }
}

#[tokio::test]
async fn a_server_that_only_fails_is_given_up_at_the_deadline() {
    let fixture = Fixture::with(|config| config.fail_rate = 1.0);
    let options = Options { deadline: Duration::from_millis(700), ..fixture.options() };
    let begun = Instant::now();
    let outcome = Origin::locate("s3://bucket", &options).await;
    assert!(matches!(outcome, Err(OriginError::Deadline { .. } | OriginError::Unavailable { .. })));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(fixture.server.counters().failures_injected > 1, "the request was retried");
}

#[tokio::test]
async fn a_slow_body_is_given_up_at_the_deadline() {
    let fixture = Fixture::with(|config| config.bandwidth = Some(ByteRate(ByteSize(10_000))));
    fixture.write("x", vec![7; 100_000]);
    let options = Options { deadline: Duration::from_millis(500), ..fixture.options() };
    let origin = Origin::new("s3://bucket", &options).unwrap();
    let version = only(&origin).await.version;
    let begun = Instant::now();
    let read = origin.read("x", &version, 0..100_000).await;
    assert!(matches!(read, Err(OriginError::Deadline { .. })), "{read:?}");
    assert!(begun.elapsed() < Duration::from_secs(2));
}

/// A server that records its largest number of concurrent requests.
fn peak_server() -> (String, Arc<AtomicUsize>) {
    let (now, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let peak = Arc::clone(&most);
    let endpoint = serve(move |request| {
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(20));
        now.fetch_sub(1, Ordering::SeqCst);
        object(request, &vec![7; 3 << 20], vec![("ETag", "\"1\"".to_owned()), modified(1)])
    });
    (endpoint, most)
}

/// Promise 6: bytes in flight and requests have a stated limit.
#[tokio::test]
async fn concurrent_requests_are_limited() {
    let (endpoint, most) = peak_server();
    let options = Options { requests_max: 3, ..options(&endpoint) };
    let origin = Origin::new("s3://bucket", &options).unwrap();
    let names: Vec<_> = (0..24).map(|at| format!("x{at}")).collect();
    for read in join_all(names.iter().map(|name| origin.read(name, "\"1\"", 0..100))).await {
        assert_eq!(read.unwrap().len(), 100);
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn bytes_in_flight_are_limited() {
    let (endpoint, most) = peak_server();
    let origin = Origin::new("s3://bucket", &options(&endpoint)).unwrap();
    let names: Vec<_> = (0..30).map(|at| format!("x{at}")).collect();
    let reads = names.iter().map(|name| origin.read(name, "\"1\"", 0..forebay_origin::PIECE));
    for read in join_all(reads).await {
        assert_eq!(read.unwrap().len() as u64, forebay_origin::PIECE);
    }
    let most = most.load(Ordering::SeqCst);
    assert!((2..=16).contains(&most), "sixteen reads of full size at most, not {most}");
}
