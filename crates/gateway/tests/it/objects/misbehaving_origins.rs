//! Origins that do not do what they say: pass through or fail, never a wrong byte (promise 1).

use std::time::Duration;

use forebay_core::gateway::versions::Freshness;
use forebay_gateway::objects::ObjectCacheSettings;

use super::{
    answers::rule_for_all,
    harness::{Gateway, SEGMENT, content, origin_client, scripted_identities, settings},
    scripted_origin::{Quirk, ScriptedOrigin},
};

/// Promise 1: never wrong bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_without_a_strong_tag_are_never_kept() {
    for quirk in [Quirk::WeakEtags, Quirk::NoEtags] {
        let origin = ScriptedOrigin::start().await;
        origin.script.lock().quirk = quirk;
        let directory = tempfile::tempdir().unwrap();
        let client = origin_client(&origin.endpoint(), scripted_identities());
        let rules = rule_for_all(Freshness::Immutable);
        let settings = ObjectCacheSettings { rules, ..settings(directory.path()) };
        let gateway = Gateway::open(client, &settings).await;
        for seed in 0..3 {
            let bytes = content(seed, 2 * SEGMENT);
            origin.write("a", Some(bytes.clone()), false);
            let answer = gateway.get(0, "a", &[("range", "bytes=10-300000")]).await;
            assert_eq!((answer.status.as_u16(), answer.cache()), (206, "pass"), "{quirk:?}");
            assert!(answer.body == bytes.slice(10..300_001));
        }
    }
}

/// Promise 1: never wrong bytes. The answer is the origin's, or cut, or an error; but its bytes are
/// those of one version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contradictory_answers_are_not_used() {
    for quirk in [
        Quirk::IgnoresIfMatch,
        Quirk::IgnoresRanges,
        Quirk::WrongContentRange,
        Quirk::ShortBodies,
        Quirk::LongBodies,
    ] {
        let origin = ScriptedOrigin::start().await;
        let directory = tempfile::tempdir().unwrap();
        let client = origin_client(&origin.endpoint(), scripted_identities());
        let rules = rule_for_all(Freshness::Ttl(Duration::from_hours(1)));
        let settings = ObjectCacheSettings { rules, ..settings(directory.path()) };
        let gateway = Gateway::open(client, &settings).await;
        let old = content(1, 6 * SEGMENT + 5);
        origin.write("a", Some(old.clone()), false);
        assert_eq!(gateway.head(0, "a", &[]).await.status, 200);
        origin.script.lock().quirk = quirk;
        for (start, end) in
            [(0, 5), (SEGMENT, 3 * SEGMENT), (0, old.len()), (SEGMENT - 1, 5 * SEGMENT)]
        {
            let range = format!("bytes={start}-{}", end - 1);
            let answer = gateway.get(0, "a", &[("range", &range)]).await;
            let expected = old.slice(start..end);
            match (answer.status.as_u16(), answer.cache()) {
                // The origin's own answer to the client's own request.
                (_, "pass") => {}
                (206, _) if !answer.is_cut => assert!(answer.body == expected, "{quirk:?} {range}"),
                (206, _) => {
                    let length = answer.body.len();
                    assert!(answer.body == expected.slice(..length), "{quirk:?} {range}");
                }
                other => panic!("{quirk:?} {range}: {other:?}"),
            }
        }
        // Another version, which `ttl` does not notice by itself.
        let new = content(2, 6 * SEGMENT + 5);
        origin.write("a", Some(new.clone()), false);
        gateway.settled().await;
        let answer = gateway.get(0, "a", &[]).await;
        if answer.cache() != "pass" && !answer.is_cut {
            assert!(answer.body == old || answer.body == new, "{quirk:?}: two versions are mixed");
        }
        // What was kept is the truth, now that the origin behaves.
        origin.script.lock().quirk = Quirk::None;
        gateway.cache.invalidate(&gateway.name("a"));
        assert!(gateway.get(0, "a", &[]).await.body == new, "{quirk:?}");
        gateway.settled().await;
        assert!(gateway.get(0, "a", &[]).await.body == new, "{quirk:?}");
    }
}

/// Promise 1: an object that changes while it is sent is never mixed and never silently short.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_changes_in_the_middle_of_an_answer_cuts_it() {
    use http_body_util::BodyExt as _;

    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let gateway = Gateway::open(client, &settings(directory.path())).await;
    let old = content(1, 100 * SEGMENT);
    origin.write("a", Some(old.clone()), false);
    let response = gateway.cache.serve(gateway.request(0, "a", &[])).await;
    assert_eq!(response.status(), 200);
    origin.write("a", Some(content(2, 100 * SEGMENT)), false);
    let mut body = response.into_body();
    let (mut received, mut is_cut) = (0, false);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            is_cut = true;
            break;
        };
        let bytes = frame.into_data().unwrap();
        assert!(bytes == old.slice(received..received + bytes.len()), "at {received}");
        received += bytes.len();
    }
    assert!(is_cut && received < old.len(), "{received} bytes of the old version");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_changed_before_the_first_byte_is_read_again() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let rules = rule_for_all(Freshness::Ttl(Duration::from_hours(1)));
    let settings = ObjectCacheSettings { rules, ..settings(directory.path()) };
    let gateway = Gateway::open(client, &settings).await;
    origin.write("a", Some(content(1, 3 * SEGMENT)), false);
    assert_eq!(gateway.head(0, "a", &[]).await.status, 200);
    let new = content(2, 4 * SEGMENT);
    origin.write("a", Some(new.clone()), false);
    let answer = gateway.get(0, "a", &[]).await;
    assert!(answer.status == 200 && answer.body == new);
    let restarts = &gateway.cache.counters().restarts;
    assert_eq!(restarts.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// Promise 1: an origin that ignores `If-Match` answers with another version than the known one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_version_than_asked_for_is_not_taken_for_the_known_one() {
    let origin = ScriptedOrigin::start().await;
    origin.script.lock().quirk = Quirk::IgnoresIfMatch;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let rules = rule_for_all(Freshness::Ttl(Duration::from_hours(1)));
    let settings = ObjectCacheSettings { rules, ..settings(directory.path()) };
    let gateway = Gateway::open(client, &settings).await;
    origin.write("a", Some(content(1, 3 * SEGMENT)), false);
    assert_eq!(gateway.head(0, "a", &[]).await.status, 200);
    let new = content(2, 3 * SEGMENT);
    origin.write("a", Some(new.clone()), false);
    for _ in 0..2 {
        let answer = gateway.get(0, "a", &[]).await;
        assert_eq!(answer.header("etag"), Some(&*origin.etag("a")));
        assert!(answer.status == 200 && answer.body == new);
        gateway.settled().await;
    }
}
