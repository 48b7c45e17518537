//! `digest build --node`: what a build reads is in the cache afterwards.

use std::time::{Duration, Instant};

use forebay_core::ItemOrdinal;
use rustix::process::Signal;

use crate::{
    harness::{Sandbox, content, slow, wait_until},
    node_and_agent::{Setup, ready},
};

const OBJECTS: usize = 60;
const SIZE: usize = 3000;

fn gets(setup: &Setup) -> u64 {
    setup.origin.counters().objects.values().map(|object| object.gets).sum()
}

fn fill(setup: &Setup, options: &[&str]) -> serde_json::Value {
    let socket = setup.node_socket();
    let options = [&["--node", socket.to_str().unwrap()], options].concat();
    setup.sandbox.build_from(&setup.origin, "x.digest", &options).succeeds().json()
}

/// Promise 3 on first use: the build and a job's first epoch read each object once together.
#[test]
fn the_first_epoch_reads_nothing_that_the_build_has_read() {
    for layout in ["files", "pack"] {
        let setup = Setup::of(OBJECTS, SIZE, |_| {});
        let _node = setup.node(&["--capacity", "64MB"]);
        let report = fill(&setup, &["--layout", layout, "--restart"]);
        assert_eq!(report["blobs_cached"], report["blobs"], "{report}");
        assert_eq!(report["bytes_cached"], setup.sandbox.data_size());
        assert_eq!(gets(&setup), OBJECTS as u64);
        let digest = forebay_digest::open(&setup.sandbox.out("x.digest")).unwrap().digest.clone();
        let (_agent, agent) = setup.agent("job", true);
        let node = Some(setup.node_socket().into());
        let mut reader = forebay_client::Reader::new(digest, node, &agent, "job");
        for item in 0..OBJECTS as u64 {
            let bytes = reader.get(&[ItemOrdinal::new(item)]).unwrap();
            let at = usize::try_from(item).unwrap();
            assert!(bytes[0] == content(item, SIZE + at % 7), "item {item}");
        }
        assert_eq!(gets(&setup), OBJECTS as u64, "{layout}: an object was read twice");
        assert_eq!(setup.status()["claims_held"], 0);
    }
}

/// A node that is too small keeps what it has, and the build goes on.
#[test]
fn a_small_node_evicts_nothing_for_a_build() {
    let setup = Setup::of(200, 100_000, |_| {});
    let _node = setup.node(&["--capacity", "12MiB"]);
    let report = fill(&setup, &[]);
    let cached = report["blobs_cached"].as_u64().unwrap();
    assert!((1..200).contains(&cached), "{report}");
    assert_eq!(report["blobs"], 200);
    let status = setup.status();
    assert_eq!((&status["flash_regions_evicted"], &status["claims_held"]), (&0.into(), &0.into()));
}

/// Ctrl-C does not wait for reads in flight, each of which takes a minute here.
#[test]
fn an_interrupted_build_ends_at_once() {
    let sandbox = Sandbox::with_objects(4, 1_500_000);
    let origin = sandbox.serve(|config| slow(config, 100_000));
    let socket = sandbox.path("run/node.sock");
    let args = ["serve", "--socket", socket.to_str().unwrap(), "--directory", "../cache"];
    let _node = ready(sandbox.forebay(args.iter().chain(&["--capacity", "64MB"])).start());
    let options = ["--node", socket.to_str().unwrap()];
    let build = sandbox.build_from(&origin, "x.digest", &options).start();
    wait_until("an object is requested", || !origin.counters().objects.is_empty());
    let began = Instant::now();
    build.signal(Signal::INT);
    let ran = build.finish();
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// A node that is not there is no error.
#[test]
fn a_build_without_its_node_succeeds() {
    let setup = Setup::of(OBJECTS, SIZE, |_| {});
    let report = fill(&setup, &[]);
    assert_eq!((&report["blobs_cached"], &report["blobs"]), (&0.into(), &OBJECTS.into()));
}
