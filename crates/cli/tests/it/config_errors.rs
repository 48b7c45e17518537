//! Configurations that contradict themselves, nodes that do not understand each other, and what operators are told
//! of that: before anything is opened, once, and with the fix.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, thread, time::Duration};

use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::Signal,
};

use crate::{
    harness::{Forebay, Place, Running, until},
    serving::{Scene, ready},
};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Two nodes of one list, `a` and `b`.
struct Pair(Place);

impl Pair {
    fn new() -> Self {
        let pair = Self(Place::new());
        pair.secret("cluster.token", TOKEN);
        pair
    }

    fn secret(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.out(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.0.path(&format!("run-{name}/node.sock"))
    }

    /// A configuration of both, with something more.
    fn config(&self, file: &str, head: &str) {
        let node = |name: &str| {
            let socket = self.socket(name);
            format!("[[nodes]]\nname = \"{name}\"\nendpoint = \"{}\"\n", socket.display())
        };
        let text = format!("capacity = \"8MiB\"\n{head}\n{}{}", node("a"), node("b"));
        fs::write(self.0.out(file), text).unwrap();
    }

    fn serve(&self, name: &str, file: &str, options: &[&str]) -> Forebay {
        let (socket, directory) = (self.socket(name), self.0.path(&format!("cache-{name}")));
        let args = ["serve", "--config", file, "--name", name];
        let places =
            ["--socket", socket.to_str().unwrap(), "--directory", directory.to_str().unwrap()];
        self.0.forebay(args.iter().chain(&places).chain(options))
    }

    /// It is refused by `--check-config` and by `serve`, before anything is made.
    fn refused(&self, head: &str, saying: &[&str]) {
        self.config("bad.toml", head);
        self.serve("a", "bad.toml", &["--check-config"]).refuses(saying);
        self.serve("a", "bad.toml", &[]).refuses(saying);
        assert!(!self.0.path("cache-a").exists(), "nothing was opened: {head}");
    }
}

/// What can be known before a node starts is known by then.
#[test]
fn every_file_is_read_before_any_device_is_opened() {
    let pair = Pair::new();
    let cluster = "cluster_token = \"cluster.token\"\n";
    pair.config("good.toml", cluster);
    let ran = pair.serve("a", "good.toml", &["--check-config"]).run();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), "the configuration can be used\n"));
    let open = pair.secret("open.token", TOKEN);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    pair.secret("short.token", "short");
    mknodat(CWD, pair.0.out("pipe.token"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for (file, saying) in [
        ("open.token", "chmod 600"),
        ("short.token", "fewer than 32"),
        ("none.token", "No such file"),
        ("pipe.token", "is not a file"),
    ] {
        let head = format!("cluster_token = \"{file}\"");
        pair.refused(&head, &["cluster_token", saying]);
    }
    let head = format!("{cluster}cluster_authority = \"none.pem\"");
    pair.refused(&head, &["cluster_authority", "none.pem"]);
    pair.secret("same.token", TOKEN);
    let tenant = "[[tenants]]\nname = \"t\"\ntokens = [\"same.token\"]\nnamespaces = [\"public\"]";
    pair.refused(&format!("{cluster}{tenant}"), &["`t` has the same token as the cluster"]);
}

#[test]
fn the_doctor_reads_every_file_too() {
    let pair = Pair::new();
    let socket = pair.socket("a");
    for (token, is_well) in [("cluster.token", true), ("none.token", false)] {
        let head = format!("socket = \"{}\"\ncluster_token = \"{token}\"", socket.display());
        pair.config("nodes.toml", &head);
        let args = ["doctor", "--config", "nodes.toml", "--name", "a", "--format", "json"];
        let findings = pair.0.forebay(args).run().json();
        let state = |check: &str| {
            let mut all = findings.as_array().unwrap().iter();
            all.find(|one| one["check"] == check).map(|one| one["state"].clone())
        };
        assert_eq!(state("configuration"), Some("ok".into()), "{findings}");
        assert_eq!(state("secrets"), (!is_well).then(|| "failed".into()), "{findings}");
    }
}

#[test]
fn contradictions_are_named_with_the_fix() {
    let pair = Pair::new();
    pair.config("good.toml", "");
    let elsewhere = pair.0.path("elsewhere.sock");
    let args = ["serve", "--config", "good.toml", "--name", "a", "--check-config"];
    let moved = pair.0.forebay(args.iter().chain(&["--socket", elsewhere.to_str().unwrap()]));
    moved.refuses(&["this node's own endpoint is", "give both the same path"]);
    pair.0.forebay(["serve", "--name", "a"]).refuses(&["`nodes`", "--config"]);
    fs::write(pair.0.out("alone.toml"), "cluster_token = \"cluster.token\"").unwrap();
    pair.0.forebay(["serve", "--config", "alone.toml"]).refuses(&["list them in `nodes`"]);
    assert!(!pair.0.path("home").exists(), "nothing was made");
}

/// All nodes have one file, and each says where it listens.
#[test]
fn flags_count_when_a_file_is_checked() {
    let pair = Pair::new();
    let nodes = "[[nodes]]\nname = \"a\"\nendpoint = \"tls://localhost:7\"\n";
    let text = format!("tls_certificate = \"n.pem\"\ntls_key = \"n.key\"\n{nodes}");
    fs::write(pair.0.out("shared.toml"), text).unwrap();
    let check = |options: &[&str]| {
        let args = ["serve", "--config", "shared.toml", "--name", "a", "--check-config"];
        pair.0.forebay(args.iter().chain(options))
    };
    check(&[]).refuses(&["in the configuration `shared.toml`", "`listen`"]);
    // It gets as far as the certificate.
    check(&["--listen", "127.0.0.1:7"]).refuses(&["cannot read the certificates in `n.pem`"]);
}

/// How often the log says something.
fn said(log: &str, what: &str) -> usize {
    log.lines().filter(|line| line.contains(what)).count()
}

fn stopped(node: Running) -> String {
    node.signal(Signal::TERM);
    node.finish().stderr
}

#[test]
fn a_peer_that_cannot_be_reached_is_told_once_for_each_change() {
    let pair = Pair::new();
    pair.config("nodes.toml", "cluster_token = \"cluster.token\"");
    let a = ready(pair.serve("a", "nodes.toml", &[]).start());
    let socket = pair.socket("a");
    let look = |command: &str| {
        let args = [command, "--format", "json", "--node", socket.to_str().unwrap()];
        pair.0.forebay(args).run().json()
    };
    let peers = || {
        let findings = look("doctor");
        let mut all = findings.as_array().unwrap().iter();
        all.find(|one| one["check"] == "peers").cloned().unwrap()
    };
    thread::sleep(Duration::from_millis(1600));
    let told = peers();
    assert_eq!(told["state"], "failed", "{told}");
    assert!(told["found"].as_str().unwrap().contains("`b` is down"), "{told}");
    let b = ready(pair.serve("b", "nodes.toml", &[]).start());
    until("they reach each other", || look("status")["peers_reachable"] == 1);
    assert_eq!(peers()["state"], "ok");
    drop(stopped(b));
    thread::sleep(Duration::from_millis(1600));
    let log = stopped(a);
    assert_eq!(said(&log, "cannot be reached"), 1, "{log}");
    assert_eq!((said(&log, "peers: reached"), said(&log, "lost")), (1, 1), "{log}");
    assert_eq!(said(&log, "WARN"), 2, "{log}");
}

#[test]
fn another_cluster_token_is_told_once_and_is_no_reach() {
    let pair = Pair::new();
    pair.secret("other.token", &TOKEN.to_uppercase());
    pair.config("nodes.toml", "cluster_token = \"cluster.token\"");
    pair.config("other.toml", "cluster_token = \"other.token\"");
    let b = ready(pair.serve("b", "other.toml", &[]).start());
    let a = ready(pair.serve("a", "nodes.toml", &[]).start());
    thread::sleep(Duration::from_secs(3));
    let (a, b) = (stopped(a), stopped(b));
    assert_eq!(said(&a, "`cluster_token` differs"), 1, "{a}");
    assert_eq!((said(&a, "peer="), said(&a, "peers: reached")), (1, 0), "{a}");
    assert_eq!(said(&b, "peers: reached"), 0, "{b}");
}

#[test]
fn a_device_that_is_gone_is_told() {
    let place = Place::new();
    let socket = place.path("run/node.sock");
    let serve = || {
        let args = ["serve", "--capacity", "32MiB", "--directory", "../cache", "--socket"];
        let devices = ["--device", "one.flash", "--device", "two.flash"];
        let node = place.forebay(args.iter().chain(&[socket.to_str().unwrap()]).chain(&devices));
        stopped(ready(node.start()))
    };
    let log = serve();
    assert_eq!(said(&log, "WARN"), 0, "{log}");
    assert_eq!(said(&serve(), "WARN"), 0);
    fs::remove_file(place.out("two.flash")).unwrap();
    let log = serve();
    assert_eq!(said(&log, "WARN"), 1, "{log}");
    assert!(log.contains("two.flash") && log.contains("is lost; is its disk mounted?"), "{log}");
}

#[test]
fn what_cannot_be_meant_in_the_environment_is_refused() {
    let place = Place::new();
    place.forebay(["status"]).env("FOREBAY_LOG", "loud").refuses(&["FOREBAY_LOG", "debug"]);
}

/// Of several that are named, the first that answers is asked.
#[test]
fn all_commands_take_several_nodes() {
    let scene = Scene::of(5, 3000, |_| {});
    let _node = scene.node(&["--capacity", "64MB"]);
    let nodes = format!("/nowhere/node.sock,{}", scene.node_socket().display());
    let run = |args: &[&str]| {
        let rest = ["--format", "json", "--node", &nodes];
        let args = args.iter().chain(&rest);
        scene.place.forebay(args).reaching(&scene.origin).succeeds().json()
    };
    // The agent's own log says who did not answer.
    let warm = ["warm", "x.digest", "--format", "json", "--node", &nodes];
    let warmed = scene.place.forebay(warm).reaching(&scene.origin).env("FOREBAY_LOG", "error");
    assert_eq!(warmed.succeeds().json()["resident_blobs"], 5);
    assert_eq!(run(&["status"])["puts"], 5);
    let explained = run(&["explain", "x.digest"]);
    assert_eq!((&explained["blobs"], &explained["blobs_here"]), (&5.into(), &5.into()));
    assert_eq!(run(&["evict", "x.digest"])["bytes"], scene.place.data_size());
    let ran = scene.place.forebay(["status", "--node", "/x/a.sock,/x/b.sock"]).run();
    ran.must_refuse(&["start one with `forebay serve`", "/x/a.sock", "/x/b.sock"]);
    assert_eq!(ran.stderr.matches("os error 2").count(), 2, "each cause once: {ran:?}");
}
