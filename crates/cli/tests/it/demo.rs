//! `forebay demo` and `forebay dev origin`: what a newcomer tries first.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Place, URL, until};

/// Jobs that share a cache of a fifth of their dataset cost the origin less than each by itself; each is given every
/// item once an epoch, or the demonstration fails.
#[test]
fn the_figures_of_the_demonstration_add_up() {
    let place = Place::new();
    let args = "demo --format json --size 48MiB --jobs 3 --latency 1ms --bandwidth 400MB/s";
    let args = format!("{args} --compute 1ms,1ms,1ms --fail-rate 0 --plot drawn.svg");
    let scratch = place.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let ran = place.forebay(args.split(' ')).env("TMPDIR", &scratch).run();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report = ran.json();
    let figure = |of: &Value, name: &str| of[name].as_u64().unwrap();
    let (bytes, items) = (figure(&report, "dataset_bytes"), figure(&report, "dataset_items"));
    let [straight, through] = [0, 1].map(|phase| &report["phases"][phase]);
    for phase in [straight, through] {
        let jobs = phase["jobs"].as_array().unwrap();
        assert_eq!(jobs.len(), 3);
        assert!(jobs.iter().all(|job| figure(job, "items") == 2 * items), "{phase}");
    }
    assert_eq!(figure(straight, "origin_bytes"), 6 * bytes);
    assert!(figure(through, "origin_bytes") < 5 * bytes, "{through}");
    assert!(report["total"]["hit_share"].as_f64() > Some(0.2), "{report}");
    let most = figure(&report["cache"], "resident_bytes_max");
    assert!(most <= figure(&report["cache"], "capacity_bytes") && most < bytes * 2 / 5);
    assert!(std::fs::read_to_string(place.out("drawn.svg")).unwrap().ends_with("</svg>\n"));
    let left: Vec<_> = std::fs::read_dir(&scratch).unwrap().collect();
    assert!(left.is_empty(), "it cleans up: {left:?}");
}

/// Also of one that could not clean up; but not of one that lives.
#[test]
fn what_a_killed_demonstration_left_the_next_removes() {
    let place = Place::new();
    let scratch = place.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let demo = |args: &str| place.forebay(args.split(' ')).env("TMPDIR", &scratch);
    let left = || std::fs::read_dir(&scratch).unwrap().map(|entry| entry.unwrap().path());
    let running = demo("demo --size 8MiB --latency 10s --fail-rate 0").start();
    until("it has made room", || left().any(|room| room.join("lock").exists()));
    demo("demo --size 0B").refuses(&["try --size"]);
    assert_eq!(left().count(), 1, "it is in use");
    running.signal(Signal::KILL);
    running.finish();
    assert_eq!(left().count(), 1, "nobody was left to remove it");
    demo("demo --size 0B").refuses(&["try --size"]);
    assert_eq!(left().count(), 0);
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
        (&["--size", "20MB"], "or more, or --cache 40%"),
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
