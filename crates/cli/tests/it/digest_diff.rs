//! `digest diff`: the differences between two digests.

use std::fs;

use serde_json::{Value, json};

use crate::harness::Sandbox;

fn diff(sandbox: &Sandbox, a: &str, b: &str) -> (i32, Value) {
    sandbox.forebay(["digest", "diff", a, b, "--format", "json"]).run().verdict()
}

#[test]
fn the_same_data_is_the_same_dataset() {
    let sandbox = Sandbox::with_objects(10, 100);
    sandbox.build("a.digest", &[]);
    let origin = sandbox.serve(|_| {});
    sandbox.build_from(&origin, "b.digest", &[]).succeeds();
    let (code, difference) = diff(&sandbox, "a.digest", "b.digest");
    assert_eq!(code, 0);
    assert_eq!((&difference["same_dataset"], &difference["unchanged"]), (&json!(true), &json!(10)));
    assert_eq!(difference["facts"][0]["name"], "origin");
    assert_eq!(difference["facts"][0]["b"], "s3://bucket/train");
    assert_eq!(diff(&sandbox, "a.digest", "a.digest").1["facts"], json!([]));
}

#[test]
fn every_object_is_added_removed_changed_or_unchanged() {
    let sandbox = Sandbox::with_objects(10, 100);
    sandbox.build("a.digest", &[]);
    sandbox.write("aaa first.bin", b"new");
    sandbox.write("zzz last.bin", b"new");
    sandbox.write("item 004.bin", &[0; 100]);
    fs::remove_file(sandbox.data().join("item 006.bin")).unwrap();
    sandbox.build("b.digest", &[]);
    let (code, difference) = diff(&sandbox, "a.digest", "b.digest");
    assert_eq!(code, 1);
    assert_eq!(difference["added"], json!(["aaa first.bin", "zzz last.bin"]));
    assert_eq!(difference["removed"], json!(["item 006.bin"]));
    assert_eq!(difference["changed"], json!(["item 004.bin"]));
    assert_eq!(difference["unchanged"], 8);
    let back = diff(&sandbox, "b.digest", "a.digest").1;
    assert_eq!(back["removed"], difference["added"]);

    let text = sandbox.forebay(["digest", "diff", "a.digest", "b.digest"]).run();
    assert_eq!((text.code, text.stderr.as_str()), (Some(1), ""));
    assert_eq!(
        text.stdout,
        "+ aaa first.bin\n+ zzz last.bin\n- item 006.bin\n~ item 004.bin\n\
         2 added, 1 removed, 1 changed, 8 unchanged: another dataset\n"
    );
}

#[test]
fn another_chunking_or_layout_is_another_dataset_of_the_same_objects() {
    let sandbox = Sandbox::with_objects(10, 100);
    sandbox.build("a.digest", &[]);
    for options in [&["--chunks", "2"][..], &["--layout", "pack"]] {
        sandbox.build("b.digest", options);
        let (code, difference) = diff(&sandbox, "a.digest", "b.digest");
        assert_eq!((code, &difference["unchanged"]), (1, &json!(10)));
        assert!(!difference["facts"].as_array().unwrap().is_empty());
    }
}
