//! Isolation: what one principal cached, another one gets as the origin gives it (promise 4).

use std::time::Duration;

use forebay_core::gateway::{rights::Authorise, versions::Freshness};
use forebay_gateway::objects::{
    ObjectCacheSettings,
    settings::{PrefixRule, Rules},
};
use http::Method;

use super::{
    answers::rule_for_all,
    harness::{Gateway, SEGMENT, content, origin_client, scripted_identities, settings},
    scripted_origin::{Quirk, ScriptedOrigin},
};

/// Promise 4: a hit is authorised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principal_without_the_right_gets_the_origins_refusal_and_evicts_nothing() {
    let origin = ScriptedOrigin::start().await;
    let freshnesses =
        [Freshness::Always, Freshness::Ttl(Duration::from_hours(1)), Freshness::Immutable];
    for freshness in freshnesses {
        let directory = tempfile::tempdir().unwrap();
        let client = origin_client(&origin.endpoint(), scripted_identities());
        let rules = rule_for_all(freshness);
        let settings = ObjectCacheSettings { rules, ..settings(directory.path()) };
        let gateway = Gateway::open(client, &settings).await;
        let bytes = content(1, 2 * SEGMENT);
        origin.write("a", Some(bytes.clone()), false);
        origin.deny("key-2", "a");
        assert!(gateway.get(0, "a", &[]).await.body == bytes);
        gateway.settled().await;

        let denied = gateway.get(2, "a", &[]).await;
        let absent = gateway.get(2, "a", &[("range", "bytes=0-9")]).await;
        for answer in [&denied, &absent, &gateway.head(2, "a", &[]).await] {
            assert_eq!((answer.status.as_u16(), answer.cache()), (403, "pass"));
            assert_eq!(answer.header("etag"), None);
        }
        let condition = [("if-match", "\"guess\"")];
        assert_eq!(gateway.get(2, "a", &condition).await.status, 403);

        origin.forget();
        let again = gateway.get(0, "a", &[]).await;
        assert!(again.body == bytes && again.cache() == "hit", "{freshness:?}");
        assert_eq!(origin.count(&Method::GET), 0);
        // The other principal with the right is asked for once.
        assert!(gateway.get(1, "a", &[]).await.cache() == "hit");
        assert!(origin.seen().iter().any(|seen| seen.key_id == "key-1"));
    }
}

/// Promise 4: a hit is authorised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_ends_when_the_origin_withdraws_it_and_after_its_time() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let settings = ObjectCacheSettings {
        rules: rule_for_all(Freshness::Immutable),
        rights_lifetime: Duration::from_millis(300),
        ..settings(directory.path())
    };
    let gateway = Gateway::open(client, &settings).await;
    origin.write("a", Some(content(1, 1000)), false);
    assert_eq!(gateway.get(0, "a", &[]).await.status, 200);
    origin.deny("key-0", "a");
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(gateway.get(0, "a", &[]).await.status, 403);
    assert_eq!(gateway.get(0, "a", &[]).await.status, 403);
}

/// Promise 4: HEAD needs no right to decrypt, so it does not authorise the bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_with_its_own_key_is_probed_by_a_get_of_one_byte() {
    let origin = ScriptedOrigin::start().await;
    origin.script.lock().quirk = Quirk::OwnKey;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let rules = rule_for_all(Freshness::Ttl(Duration::from_hours(1)));
    let settings = ObjectCacheSettings { rules, ..settings(directory.path()) };
    let gateway = Gateway::open(client, &settings).await;
    let bytes = content(1, 2 * SEGMENT);
    origin.write("a", Some(bytes.clone()), false);
    assert!(gateway.get(0, "a", &[]).await.body == bytes);
    gateway.settled().await;

    assert_eq!(gateway.head(1, "a", &[]).await.status, 200);
    assert_eq!(gateway.get(1, "a", &[]).await.status, 403);
    assert_eq!(gateway.get(1, "a", &[("range", "bytes=0-9")]).await.status, 403);

    origin.forget();
    assert_eq!(gateway.get(0, "a", &[]).await.cache(), "hit");
    assert_eq!(origin.seen().len(), 0, "the right is fresh");
    assert_eq!(gateway.head(1, "a", &[]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vouched_prefix_needs_one_probe_per_object_and_no_second_right() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let rules = Rules::new(vec![PrefixRule {
        bucket: None,
        prefix: b"day=".to_vec(),
        freshness: Freshness::Immutable,
        authorise: Authorise::Prefix,
    }]);
    let settings = ObjectCacheSettings { rules, ..settings(directory.path()) };
    let gateway = Gateway::open(client, &settings).await;
    for key in ["day=1", "day=2", "other"] {
        origin.write(key, Some(content(1, 1000)), false);
        gateway.get(0, key, &[]).await;
    }
    gateway.settled().await;
    gateway.get(1, "day=1", &[]).await;
    origin.forget();
    assert_eq!(gateway.get(1, "day=2", &[]).await.cache(), "hit");
    assert_eq!(origin.seen().len(), 0);
    gateway.get(1, "other", &[]).await;
    assert_eq!(origin.seen().len(), 1, "outside of the prefix");
}
