//! What one client is answered: bytes, heads, conditions, and how they were made.

use forebay_core::gateway::{rights::Authorise, versions::Freshness};
use forebay_gateway::objects::{
    ObjectCacheSettings,
    settings::{PrefixRule, Rules},
};
use http::Method;

use super::{
    harness::{Gateway, SEGMENT, content, origin_client, scripted_identities, settings},
    scripted_origin::ScriptedOrigin,
};

/// A rule for all objects.
pub fn rule_for_all(freshness: Freshness) -> Rules {
    let prefix = Vec::new();
    Rules::new(vec![PrefixRule { bucket: None, prefix, freshness, authorise: Authorise::Object }])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_read_costs_one_probe_and_no_bytes() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let gateway = Gateway::open(client, &settings(directory.path())).await;
    let bytes = content(1, 5 * SEGMENT + 1234);
    origin.write("a", Some(bytes.clone()), false);

    let cold = gateway.get(0, "a", &[]).await;
    assert_eq!((cold.status.as_u16(), cold.cache()), (200, "fill"));
    assert!(cold.body == bytes && !cold.is_cut);
    assert_eq!(cold.header("content-type"), Some("text/x-scripted"));
    assert_eq!(cold.header("x-amz-meta-owner"), Some("tests"));
    assert_eq!(cold.header("content-length"), Some(&*bytes.len().to_string()));
    gateway.settled().await;

    origin.forget();
    let warm = gateway.get(0, "a", &[]).await;
    assert_eq!((warm.status.as_u16(), warm.cache()), (200, "hit"));
    assert!(warm.body == bytes);
    assert_eq!(origin.count(&Method::HEAD), 1);
    assert_eq!(origin.count(&Method::GET), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_conditions_and_overrides_are_answered_like_the_origin() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let gateway = Gateway::open(client, &settings(directory.path())).await;
    let length = 3 * SEGMENT + 99;
    let bytes = content(2, length);
    origin.write("a", Some(bytes.clone()), false);
    let etag = origin.etag("a");

    // Cold and warm alike.
    for _ in 0..2 {
        for (range, part) in [
            ("bytes=0-0", 0..1),
            ("bytes=100-299", 100..300),
            ("bytes=262143-262144", SEGMENT - 1..SEGMENT + 1),
            ("bytes=786000-", 786_000..length),
            ("bytes=-100", length - 100..length),
            ("bytes=-99999999", 0..length),
            ("bytes=5-99999999", 5..length),
        ] {
            let answer = gateway.get(0, "a", &[("range", range)]).await;
            assert_eq!(answer.status, 206, "{range}");
            let expected = format!("bytes {}-{}/{length}", part.start, part.end - 1);
            assert_eq!(answer.header("content-range"), Some(&*expected), "{range}");
            assert!(answer.body == bytes.slice(part), "{range}");
        }
        let beyond = gateway.get(0, "a", &[("range", "bytes=99999999-")]).await;
        assert_eq!(beyond.status, 416);
        let malformed = gateway.get(0, "a", &[("range", "bytes=9-1")]).await;
        assert_eq!((malformed.status.as_u16(), malformed.body.len()), (200, length));
        let same = gateway.get(0, "a", &[("if-none-match", &etag)]).await;
        assert_eq!((same.status.as_u16(), same.body.len()), (304, 0));
        assert_eq!(same.header("etag"), Some(&*etag));
        let other = gateway.get(0, "a", &[("if-match", "\"other\"")]).await;
        assert_eq!(other.status, 412);
        let stale = [("range", "bytes=1-2"), ("if-range", "\"other\"")];
        let whole = gateway.get(0, "a", &stale).await;
        assert_eq!((whole.status.as_u16(), whole.body.len()), (200, length));
        gateway.settled().await;
    }
    let head = gateway.head(0, "a", &[("range", "bytes=1-10")]).await;
    assert_eq!((head.status.as_u16(), head.header("content-length")), (206, Some("10")));
    assert_eq!(head.body.len(), 0);

    let mut renamed = gateway.request(0, "a", &[]);
    renamed.query = Some("response-content-type=text%2Fcsv&x-id=GetObject".to_owned());
    let renamed = gateway.send(renamed).await;
    assert_eq!(renamed.header("content-type"), Some("text/csv"));
    assert_eq!(gateway.get(0, "missing", &[]).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checksum_of_the_whole_object_is_sent_with_the_whole_object_only() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let rules = rule_for_all(Freshness::Immutable);
    let settings = ObjectCacheSettings { rules, ..settings(directory.path()) };
    let gateway = Gateway::open(client, &settings).await;
    origin.write("a", Some(content(3, 1000)), false);
    let checksum = "x-amz-checksum-crc32";
    let mode = ("x-amz-checksum-mode", "ENABLED");
    // The head that is known first has no checksums.
    assert_eq!(gateway.get(0, "a", &[]).await.header(checksum), None);
    assert_eq!(gateway.get(0, "a", &[mode]).await.header(checksum), Some("AAAAAA=="));
    let part = gateway.get(0, "a", &[mode, ("range", "bytes=0-9")]).await;
    assert_eq!((part.status.as_u16(), part.header(checksum)), (206, None));
    assert_eq!(gateway.get(0, "a", &[]).await.header(checksum), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_understood_passes_to_the_origin() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let gateway = Gateway::open(client, &settings(directory.path())).await;
    origin.write("a", Some(content(3, 1000)), false);
    for headers in [
        ("x-amz-expected-bucket-owner", "123"),
        ("x-amz-request-payer", "requester"),
        ("x-amz-checksum-mode", "other"),
        ("if-none-match", "\"unclosed"),
    ] {
        origin.forget();
        let answer = gateway.get(0, "a", &[headers]).await;
        assert_eq!((answer.status.as_u16(), answer.cache()), (200, "pass"), "{headers:?}");
        assert_eq!(origin.seen().len(), 1, "{headers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_through_the_gateway_is_seen_by_the_next_read_under_every_rule() {
    let origin = ScriptedOrigin::start().await;
    for freshness in [Freshness::Ttl(std::time::Duration::from_hours(1)), Freshness::Immutable] {
        let directory = tempfile::tempdir().unwrap();
        let client = origin_client(&origin.endpoint(), scripted_identities());
        let rules = rule_for_all(freshness);
        let settings = ObjectCacheSettings { rules, ..settings(directory.path()) };
        let gateway = Gateway::open(client, &settings).await;
        for seed in 0..5 {
            let bytes = content(seed, SEGMENT + 10);
            origin.write("a", Some(bytes.clone()), true);
            gateway.cache.invalidate(&gateway.name("a"));
            for _ in 0..2 {
                assert!(gateway.get(0, "a", &[]).await.body == bytes, "{freshness:?}");
            }
        }
        origin.forget();
        gateway.get(0, "a", &[]).await;
        assert_eq!(origin.seen().len(), 0, "fresh, authorised and resident");
    }
}

/// Promise 7: warm restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_gateway_is_warm() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let bytes = content(4, 10 * SEGMENT);
    origin.write("a", Some(bytes.clone()), false);
    let settings = settings(directory.path());
    {
        let client = origin_client(&origin.endpoint(), scripted_identities());
        let gateway = Gateway::open(client, &settings).await;
        assert!(gateway.get(0, "a", &[]).await.body == bytes);
        gateway.settled().await;
        gateway.cache.flush().await;
    }
    origin.forget();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let gateway = Gateway::open(client, &settings).await;
    let warm = gateway.get(1, "a", &[]).await;
    assert_eq!(warm.cache(), "hit");
    assert!(warm.body == bytes);
    assert_eq!(origin.count(&Method::GET), 0);
}
