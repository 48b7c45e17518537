//! Counters are exact, because other tests and benchmarks rely on them.

use forebay_dev_origin::{CounterSnapshot, ObjectCounts};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::{ObjectStore, ObjectStoreExt, path::Path};

use crate::harness::{Fixture, content};

#[tokio::test]
async fn every_byte_of_every_object_is_counted() {
    let fixture = Fixture::new();
    let store = fixture.store();
    fixture.write("a", content(1_000_000));
    fixture.write("dir/b", content(10));
    fixture.write("unread", content(10));
    let (a, b) = (Path::from("a"), Path::from("dir/b"));

    store.get(&a).await.unwrap().bytes().await.unwrap();
    store.get_range(&a, 100..1100).await.unwrap();
    store.get_range(&a, 999_999..1_000_000).await.unwrap();
    store.get(&b).await.unwrap().bytes().await.unwrap();
    store.head(&a).await.unwrap();
    store.get(&"missing".into()).await.unwrap_err();
    store.list(None).try_collect::<Vec<_>>().await.unwrap();
    store.put(&"new".into(), content(5000).into()).await.unwrap();
    store.delete(&"new".into()).await.unwrap();
    fixture.raw("GET", "/", &[], b"");

    let counters = fixture.origin.counters();
    let requests = counters.requests;
    assert_eq!((requests.get, requests.head, requests.list), (5, 1, 1));
    assert_eq!((requests.put, requests.delete, requests.other), (1, 1, 1));
    assert_eq!(counters.requests_total(), 10);
    assert_eq!((counters.errors, counters.failures_injected), (1, 0));
    assert_eq!((counters.bytes_sent, counters.bytes_received), (1_001_011, 5000));
    let objects: Vec<_> = counters.objects.into_iter().collect();
    let expected = [
        ("bucket/a".to_owned(), ObjectCounts { gets: 3, bytes_sent: 1_001_001 }),
        ("bucket/dir/b".to_owned(), ObjectCounts { gets: 1, bytes_sent: 10 }),
    ];
    assert_eq!(objects, expected);
}

#[tokio::test]
async fn counters_are_served_over_http_and_reset() {
    let fixture = Fixture::new();
    fixture.write("k", content(100));
    let (store, client) = (fixture.store(), reqwest::Client::new());
    let url = |path: &str| format!("{}/-/{path}", fixture.origin.endpoint());
    store.get(&"k".into()).await.unwrap().bytes().await.unwrap();

    let served = client.get(url("counters")).send().await.unwrap().bytes().await.unwrap();
    let served: CounterSnapshot = serde_json::from_slice(&served).unwrap();
    assert_eq!(served, fixture.origin.counters());
    assert_eq!(served.objects["bucket/k"], ObjectCounts { gets: 1, bytes_sent: 100 });

    assert_eq!(client.get(url("health")).send().await.unwrap().status(), 200);
    assert_eq!(client.get(url("counters/reset")).send().await.unwrap().status(), 404);
    assert_eq!(fixture.origin.counters(), served);
    assert_eq!(client.post(url("counters/reset")).send().await.unwrap().status(), 200);
    assert_eq!(fixture.origin.counters(), CounterSnapshot::default());
}

#[tokio::test]
async fn a_deleted_object_loses_its_counters_but_not_its_bytes() {
    let fixture = Fixture::new();
    fixture.write("k", content(100));
    let store = fixture.store();
    store.get(&"k".into()).await.unwrap().bytes().await.unwrap();
    store.delete(&"k".into()).await.unwrap();
    let counters = fixture.origin.counters();
    assert!(counters.objects.is_empty());
    assert_eq!(counters.bytes_sent, 100);
}

#[tokio::test]
async fn an_abandoned_body_is_not_counted_in_full() {
    let fixture = Fixture::new();
    fixture.write("k", content(64 << 20));
    let mut body = fixture.store().get(&"k".into()).await.unwrap().into_stream();
    body.next().await.unwrap().unwrap();
    drop(body);
    let sent = fixture.origin.counters().bytes_sent;
    assert!(sent > 0 && sent < 32 << 20, "{sent}");
}
