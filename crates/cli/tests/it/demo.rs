//! `forebay demo` and `forebay dev origin`: what a newcomer tries first.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Place, URL};

/// Promise 3: one fetch. Two jobs in different orders cost the origin one dataset between them.
#[test]
fn the_figures_of_the_demonstration_add_up() {
    let place = Place::new();
    let args = "demo --format json --size 2MiB --latency 1ms --bandwidth 200MB/s";
    for (fail_rate, exact) in [("0", true), ("0.05", false)] {
        let args = args.split(' ').chain(["--fail-rate", fail_rate]);
        let ran = place.forebay(args).env("TMPDIR", place.out("")).run();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.starts_with("made ") && ran.stderr.lines().count() == 2, "{ran:?}");
        let report = ran.json();
        let bytes = report["dataset_bytes"].as_u64().unwrap();
        assert!(bytes >= 2 << 20, "{bytes}");
        for (phase, datasets) in [(0, 4), (1, 1)] {
            let phase = &report["phases"][phase];
            let figure = |name: &str| phase[name].as_u64().unwrap();
            assert_eq!(figure("items"), report["dataset_items"].as_u64().unwrap() * 4);
            let origin = figure("origin_bytes");
            let expected = bytes * datasets;
            assert!(if exact { origin == expected } else { origin >= expected }, "{report}");
            assert!(!exact || figure("failures_survived") == 0, "{report}");
            assert_eq!(phase["job_seconds"].as_array().unwrap().len(), 2);
            assert!(phase["seconds"].as_f64() > Some(0.0));
        }
        let hits = |phase: usize| report["phases"][phase]["hit_share"].as_f64().unwrap();
        assert!(hits(0) == 0.0 && hits(1) >= 0.5, "the second epoch hits: {report}");
        assert!(place.outputs().is_empty(), "it cleans up: {:?}", place.outputs());
    }
}

#[test]
fn impossible_demonstrations_are_refused() {
    let place = Place::new();
    for (args, saying) in [
        (&["--size", "0B"][..], "try --size"),
        (&["--size", "2"], "the unit is missing"),
        (&["--fail-rate", "2"], "between 0 and 1"),
        (&["--fail-rate", "NaN"], "between 0 and 1"),
        (&["--bandwidth", "0MB/s"], "would never finish"),
        (&["--latency", "soon"], "is not a time"),
        (&["--jobs", "0"], "--jobs"),
    ] {
        let size: &[_] = if args[0] == "--size" { &[] } else { &["--size", "10kB"] };
        let command = ["demo"].iter().chain(size);
        let ran = place.forebay(command.chain(args)).env("TMPDIR", place.out("")).run();
        assert_eq!(ran.code, Some(2), "{ran:?}");
        let last = ran.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains(saying), "{ran:?}");
        assert!(place.outputs().is_empty());
    }
}

#[test]
fn a_dev_origin_tells_where_it_is_and_stops_when_asked() {
    let place = Place::with_objects(3, 100);
    for signal in [Signal::INT, Signal::TERM] {
        let mut origin = place.forebay(["dev", "origin", "--root", "../root"]).start();
        let mut stdout = BufReader::new(origin.child().stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap();
        let endpoint = told["endpoint"].as_str().unwrap();
        let args = ["digest", "build", URL, "-o", "x.digest", "--format", "json"];
        let report = place
            .forebay(args)
            .env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_ACCESS_KEY_ID", told["access_key"].as_str().unwrap())
            .env("AWS_SECRET_ACCESS_KEY", told["secret_key"].as_str().unwrap())
            .succeeds()
            .json();
        let address = endpoint.strip_prefix("http://").unwrap();
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream
            .write_all(b"GET /-/counters HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let counters: Value =
            serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(counters["bytes_sent"], report["bytes"]);
        origin.signal(signal);
        let ran = origin.finish();
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    }
}

#[test]
fn a_dev_origin_that_cannot_be_is_refused() {
    let place = Place::new();
    for (args, saying) in [
        (["--root", "none", "--listen", "127.0.0.1:0"], "none"),
        (["--root", "../root", "--listen", "0.0.0.0:0"], "credentials are public"),
        (["--root", "../root", "--listen", "here"], "here"),
        (["--root", "../root", "--fail-rate", "1.5"], "between 0 and 1"),
        (["--root", "../root", "--bandwidth", "fast"], "it does not end in /s"),
    ] {
        place.forebay(["dev", "origin"].iter().chain(&args)).refuses(&[saying]);
    }
    assert_eq!(json!(place.outputs()), json!([]));
}
