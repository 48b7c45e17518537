//! Configuration errors: contradictions within a file and between nodes. Errors come before any
//! device is opened, and log lines once per change, with the remedy.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, thread, time::Duration};

use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::Signal,
};

use crate::{
    harness::{Forebay, Running, Sandbox, wait_until},
    node_and_agent::{Setup, ready},
};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Two nodes of one list, `a` and `b`.
struct Pair(Sandbox);

impl Pair {
    fn new() -> Self {
        let pair = Self(Sandbox::new());
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

    /// Writes a configuration of both nodes, after `head`.
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
        let paths =
            ["--socket", socket.to_str().unwrap(), "--directory", directory.to_str().unwrap()];
        self.0.forebay(args.iter().chain(&paths).chain(options))
    }

    /// Both `--check-config` and `serve` reject the configuration before any file is made.
    fn rejects(&self, head: &str, expected: &[&str]) {
        self.config("bad.toml", head);
        self.serve("a", "bad.toml", &["--check-config"]).refuses(expected);
        self.serve("a", "bad.toml", &[]).refuses(expected);
        assert!(!self.0.path("cache-a").exists(), "no device was opened: {head}");
    }
}

#[test]
fn every_file_is_read_before_any_device_is_opened() {
    let pair = Pair::new();
    let cluster = "cluster_token = \"cluster.token\"\n";
    pair.config("good.toml", cluster);
    let ran = pair.serve("a", "good.toml", &["--check-config"]).run();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), "the configuration is valid\n"));
    let open = pair.secret("open.token", TOKEN);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    pair.secret("short.token", "short");
    mknodat(CWD, pair.0.out("pipe.token"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for (file, expected) in [
        ("open.token", "chmod 600"),
        ("short.token", "fewer than 32"),
        ("none.token", "No such file"),
        ("pipe.token", "is not a file"),
    ] {
        let head = format!("cluster_token = \"{file}\"");
        pair.rejects(&head, &["cluster_token", expected]);
    }
    let head = format!("{cluster}cluster_ca = \"none.pem\"");
    pair.rejects(&head, &["cluster_ca", "none.pem"]);
    pair.secret("same.token", TOKEN);
    let tenant = "[[tenants]]\nname = \"t\"\ntokens = [\"same.token\"]\nnamespaces = [\"public\"]";
    pair.rejects(&format!("{cluster}{tenant}"), &["`t` has the same token as the cluster"]);
}

/// A pipe without a writer would hold the command for ever.
#[test]
fn a_pipe_as_a_configuration_or_a_device_is_refused_at_once() {
    let pair = Pair::new();
    let pipe = pair.0.out("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    pair.0.forebay(["serve", "--config", "pipe"]).refuses(&["pipe", "is not a file"]);
    let doctor = pair.0.forebay(["doctor", "--config", "pipe"]).run();
    assert!(doctor.stdout.contains("is not a file"), "{}", doctor.stdout);
    pair.config("device.toml", &format!("devices = [{pipe:?}]"));
    pair.serve("a", "device.toml", &[]).refuses(&["pipe", "neither a file nor a block device"]);
    let doctor = pair.0.forebay(["doctor", "--config", "device.toml", "--name", "a"]).run();
    assert!(doctor.stdout.contains("neither a file nor a block device"), "{}", doctor.stdout);
}

#[test]
fn the_doctor_reads_every_file() {
    let pair = Pair::new();
    let socket = pair.socket("a");
    for (token, is_valid) in [("cluster.token", true), ("none.token", false)] {
        let head = format!("socket = \"{}\"\ncluster_token = \"{token}\"", socket.display());
        pair.config("nodes.toml", &head);
        let args = ["doctor", "--config", "nodes.toml", "--name", "a", "--format", "json"];
        let findings = pair.0.forebay(args).run().json();
        let state = |check: &str| {
            let mut all = findings.as_array().unwrap().iter();
            all.find(|one| one["check"] == check).map(|one| one["state"].clone())
        };
        assert_eq!(state("configuration"), Some("ok".into()), "{findings}");
        assert_eq!(state("secrets"), (!is_valid).then(|| "failed".into()), "{findings}");
    }
}

#[test]
fn contradictions_are_named_with_the_remedy() {
    let pair = Pair::new();
    pair.config("good.toml", "");
    let other = pair.0.path("elsewhere.sock");
    let args = ["serve", "--config", "good.toml", "--name", "a", "--check-config"];
    let moved = pair.0.forebay(args.iter().chain(&["--socket", other.to_str().unwrap()]));
    moved.refuses(&["this node's own endpoint is", "give both the same path"]);
    pair.0.forebay(["serve", "--name", "a"]).refuses(&["`nodes`", "--config"]);
    fs::write(pair.0.out("alone.toml"), "cluster_token = \"cluster.token\"").unwrap();
    pair.0.forebay(["serve", "--config", "alone.toml"]).refuses(&["list them in `nodes`"]);
    assert!(!pair.0.path("home").exists(), "no file was made");
}

/// All nodes share one file, and each has its own address as an option.
#[test]
fn options_apply_when_a_file_is_checked() {
    let pair = Pair::new();
    let nodes = "[[nodes]]\nname = \"a\"\nendpoint = \"tls://localhost:7\"\n";
    let text = format!("tls_certificate = \"n.pem\"\ntls_key = \"n.key\"\n{nodes}");
    fs::write(pair.0.out("shared.toml"), text).unwrap();
    let check = |options: &[&str]| {
        let args = ["serve", "--config", "shared.toml", "--name", "a", "--check-config"];
        pair.0.forebay(args.iter().chain(options))
    };
    check(&[]).refuses(&["in the configuration `shared.toml`", "`listen`"]);
    // The next error is the missing certificate.
    check(&["--listen", "127.0.0.1:7"]).refuses(&["cannot read the certificates in `n.pem`"]);
}

/// Number of log lines with a text.
fn count_lines(log: &str, what: &str) -> usize {
    log.lines().filter(|line| line.contains(what)).count()
}

/// Stops a node and returns its log.
fn stop(node: Running) -> String {
    node.signal(Signal::TERM);
    node.finish().stderr
}

#[test]
fn an_unreachable_peer_is_logged_once_per_change() {
    let pair = Pair::new();
    pair.config("nodes.toml", "cluster_token = \"cluster.token\"");
    let a = ready(pair.serve("a", "nodes.toml", &[]).start());
    let socket = pair.socket("a");
    let query = |command: &str| {
        let args = [command, "--format", "json", "--node", socket.to_str().unwrap()];
        pair.0.forebay(args).run().json()
    };
    let peers = || {
        let findings = query("doctor");
        let mut all = findings.as_array().unwrap().iter();
        all.find(|one| one["check"] == "peers").cloned().unwrap()
    };
    thread::sleep(Duration::from_millis(1600));
    let finding = peers();
    assert_eq!(finding["state"], "failed", "{finding}");
    assert!(finding["found"].as_str().unwrap().contains("`b` is down"), "{finding}");
    let b = ready(pair.serve("b", "nodes.toml", &[]).start());
    wait_until("they reach each other", || query("status")["peers_reachable"] == 1);
    assert_eq!(peers()["state"], "ok");
    drop(stop(b));
    thread::sleep(Duration::from_millis(1600));
    let log = stop(a);
    assert_eq!(count_lines(&log, "cannot be reached"), 1, "{log}");
    assert_eq!((count_lines(&log, "peers: reached"), count_lines(&log, "lost")), (1, 1), "{log}");
    assert_eq!(count_lines(&log, "WARN"), 2, "{log}");
}

#[test]
fn another_cluster_token_is_logged_once_and_the_peer_is_unreachable() {
    let pair = Pair::new();
    pair.secret("other.token", &TOKEN.to_uppercase());
    pair.config("nodes.toml", "cluster_token = \"cluster.token\"");
    pair.config("other.toml", "cluster_token = \"other.token\"");
    let b = ready(pair.serve("b", "other.toml", &[]).start());
    let a = ready(pair.serve("a", "nodes.toml", &[]).start());
    thread::sleep(Duration::from_secs(3));
    let (a, b) = (stop(a), stop(b));
    assert_eq!(count_lines(&a, "`cluster_token` differs"), 1, "{a}");
    assert_eq!((count_lines(&a, "peer="), count_lines(&a, "peers: reached")), (1, 0), "{a}");
    assert_eq!(count_lines(&b, "peers: reached"), 0, "{b}");
}

#[test]
fn a_missing_device_is_logged() {
    let sandbox = Sandbox::new();
    let socket = sandbox.path("run/node.sock");
    let serve = || {
        let args = ["serve", "--capacity", "32MiB", "--directory", "../cache", "--socket"];
        let devices = ["--device", "one.flash", "--device", "two.flash"];
        let node = sandbox.forebay(args.iter().chain(&[socket.to_str().unwrap()]).chain(&devices));
        stop(ready(node.start()))
    };
    let log = serve();
    assert_eq!(count_lines(&log, "WARN"), 0, "{log}");
    assert_eq!(count_lines(&serve(), "WARN"), 0);
    fs::remove_file(sandbox.out("two.flash")).unwrap();
    let log = serve();
    assert_eq!(count_lines(&log, "WARN"), 1, "{log}");
    assert!(log.contains("two.flash") && log.contains("is lost; is its disk mounted?"), "{log}");
}

#[test]
fn the_start_after_a_refused_first_start_reports_no_lost_device() {
    let sandbox = Sandbox::new();
    let socket = sandbox.path("run/node.sock");
    let serve = |capacity: &str| {
        let args = ["serve", "--capacity", capacity, "--directory", "../cache", "--socket"];
        sandbox.forebay(args.iter().chain(&[socket.to_str().unwrap()]))
    };
    serve("900TB").refuses(&["cache.flash", "set a smaller capacity"]);
    let log = stop(ready(serve("32MiB").start()));
    assert_eq!(count_lines(&log, "WARN"), 0, "{log}");
}

#[test]
fn a_directory_or_device_with_other_content_is_named_with_the_remedy() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.out("train.py"), "import forebay\n").unwrap();
    let serve = |options: &[&str]| sandbox.forebay(["serve"].iter().chain(options));
    serve(&["--directory", "train.py"])
        .refuses(&["cannot create the directory `train.py`", "choose another with --directory"]);
    serve(&["--device", "train.py", "--directory", "cache"])
        .refuses(&["train.py holds data that is not forebay's", "name another file"]);
    assert_eq!(fs::read(sandbox.out("train.py")).unwrap(), b"import forebay\n");
    serve(&["--config", "none.toml"])
        .refuses(&["there is no configuration file `none.toml`", "--print-config"]);
}

#[test]
fn an_invalid_log_level_in_the_environment_is_rejected() {
    let sandbox = Sandbox::new();
    sandbox.forebay(["status"]).env("FOREBAY_LOG", "loud").refuses(&["FOREBAY_LOG", "debug"]);
}

/// Of several endpoints, the first that answers is used.
#[test]
fn all_commands_take_several_endpoints() {
    let setup = Setup::of(5, 3000, |_| {});
    let _node = setup.node(&["--capacity", "64MB"]);
    let nodes = format!("/nowhere/node.sock,{}", setup.node_socket().display());
    let run = |args: &[&str]| {
        let rest = ["--format", "json", "--node", &nodes];
        let args = args.iter().chain(&rest);
        setup.sandbox.forebay(args).reaching(&setup.origin).succeeds().json()
    };
    // The agent logs the endpoint that did not answer.
    let warm = ["warm", "x.digest", "--format", "json", "--node", &nodes];
    let warmed = setup.sandbox.forebay(warm).reaching(&setup.origin).env("FOREBAY_LOG", "error");
    assert_eq!(warmed.succeeds().json()["resident_blobs"], 5);
    assert_eq!(run(&["status"])["puts"], 5);
    let explained = run(&["explain", "x.digest"]);
    assert_eq!((&explained["blobs"], &explained["blobs_here"]), (&5.into(), &5.into()));
    assert_eq!(run(&["evict", "x.digest"])["bytes"], setup.sandbox.data_size());
    let ran = setup.sandbox.forebay(["status", "--node", "/x/a.sock,/x/b.sock"]).run();
    ran.must_refuse(&["no node listens at `/x/a.sock` or `/x/b.sock`", "check --node"]);
}
