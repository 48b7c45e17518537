//! `forebay stream`: files and pipes to streams and back.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink},
        process::CommandExt as _,
    },
    process::{Output, Stdio},
    sync::Arc,
};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_ipc::{
    reader::StreamReader,
    writer::{FileWriter, StreamWriter},
};
use serde_json::Value;

use crate::harness::{Forebay, Sandbox, content};

fn stream<'a>(sandbox: &Sandbox, args: &[&'a str]) -> Forebay {
    sandbox.forebay(["stream"].iter().chain(args).copied().collect::<Vec<&'a str>>())
}

/// Runs a command with this standard input.
fn piped(mut command: Forebay, input: &[u8]) -> Output {
    let pipes = command.0.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The command may refuse before it has read everything.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn listed(sandbox: &Sandbox) -> Vec<Value> {
    let list = stream(sandbox, &["ls", "store", "--format", "json"]).succeeds().json();
    list.as_array().unwrap().clone()
}

#[test]
fn a_file_comes_back_byte_for_byte_and_is_removed() {
    let sandbox = Sandbox::new();
    let bytes = content(1, 9_000_000);
    fs::write(sandbox.out("tokens.bin"), &bytes).unwrap();
    let put = ["put", "store", "tokens", "tokens.bin", "--capacity", "65MiB"];
    let put = stream(&sandbox, &[&put[..], &["--format", "json"]].concat()).succeeds().json();
    assert_eq!((put["name"].as_str(), put["bytes"].as_u64()), (Some("tokens"), Some(9_000_000)));
    let ran = piped(stream(&sandbox, &["put", "store", "pipe", "--lease", "60min"]), &bytes[..100]);
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), "pipe: 100 B in 1 block\n");
    let names: Vec<_> = listed(&sandbox).iter().map(|stream| stream["name"].clone()).collect();
    assert_eq!(names, ["pipe", "tokens"]);
    let text = stream(&sandbox, &["ls", "store"]).succeeds().stdout;
    assert!(text.starts_with("NAME") && text.contains("tokens") && text.contains("sealed"));

    stream(&sandbox, &["get", "store", "tokens", "back.bin"]).succeeds();
    assert!(fs::read(sandbox.out("back.bin")).unwrap() == bytes, "other bytes");
    let cat = piped(stream(&sandbox, &["cat", "store", "tokens"]), b"");
    assert!(cat.stdout == bytes && cat.stderr.is_empty(), "other bytes");
    stream(&sandbox, &["get", "store", "pipe", "back.bin"]).refuses(&["exists", "--force"]);
    let forced = ["get", "store", "pipe", "back.bin", "--force", "--consume"];
    stream(&sandbox, &forced).succeeds();
    assert_eq!(fs::read(sandbox.out("back.bin")).unwrap(), &bytes[..100]);
    assert_eq!(listed(&sandbox).len(), 1, "what was consumed is gone");

    let facts = stream(&sandbox, &["facts", "store", "--format", "json"]).succeeds().json();
    assert_eq!(facts["streams"], 1);
    assert!(facts["free_bytes"].as_u64() < facts["capacity_bytes"].as_u64());
    assert!(stream(&sandbox, &["facts", "store"]).succeeds().stdout.contains("longest block"));
    stream(&sandbox, &["rm", "store", "tokens"]).succeeds();
    assert!(listed(&sandbox).is_empty());
    assert_eq!(sandbox.outputs(), ["back.bin", "store", "tokens.bin"], "nothing else is left");
}

#[test]
fn record_batches_come_back_as_an_arrow_stream() {
    let sandbox = Sandbox::new();
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    let batch = RecordBatch::try_from_iter([("number", numbers)]).unwrap();
    let mut file = FileWriter::try_new(Vec::new(), batch.schema_ref()).unwrap();
    file.write(&batch).unwrap();
    fs::write(sandbox.out("table.arrow"), file.into_inner().unwrap()).unwrap();
    let mut pipe = StreamWriter::try_new(Vec::new(), batch.schema_ref()).unwrap();
    pipe.write(&batch).unwrap();
    let pipe = pipe.into_inner().unwrap();

    let put = ["put", "store", "file", "table.arrow", "--arrow", "--capacity", "65MiB"];
    stream(&sandbox, &put).succeeds();
    let ran = piped(stream(&sandbox, &["put", "store", "pipe", "--arrow"]), &pipe);
    assert!(ran.status.success(), "{ran:?}");
    for name in ["file", "pipe"] {
        let cat = piped(stream(&sandbox, &["cat", "store", name]), b"").stdout;
        let back: Vec<_> = StreamReader::try_new(&cat[..], None).unwrap().collect();
        assert_eq!(back.len(), 1);
        assert_eq!(back[0].as_ref().unwrap(), &batch);
    }
    let ran = piped(stream(&sandbox, &["put", "store", "text", "--arrow"]), b"no table at all");
    let error = String::from_utf8(ran.stderr).unwrap();
    assert!(!ran.status.success() && error.contains("without --arrow"), "{error}");
    assert_eq!(listed(&sandbox).len(), 2, "nothing is left of it");
}

#[test]
fn bad_input_is_refused_with_a_remedy() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.out("file"), "text").unwrap();
    stream(&sandbox, &["ls", "store"]).refuses(&["there is no store in store", "capacity"]);
    let put = |rest: &[&str]| stream(&sandbox, &[&["put", "store"][..], rest].concat());
    put(&["x", "file"]).refuses(&["there is no store", "name a capacity"]);
    put(&["x", "missing", "--capacity", "65MiB"]).refuses(&["open `missing`"]);
    put(&["x", ".", "--capacity", "65MiB"]).refuses(&["is a directory", "name a file"]);
    put(&["x", "file", "--capacity", "65k"]).refuses(&["65k"]);
    put(&["x", "file", "--capacity", "1MB"]).refuses(&["too small"]);
    put(&["x", "file", "--capacity", "65MiB"]).succeeds();
    put(&["x", "file"]).refuses(&["exists: destroy it first"]);
    put(&["", "file"]).refuses(&["the name is empty"]);
    put(&["y", "file", "--lease", "soon"]).refuses(&["soon"]);
    stream(&sandbox, &["cat", "store", "y"]).refuses(&["no stream \"y\""]);
    let ran = stream(&sandbox, &["rm", "store", "y"]).run();
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (Some(1), "error: no stream \"y\"; 0 others removed\n")
    );
    stream(&sandbox, &["get", "store", "x", "no/where"]).refuses(&["directory `no`"]);
    stream(&sandbox, &["cat", "store", "x", "--depth", "999"]).refuses(&["smaller `depth`"]);
    let cat = piped(stream(&sandbox, &["cat", "store", "x"]), b"");
    assert_eq!(cat.stdout, b"text", "nothing is lost");
}

/// The same commands on a node: two tenants use one name, and a full budget says what to do.
#[test]
fn a_node_keeps_streams_for_its_tenants() {
    let sandbox = Sandbox::new();
    let bytes = content(1, 9_000_000);
    fs::write(sandbox.out("tokens.bin"), &bytes).unwrap();
    let config = "
        socket = \"../run/node.sock\"
        directory = \"../cache\"
        capacity = \"64MB\"
        streams = \"64MiB\"
        [[tenants]]
        name = \"team\"
        tokens = [\"team.token\"]
        namespaces = [\"public\"]
        streams = \"64MiB\"
    ";
    fs::write(sandbox.out("forebay.toml"), config).unwrap();
    fs::write(sandbox.out("team.token"), "token-of-the-team-".repeat(4)).unwrap();
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(sandbox.out("team.token"), private).unwrap();
    let mut node = sandbox.forebay(["serve", "--config", "forebay.toml"]).start();
    let mut line = String::new();
    BufReader::new(node.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    let owner = |args: &[&str]| stream(&sandbox, args);
    let team = |args: &[&str]| stream(&sandbox, args).env("FOREBAY_TOKEN_FILE", "team.token");
    let socket = "../run/node.sock";

    owner(&["put", socket, "x", "tokens.bin"]).succeeds();
    team(&["get", socket, "x", "back.bin"]).refuses(&["no stream \"x\""]);
    let ran = piped(team(&["put", socket, "x"]), &bytes[..100]);
    assert!(ran.status.success(), "{ran:?}");
    owner(&["get", socket, "x", "back.bin"]).succeeds();
    assert!(fs::read(sandbox.out("back.bin")).unwrap() == bytes, "other bytes");
    assert_eq!(piped(team(&["cat", socket, "x"]), b"").stdout, &bytes[..100]);

    let facts = team(&["facts", socket, "--format", "json"]).succeeds().json();
    assert_eq!((&facts["streams"], &facts["budget_bytes"]), (&1.into(), &(64 << 20).into()));
    assert!(team(&["facts", socket]).succeeds().stdout.contains("budget              64 MiB"));
    let list = team(&["ls", socket, "--format", "json"]).succeeds().json();
    assert_eq!((&list[0]["name"], &list[0]["bytes"]), (&"x".into(), &100.into()));
    assert_eq!(list.as_array().unwrap().len(), 1);
    let status = sandbox.forebay(["status", "--node", socket]).succeeds().stdout;
    assert!(status.contains("streams   2 streams take 16.8 MB of 134 MB"), "{status}");

    team(&["put", socket, "y", "tokens.bin", "--capacity", "1GB"]).refuses(&["`streams` in its"]);
    let full = piped(team(&["put", socket, "y"]), &content(2, 70_000_000));
    let error = String::from_utf8(full.stderr).unwrap();
    assert!(!full.status.success() && error.contains("budget of 64 MiB"), "{error}");
    team(&["rm", socket, "x"]).succeeds();
    team(&["rm", socket, "x"]).refuses(&["no stream \"x\""]);
    assert_eq!(owner(&["ls", socket]).succeeds().stdout.lines().count(), 2, "the owner's is there");
    owner(&["get", "tcp://nowhere", "x", "y"]).refuses(&["tcp://nowhere"]);
}

/// A store with the stream `x`, which has the bytes `text`.
fn small_store() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::write(sandbox.out("file"), "text").unwrap();
    stream(&sandbox, &["put", "store", "x", "file", "--capacity", "65MiB"]).succeeds();
    sandbox
}

#[test]
fn all_streams_that_exist_are_removed_and_the_others_reported() {
    let sandbox = small_store();
    stream(&sandbox, &["put", "store", "z", "file"]).succeeds();
    let ran = stream(&sandbox, &["rm", "store", "x", "nope", "z", "none"]).run();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.stderr, "error: no stream \"none\", \"nope\"; 2 others removed\n");
    assert!(listed(&sandbox).is_empty());
}

#[test]
fn a_file_gets_the_permissions_of_the_umask_and_keeps_its_own() {
    let sandbox = small_store();
    let mode = |name| fs::metadata(sandbox.out(name)).unwrap().mode() & 0o777;
    let get = ["get", "store", "x", "new"];
    stream(&sandbox, &get).succeeds();
    // The mode of `file`, which this process has created, shows its umask.
    assert_eq!(mode("new"), mode("file"));
    fs::set_permissions(sandbox.out("new"), fs::Permissions::from_mode(0o640)).unwrap();
    stream(&sandbox, &[&get[..], &["--force"]].concat()).succeeds();
    assert_eq!(mode("new"), 0o640);
}

#[test]
fn a_link_is_followed_and_a_pipe_is_written() {
    let sandbox = small_store();
    let get = |name| stream(&sandbox, &["get", "store", "x", name, "--force"]);
    fs::create_dir(sandbox.out("folder")).unwrap();
    symlink("folder/target", sandbox.out("link")).unwrap();
    for _ in ["new", "replaced"] {
        get("link").succeeds();
        assert_eq!(fs::read(sandbox.out("folder/target")).unwrap(), b"text");
        assert!(fs::symlink_metadata(sandbox.out("link")).unwrap().is_symlink());
    }
    symlink("loop", sandbox.out("loop")).unwrap();
    get("loop").refuses(&["more than 40 links"]);
    let pipe = sandbox.out("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    get("pipe").succeeds();
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo(), "it stays a pipe");
    assert_eq!(reader.join().unwrap(), b"text");
}

/// Promise 9: `--capacity` cuts off no stream.
#[test]
fn a_smaller_capacity_is_refused_while_streams_lie_beyond_it() {
    let sandbox = Sandbox::new();
    let bytes = content(1, 20_000_000);
    fs::write(sandbox.out("file"), &bytes).unwrap();
    stream(&sandbox, &["put", "store", "a", "file", "--capacity", "65MiB"]).succeeds();
    stream(&sandbox, &["put", "store", "b", "file"]).succeeds();
    let small = stream(&sandbox, &["put", "store", "c", "file", "--capacity", "30MB"]);
    small.refuses(&["streams lie beyond 30.0 MB", "remove them", "at least"]);
    let cat = piped(stream(&sandbox, &["cat", "store", "b"]), b"");
    assert!(cat.stdout == bytes, "nothing is lost");
}

#[test]
fn a_store_that_cannot_be_looked_at_is_not_called_missing() {
    let sandbox = small_store();
    let long = "x".repeat(300);
    stream(&sandbox, &["ls", &long]).refuses(&["File name too long"]);
    let store = sandbox.out("store");
    let mut ls = stream(&sandbox, &["ls", store.to_str().unwrap()]);
    if rustix::process::geteuid().is_root() {
        // The directory is the first user's alone. Another one may run the binary.
        ls.0.uid(65534).gid(65534).current_dir("/");
    } else {
        fs::set_permissions(&store, fs::Permissions::from_mode(0o000)).unwrap();
    }
    let said = ls.run();
    let is_unreachable = said.code == Some(2) && said.stderr.contains("belongs to another user");
    assert!(is_unreachable && said.stderr.contains("run as that user"), "{said:?}");
    fs::set_permissions(&store, fs::Permissions::from_mode(0o700)).unwrap();
}
