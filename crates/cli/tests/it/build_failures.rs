//! Data that moves while it is read, and origins that fail: noticed and named, never mixed.

use std::{
    fs,
    net::TcpListener,
    time::{Duration, Instant},
};

use forebay_dev_origin::DevOrigin;

use crate::harness::{Place, slow, tree, until};

/// Far enough back that nobody asks for it before the first objects are done.
const LAST: &str = "item 099.bin";

/// Builds from a slow origin, and meddles with the data when the build is under way. The build must
/// refuse, name the object, and leave no digest; the next one is not affected.
fn meddled_with(meddle: impl Fn(&Place), saying: &str) {
    let place = Place::with_objects(100, 12_000);
    let origin = place.serve(|config| slow(config, 2_000_000));
    let build = place.build_from(&origin, "x.digest", &["--requests", "1"]).start();
    until("it reads", || origin.counters().bytes_sent > 0);
    meddle(&place);
    let before = tree(&place.path("root"));
    build.finish().must_refuse(&[&format!("object `{LAST}` {saying}"), "build the digest again"]);
    assert_eq!(tree(&place.path("root")), before, "the origin is only read");
    assert_eq!(place.outputs(), ["x.digest.partial"]);
    goes_on(&place, &origin);
}

fn goes_on(place: &Place, origin: &DevOrigin) {
    let report = place.build_from(origin, "x.digest", &[]).succeeds().json();
    assert!(report["blobs_resumed"].as_u64().unwrap() > 0);
    assert_eq!(report["bytes"], place.data_size());
    place.forebay(["digest", "verify", "x.digest"]).reaching(origin).succeeds();
}

#[test]
fn an_object_that_changes_during_a_build_is_named() {
    meddled_with(|place| place.write(LAST, &[7; 12_000]), "has changed since it was listed");
    meddled_with(|place| place.write(LAST, b"shorter"), "has changed since it was listed");
}

#[test]
fn an_object_that_vanishes_during_a_build_is_named() {
    meddled_with(
        |place| fs::remove_file(place.data().join(LAST)).unwrap(),
        "has vanished since it was listed",
    );
}

#[test]
fn failures_of_the_origin_are_survived_and_change_nothing() {
    let place = Place::with_objects(60, 20_000);
    place.write("large.bin", &crate::harness::content(3, 5 << 20));
    let sound = place.build("local.digest", &[]);
    let origin = place.serve(|config| {
        config.fail_rate = 0.1;
        config.seed = 11;
    });
    let report = place.build_from(&origin, "x.digest", &[]).succeeds().json();
    assert!(origin.counters().failures_injected > 0);
    assert_eq!(report["dataset"], sound["dataset"]);
    place.forebay(["digest", "verify", "x.digest"]).reaching(&origin).succeeds();
}

#[test]
fn an_origin_that_never_answers_is_given_up_at_the_deadline() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    for url in ["s3://bucket/train".to_owned(), format!("{endpoint}/x.bin")] {
        let started = Instant::now();
        let args = ["digest", "build", &url, "-o", "x.digest", "--deadline", "500ms"];
        place.forebay(args).reaching_at(&endpoint).refuses(&[
            &url,
            "did not answer within 0.5s",
            "(--deadline, or",
        ]);
        assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
        assert!(place.outputs().is_empty());
    }
}

#[test]
fn an_origin_that_stops_answering_is_given_up_at_the_deadline() {
    let place = Place::with_objects(3, 100_000);
    // Slower than the deadline allows for a single object.
    let origin = place.serve(|config| slow(config, 20_000));
    place
        .build_from(&origin, "x.digest", &["--deadline", "1s"])
        .refuses(&["`item 000.bin` did not answer within 1s"]);
    assert!(place.outputs().is_empty());
}
