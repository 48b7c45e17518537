//! `digest verify`: is the file sound, and does the origin still hold what it says?

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Place, content, tree};

fn verify(place: &Place, options: &[&str]) -> (i32, Value) {
    let args = ["digest", "verify", "x.digest", "--format", "json"];
    place.forebay(args.iter().chain(options)).run().verdict()
}

#[test]
fn untouched_data_is_sound() {
    let place = Place::with_objects(20, 1000);
    for options in [&[][..], &["--layout", "pack", "--pack-size", "3kB"]] {
        place.build("x.digest", options);
        let before = tree(&place.path("root"));
        let (code, report) = verify(&place, &[]);
        assert_eq!((code, &report["bytes_checked"]), (0, &json!(place.data_size())));
        assert_eq!((&report["changed"], &report["vanished"]), (&json!([]), &json!([])));
        assert_eq!(report["rewritten"], 0);
        assert_eq!(tree(&place.path("root")), before);
    }
    let text = place.forebay(["digest", "verify", "x.digest"]).succeeds().stdout;
    assert!(text.ends_with("the digest is sound, and the origin holds what it says\n"), "{text}");
}

/// Every byte that the digest names is still there, and yet they are other objects.
#[test]
fn objects_that_grew_or_were_emptied_are_changed() {
    let place = Place::with_objects(5, 1000);
    place.write("empty", b"");
    place.write("filled", b"");
    let origin = place.serve(|_| {});
    place.build_from(&origin, "x.digest", &[]).succeeds();
    place.build("y.digest", &[]);
    let grown = [&fs::read(place.data().join("item 002.bin")).unwrap()[..], b"more"].concat();
    place.write("item 002.bin", &grown);
    place.write("filled", b"no longer empty");
    fs::remove_file(place.data().join("empty")).unwrap();
    for digest in ["x.digest", "y.digest"] {
        let args = ["digest", "verify", digest, "--format", "json"];
        let (code, report) = place.forebay(args).reaching(&origin).run().verdict();
        assert_eq!(code, 1, "{digest}: {report}");
        assert_eq!(report["changed"], json!(["filled", "item 002.bin"]), "{digest}");
        assert_eq!(report["vanished"], json!(["empty"]), "{digest}");
        assert_eq!(report["sound"], json!(false), "{digest}");
    }
}

/// A listing tells what has come, gone and changed, and reads nothing.
#[test]
fn a_listing_is_compared() {
    let place = Place::with_objects(5, 1000);
    let origin = place.serve(|_| {});
    place.build_from(&origin, "x.digest", &[]).succeeds();
    let args = ["digest", "verify", "x.digest", "--listing", "--format", "json"];
    let look = || place.forebay(args).reaching(&origin).run().verdict();
    let (code, report) = look();
    assert_eq!((code, &report["sound"], &report["bytes_checked"]), (0, &json!(true), &json!(0)));
    place.write("item 002.bin", b"changed");
    place.write("new.bin", b"new");
    fs::remove_file(place.data().join("item 003.bin")).unwrap();
    let (code, report) = look();
    assert_eq!((code, &report["sound"]), (1, &json!(false)));
    assert_eq!(report["changed"], json!(["item 002.bin"]));
    assert_eq!(report["vanished"], json!(["item 003.bin"]));
    assert_eq!(report["added"], json!(["new.bin"]));
}

/// A pipe would wait for ever, a directory cannot be read: both are changes like any other.
#[test]
fn other_things_in_a_files_place_are_changes() {
    let place = Place::with_objects(4, 1000);
    place.build("x.digest", &[]);
    for name in ["item 001.bin", "item 002.bin"] {
        fs::remove_file(place.data().join(name)).unwrap();
    }
    fs::create_dir(place.data().join("item 001.bin")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(place.data().join("item 002.bin")).status();
    assert!(pipe.unwrap().success());
    let (code, report) = verify(&place, &[]);
    assert_eq!((code, &report["changed"]), (1, &json!(["item 001.bin", "item 002.bin"])));
}

#[test]
fn changed_vanished_and_rewritten_objects_are_told_apart() {
    let place = Place::with_objects(20, 1000);
    let origin = place.serve(|_| {});
    for (name, build) in [
        ("local", place.forebay(["digest", "build", "../root/bucket/train", "-o", "x.digest"])),
        ("s3", place.build_from(&origin, "x.digest", &[])),
    ] {
        build.succeeds();
        let same = fs::read(place.data().join("item 005.bin")).unwrap();
        let original = fs::read(place.data().join("item 003.bin")).unwrap();
        place.write("item 003.bin", &content(99, original.len()));
        fs::remove_file(place.data().join("item 007.bin")).unwrap();
        place.write("item 005.bin", &same);
        place.write("new.bin", b"not in the digest, so nobody's concern");
        let args = ["digest", "verify", "x.digest", "--format", "json"];
        let (code, report) = place.forebay(args).reaching(&origin).run().verdict();
        assert_eq!(code, 1, "{name}");
        assert_eq!(report["changed"], json!(["item 003.bin"]), "{name}");
        assert_eq!(report["vanished"], json!(["item 007.bin"]), "{name}");
        assert_eq!(report["rewritten"], 1, "{name}");
        let text = place.forebay(["digest", "verify", "x.digest"]).reaching(&origin).run();
        assert_eq!(text.code, Some(1));
        for line in ["changed: item 003.bin\n", "vanished: item 007.bin\n", "build it again\n"] {
            assert!(text.stdout.contains(line), "{text:?}");
        }
        place.write("item 003.bin", &original);
        place.write("item 007.bin", b"back");
        fs::remove_file(place.data().join("new.bin")).unwrap();
    }
}

#[test]
fn data_that_was_only_rewritten_is_still_sound() {
    let place = Place::with_objects(5, 100);
    place.build("x.digest", &[]);
    place.write("item 002.bin", &fs::read(place.data().join("item 002.bin")).unwrap());
    let (code, report) = verify(&place, &[]);
    assert_eq!((code, &report["rewritten"]), (0, &json!(1)));
}

#[test]
fn a_sample_reads_so_many_blobs_and_the_seed_decides_which() {
    let place = Place::with_objects(50, 1000);
    let origin = place.serve(|_| {});
    place.build_from(&origin, "x.digest", &[]).succeeds();
    let sampled = |options: &[&str]| {
        origin.reset_counters();
        let args = ["digest", "verify", "x.digest", "--format", "json", "--sample"];
        let ran = place.forebay(args.iter().chain(options)).reaching(&origin).succeeds();
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
fn a_mirror_may_stand_in_for_the_origin() {
    let place = Place::with_objects(5, 100);
    place.build("x.digest", &[]);
    let origin = place.serve(|_| {});
    let args = ["digest", "verify", "x.digest", "--origin", "s3://bucket/train"];
    place.forebay(args).reaching(&origin).succeeds();
    fs::write(place.data().join("item 001.bin"), b"changed").unwrap();
    assert_eq!(place.forebay(args).reaching(&origin).run().code, Some(1));
}

#[test]
fn a_digest_whose_origin_is_gone_cannot_be_verified() {
    let place = Place::with_objects(5, 100);
    place.build("x.digest", &[]);
    fs::rename(place.data(), place.path("elsewhere")).unwrap();
    place.forebay(["digest", "verify", "x.digest"]).refuses(&["train` does not exist"]);
    place.forebay(["digest", "verify", "x.digest", "--origin", "../elsewhere"]).succeeds();
}

/// In a pack the address covers all of its objects, so all of them are suspects.
#[test]
fn a_changed_pack_names_its_objects() {
    let place = Place::with_objects(6, 1000);
    place.build("x.digest", &["--layout", "pack", "--pack-size", "3100B"]);
    place.write("item 004.bin", &content(5, 1004));
    let (code, report) = verify(&place, &[]);
    assert_eq!(code, 1);
    assert_eq!(report["changed"], json!(["item 003.bin", "item 004.bin", "item 005.bin"]));
}
