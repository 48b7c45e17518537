//! Commands by URL, `forebay list`, `forebay status` and `forebay stop`, with a real node.

use std::fs;

use crate::{
    harness::{RunResult, URL, wait_until},
    node_and_agent::Setup,
};

const OBJECTS: u64 = 30;

/// A setup whose digest is where `forebay.Dataset(URL)` keeps it.
fn setup() -> Setup {
    let setup = Setup::of(usize::try_from(OBJECTS).unwrap(), 3000, |_| {});
    keep(&setup, "a.digest");
    setup
}

fn keep(setup: &Setup, name: &str) {
    let kept = setup.sandbox.path("home/.cache/forebay/digests");
    fs::create_dir_all(&kept).unwrap();
    fs::copy(setup.sandbox.out("x.digest"), kept.join(name)).unwrap();
}

fn run(setup: &Setup, args: &[&str]) -> RunResult {
    let socket = setup.node_socket();
    let socket = ["--socket", socket.to_str().unwrap()];
    setup.sandbox.forebay(args.iter().chain(&socket)).reaching(&setup.origin).run()
}

#[test]
fn commands_take_the_url_of_a_dataset() {
    let setup = setup();
    let _node = setup.node(&["--capacity", "64MB"]);
    let with_slash = format!("{URL}/");
    let (code, warmed) = run(&setup, &["warm", URL, "--format", "json"]).verdict();
    assert_eq!((code, warmed["resident_blobs"].as_u64()), (0, Some(OBJECTS)), "{warmed}");
    let explained = run(&setup, &["explain", &with_slash, "--format", "json"]).json();
    assert_eq!(explained["blobs_here"], OBJECTS, "{explained}");
    let shown = setup.sandbox.forebay(["digest", "show", URL, "--format", "json"]).succeeds();
    assert_eq!(shown.json()["items"], OBJECTS, "{shown:?}");

    let listed = run(&setup, &["list", "--format", "json"]).json();
    assert_eq!(listed[0]["url"], URL, "{listed}");
    assert_eq!(listed[0]["resident_blobs"], OBJECTS, "{listed}");
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    let text = run(&setup, &["list"]).stdout;
    assert!(text.contains(URL) && text.contains("100.0 %"), "{text}");

    let (code, evicted) = run(&setup, &["evict", URL, "--format", "json"]).verdict();
    assert_eq!((code, evicted["bytes"].as_u64()), (0, Some(setup.sandbox.data_size())));
    assert!(run(&setup, &["list"]).stdout.contains("0.0 %"));
}

#[test]
fn urls_without_a_digest_and_with_several_are_refused_with_the_remedy() {
    let setup = setup();
    let show = |url: &str| setup.sandbox.forebay(["digest", "show", url]);
    show("s3://bucket/other").refuses(&[
        "there is no digest of `s3://bucket/other` in",
        "build one with `forebay digest build s3://bucket/other -o x.digest`",
    ]);
    show("s3://key:secret@bucket/x").refuses(&["it contains credentials"]);
    keep(&setup, "b.digest");
    show(URL).refuses(&["has several digests; name one of", "a.digest", "b.digest"]);
}

#[test]
fn the_activity_is_printed_as_json() {
    let setup = setup();
    let _node = setup.node(&["--capacity", "64MB"]);
    let ran = run(&setup, &["top", URL, "--format", "json", "--times", "2"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["resident_bytes"], 0);
    assert!(lines[1]["seconds"].as_f64().unwrap() > 0.5, "{lines:?}");
}

#[test]
fn a_node_says_where_it_is_and_is_stopped() {
    let setup = setup();
    let mut node = setup.node(&["--capacity", "64MB"]);
    let facts = setup.status()["node"].clone();
    assert_eq!(facts["pid"], node.id(), "{facts}");
    assert_eq!(facts["version"], env!("CARGO_PKG_VERSION"));
    let directory = fs::canonicalize(setup.sandbox.path("cache")).unwrap();
    let said = fs::canonicalize(facts["directory"].as_str().unwrap()).unwrap();
    assert_eq!(said, directory);
    let text = run(&setup, &["status"]).stdout;
    let socket = setup.node_socket();
    for line in [
        format!("node      forebay {}, process {}", env!("CARGO_PKG_VERSION"), node.id()),
        format!("socket    {}", socket.display()),
        "memory    at most ".to_owned(),
    ] {
        assert!(text.contains(&line), "{text}");
    }
    assert!(!text.contains("iB"), "sizes are decimal: {text}");

    let stopped = run(&setup, &["stop"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(stopped.stderr.contains("has stopped"), "{stopped:?}");
    wait_until("the node has ended", || !node.is_running());
    run(&setup, &["stop"]).must_refuse(&["no node listens"]);
    let remote = ["stop", "--node", "tcp://127.0.0.1:1"];
    setup.sandbox.forebay(remote).refuses(&["a node of another machine is stopped there"]);
}
