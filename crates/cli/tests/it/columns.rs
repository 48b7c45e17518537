//! Columns of a digest from a CSV file.

use std::fs;

use serde_json::{Value, json};

use crate::harness::Sandbox;

fn with_csv(text: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    for name in ["a", "b", "c", "d/e"] {
        sandbox.write(name, name.as_bytes());
    }
    fs::write(sandbox.out("labels.csv"), text).unwrap();
    sandbox
}

fn items(sandbox: &Sandbox) -> Vec<Value> {
    let args = ["digest", "show", "x.digest", "--format", "json"];
    sandbox.forebay(args).succeeds().json()["first_items"].as_array().unwrap().clone()
}

#[test]
fn columns_of_every_type_are_kept() {
    let sandbox = with_csv(
        "object,zeta,score,good,text\n\
         a,1,0.5,true,cat\n\
         d/e,-7,,False,\"dog, \"\"big\"\"\"\n\
         c,,2e3,,\n\
         not-there,5,1,true,x\n",
    );
    for options in [&[][..], &["--layout", "pack"]] {
        let options = [&["--columns", "labels.csv"], options].concat();
        let report = sandbox.build("x.digest", &options);
        assert_eq!(report["items_without_columns"], 1);
        let args = ["digest", "show", "x.digest", "--format", "json"];
        let shown = sandbox.forebay(args).succeeds().json();
        assert_eq!(
            shown["columns"],
            json!([
                {"name": "zeta", "type": "int"},
                {"name": "score", "type": "float"},
                {"name": "good", "type": "bool"},
                {"name": "text", "type": "text"},
            ])
        );
        let expected = [
            ("a", json!({"zeta": 1, "score": 0.5, "good": true, "text": "cat"})),
            ("b", json!({"zeta": null, "score": null, "good": null, "text": null})),
            ("c", json!({"zeta": null, "score": 2000.0, "good": null, "text": null})),
            ("d/e", json!({"zeta": -7, "score": null, "good": false, "text": "dog, \"big\""})),
        ];
        for (item, (name, columns)) in items(&sandbox).iter().zip(expected) {
            assert_eq!((&item["name"], &item["columns"]), (&json!(name), &columns));
        }
    }
}

#[test]
fn text_tables_keep_the_order_of_the_file() {
    let sandbox = with_csv("object,zeta,alpha\na,1,x\n");
    sandbox.build("x.digest", &["--columns", "labels.csv"]);
    let shown = sandbox.forebay(["digest", "show", "x.digest"]).succeeds().stdout;
    let line = |start: &str| shown.lines().find(|line| line.starts_with(start)).unwrap();
    assert!(line("ITEM").ends_with("zeta  alpha"), "{shown}");
    assert!(line("a ").ends_with("   1      x"), "{shown}");
    assert!(shown.contains("columns    zeta (int), alpha (text)"), "{shown}");
}

/// Labels are not part of the dataset id, so they do not change what jobs share.
#[test]
fn columns_do_not_change_the_dataset() {
    let sandbox = with_csv("object,label\na,1\nb,2\n");
    let plain = sandbox.build("x.digest", &[]);
    let labelled = sandbox.build("y.digest", &["--columns", "labels.csv"]);
    assert_eq!(plain["dataset"], labelled["dataset"]);
}

#[test]
fn malformed_columns_are_rejected_before_hashing() {
    for (csv, expected) in [
        ("object,label\na,1,2\n", &["labels.csv", "line: 2", "3 fields"][..]),
        ("object,label\na,1\nb,2\na,3\n", &["labels.csv", "line 4 names `a` a second time"]),
        ("object\na\n", &["labels.csv", "no column besides the first", "add one"]),
        ("", &["labels.csv", "no column besides the first"]),
        ("object,label,label\na,1,2\n", &["labels.csv", "`label` is taken"]),
        ("object,offset\na,1\n", &["labels.csv", "`offset` is taken"]),
        ("object,\na,1\n", &["labels.csv", "column 2 has no name"]),
        ("object,label\nnone,1\nof,2\n", &["none of the 2 objects", "relative to file://"]),
    ] {
        let sandbox = with_csv(csv);
        let data = sandbox.data();
        let args = ["digest", "build", data.to_str().unwrap(), "-o", "x.digest", "--columns"];
        sandbox.forebay(args.into_iter().chain(["labels.csv"])).refuses(expected);
        // The journal is kept if only the content of the columns is wrong.
        let mut left = sandbox.outputs();
        left.retain(|name| name != "x.digest.partial" || !csv.contains("none"));
        assert_eq!(left, ["labels.csv"], "{csv}");
    }
}

#[test]
fn unreadable_columns_are_rejected() {
    let sandbox = with_csv("");
    let data = sandbox.data();
    let build = |csv: &str| {
        let args = ["digest", "build", data.to_str().unwrap(), "-o", "x.digest", "--columns", csv];
        sandbox.forebay(args)
    };
    build("missing.csv").refuses(&["missing.csv", "No such file"]);
    build("..").refuses(&["cannot read the columns in `..`"]);
    fs::write(sandbox.out("latin.csv"), b"object,label\na,caf\xe9\n").unwrap();
    build("latin.csv").refuses(&["latin.csv", "UTF-8"]);
    assert_eq!(sandbox.outputs(), ["labels.csv", "latin.csv"]);
}
