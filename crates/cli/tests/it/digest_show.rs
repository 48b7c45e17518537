//! `digest show`, as text and as JSON.

use std::{fs, io::Read as _};

use serde_json::json;

use crate::harness::Sandbox;

#[test]
fn json_has_every_figure() {
    let sandbox = Sandbox::new();
    for (name, size) in [("a", 10), ("b", 0), ("c", 30), ("d", 50)] {
        sandbox.write(name, &vec![7; size]);
    }
    let report = sandbox.build("x.digest", &["--layout", "pack", "--pack-size", "40B"]);
    let args = ["digest", "show", "x.digest", "--items", "3", "--format", "json"];
    let shown = sandbox.forebay(args).succeeds().json();
    for key in ["dataset", "namespace", "origin", "layout", "chunking", "items", "blobs", "bytes"] {
        assert_eq!(shown[key], report[key], "{key}");
    }
    assert_eq!(
        (&shown["items"], &shown["blobs"], &shown["bytes"]),
        (&json!(4), &json!(2), &json!(90))
    );
    assert_eq!(shown["item_length"], json!({"min": 0, "mean": 22, "max": 50}));
    assert_eq!(shown["blob_length"], json!({"min": 40, "mean": 45, "max": 50}));
    // An empty item has a name and an offset.
    let items = shown["first_items"].as_array().unwrap();
    let spans: Vec<_> =
        items.iter().map(|item| json!([item["name"], item["offset"], item["length"]])).collect();
    assert_eq!(json!(spans), json!([["a", 0, 10], ["b", 10, 0], ["c", 10, 30]]));
    assert_eq!(items[0]["blob"], items[2]["blob"]);
}

#[test]
fn text_has_summary_and_items() {
    let sandbox = Sandbox::with_objects(12, 1000);
    let report = sandbox.build("x.digest", &[]);
    let text = sandbox.forebay(["digest", "show", "x.digest"]).succeeds().stdout;
    assert!(text.contains(&format!("dataset    {}\n", report["dataset"].as_str().unwrap())));
    for part in [
        "layout     files\n",
        "namespace  public\n",
        "columns    none\n",
        "item 004.bin",
        "… and 7 more",
    ] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    let none = sandbox.forebay(["digest", "show", "x.digest", "--items", "0"]).succeeds().stdout;
    assert!(!none.contains("item 000.bin"), "{none}");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let sandbox = Sandbox::with_objects(100, 10);
    sandbox.build("x.digest", &[]);
    for format in ["text", "json"] {
        let args = ["digest", "show", "x.digest", "--items", "100", "--format", format];
        let mut running = sandbox.forebay(args).start();
        drop(running.child().stdout.take());
        let mut stderr = String::new();
        running.child().stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((running.finish().code, stderr.as_str()), (Some(0), ""));
    }
}

/// The result of the full check is stored beside the file, and ignored if the file changes.
#[test]
fn a_digest_is_checked_once() {
    let sandbox = Sandbox::with_objects(10, 10);
    sandbox.build("x.digest", &[]);
    let memo = sandbox.out("x.digest.checked");
    fs::remove_file(&memo).unwrap();
    sandbox.forebay(["digest", "show", "x.digest"]).succeeds();
    let stored = fs::read(&memo).unwrap();
    sandbox.forebay(["digest", "show", "x.digest"]).succeeds();
    assert_eq!(fs::read(&memo).unwrap(), stored);
    let copy = fs::read(sandbox.out("x.digest")).unwrap();
    fs::write(sandbox.out("x.digest"), copy).unwrap();
    sandbox.forebay(["digest", "show", "x.digest"]).succeeds();
    assert_ne!(fs::read(&memo).unwrap(), stored);
}
