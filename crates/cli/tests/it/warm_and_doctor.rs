//! `forebay warm`, `forebay doctor` and `forebay top`, with real nodes and origins.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    harness::{Forebay, RunResult, slow, wait_until},
    node_and_agent::Setup,
};

const OBJECTS: usize = 40;
const SIZE: usize = 3000;

fn warm(setup: &Setup, options: &[&str]) -> Forebay {
    let socket = setup.node_socket();
    let args = ["warm", "x.digest", "--format", "json", "--socket", socket.to_str().unwrap()];
    setup.sandbox.forebay(args.iter().chain(options)).reaching(&setup.origin)
}

fn fetches(setup: &Setup) -> u64 {
    setup.origin.counters().objects.values().map(|object| object.gets).sum()
}

/// Promise 3: each blob is fetched once; resident blobs are skipped.
#[test]
fn a_dataset_is_warmed_once() {
    let setup = Setup::of(OBJECTS, SIZE, |_| {});
    let _node = setup.node(&["--capacity", "64MB"]);
    let (code, first) = warm(&setup, &["--chunks", "3"]).run().verdict();
    assert_eq!((code, first["is_complete"].as_bool()), (0, Some(true)), "{first}");
    let some = first["fetched_blobs"].as_u64().unwrap();
    assert!(some >= 6 && some < OBJECTS as u64 / 2, "three chunks of ten: {first}");
    let (code, rest) = warm(&setup, &[]).run().verdict();
    assert_eq!((code, rest["fetched_blobs"].as_u64()), (0, Some(OBJECTS as u64 - some)), "{rest}");
    assert_eq!(rest["resident_bytes"], setup.sandbox.data_size());
    let (code, again) = warm(&setup, &[]).run().verdict();
    assert_eq!((code, again["fetched_blobs"].as_u64()), (0, Some(0)), "{again}");
    assert_eq!(fetches(&setup), OBJECTS as u64);
    assert_eq!(setup.status()["claims_held"], 0);
}

#[test]
fn an_interrupted_warming_resumes() {
    let setup = Setup::of(OBJECTS, SIZE, |config| slow(config, 20_000));
    let _node = setup.node(&["--capacity", "64MB"]);
    let running = warm(&setup, &["--parallel", "4"]).start();
    wait_until("some blobs are resident", || setup.status()["puts"].as_u64() >= Some(5));
    running.signal(Signal::INT);
    let ran = running.finish();
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.stderr.contains("continues from there"), "{ran:?}");
    let before = setup.status()["puts"].as_u64().unwrap();
    assert!(before < OBJECTS as u64, "the warming was not complete");
    let (code, rest) = warm(&setup, &[]).run().verdict();
    assert_eq!((code, rest["fetched_blobs"].as_u64()), (0, Some(OBJECTS as u64 - before)));
    assert_eq!(fetches(&setup), OBJECTS as u64, "fetches in progress were completed");
}

/// Nothing is evicted, at any number of parallel fetches, and the capacity is used up.
#[test]
fn a_full_node_evicts_nothing() {
    let setup = Setup::of(200, 100_000, |_| {});
    for parallel in ["1", "4", "32", "128"] {
        let node = setup.node(&["--capacity", "12MiB"]);
        let ran = warm(&setup, &["--parallel", parallel]).run();
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("what does not fit is not fetched"), "{ran:?}");
        let report = ran.json();
        assert_eq!(report["incomplete_nodes"][0]["state"], "full", "{report}");
        assert_eq!(
            report["fetched_bytes"], report["resident_bytes"],
            "nothing was evicted: {report}"
        );
        let missing = report["incomplete_nodes"][0]["blobs"].as_u64().unwrap();
        assert_eq!(report["resident_blobs"].as_u64().unwrap() + missing, 200, "{report}");
        // A region holds ten blobs.
        let resident = report["resident_blobs"].as_u64().unwrap();
        assert!(resident >= 90, "{parallel} in parallel: {report}");
        assert_eq!(setup.status()["flash_regions_evicted"], 0);
        drop(node);
        fs::remove_dir_all(setup.sandbox.path("cache")).unwrap();
    }
}

#[test]
fn a_dataset_that_fits_is_loaded_completely() {
    let setup = Setup::of(45, 4_000_000, |_| {});
    let _node = setup.node(&["--capacity", "200MB"]);
    let (code, report) = warm(&setup, &[]).run().verdict();
    assert_eq!((code, report["resident_blobs"].as_u64()), (0, Some(45)), "{report}");
    assert_eq!(setup.status()["flash_regions_evicted"], 0);
}

#[test]
fn warming_without_a_node_or_an_origin_fails() {
    let setup = Setup::of(5, SIZE, |_| {});
    warm(&setup, &[]).refuses(&["forebay serve"]);
    let _node = setup.node(&["--capacity", "64MB"]);
    warm(&setup, &["--chunks", "99"]).refuses(&["--chunks 99", "chunk"]);
    let wrong = warm(&setup, &["--deadline", "1s"]).env("AWS_SECRET_ACCESS_KEY", "wrong");
    wrong.refuses(&["denied"]);
}

/// The state of one check.
fn state<'a>(findings: &'a Value, check: &str) -> &'a str {
    let all = findings.as_array().unwrap();
    let finding = all.iter().find(|finding| finding["check"] == check);
    finding.unwrap_or_else(|| panic!("{check}: {findings}"))["state"].as_str().unwrap()
}

fn doctor(setup: &Setup, options: &[&str]) -> RunResult {
    let socket = setup.node_socket();
    let args = ["doctor", "--format", "json", "--socket", socket.to_str().unwrap()];
    setup.sandbox.forebay(args.iter().chain(options)).reaching(&setup.origin).run()
}

#[test]
fn the_doctor_finds_problems() {
    let setup = Setup::of(5, SIZE, |_| {});
    let ran = doctor(&setup, &[]);
    assert_eq!((ran.code, state(&ran.json(), "node")), (Some(2), "failed"), "{ran:?}");
    let findings = ran.json();
    for finding in findings.as_array().unwrap() {
        assert_eq!(
            finding["state"] == "ok",
            finding["remedy"].is_null(),
            "every problem has a remedy: {finding}"
        );
    }
    let _node = setup.node(&["--capacity", "64MB"]);
    let ran = doctor(&setup, &["--digest", "x.digest"]);
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
        "agent memory",
        "space",
    ] {
        assert_eq!(state(&findings, check), "ok", "{check}: {findings}");
    }
    for check in ["io_uring", "direct I/O", "memory", "open files"] {
        assert_ne!(state(&findings, check), "", "the check runs");
    }

    let objects = setup.sandbox.data();
    fs::write(objects.join("added"), "new").unwrap();
    let found = |setup: &Setup| doctor(setup, &["--digest", "x.digest"]).json();
    assert_eq!(state(&found(&setup), "objects"), "warning", "other objects are readable");
    fs::remove_file(objects.join("added")).unwrap();
    let last = fs::read_dir(&objects).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    fs::write(last, "another").unwrap();
    assert_eq!(state(&found(&setup), "objects"), "failed");

    fs::write(setup.sandbox.out("bad.toml"), "capcity = \"5GB\"").unwrap();
    let ran = doctor(&setup, &["--config", "bad.toml", "--digest", "none.digest"]);
    assert_eq!(ran.code, Some(2));
    assert_eq!(state(&ran.json(), "configuration"), "failed");
    assert_eq!(state(&ran.json(), "digest"), "failed");
    fs::write(setup.sandbox.out("large.toml"), "capacity = \"900TB\"\ndirectory = \"fresh\"")
        .unwrap();
    let ran = doctor(&setup, &["--config", "large.toml"]);
    assert_ne!(state(&ran.json(), "space"), "ok", "{ran:?}");

    let args = ["doctor", "--format", "json"];
    let ran = setup.sandbox.forebay(args).env("FOREBAY_AGENT_MEMORY", "lots").run();
    assert_eq!(state(&ran.json(), "agent memory"), "failed", "{ran:?}");

    let socket = setup.node_socket();
    fs::set_permissions(socket.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(state(&doctor(&setup, &[]).json(), "socket"), "failed");
    let args = ["doctor", "--format", "json", "--digest", "x.digest", "--deadline", "1s"];
    let ran = setup
        .sandbox
        .forebay(args)
        .reaching(&setup.origin)
        .env("AWS_SECRET_ACCESS_KEY", "no")
        .run();
    assert_eq!(state(&ran.json(), "origin"), "failed", "{ran:?}");
    assert!(!ran.stdout.contains("\"no\""), "no secret is printed: {ran:?}");
}

#[test]
fn the_doctor_prints_text() {
    let setup = Setup::of(3, SIZE, |_| {});
    let ran = setup.sandbox.forebay(["doctor"]).run();
    assert_eq!(ran.stderr, "", "{ran:?}");
    assert!(matches!(ran.code, Some(1 | 2)), "{ran:?}");
    assert!(ran.stdout.contains("warning  node             no node runs"), "{ran:?}");
    assert!(ran.stdout.contains("or start one with `forebay serve`"), "{ran:?}");
}

#[test]
fn top_writes_lines_into_a_pipe() {
    let setup = Setup::of(3, SIZE, |_| {});
    let _node = setup.node(&["--capacity", "64MB"]);
    let socket = setup.node_socket();
    let socket_arg = socket.to_str().unwrap();
    let args = ["top", "--every", "1s", "--times", "2", "--socket", socket_arg, "x.digest"];
    let ran = setup.sandbox.forebay(args).succeeds();
    assert_eq!(ran.stdout.lines().count(), 3, "{ran:?}");
    assert!(!ran.stdout.contains('\x1b'), "{ran:?}");
    let running = setup.sandbox.forebay(["top", "--socket", socket.to_str().unwrap()]).start();
    wait_until("top is connected", || setup.status()["connections_open"].as_u64() >= Some(2));
    std::thread::sleep(Duration::from_millis(200));
    running.signal(Signal::INT);
    assert_eq!(running.finish().code, Some(0));
}
