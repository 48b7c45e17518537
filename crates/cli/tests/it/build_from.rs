//! `digest build --from`: only what has changed since an earlier digest is read.

use std::fs;

use serde_json::Value;

use crate::harness::{Sandbox, content};

const OBJECTS: usize = 60;
const SIZE: usize = 3000;

/// Layouts, each with its options. The objects are no archives; tar has a test of its own.
const LAYOUTS: [&[&str]; 3] = [
    &["--layout", "files"],
    &["--layout", "pack", "--pack-size", "10kB"],
    &["--layout", "records", "--record-size", "1kB", "--pack-size", "2kB"],
];

fn name(at: usize) -> String {
    format!("item {at:03}.bin")
}

/// Objects of whole records.
fn objects() -> Sandbox {
    let sandbox = Sandbox::new();
    for at in 0..OBJECTS {
        sandbox.write(&name(at), &content(at as u64, SIZE));
    }
    sandbox
}

/// Builds the digest again, from `old.digest`, and checks that it is the one of a full build.
fn update(sandbox: &Sandbox, options: &[&str]) -> (Value, Vec<String>) {
    let origin = sandbox.serve(|_| {});
    let from = [options, &["--from", "old.digest"]].concat();
    let report = sandbox.build_from(&origin, "new.digest", &from).succeeds().json();
    let counters = origin.counters();
    assert_eq!(report["bytes_read"], counters.bytes_sent);
    sandbox.build_from(&origin, "full.digest", &[options, &["--chunks", "10"]].concat()).succeeds();
    let [new, full] = ["new.digest", "full.digest"].map(|name| fs::read(sandbox.out(name)));
    assert!(new.unwrap() == full.unwrap(), "it differs from a full build: {options:?}");
    let objects = counters.objects.into_keys();
    (report, objects.map(|key| key.trim_start_matches("bucket/train/").to_owned()).collect())
}

fn build_old(sandbox: &Sandbox, options: &[&str]) {
    let origin = sandbox.serve(|_| {});
    let options = [options, &["--chunks", "10"]].concat();
    sandbox.build_from(&origin, "old.digest", &options).succeeds();
}

#[test]
fn unchanged_objects_are_not_read() {
    for options in LAYOUTS {
        let sandbox = objects();
        build_old(&sandbox, options);
        let (report, read) = update(&sandbox, options);
        assert_eq!(read, [""; 0], "{options:?}");
        assert_eq!(report["blobs_unchanged"], report["blobs"]);
    }
}

/// A changed object is read, with its neighbours in a pack; added and removed ones shift the packs
/// behind them until the cuts agree again.
#[test]
fn what_has_changed_is_read() {
    for options in LAYOUTS {
        let sandbox = objects();
        build_old(&sandbox, options);
        sandbox.write(&name(7), &content(1000, SIZE));
        let (_, read) = update(&sandbox, options);
        assert!(read.contains(&name(7)), "{options:?}: {read:?}");
        let neighbours = if options.contains(&"pack") { 3 } else { 1 };
        assert!(read.len() <= neighbours, "{options:?}: {read:?}");
    }
    let sandbox = objects();
    build_old(&sandbox, LAYOUTS[0]);
    sandbox.write("item 007 more.bin", &content(1001, SIZE));
    sandbox.write(&name(9), &content(1002, SIZE + 1));
    fs::remove_file(sandbox.data().join(name(20))).unwrap();
    let (report, read) = update(&sandbox, LAYOUTS[0]);
    assert_eq!(read, ["item 007 more.bin", "item 009.bin"]);
    assert_eq!(report["blobs_unchanged"], OBJECTS - 2);
}

/// Not even the headers of an unchanged archive are read.
#[test]
fn unchanged_archives_are_not_read() {
    let sandbox = Sandbox::new();
    let archive = |name: &str, seed: u64| {
        let mut builder = tar::Builder::new(Vec::new());
        for sample in 0..20 {
            let bytes = content(seed + sample, 700);
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            builder.append_data(&mut header, format!("{sample:03}.png"), &*bytes).unwrap();
        }
        sandbox.write(name, &builder.into_inner().unwrap());
    };
    for name in ["a.tar", "b.tar", "c.tar"] {
        archive(name, 0);
    }
    let options = ["--layout", "tar", "--pack-size", "4kB"];
    build_old(&sandbox, &options);
    let (_, read) = update(&sandbox, &options);
    assert_eq!(read, [""; 0]);
    archive("b.tar", 100);
    let origin = sandbox.serve(|_| {});
    let from = [&options[..], &["--from", "old.digest"]].concat();
    let report = sandbox.build_from(&origin, "new.digest", &from).succeeds().json();
    let read: Vec<_> = origin.counters().objects.into_keys().collect();
    assert_eq!(read, ["bucket/train/b.tar"]);
    assert_eq!(report["items"], 60);
}

/// A digest of other data is refused: its versions say nothing about these objects.
#[test]
fn a_digest_of_another_build_is_refused() {
    let sandbox = Sandbox::with_objects(4, 100);
    let origin = sandbox.serve(|_| {});
    sandbox.build_from(&origin, "old.digest", &["--layout", "pack"]).succeeds();
    sandbox.build_from(&origin, "new.digest", &["--from", "old.digest"]).refuses(&[
        "old.digest",
        "the layout is pack:983040, and not files",
        "--from",
    ]);
    sandbox
        .build_from(&origin, "new.digest", &["--from", "missing.digest"])
        .refuses(&["missing.digest"]);
    let data = sandbox.data();
    let other =
        ["digest", "build", data.to_str().unwrap(), "-o", "x.digest", "--from", "old.digest"];
    sandbox.forebay(other).refuses(&["the origin is s3://bucket/train"]);
}
