//! Faults of single answers: each costs one attempt, never the read (promise 5).

use std::time::{Duration, Instant};

use forebay_dev_origin::{Config, DevOrigin, Fault};
use forebay_origin::{Options, Origin, OriginError};

use crate::{
    harness::{Answer, Fixture, only, serve},
    reading::modified,
};

const LENGTH: u64 = 1_000_000;
/// With this deadline, a first attempt may be silent for 1 s.
const DEADLINE: Duration = Duration::from_secs(12);

/// Reads an object whose first answers have these faults. Returns the time that it took.
async fn read_with(faults: &[Fault]) -> (Duration, DevOrigin) {
    let content: Vec<u8> = (0..LENGTH).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
    let fixture = Fixture::with(|config| config.get_faults = faults.to_vec());
    fixture.write("x", &content);
    let options = Options { deadline: DEADLINE, ..fixture.options() };
    let origin = Origin::new("s3://bucket", &options).unwrap();
    let version = only(&origin).await.version;
    let began = Instant::now();
    let read = origin.read("x", &version, 0..LENGTH).await.unwrap();
    let took = began.elapsed();
    assert!(read == content);
    (took, fixture.server)
}

#[tokio::test]
async fn a_hung_answer_costs_one_attempt_not_the_deadline() {
    for fault in [Fault::HangBeforeHead, Fault::HangInBody] {
        let (took, server) = read_with(std::slice::from_ref(&fault)).await;
        let counters = server.counters();
        assert_eq!((counters.requests.get, counters.failures_injected), (2, 1), "{fault:?}");
        // One attempt of 1 s; the rest is the machine.
        assert!(took >= Duration::from_millis(900) && took < DEADLINE / 2, "{fault:?}: {took:?}");
    }
}

#[tokio::test]
async fn answers_that_fail_in_different_ways_are_retried() {
    let faults = [Fault::CutBody, Fault::SlowDown, Fault::HangBeforeHead];
    let (_, server) = read_with(&faults).await;
    assert_eq!(server.counters().requests.get, 4);
}

/// Headers that S3 signs with would go to the other host.
#[tokio::test]
async fn a_redirect_to_another_host_is_refused() {
    let elsewhere = DevOrigin::start(Config::new(std::env::temp_dir())).unwrap();
    let target = format!("{}/bucket/x", elsewhere.endpoint());
    let fixture = Fixture::with(|config| config.get_faults = vec![Fault::Redirect(target)]);
    fixture.write("x", b"content");
    let origin = fixture.remote();
    let version = only(&origin).await.version;
    let refused = origin.read("x", &version, 0..7).await.unwrap_err();
    assert!(matches!(refused, OriginError::Redirected { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("`127.0.0.1`") && text.contains("credentials"), "{text}");
    assert_eq!(elsewhere.counters().requests_total(), 0, "no request reached the other host");
    assert_eq!(origin.read("x", &version, 0..7).await.unwrap(), "content", "the next read works");
}

/// A web server gets no credentials, and may redirect to a mirror.
#[tokio::test]
async fn a_web_server_may_redirect_to_a_mirror() {
    let mirror = serve(|request| {
        assert_eq!(request.header("authorization"), None);
        let headers = vec![("ETag", "\"1\"".to_owned()), modified(1)];
        crate::harness::object(request, b"content", headers)
    });
    let server = serve(move |_| Answer(307, vec![("Location", format!("{mirror}/y"))], Vec::new()));
    let origin = Origin::locate(&format!("{server}/x"), &Options::default()).await.unwrap();
    let found = only(&origin).await;
    assert_eq!(origin.read("x", &found.version, 0..7).await.unwrap(), "content");
}
