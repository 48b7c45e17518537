//! `digest diff`: how two digests differ.

use std::fs;

use serde_json::{Value, json};

use crate::harness::Place;

fn diff(place: &Place, a: &str, b: &str) -> (i32, Value) {
    place.forebay(["digest", "diff", a, b, "--format", "json"]).run().verdict()
}

#[test]
fn the_same_data_is_the_same_dataset() {
    let place = Place::with_objects(10, 100);
    place.build("a.digest", &[]);
    let origin = place.serve(|_| {});
    place.build_from(&origin, "b.digest", &[]).succeeds();
    let (code, difference) = diff(&place, "a.digest", "b.digest");
    assert_eq!(code, 0);
    assert_eq!((&difference["same_dataset"], &difference["unchanged"]), (&json!(true), &json!(10)));
    assert_eq!(difference["facts"][0]["name"], "origin");
    assert_eq!(difference["facts"][0]["b"], "s3://bucket/train");
    assert_eq!(diff(&place, "a.digest", "a.digest").1["facts"], json!([]));
}

#[test]
fn every_object_is_added_removed_changed_or_the_same() {
    let place = Place::with_objects(10, 100);
    place.build("a.digest", &[]);
    place.write("aaa first.bin", b"new");
    place.write("zzz last.bin", b"new");
    place.write("item 004.bin", &[0; 100]);
    fs::remove_file(place.data().join("item 006.bin")).unwrap();
    place.build("b.digest", &[]);
    let (code, difference) = diff(&place, "a.digest", "b.digest");
    assert_eq!(code, 1);
    assert_eq!(difference["added"], json!(["aaa first.bin", "zzz last.bin"]));
    assert_eq!(difference["removed"], json!(["item 006.bin"]));
    assert_eq!(difference["changed"], json!(["item 004.bin"]));
    assert_eq!(difference["unchanged"], 8);
    let back = diff(&place, "b.digest", "a.digest").1;
    assert_eq!(back["removed"], difference["added"]);

    let text = place.forebay(["digest", "diff", "a.digest", "b.digest"]).run();
    assert_eq!((text.code, text.stderr.as_str()), (Some(1), ""));
    assert_eq!(
        text.stdout,
        "+ aaa first.bin\n+ zzz last.bin\n- item 006.bin\n~ item 004.bin\n\
         2 added, 1 removed, 1 changed, 8 unchanged: another dataset\n"
    );
}

#[test]
fn other_chunks_or_layouts_are_other_datasets_of_the_same_objects() {
    let place = Place::with_objects(10, 100);
    place.build("a.digest", &[]);
    for options in [&["--chunks", "2"][..], &["--layout", "pack"]] {
        place.build("b.digest", options);
        let (code, difference) = diff(&place, "a.digest", "b.digest");
        assert_eq!((code, &difference["unchanged"]), (1, &json!(10)));
        assert!(!difference["facts"].as_array().unwrap().is_empty());
    }
}
