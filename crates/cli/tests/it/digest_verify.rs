//! `digest verify`: whether a digest is intact and agrees with its origin.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Sandbox, content, tree};

fn verify(sandbox: &Sandbox, options: &[&str]) -> (i32, Value) {
    let args = ["digest", "verify", "x.digest", "--format", "json"];
    sandbox.forebay(args.iter().chain(options)).run().verdict()
}

#[test]
fn unchanged_data_is_sound() {
    let sandbox = Sandbox::with_objects(20, 1000);
    for options in [&[][..], &["--layout", "pack", "--pack-size", "3kB"]] {
        sandbox.build("x.digest", options);
        let before = tree(&sandbox.path("root"));
        let (code, report) = verify(&sandbox, &[]);
        assert_eq!((code, &report["bytes_checked"]), (0, &json!(sandbox.data_size())));
        assert_eq!((&report["changed"], &report["vanished"]), (&json!([]), &json!([])));
        assert_eq!(report["rewritten"], 0);
        assert_eq!(tree(&sandbox.path("root")), before);
    }
    let text = sandbox.forebay(["digest", "verify", "x.digest"]).succeeds().stdout;
    assert!(text.ends_with("the digest is intact and agrees with the origin\n"), "{text}");
}

/// The bytes of the digest are still in the objects, but the objects differ.
#[test]
fn objects_that_grew_or_were_emptied_are_changed() {
    let sandbox = Sandbox::with_objects(5, 1000);
    sandbox.write("empty", b"");
    sandbox.write("filled", b"");
    let origin = sandbox.serve(|_| {});
    sandbox.build_from(&origin, "x.digest", &[]).succeeds();
    sandbox.build("y.digest", &[]);
    let grown = [&fs::read(sandbox.data().join("item 002.bin")).unwrap()[..], b"more"].concat();
    sandbox.write("item 002.bin", &grown);
    sandbox.write("filled", b"no longer empty");
    fs::remove_file(sandbox.data().join("empty")).unwrap();
    for digest in ["x.digest", "y.digest"] {
        let args = ["digest", "verify", digest, "--format", "json"];
        let (code, report) = sandbox.forebay(args).reaching(&origin).run().verdict();
        assert_eq!(code, 1, "{digest}: {report}");
        assert_eq!(report["changed"], json!(["filled", "item 002.bin"]), "{digest}");
        assert_eq!(report["vanished"], json!(["empty"]), "{digest}");
        assert_eq!(report["sound"], json!(false), "{digest}");
    }
}

#[test]
fn a_listing_finds_added_vanished_and_changed_objects_without_reading() {
    let sandbox = Sandbox::with_objects(5, 1000);
    let origin = sandbox.serve(|_| {});
    sandbox.build_from(&origin, "x.digest", &[]).succeeds();
    let args = ["digest", "verify", "x.digest", "--listing", "--format", "json"];
    let compare = || sandbox.forebay(args).reaching(&origin).run().verdict();
    let (code, report) = compare();
    assert_eq!((code, &report["sound"], &report["bytes_checked"]), (0, &json!(true), &json!(0)));
    sandbox.write("item 002.bin", b"changed");
    sandbox.write("new.bin", b"new");
    fs::remove_file(sandbox.data().join("item 003.bin")).unwrap();
    let (code, report) = compare();
    assert_eq!((code, &report["sound"]), (1, &json!(false)));
    assert_eq!(report["changed"], json!(["item 002.bin"]));
    assert_eq!(report["vanished"], json!(["item 003.bin"]));
    assert_eq!(report["added"], json!(["new.bin"]));
}

/// Reading a pipe would block, and a directory cannot be read.
#[test]
fn a_pipe_or_a_directory_in_place_of_a_file_is_a_change() {
    let sandbox = Sandbox::with_objects(4, 1000);
    sandbox.build("x.digest", &[]);
    for name in ["item 001.bin", "item 002.bin"] {
        fs::remove_file(sandbox.data().join(name)).unwrap();
    }
    fs::create_dir(sandbox.data().join("item 001.bin")).unwrap();
    let pipe =
        std::process::Command::new("mkfifo").arg(sandbox.data().join("item 002.bin")).status();
    assert!(pipe.unwrap().success());
    let (code, report) = verify(&sandbox, &[]);
    assert_eq!((code, &report["changed"]), (1, &json!(["item 001.bin", "item 002.bin"])));
}

#[test]
fn changed_vanished_and_rewritten_objects_are_distinguished() {
    let sandbox = Sandbox::with_objects(20, 1000);
    let origin = sandbox.serve(|_| {});
    for (name, build) in [
        ("local", sandbox.forebay(["digest", "build", "../root/bucket/train", "-o", "x.digest"])),
        ("s3", sandbox.build_from(&origin, "x.digest", &[])),
    ] {
        build.succeeds();
        let same = fs::read(sandbox.data().join("item 005.bin")).unwrap();
        let original = fs::read(sandbox.data().join("item 003.bin")).unwrap();
        sandbox.write("item 003.bin", &content(99, original.len()));
        fs::remove_file(sandbox.data().join("item 007.bin")).unwrap();
        sandbox.write("item 005.bin", &same);
        sandbox.write("new.bin", b"not in the digest");
        let args = ["digest", "verify", "x.digest", "--format", "json"];
        let (code, report) = sandbox.forebay(args).reaching(&origin).run().verdict();
        assert_eq!(code, 1, "{name}");
        assert_eq!(report["changed"], json!(["item 003.bin"]), "{name}");
        assert_eq!(report["vanished"], json!(["item 007.bin"]), "{name}");
        assert_eq!(report["rewritten"], 1, "{name}");
        let text = sandbox.forebay(["digest", "verify", "x.digest"]).reaching(&origin).run();
        assert_eq!(text.code, Some(1));
        for line in
            ["changed: item 003.bin\n", "vanished: item 007.bin\n", "build the digest again\n"]
        {
            assert!(text.stdout.contains(line), "{text:?}");
        }
        sandbox.write("item 003.bin", &original);
        sandbox.write("item 007.bin", b"back");
        fs::remove_file(sandbox.data().join("new.bin")).unwrap();
    }
}

#[test]
fn rewritten_data_is_sound() {
    let sandbox = Sandbox::with_objects(5, 100);
    sandbox.build("x.digest", &[]);
    sandbox.write("item 002.bin", &fs::read(sandbox.data().join("item 002.bin")).unwrap());
    let (code, report) = verify(&sandbox, &[]);
    assert_eq!((code, &report["rewritten"]), (0, &json!(1)));
}

#[test]
fn a_sample_reads_the_requested_number_of_blobs_by_seed() {
    let sandbox = Sandbox::with_objects(50, 1000);
    let origin = sandbox.serve(|_| {});
    sandbox.build_from(&origin, "x.digest", &[]).succeeds();
    let sampled = |options: &[&str]| {
        origin.reset_counters();
        let args = ["digest", "verify", "x.digest", "--format", "json", "--sample"];
        let ran = sandbox.forebay(args.iter().chain(options)).reaching(&origin).succeeds();
        let read: Vec<_> = origin.counters().objects.into_keys().collect();
        (ran.json()["blobs_checked"].as_u64().unwrap(), read)
    };
    let (checked, first) = sampled(&["7"]);
    assert_eq!((checked, first.len()), (7, 7));
    assert_eq!(sampled(&["7"]).1, first);
    assert_ne!(sampled(&["7", "--seed", "1"]).1, first);
    assert_eq!(sampled(&["5000"]).0, 50);
    assert_eq!(sampled(&["0"]), (0, vec![]), "0 checks the file alone");
}

#[test]
fn a_mirror_can_be_verified() {
    let sandbox = Sandbox::with_objects(5, 100);
    sandbox.build("x.digest", &[]);
    let origin = sandbox.serve(|_| {});
    let args = ["digest", "verify", "x.digest", "--origin", "s3://bucket/train"];
    sandbox.forebay(args).reaching(&origin).succeeds();
    fs::write(sandbox.data().join("item 001.bin"), b"changed").unwrap();
    assert_eq!(sandbox.forebay(args).reaching(&origin).run().code, Some(1));
}

#[test]
fn a_missing_origin_is_an_error() {
    let sandbox = Sandbox::with_objects(5, 100);
    sandbox.build("x.digest", &[]);
    fs::rename(sandbox.data(), sandbox.path("moved")).unwrap();
    sandbox.forebay(["digest", "verify", "x.digest"]).refuses(&["train` does not exist"]);
    sandbox.forebay(["digest", "verify", "x.digest", "--origin", "../moved"]).succeeds();
}

/// The address of a pack covers all of its objects, so all of them are named.
#[test]
fn a_changed_pack_names_its_objects() {
    let sandbox = Sandbox::with_objects(6, 1000);
    sandbox.build("x.digest", &["--layout", "pack", "--pack-size", "3100B"]);
    sandbox.write("item 004.bin", &content(5, 1004));
    let (code, report) = verify(&sandbox, &[]);
    assert_eq!(code, 1);
    assert_eq!(report["changed"], json!(["item 003.bin", "item 004.bin", "item 005.bin"]));
}
