//! `forebay warm` and `forebay doctor`, with real nodes and origins.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    harness::{Forebay, Ran, slow, until},
    serving::Scene,
};

const OBJECTS: usize = 40;
const SIZE: usize = 3000;

fn warm(scene: &Scene, options: &[&str]) -> Forebay {
    let socket = scene.node_socket();
    let args = ["warm", "x.digest", "--format", "json", "--socket", socket.to_str().unwrap()];
    scene.place.forebay(args.iter().chain(options)).reaching(&scene.origin)
}

fn fetches(scene: &Scene) -> u64 {
    scene.origin.counters().objects.values().map(|object| object.gets).sum()
}

/// Promise 3: one fetch of every blob; what is there is skipped.
#[test]
fn a_dataset_is_warmed_once() {
    let scene = Scene::of(OBJECTS, SIZE, |_| {});
    let _node = scene.node(&["--capacity", "64MB"]);
    let (code, first) = warm(&scene, &["--chunks", "3"]).run().verdict();
    assert_eq!((code, first["is_complete"].as_bool()), (0, Some(true)), "{first}");
    let some = first["fetched_blobs"].as_u64().unwrap();
    assert!(some >= 6 && some < OBJECTS as u64 / 2, "three chunks of ten: {first}");
    let (code, rest) = warm(&scene, &[]).run().verdict();
    assert_eq!((code, rest["fetched_blobs"].as_u64()), (0, Some(OBJECTS as u64 - some)), "{rest}");
    assert_eq!(rest["resident_bytes"], scene.place.data_size());
    let (code, again) = warm(&scene, &[]).run().verdict();
    assert_eq!((code, again["fetched_blobs"].as_u64()), (0, Some(0)), "{again}");
    assert_eq!(fetches(&scene), OBJECTS as u64);
    assert_eq!(scene.status()["claims_held"], 0);
}

#[test]
fn what_was_interrupted_goes_on_where_it_was() {
    let scene = Scene::of(OBJECTS, SIZE, |config| slow(config, 20_000));
    let _node = scene.node(&["--capacity", "64MB"]);
    let running = warm(&scene, &["--at-once", "4"]).start();
    until("some are there", || scene.status()["puts"].as_u64() >= Some(5));
    running.signal(Signal::INT);
    let ran = running.finish();
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.stderr.contains("goes on from there"), "{ran:?}");
    let before = scene.status()["puts"].as_u64().unwrap();
    assert!(before < OBJECTS as u64, "it was not done");
    let (code, rest) = warm(&scene, &[]).run().verdict();
    assert_eq!((code, rest["fetched_blobs"].as_u64()), (0, Some(OBJECTS as u64 - before)));
    assert_eq!(fetches(&scene), OBJECTS as u64, "what was under way was finished");
}

/// Nothing is dropped to make room, however many are fetched at once, and all the room there is is used.
#[test]
fn a_node_is_full_when_it_is_full() {
    let scene = Scene::of(200, 100_000, |_| {});
    for at_once in ["1", "4", "32", "128"] {
        let node = scene.node(&["--capacity", "12MiB"]);
        let ran = warm(&scene, &["--at-once", at_once]).run();
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("what has no place is not fetched"), "{ran:?}");
        let report = ran.json();
        assert_eq!(report["behind"][0]["state"], "full", "{report}");
        assert_eq!(report["fetched_bytes"], report["resident_bytes"], "none was dropped: {report}");
        let missing = report["behind"][0]["blobs"].as_u64().unwrap();
        assert_eq!(report["resident_blobs"].as_u64().unwrap() + missing, 200, "{report}");
        // Ten blobs fit into a region.
        let resident = report["resident_blobs"].as_u64().unwrap();
        assert!(resident >= 90, "{at_once} at once: {report}");
        assert_eq!(scene.status()["flash_regions_evicted"], 0);
        drop(node);
        fs::remove_dir_all(scene.place.path("cache")).unwrap();
    }
}

#[test]
fn what_fits_is_taken_whole_however_many_come_at_once() {
    let scene = Scene::of(45, 4_000_000, |_| {});
    let _node = scene.node(&["--capacity", "200MB"]);
    let (code, report) = warm(&scene, &[]).run().verdict();
    assert_eq!((code, report["resident_blobs"].as_u64()), (0, Some(45)), "{report}");
    assert_eq!(scene.status()["flash_regions_evicted"], 0);
}

#[test]
fn warming_without_a_node_or_an_origin_is_refused() {
    let scene = Scene::of(5, SIZE, |_| {});
    warm(&scene, &[]).refuses(&["forebay serve"]);
    let _node = scene.node(&["--capacity", "64MB"]);
    warm(&scene, &["--chunks", "99"]).refuses(&["--chunks 99", "chunk"]);
    let wrong = warm(&scene, &["--deadline", "1s"]).env("AWS_SECRET_ACCESS_KEY", "wrong");
    wrong.refuses(&["denied"]);
}

/// What the doctor says of one thing.
fn state<'a>(findings: &'a Value, check: &str) -> &'a str {
    let all = findings.as_array().unwrap();
    let finding = all.iter().find(|finding| finding["check"] == check);
    finding.unwrap_or_else(|| panic!("{check}: {findings}"))["state"].as_str().unwrap()
}

fn doctor(scene: &Scene, options: &[&str]) -> Ran {
    let socket = scene.node_socket();
    let args = ["doctor", "--format", "json", "--socket", socket.to_str().unwrap()];
    scene.place.forebay(args.iter().chain(options)).reaching(&scene.origin).run()
}

#[test]
fn the_doctor_finds_what_is_wrong() {
    let scene = Scene::of(5, SIZE, |_| {});
    let ran = doctor(&scene, &[]);
    assert_eq!((ran.code, state(&ran.json(), "node")), (Some(2), "failed"), "{ran:?}");
    let findings = ran.json();
    for finding in findings.as_array().unwrap() {
        assert_eq!(
            finding["state"] == "ok",
            finding["remedy"].is_null(),
            "a remedy for each: {finding}"
        );
    }
    let _node = scene.node(&["--capacity", "64MB"]);
    let ran = doctor(&scene, &["--digest", "x.digest"]);
    assert!(matches!(ran.code, Some(0 | 1)), "{ran:?}");
    let findings = ran.json();
    for check in [
        "configuration",
        "node",
        "devices",
        "socket",
        "digest",
        "origin",
        "objects",
        "clock",
        "kernel",
        "space",
    ] {
        assert_eq!(state(&findings, check), "ok", "{check}: {findings}");
    }
    for check in ["io_uring", "direct I/O", "memory", "open files"] {
        assert_ne!(state(&findings, check), "", "it is looked at");
    }

    let objects = scene.place.data();
    fs::write(objects.join("come-since"), "new").unwrap();
    let found = |scene: &Scene| doctor(scene, &["--digest", "x.digest"]).json();
    assert_eq!(state(&found(&scene), "objects"), "warning", "the rest can be read");
    fs::remove_file(objects.join("come-since")).unwrap();
    let last = fs::read_dir(&objects).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    fs::write(last, "another").unwrap();
    assert_eq!(state(&found(&scene), "objects"), "failed");

    fs::write(scene.place.out("bad.toml"), "capcity = \"5GB\"").unwrap();
    let ran = doctor(&scene, &["--config", "bad.toml", "--digest", "none.digest"]);
    assert_eq!(ran.code, Some(2));
    assert_eq!(state(&ran.json(), "configuration"), "failed");
    assert_eq!(state(&ran.json(), "digest"), "failed");
    fs::write(scene.place.out("large.toml"), "capacity = \"900TB\"\ndirectory = \"fresh\"")
        .unwrap();
    let ran = doctor(&scene, &["--config", "large.toml"]);
    assert_ne!(state(&ran.json(), "space"), "ok", "{ran:?}");

    let socket = scene.node_socket();
    fs::set_permissions(socket.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(state(&doctor(&scene, &[]).json(), "socket"), "failed");
    let args = ["doctor", "--format", "json", "--digest", "x.digest", "--deadline", "1s"];
    let ran =
        scene.place.forebay(args).reaching(&scene.origin).env("AWS_SECRET_ACCESS_KEY", "no").run();
    assert_eq!(state(&ran.json(), "origin"), "failed", "{ran:?}");
    assert!(!ran.stdout.contains("\"no\""), "no secrets: {ran:?}");
}

#[test]
fn the_doctor_speaks_to_people() {
    let scene = Scene::of(3, SIZE, |_| {});
    let ran = scene.place.forebay(["doctor"]).run();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(2), ""), "{ran:?}");
    assert!(ran.stdout.contains("failed   node"), "{ran:?}");
    assert!(ran.stdout.contains("start one with `forebay serve`"), "{ran:?}");
}

#[test]
fn top_writes_lines_into_a_pipe() {
    let scene = Scene::of(3, SIZE, |_| {});
    let _node = scene.node(&["--capacity", "64MB"]);
    let socket = scene.node_socket();
    let args = ["top", "--times", "2", "--socket", socket.to_str().unwrap(), "x.digest"];
    let ran = scene.place.forebay(args).succeeds();
    assert_eq!(ran.stdout.lines().count(), 3, "{ran:?}");
    assert!(!ran.stdout.contains('\x1b'), "{ran:?}");
    let running = scene.place.forebay(["top", "--socket", socket.to_str().unwrap()]).start();
    until("it is connected", || scene.status()["connections_open"].as_u64() >= Some(2));
    std::thread::sleep(Duration::from_millis(200));
    running.signal(Signal::INT);
    assert_eq!(running.finish().code, Some(0));
}
