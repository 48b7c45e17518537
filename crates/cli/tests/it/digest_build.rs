//! `digest build` of data that does not change.

use std::fs;

use serde_json::json;

use crate::harness::{Sandbox, URL, content};

#[test]
fn a_local_directory_becomes_a_digest_of_files() {
    let sandbox = Sandbox::with_objects(25, 1000);
    let report = sandbox.build("x.digest", &[]);
    assert_eq!(report["items"], 25);
    assert_eq!(report["blobs"], 25);
    assert_eq!(report["bytes"], sandbox.data_size());
    assert_eq!(report["bytes_read"], sandbox.data_size());
    assert_eq!(report["layout"], "files");
    assert_eq!(report["namespace"], "public");
    assert_eq!(report["chunking"]["chunks"], 10);
    assert_eq!(sandbox.outputs(), ["x.digest", "x.digest.checked"]);
}

#[test]
fn small_neighbours_share_packs_and_large_objects_do_not() {
    let sandbox = Sandbox::new();
    for (name, size) in [("a", 400), ("b", 500), ("c", 200), ("d", 5000), ("e", 0), ("f", 1000)] {
        sandbox.write(name, &content(size as u64, size));
    }
    let report = sandbox.build("x.digest", &["--layout", "pack", "--pack-size", "1000B"]);
    assert_eq!((&report["items"], &report["blobs"]), (&json!(6), &json!(4)));
    assert_eq!(report["layout"], "pack:1000");
    assert_eq!(report["bytes"], 7100);
}

/// A build reads every byte from the origin exactly once.
#[test]
fn an_s3_origin_is_read_exactly_once() {
    for options in [&[][..], &["--layout", "pack"]] {
        let sandbox = Sandbox::with_objects(30, 3000);
        sandbox.write("large.bin", &content(1, 5 << 20));
        sandbox.write("empty.bin", b"");
        let origin = sandbox.serve(|_| {});
        let report = sandbox.build_from(&origin, "x.digest", options).succeeds().json();
        let counters = origin.counters();
        assert_eq!(report["bytes"], sandbox.data_size());
        assert_eq!(report["bytes_read"], sandbox.data_size());
        assert_eq!(counters.bytes_sent, sandbox.data_size());
        assert_eq!((counters.errors, counters.bytes_received), (0, 0));
        for (name, counts) in &counters.objects {
            let size = fs::metadata(sandbox.path("root").join(name)).unwrap().len();
            assert_eq!(counts.bytes_sent, size, "{name}");
        }
        assert_eq!(counters.objects["bucket/train/item 004.bin"].gets, 1);
        assert_eq!(counters.objects["bucket/train/large.bin"].gets, 3, "in ranges of 2 MiB");
    }
}

/// Same content and namespace: same address, wherever the copy is.
#[test]
fn a_mirror_is_the_same_dataset() {
    let sandbox = Sandbox::with_objects(40, 2000);
    sandbox.write("a.b", b"before");
    sandbox.write("a/b", b"after");
    sandbox.write("empty.bin", b"");
    // Over S3 it looks like an empty object.
    fs::create_dir(sandbox.data().join("empty directory")).unwrap();
    let origin = sandbox.serve(|_| {});
    for options in [&[][..], &["--layout", "pack", "--pack-size", "10kB"]] {
        let local = sandbox.build("local.digest", options);
        let remote = sandbox.build_from(&origin, "s3.digest", options).succeeds().json();
        assert_eq!(local["dataset"], remote["dataset"]);
        assert_ne!(local["origin"], remote["origin"]);
    }
}

#[test]
fn the_same_build_gives_the_same_bytes() {
    let sandbox = Sandbox::with_objects(40, 2000);
    sandbox.build("a.digest", &["--layout", "pack"]);
    sandbox.build("b.digest", &["--layout", "pack"]);
    assert_eq!(
        fs::read(sandbox.out("a.digest")).unwrap(),
        fs::read(sandbox.out("b.digest")).unwrap()
    );
}

#[test]
fn the_number_of_chunks_is_an_option() {
    let sandbox = Sandbox::with_objects(64, 100);
    let default = sandbox.build("x.digest", &[]);
    let three = sandbox.build("x.digest", &["--chunks", "3"]);
    assert_eq!(three["chunking"]["chunks"], 3);
    assert_ne!(default["dataset"], three["dataset"], "the chunking is part of the dataset id");
    let data = sandbox.data();
    sandbox
        .forebay(["digest", "build", data.to_str().unwrap(), "-o", "y.digest", "--chunks", "65"])
        .refuses(&["65 chunks cannot be cut from 64 blobs", "ask for 1 to 64"]);
    assert!(!sandbox.out("y.digest").exists());
}

#[test]
fn excluded_objects_are_neither_listed_nor_read() {
    let sandbox = Sandbox::with_objects(5, 100);
    sandbox.write("deep/er/notes.txt", b"no");
    sandbox.write("README.txt", b"no");
    let origin = sandbox.serve(|_| {});
    let options = ["--exclude", "**/*.txt", "--exclude", "item 003*"];
    let report = sandbox.build_from(&origin, "x.digest", &options).succeeds().json();
    assert_eq!(report["items"], 4);
    let read: Vec<_> = origin.counters().objects.into_keys().collect();
    assert!(read.iter().all(|name| !name.ends_with("txt") && !name.contains("003")), "{read:?}");
    // An object with an invalid name can be excluded.
    sandbox.write("bad\nname.txt", b"no");
    let local = sandbox.build("y.digest", &options);
    assert_eq!(local["dataset"], report["dataset"]);
}

#[test]
fn one_object_is_a_dataset() {
    let sandbox = Sandbox::new();
    let names = ["x.bin", "a b.bin", "odd~name#1%20?.bin", "ü.bin"];
    for name in names {
        sandbox.write(name, name.as_bytes());
    }
    let origin = sandbox.serve(|_| {});
    for name in names {
        let url = format!("{URL}/{name}");
        let args = ["digest", "build", &url, "-o", "x.digest", "--format", "json"];
        let remote = sandbox.forebay(args).reaching(&origin).succeeds().json();
        let path = sandbox.data().join(name);
        let args = ["digest", "build", path.to_str().unwrap(), "-o", "y.digest"];
        let local = sandbox.forebay(args.into_iter().chain(["--format", "json"])).succeeds().json();
        assert_eq!(remote["items"], 1);
        assert_eq!(remote["origin"], URL, "its key is relative to its parent");
        assert_eq!(remote["dataset"], local["dataset"]);
        let shown = sandbox.forebay(["digest", "show", "x.digest", "--format", "json"]);
        assert_eq!(shown.succeeds().json()["first_items"][0]["name"], name);
        let verify = ["digest", "verify", "x.digest"];
        sandbox.forebay(verify).reaching(&origin).succeeds();
    }
}

#[test]
fn names_with_spaces_and_in_any_script_are_kept() {
    let sandbox = Sandbox::new();
    let names = ["100%", "a b/c  d", "a+b", "q?x=1&y#z", "~t", "ünï/çødé 東京", "😀.bin"];
    for name in names {
        sandbox.write(name, name.as_bytes());
    }
    let origin = sandbox.serve(|_| {});
    sandbox.build("local.digest", &[]);
    sandbox.build_from(&origin, "s3.digest", &[]).succeeds();
    for digest in ["local.digest", "s3.digest"] {
        let args = ["digest", "show", digest, "--items", "99", "--format", "json"];
        let shown = sandbox.forebay(args).succeeds().json();
        let items = shown["first_items"].as_array().unwrap().clone();
        let shown: Vec<_> = items.iter().map(|item| item["name"].as_str().unwrap()).collect();
        assert_eq!(shown, names);
        sandbox.forebay(["digest", "verify", digest]).reaching(&origin).succeeds();
    }
}

#[test]
fn file_urls_and_relative_paths_are_accepted() {
    let sandbox = Sandbox::with_objects(3, 10);
    let by_path = sandbox.build("x.digest", &[]);
    let url = format!("file://{}", sandbox.data().display());
    for origin in ["../root/bucket/train", "../root/bucket/../bucket/train/", &url] {
        let args = ["digest", "build", origin, "-o", "y.digest", "--format", "json"];
        let report = sandbox.forebay(args).succeeds().json();
        assert_eq!(
            (&report["dataset"], &report["origin"]),
            (&by_path["dataset"], &by_path["origin"])
        );
    }
}

#[test]
fn the_text_report_names_digest_items_and_chunks() {
    let sandbox = Sandbox::with_objects(3, 10);
    let data = sandbox.data();
    let report = sandbox.forebay(["digest", "build", data.to_str().unwrap(), "-o", "x.digest"]);
    let report = report.succeeds().stdout;
    for text in ["digest   x.digest\n", "items    3 in 3 blobs, 33 B\n", "chunks   3\n"] {
        assert!(report.contains(text), "{report}");
    }
}
