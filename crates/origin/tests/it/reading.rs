//! Reads: exactly the requested bytes of exactly the listed version.

use std::{fs, time::Duration};

use forebay_origin::{Origin, OriginError, any_version};
use futures::future::join_all;

use crate::harness::{Answer, Fixture, listed, object, only, options, serve};

fn content(size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    fastrand::Rng::with_seed(size as u64).fill(&mut bytes);
    bytes
}

#[tokio::test]
async fn ranges_are_read_exactly() {
    let fixture = Fixture::new();
    let all = content(3_000_000);
    fixture.write("x", &all);
    for (kind, origin) in fixture.both() {
        let version = only(&origin).await.version;
        for range in [0..1, 0..3_000_000, 2_999_999..3_000_000, 1_000_000..2_500_000, 7..7] {
            let read = origin.read("x", &version, range.clone()).await.unwrap();
            let slice = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
            assert!(read == all[slice], "{kind}: {range:?}");
        }
        // Fewer bytes than listed: the object has changed.
        let short = origin.read("x", &version, 2_999_000..3_000_001).await;
        assert!(matches!(short, Err(OriginError::Changed { .. })), "{kind}: {short:?}");
    }
}

#[tokio::test]
async fn a_changed_object_is_an_error_and_never_read() {
    for rewritten in [b"other".as_slice(), b"same length", b"much longer than it was"] {
        let fixture = Fixture::new();
        fixture.write("x", b"first state");
        for (kind, origin) in fixture.both() {
            fixture.write("x", b"first state");
            let version = only(&origin).await.version;
            // Some file systems have coarse timestamps.
            tokio::time::sleep(Duration::from_millis(15)).await;
            fixture.write("x", rewritten);
            match origin.read("x", &version, 0..5).await {
                Err(OriginError::Changed { object }) => assert_eq!(object, "x"),
                other => panic!("{kind}: {other:?}"),
            }
            assert_eq!(
                origin.read("x", &any_version(rewritten.len() as u64), 0..5).await.unwrap(),
                rewritten[..5],
                "{kind}: any version"
            );
            let longer = origin.read("x", &any_version(5 + rewritten.len() as u64), 0..5).await;
            assert!(matches!(longer, Err(OriginError::Changed { .. })), "{kind}: {longer:?}");
        }
    }
}

#[tokio::test]
async fn a_vanished_object_is_an_error() {
    let fixture = Fixture::new();
    for (kind, origin) in fixture.both() {
        fixture.write("x y", b"here");
        let version = only(&origin).await.version;
        fs::remove_file(fixture.path("x y")).unwrap();
        match origin.read("x y", &version, 0..4).await {
            Err(OriginError::Vanished { object }) => assert_eq!(object, "x y"),
            other => panic!("{kind}: {other:?}"),
        }
    }
}

/// A server that ignores `If-Match` is detected by the `ETag` of its answer.
#[tokio::test]
async fn a_store_that_ignores_conditions_is_detected() {
    let endpoint = serve(|request| {
        object(request, b"second state", vec![("ETag", "\"2\"".to_owned()), modified(1)])
    });
    let origin = Origin::new("s3://bucket", &options(&endpoint)).unwrap();
    assert_eq!(origin.read("x", "\"2\"", 0..6).await.unwrap(), "second");
    let read = origin.read("x", "\"1\"", 0..6).await;
    assert!(matches!(read, Err(OriginError::Changed { .. })), "{read:?}");
}

/// Azure and some S3 servers list tags without quotes.
#[tokio::test]
async fn tags_listed_without_quotes_match_quoted_tags() {
    let endpoint = serve(|request| {
        if request.target.contains("list-type=2") {
            let listing = "<ListBucketResult><Contents><Key>x</Key><Size>7</Size><ETag>1</ETag>\
                           <LastModified>2026-01-01T00:00:01Z</LastModified></Contents>\
                           </ListBucketResult>";
            return Answer(200, Vec::new(), listing.into());
        }
        assert_eq!(request.header("if-match"), Some("\"1\""));
        object(request, b"content", vec![("ETag", "\"1\"".to_owned()), modified(1)])
    });
    let origin = Origin::new("s3://bucket", &options(&endpoint)).unwrap();
    let found = only(&origin).await;
    assert_eq!(origin.read("x", &found.version, 0..7).await.unwrap(), "content");
}

/// A `Last-Modified` header.
pub fn modified(second: u8) -> (&'static str, String) {
    ("Last-Modified", format!("Thu, 01 Jan 2026 00:00:{second:02} GMT"))
}

#[tokio::test]
async fn transient_failures_are_retried() {
    let fixture = Fixture::with(|config| {
        config.fail_rate = 0.3;
        config.seed = 8;
    });
    let sizes = (0..60).map(|at| 1 + at * 1000).collect::<Vec<usize>>();
    for size in &sizes {
        fixture.write(&format!("{size:06}"), content(*size));
    }
    let origin = fixture.remote();
    let objects = listed(&origin).await.unwrap();
    assert_eq!(objects.len(), sizes.len());
    let reads =
        objects.iter().map(|found| origin.read(&found.object, &found.version, 0..found.length));
    for (read, size) in join_all(reads).await.into_iter().zip(sizes) {
        assert!(read.unwrap() == content(size), "{size}");
    }
    assert!(fixture.server.counters().failures_injected > 5);
}

/// Public objects can often be read where listing is denied.
#[tokio::test]
async fn one_object_is_readable_where_listing_is_denied() {
    let endpoint = serve(|request| {
        if request.target.contains("list-type=2") {
            let denied = b"<Error><Code>AccessDenied</Code><Message>No</Message></Error>".to_vec();
            return Answer(403, Vec::new(), denied);
        }
        assert_eq!(request.target, "/bucket/dir/x");
        object(request, b"public", vec![("ETag", "\"1\"".to_owned()), modified(1)])
    });
    let origin = Origin::locate("s3://bucket/dir/x", &options(&endpoint)).await.unwrap();
    let found = only(&origin).await;
    assert_eq!((&*found.object, found.length), ("x", 6));
    assert_eq!(origin.read("x", &found.version, 0..6).await.unwrap(), "public");
}
