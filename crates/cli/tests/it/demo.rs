//! `forebay demo` and `forebay dev origin`: what a newcomer tries first.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Place, URL};

#[test]
fn the_figures_of_the_demonstration_add_up() {
    let place = Place::new();
    let args = "demo --format json --size 2MiB --latency 1ms --bandwidth 200MB/s";
    for (fail_rate, exact) in [("0", true), ("0.05", false)] {
        let args = args.split(' ').chain(["--fail-rate", fail_rate]);
        let ran = place.forebay(args).env("TMPDIR", place.out("")).run();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.starts_with("made ") && ran.stderr.lines().count() == 1, "{ran:?}");
        let steps: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(steps.len(), 4);
        let figure = |step: usize, name: &str| steps[step][name].as_u64().unwrap();
        let bytes = figure(0, "bytes");
        assert!(bytes >= 2 << 20, "{bytes}");
        for step in 0..3 {
            assert_eq!(figure(step, "bytes"), bytes, "every step reads all of it");
            let origin = figure(step, "origin_bytes");
            assert!(if exact { origin == bytes } else { origin >= bytes }, "{steps:?}");
            assert!(!exact || figure(step, "failures_survived") == 0, "{steps:?}");
            assert!(
                figure(step, "origin_requests") > 0 && steps[step]["seconds"].as_f64() > Some(0.0)
            );
        }
        assert_eq!(steps[2]["result"], "all as it should be");
        assert!(steps[3]["result"].as_str().unwrap().starts_with("noticed: class "), "{steps:?}");
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
        (["--root", "../root", "--bandwidth", "fast"], "a rate ends in /s"),
    ] {
        place.forebay(["dev", "origin"].iter().chain(&args)).refuses(&[saying]);
    }
    assert_eq!(json!(place.outputs()), json!([]));
}
