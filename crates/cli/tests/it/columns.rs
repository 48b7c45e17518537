//! The user's own columns, from a CSV file.

use std::fs;

use serde_json::{Value, json};

use crate::harness::Place;

fn with_csv(text: &str) -> Place {
    let place = Place::new();
    for name in ["a", "b", "c", "d/e"] {
        place.write(name, name.as_bytes());
    }
    fs::write(place.out("labels.csv"), text).unwrap();
    place
}

fn items(place: &Place) -> Vec<Value> {
    let args = ["digest", "show", "x.digest", "--format", "json"];
    place.forebay(args).succeeds().json()["first_items"].as_array().unwrap().clone()
}

#[test]
fn columns_of_every_type_are_kept() {
    let place = with_csv(
        "object,zeta,score,good,text\n\
         a,1,0.5,true,cat\n\
         d/e,-7,,False,\"dog, \"\"big\"\"\"\n\
         c,,2e3,,\n\
         not-there,5,1,true,x\n",
    );
    for options in [&[][..], &["--layout", "pack"]] {
        let options = [&["--columns", "labels.csv"], options].concat();
        let report = place.build("x.digest", &options);
        assert_eq!(report["items_without_columns"], 1);
        let args = ["digest", "show", "x.digest", "--format", "json"];
        let shown = place.forebay(args).succeeds().json();
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
        for (item, (name, columns)) in items(&place).iter().zip(expected) {
            assert_eq!((&item["name"], &item["columns"]), (&json!(name), &columns));
        }
    }
}

#[test]
fn tables_for_people_keep_the_order_of_the_file() {
    let place = with_csv("object,zeta,alpha\na,1,x\n");
    place.build("x.digest", &["--columns", "labels.csv"]);
    let shown = place.forebay(["digest", "show", "x.digest"]).succeeds().stdout;
    let line = |start: &str| shown.lines().find(|line| line.starts_with(start)).unwrap();
    assert!(line("ITEM").ends_with("zeta  alpha"), "{shown}");
    assert!(line("a ").ends_with("   1    \"x\""), "{shown}");
    assert!(shown.contains("columns    zeta (int), alpha (text)"), "{shown}");
}

/// Labels are the user's own: they do not change what is cached, or who shares it.
#[test]
fn columns_do_not_change_the_dataset() {
    let place = with_csv("object,label\na,1\nb,2\n");
    let plain = place.build("x.digest", &[]);
    let labelled = place.build("y.digest", &["--columns", "labels.csv"]);
    assert_eq!(plain["dataset"], labelled["dataset"]);
}

#[test]
fn malformed_columns_are_refused_before_any_work() {
    for (csv, saying) in [
        ("object,label\na,1,2\n", &["labels.csv", "line: 2", "3 fields"][..]),
        ("object,label\na,1\nb,2\na,3\n", &["labels.csv", "line 4 names `a` a second time"]),
        ("object\na\n", &["labels.csv", "no column besides the first", "add one"]),
        ("", &["labels.csv", "no column besides the first"]),
        ("object,label,label\na,1,2\n", &["labels.csv", "`label` is taken"]),
        ("object,offset\na,1\n", &["labels.csv", "`offset` is taken"]),
        ("object,\na,1\n", &["labels.csv", "column 2 has no name"]),
        ("object,label\nnone,1\nof,2\n", &["none of the 2 objects", "relative to file://"]),
    ] {
        let place = with_csv(csv);
        let data = place.data();
        let args = ["digest", "build", data.to_str().unwrap(), "-o", "x.digest", "--columns"];
        place.forebay(args.into_iter().chain(["labels.csv"])).refuses(saying);
        // A complete journal is kept when only the columns' content was wrong.
        let mut left = place.outputs();
        left.retain(|name| name != "x.digest.partial" || !csv.contains("none"));
        assert_eq!(left, ["labels.csv"], "{csv}");
    }
}

#[test]
fn columns_that_cannot_be_read_are_refused() {
    let place = with_csv("");
    let data = place.data();
    let build = |csv: &str| {
        let args = ["digest", "build", data.to_str().unwrap(), "-o", "x.digest", "--columns", csv];
        place.forebay(args)
    };
    build("missing.csv").refuses(&["missing.csv", "No such file"]);
    build("..").refuses(&["read the columns in `..`"]);
    fs::write(place.out("latin.csv"), b"object,label\na,caf\xe9\n").unwrap();
    build("latin.csv").refuses(&["latin.csv", "UTF-8"]);
    assert_eq!(place.outputs(), ["labels.csv", "latin.csv"]);
}
