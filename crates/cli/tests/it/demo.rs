//! `forebay demo` and `forebay dev origin`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Sandbox, URL, wait_until};

/// Jobs that share a cache of 20 % of their dataset read less from the origin than separate jobs.
/// The demo itself fails unless each job reads every item once per epoch.
#[test]
fn the_figures_of_the_demo_add_up() {
    let sandbox = Sandbox::new();
    let args = "demo --format json --size 48MiB --jobs 3 --latency 1ms --bandwidth 400MB/s";
    let args = format!("{args} --compute 1ms,1ms,1ms --fail-rate 0 --plot drawn.svg");
    let scratch = sandbox.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let ran = sandbox.forebay(args.split(' ')).env("TMPDIR", &scratch).run();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report = ran.json();
    let figure = |of: &Value, name: &str| of[name].as_u64().unwrap();
    let (bytes, items) = (figure(&report, "dataset_bytes"), figure(&report, "dataset_items"));
    let [direct, cached] = [0, 1].map(|phase| &report["phases"][phase]);
    for phase in [direct, cached] {
        let jobs = phase["jobs"].as_array().unwrap();
        assert_eq!(jobs.len(), 3);
        assert!(jobs.iter().all(|job| figure(job, "items") == 2 * items), "{phase}");
    }
    assert_eq!(figure(direct, "origin_bytes"), 6 * bytes);
    assert!(figure(cached, "origin_bytes") < 5 * bytes, "{cached}");
    assert!(report["total"]["hit_share"].as_f64() > Some(0.2), "{report}");
    let peak = figure(&report["cache"], "resident_bytes_max");
    assert!(peak <= figure(&report["cache"], "capacity_bytes") && peak < bytes * 2 / 5);
    assert!(std::fs::read_to_string(sandbox.out("drawn.svg")).unwrap().ends_with("</svg>\n"));
    let left: Vec<_> = std::fs::read_dir(&scratch).unwrap().collect();
    assert!(left.is_empty(), "the directory is removed: {left:?}");
}

/// The demo itself fails unless all ways find the same centres.
#[test]
fn every_way_of_the_demo_of_streams_reads_all_points_in_every_pass() {
    let sandbox = Sandbox::new();
    let scratch = sandbox.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let args = "demo streams --memory 64MiB --passes 2 --format json --plot drawn.svg";
    let ran = sandbox.forebay(args.split(' ')).env("TMPDIR", &scratch).run();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report = ran.json();
    let bytes = report["data_bytes"].as_u64().unwrap();
    // All but a part of the last block.
    assert!(bytes <= 256 << 20 && bytes > 250 << 20, "four times the memory: {bytes}");
    let ways = report["ways"].as_array().unwrap();
    let names: Vec<_> = ways.iter().map(|way| way["way"].as_str().unwrap()).collect();
    assert_eq!(names, ["buffered", "mmap", "stream"]);
    for way in ways {
        let passes = way["passes"].as_array().unwrap();
        assert_eq!(passes.len(), 2);
        assert!(passes.iter().all(|pass| pass["bytes"] == bytes), "{way}");
        let distance = |pass: usize| passes[pass]["distance"].as_f64().unwrap();
        assert!(distance(1) < distance(0), "the centres move: {way}");
    }
    assert!(std::fs::read_to_string(sandbox.out("drawn.svg")).unwrap().ends_with("</svg>\n"));
    assert!(std::fs::read_dir(&scratch).unwrap().next().is_none(), "the directory is removed");
    sandbox.forebay(["demo", "streams", "--memory", "8MiB"]).refuses(&["64 MiB or more"]);
}

/// The directory of a running demo stays.
#[test]
fn the_next_demo_removes_the_directory_of_a_killed_one() {
    let sandbox = Sandbox::new();
    let scratch = sandbox.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let demo = |args: &str| sandbox.forebay(args.split(' ')).env("TMPDIR", &scratch);
    let left = || std::fs::read_dir(&scratch).unwrap().map(|entry| entry.unwrap().path());
    let running = demo("demo --size 8MiB --latency 10s --fail-rate 0").start();
    wait_until("the demo has its directory", || left().any(|dir| dir.join("lock").exists()));
    demo("demo --size 0B").refuses(&["try --size"]);
    assert_eq!(left().count(), 1, "it is in use");
    running.signal(Signal::KILL);
    running.finish();
    assert_eq!(left().count(), 1, "the killed demo has left it");
    demo("demo --size 0B").refuses(&["try --size"]);
    assert_eq!(left().count(), 0);
}

#[test]
fn invalid_options_of_the_demo_are_rejected() {
    let sandbox = Sandbox::new();
    for (args, expected) in [
        (&["--size", "0B"][..], "try --size"),
        (&["--size", "2"], "the unit is missing"),
        (&["--fail-rate", "2"], "from 0 to 1"),
        (&["--fail-rate", "NaN"], "from 0 to 1"),
        (&["--bandwidth", "0MB/s"], "the rate is zero"),
        (&["--latency", "soon"], "is not a time"),
        (&["--jobs", "0"], "--jobs"),
        (&["--size", "20MB"], "or more, or --cache 40%"),
    ] {
        let size: &[_] = if args[0] == "--size" { &[] } else { &["--size", "10kB"] };
        let command = ["demo"].iter().chain(size);
        let ran = sandbox.forebay(command.chain(args)).env("TMPDIR", sandbox.out("")).run();
        assert_eq!(ran.code, Some(2), "{ran:?}");
        let last = ran.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains(expected), "{ran:?}");
        assert!(sandbox.outputs().is_empty());
    }
}

#[test]
fn a_dev_origin_prints_its_endpoint_and_stops_on_a_signal() {
    let sandbox = Sandbox::with_objects(3, 100);
    for signal in [Signal::INT, Signal::TERM] {
        let mut origin = sandbox.forebay(["dev", "origin", "--root", "../root"]).start();
        let mut stdout = BufReader::new(origin.child().stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let endpoint = ready["endpoint"].as_str().unwrap();
        let args = ["digest", "build", URL, "-o", "x.digest", "--format", "json"];
        let report = sandbox
            .forebay(args)
            .env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_ACCESS_KEY_ID", ready["access_key"].as_str().unwrap())
            .env("AWS_SECRET_ACCESS_KEY", ready["secret_key"].as_str().unwrap())
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
fn invalid_options_of_a_dev_origin_are_rejected() {
    let sandbox = Sandbox::new();
    for (args, expected) in [
        (["--root", "none", "--listen", "127.0.0.1:0"], "none"),
        (["--root", "../root", "--listen", "0.0.0.0:0"], "credentials are public"),
        (["--root", "../root", "--listen", "here"], "here"),
        (["--root", "../root", "--fail-rate", "1.5"], "from 0 to 1"),
        (["--root", "../root", "--bandwidth", "fast"], "it does not end in /s"),
    ] {
        sandbox.forebay(["dev", "origin"].iter().chain(&args)).refuses(&[expected]);
    }
    assert_eq!(json!(sandbox.outputs()), json!([]));
}
