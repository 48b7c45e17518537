//! Layouts with several items per object: tar archives of samples, and records of one size.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Forebay, Sandbox, content};

/// Writes an archive of samples, each an image and a label. Returns the offset and the length of
/// each sample.
fn archive(sandbox: &Sandbox, name: &str, samples: u64, long_names: bool) -> Vec<(u64, u64)> {
    let mut builder = tar::Builder::new(Vec::new());
    let (mut positions, mut start) = (Vec::new(), 0);
    let add = |builder: &mut tar::Builder<Vec<u8>>, name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append_data(&mut header, name, bytes).unwrap();
        builder.get_ref().len() as u64
    };
    for sample in 0..samples {
        let deep = if long_names { "d".repeat(90) + "/" + &"e".repeat(60) } else { "d".to_owned() };
        let key = format!("{deep}/{}-{sample:04}", name.trim_end_matches(".tar"));
        add(&mut builder, &format!("{key}.cls"), sample.to_string().as_bytes());
        let length = usize::try_from(500 + sample * 37 % 4000).unwrap();
        let end = add(&mut builder, &format!("{key}.seg.png"), &content(sample, length));
        positions.push((start, end - start));
        start = end;
    }
    sandbox.write(name, &builder.into_inner().unwrap());
    positions
}

fn shown(sandbox: &Sandbox, items: &str) -> Value {
    let args = ["digest", "show", "x.digest", "--format", "json", "--items", items];
    sandbox.forebay(args).succeeds().json()
}

fn verified(forebay: Forebay) -> Value {
    forebay.run().verdict().1
}

/// Promise 2 for archives: every sample is one item.
#[test]
fn samples_of_archives_are_items() {
    for long_names in [false, true] {
        let sandbox = Sandbox::new();
        let a = archive(&sandbox, "a.tar", 40, long_names);
        let b = archive(&sandbox, "b.tar", 25, long_names);
        let report = sandbox.build("x.digest", &["--layout", "tar", "--pack-size", "20kB"]);
        assert_eq!(report["items"], 65);
        assert_eq!(report["layout"], "tar:20000");
        let blobs = report["blobs"].as_u64().unwrap();
        assert!((8..65).contains(&blobs), "{blobs} blobs");
        let expected = a.iter().map(|sandbox| ("a.tar", sandbox));
        let expected: Vec<Value> = expected
            .chain(b.iter().map(|sandbox| ("b.tar", sandbox)))
            .map(|(name, (start, length))| json!([format!("{name}@{start}"), length]))
            .collect();
        let items = shown(&sandbox, "100")["first_items"].as_array().unwrap().clone();
        let items: Vec<Value> =
            items.iter().map(|item| json!([item["name"], item["length"]])).collect();
        assert_eq!(items, expected);
        let args = ["digest", "verify", "x.digest", "--format", "json"];
        assert_eq!(verified(sandbox.forebay(args))["sound"], true);
    }
}

/// The bytes of an item are a valid archive.
#[test]
fn an_item_is_a_small_archive() {
    let sandbox = Sandbox::new();
    let positions = archive(&sandbox, "a.tar", 3, true);
    let whole = fs::read(sandbox.data().join("a.tar")).unwrap();
    let (start, length) = positions[1];
    let item = &whole[usize::try_from(start).unwrap()..usize::try_from(start + length).unwrap()];
    let mut members = tar::Archive::new(item);
    let names: Vec<String> = members
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    assert_eq!(names.len(), 2);
    assert!(names[0].ends_with("a-0001.cls") && names[1].ends_with("a-0001.seg.png"));
}

/// A mirror is the same dataset. It can be verified there, although its versions differ.
#[test]
fn archives_behind_an_origin_are_the_same_dataset() {
    let sandbox = Sandbox::new();
    archive(&sandbox, "a.tar", 60, false);
    archive(&sandbox, "b.tar", 60, false);
    let origin = sandbox.serve(|_| {});
    let options = ["--layout", "tar", "--pack-size", "30kB"];
    let remote = sandbox.build_from(&origin, "y.digest", &options).succeeds().json();
    let local = sandbox.build("x.digest", &options);
    assert_eq!(remote["dataset"], local["dataset"]);
    let data = sandbox.data();
    let mirror =
        ["digest", "verify", "y.digest", "--origin", data.to_str().unwrap(), "--format", "json"];
    assert_eq!(verified(sandbox.forebay(mirror))["sound"], true);
}

#[test]
fn records_are_items() {
    let sandbox = Sandbox::new();
    let record = content(3, 100);
    sandbox.write("a.bin", &[&[7; 16][..], &record.repeat(25)].concat());
    sandbox.write("b.bin", &[&[8; 16][..], &record.repeat(10)].concat());
    let options = [
        "--layout",
        "records",
        "--record-size",
        "100B",
        "--record-header",
        "16B",
        "--pack-size",
        "1kB",
    ];
    let report = sandbox.build("x.digest", &options);
    assert_eq!(
        (&report["items"], &report["blobs"], &report["bytes"]),
        (&json!(35), &json!(4), &json!(3500))
    );
    assert_eq!(report["layout"], "records:100:16:1000");
    let items = shown(&sandbox, "100")["first_items"].as_array().unwrap().clone();
    assert_eq!(items[24]["name"], "a.bin@2416");
    assert_eq!(items[25]["name"], "b.bin@16");
    assert!(items.iter().all(|item| item["length"] == 100));
    // Packs of ten equal records have the same bytes, so they are the same blob.
    assert_eq!(items[0]["blob"], items[25]["blob"]);
    let args = ["digest", "verify", "x.digest", "--format", "json"];
    assert_eq!(verified(sandbox.forebay(args))["sound"], true);
}

#[test]
fn all_items_of_an_object_have_its_columns() {
    let sandbox = Sandbox::new();
    sandbox.write("a.bin", &content(1, 300));
    sandbox.write("b.bin", &content(2, 200));
    fs::write(sandbox.out("labels.csv"), "object,label\na.bin,cat\nnone.bin,dog\n").unwrap();
    let options = ["--layout", "records", "--record-size", "100B", "--columns", "labels.csv"];
    let report = sandbox.build("x.digest", &options);
    assert_eq!(
        (&report["items_without_columns"], &report["columns_without_items"]),
        (&json!(2), &json!(1))
    );
    let items = shown(&sandbox, "9")["first_items"].as_array().unwrap().clone();
    let labels: Vec<&Value> = items.iter().map(|item| &item["columns"]["label"]).collect();
    assert_eq!(labels, [&json!("cat"), &json!("cat"), &json!("cat"), &Value::Null, &Value::Null]);
}

#[test]
fn a_changed_object_of_several_blobs_is_named_once() {
    let sandbox = Sandbox::new();
    archive(&sandbox, "a.tar", 50, false);
    archive(&sandbox, "b.tar", 50, false);
    let options = ["--layout", "tar", "--pack-size", "10kB"];
    sandbox.build("x.digest", &options);
    archive(&sandbox, "b.tar", 60, false);
    archive(&sandbox, "c.tar", 5, false);
    sandbox.build("y.digest", &options);
    let args = ["digest", "diff", "x.digest", "y.digest", "--format", "json"];
    let (code, report) = sandbox.forebay(args).run().verdict();
    assert_eq!(code, 1);
    assert_eq!((&report["added"], &report["removed"]), (&json!(["c.tar"]), &json!([])));
    assert_eq!(report["changed"], json!(["b.tar"]));
    let args = ["digest", "verify", "x.digest", "--format", "json"];
    // The first samples are unchanged, although the object was written again.
    let report = verified(sandbox.forebay(args));
    assert_eq!((&report["changed"], &report["sound"]), (&json!([]), &json!(true)));
    assert!(report["rewritten"].as_u64().unwrap() > 1);
    archive(&sandbox, "b.tar", 40, true);
    assert_eq!(verified(sandbox.forebay(args))["changed"], json!(["b.tar"]));
}

#[test]
fn invalid_records_and_archives_are_rejected() {
    let sandbox = Sandbox::new();
    sandbox.write("a.bin", &content(1, 250));
    let data = sandbox.data();
    let build = |options: &[&str]| {
        let args = ["digest", "build", data.to_str().unwrap(), "-o", "x.digest"];
        sandbox.forebay(args.iter().chain(options))
    };
    build(&["--layout", "records"]).refuses(&["needs --record-size"]);
    build(&["--layout", "records", "--record-size", "0B"]).refuses(&["--record-size is 0B"]);
    build(&["--layout", "tar", "--record-size", "5B"]).refuses(&["--layout records"]);
    build(&["--layout", "records", "--record-size", "100B"]).refuses(&[
        "a.bin",
        "250",
        "; check --record-size and --record-header, or leave it out",
    ]);
    build(&["--layout", "tar"]).refuses(&[
        "`a.bin` is no tar archive (",
        "); decompress",
        "--exclude",
    ]);
    archive(&sandbox, "b.tar", 9, false);
    let whole = fs::read(data.join("b.tar")).unwrap();
    fs::remove_file(data.join("a.bin")).unwrap();
    sandbox.write("b.tar", &whole[..2000]);
    build(&["--layout", "tar"]).refuses(&["b.tar", "truncated"]);
    sandbox.write("b.tar", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0].repeat(200));
    build(&["--layout", "tar"]).refuses(&["b.tar", "decompress"]);
}
