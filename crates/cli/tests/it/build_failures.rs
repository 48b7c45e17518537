//! Objects that change during a build, and origins that fail: the build fails and names the cause.

use std::{
    fs,
    net::TcpListener,
    time::{Duration, Instant},
};

use forebay_dev_origin::DevOrigin;

use crate::harness::{Sandbox, slow, tree, wait_until};

/// An object that the build reads only after the first ones are done.
const LAST: &str = "item 099.bin";

/// Changes the data during a build from a slow origin. The build must fail, name the object and
/// leave no digest. The next build succeeds.
fn build_fails_after(change: impl Fn(&Sandbox), expected: &str) {
    let sandbox = Sandbox::with_objects(100, 12_000);
    let origin = sandbox.serve(|config| slow(config, 2_000_000));
    let build = sandbox.build_from(&origin, "x.digest", &["--requests", "1"]).start();
    wait_until("the build reads", || origin.counters().bytes_sent > 0);
    change(&sandbox);
    let before = tree(&sandbox.path("root"));
    build.finish().must_refuse(&[&format!("object `{LAST}` {expected}"), "build the digest again"]);
    assert_eq!(tree(&sandbox.path("root")), before, "the origin is only read");
    assert_eq!(sandbox.outputs(), ["x.digest.partial"]);
    resumes(&sandbox, &origin);
}

fn resumes(sandbox: &Sandbox, origin: &DevOrigin) {
    let report = sandbox.build_from(origin, "x.digest", &[]).succeeds().json();
    assert!(report["blobs_resumed"].as_u64().unwrap() > 0);
    assert_eq!(report["bytes"], sandbox.data_size());
    sandbox.forebay(["digest", "verify", "x.digest"]).reaching(origin).succeeds();
}

#[test]
fn an_object_that_changes_during_a_build_is_named() {
    build_fails_after(
        |sandbox| sandbox.write(LAST, &[7; 12_000]),
        "has changed since it was listed",
    );
    build_fails_after(|sandbox| sandbox.write(LAST, b"shorter"), "has changed since it was listed");
}

#[test]
fn an_object_that_vanishes_during_a_build_is_named() {
    build_fails_after(
        |sandbox| fs::remove_file(sandbox.data().join(LAST)).unwrap(),
        "has vanished since it was listed",
    );
}

#[test]
fn failed_requests_are_retried_and_do_not_change_the_digest() {
    let sandbox = Sandbox::with_objects(60, 20_000);
    sandbox.write("large.bin", &crate::harness::content(3, 5 << 20));
    let sound = sandbox.build("local.digest", &[]);
    let origin = sandbox.serve(|config| {
        config.fail_rate = 0.1;
        config.seed = 11;
    });
    let report = sandbox.build_from(&origin, "x.digest", &[]).succeeds().json();
    assert!(origin.counters().failures_injected > 0);
    assert_eq!(report["dataset"], sound["dataset"]);
    sandbox.forebay(["digest", "verify", "x.digest"]).reaching(&origin).succeeds();
}

#[test]
fn a_silent_origin_fails_at_the_deadline() {
    let sandbox = Sandbox::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    for url in ["s3://bucket/train".to_owned(), format!("{endpoint}/x.bin")] {
        let started = Instant::now();
        let args = ["digest", "build", &url, "-o", "x.digest", "--deadline", "500ms"];
        sandbox.forebay(args).reaching_at(&endpoint).refuses(&[
            &url,
            "did not answer within 0.",
            "raise --deadline",
        ]);
        assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
        assert!(sandbox.outputs().is_empty());
    }
}

#[test]
fn an_origin_that_is_too_slow_fails_at_the_deadline() {
    let sandbox = Sandbox::with_objects(3, 100_000);
    // Slower than the deadline allows for a single object.
    let origin = sandbox.serve(|config| slow(config, 20_000));
    sandbox
        .build_from(&origin, "x.digest", &["--deadline", "1s"])
        .refuses(&["`item 000.bin` did not answer within"]);
    assert!(sandbox.outputs().is_empty());
}
