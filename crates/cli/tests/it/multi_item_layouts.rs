//! Layouts whose objects hold many items: tar archives of samples, and records of one length.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Forebay, Place, content};

/// An archive of samples, each an image and a label; returns where each sample lies.
fn archive(place: &Place, name: &str, samples: u64, long_names: bool) -> Vec<(u64, u64)> {
    let mut builder = tar::Builder::new(Vec::new());
    let (mut places, mut start) = (Vec::new(), 0);
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
        places.push((start, end - start));
        start = end;
    }
    place.write(name, &builder.into_inner().unwrap());
    places
}

fn shown(place: &Place, items: &str) -> Value {
    let args = ["digest", "show", "x.digest", "--format", "json", "--items", items];
    place.forebay(args).succeeds().json()
}

fn verified(forebay: Forebay) -> Value {
    forebay.run().verdict().1
}

/// "Every item exactly once" begins with every sample being one item, wherever its archive cuts it.
#[test]
fn samples_of_archives_are_items() {
    for long_names in [false, true] {
        let place = Place::new();
        let a = archive(&place, "a.tar", 40, long_names);
        let b = archive(&place, "b.tar", 25, long_names);
        let report = place.build("x.digest", &["--layout", "tar", "--pack-size", "20kB"]);
        assert_eq!(report["items"], 65);
        assert_eq!(report["layout"], "tar:20000");
        let blobs = report["blobs"].as_u64().unwrap();
        assert!((8..65).contains(&blobs), "{blobs} blobs");
        let expected = a.iter().map(|place| ("a.tar", place));
        let expected: Vec<Value> = expected
            .chain(b.iter().map(|place| ("b.tar", place)))
            .map(|(name, (start, length))| json!([format!("{name}@{start}"), length]))
            .collect();
        let items = shown(&place, "100")["first_items"].as_array().unwrap().clone();
        let items: Vec<Value> =
            items.iter().map(|item| json!([item["name"], item["length"]])).collect();
        assert_eq!(items, expected);
        assert_eq!(
            verified(place.forebay(["digest", "verify", "x.digest", "--format", "json"]))["sound"],
            true
        );
    }
}

/// An item is an archive itself: whoever reads it needs no more than its bytes.
#[test]
fn an_item_is_a_small_archive() {
    let place = Place::new();
    let places = archive(&place, "a.tar", 3, true);
    let whole = fs::read(place.data().join("a.tar")).unwrap();
    let (start, length) = places[1];
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

/// A mirror holds the same dataset; and it can be verified there, though versions mean nothing.
#[test]
fn archives_behind_an_origin_are_the_same_dataset() {
    let place = Place::new();
    archive(&place, "a.tar", 60, false);
    archive(&place, "b.tar", 60, false);
    let origin = place.serve(|_| {});
    let options = ["--layout", "tar", "--pack-size", "30kB"];
    let remote = place.build_from(&origin, "y.digest", &options).succeeds().json();
    let local = place.build("x.digest", &options);
    assert_eq!(remote["dataset"], local["dataset"]);
    let data = place.data();
    let elsewhere =
        ["digest", "verify", "y.digest", "--origin", data.to_str().unwrap(), "--format", "json"];
    assert_eq!(verified(place.forebay(elsewhere))["sound"], true);
}

#[test]
fn records_are_items() {
    let place = Place::new();
    let record = content(3, 100);
    place.write("a.bin", &[&[7; 16][..], &record.repeat(25)].concat());
    place.write("b.bin", &[&[8; 16][..], &record.repeat(10)].concat());
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
    let report = place.build("x.digest", &options);
    assert_eq!(
        (&report["items"], &report["blobs"], &report["bytes"]),
        (&json!(35), &json!(4), &json!(3500))
    );
    assert_eq!(report["layout"], "records:100:16:1000");
    let items = shown(&place, "100")["first_items"].as_array().unwrap().clone();
    assert_eq!(items[24]["name"], "a.bin@2416");
    assert_eq!(items[25]["name"], "b.bin@16");
    assert!(items.iter().all(|item| item["length"] == 100));
    // Ten records and ten records have the same bytes, so they are the same blob.
    assert_eq!(items[0]["blob"], items[25]["blob"]);
    assert_eq!(
        verified(place.forebay(["digest", "verify", "x.digest", "--format", "json"]))["sound"],
        true
    );
}

/// What the columns' file says of an object holds for all of its items.
#[test]
fn columns_of_an_object_are_those_of_its_items() {
    let place = Place::new();
    place.write("a.bin", &content(1, 300));
    place.write("b.bin", &content(2, 200));
    fs::write(place.out("labels.csv"), "object,label\na.bin,cat\nnone.bin,dog\n").unwrap();
    let options = ["--layout", "records", "--record-size", "100B", "--columns", "labels.csv"];
    let report = place.build("x.digest", &options);
    assert_eq!(
        (&report["items_without_columns"], &report["columns_without_items"]),
        (&json!(2), &json!(1))
    );
    let items = shown(&place, "9")["first_items"].as_array().unwrap().clone();
    let labels: Vec<&Value> = items.iter().map(|item| &item["columns"]["label"]).collect();
    assert_eq!(labels, [&json!("cat"), &json!("cat"), &json!("cat"), &Value::Null, &Value::Null]);
}

/// An object that holds many blobs is told of once.
#[test]
fn what_changed_is_named_once() {
    let place = Place::new();
    archive(&place, "a.tar", 50, false);
    archive(&place, "b.tar", 50, false);
    let options = ["--layout", "tar", "--pack-size", "10kB"];
    place.build("x.digest", &options);
    archive(&place, "b.tar", 60, false);
    archive(&place, "c.tar", 5, false);
    place.build("y.digest", &options);
    let args = ["digest", "diff", "x.digest", "y.digest", "--format", "json"];
    let (code, report) = place.forebay(args).run().verdict();
    assert_eq!(code, 1);
    assert_eq!((&report["added"], &report["removed"]), (&json!(["c.tar"]), &json!([])));
    assert_eq!(report["changed"], json!(["b.tar"]));
    let args = ["digest", "verify", "x.digest", "--format", "json"];
    // What it has of the first is still there, though the object was written again.
    let report = verified(place.forebay(args));
    assert_eq!((&report["changed"], &report["sound"]), (&json!([]), &json!(true)));
    assert!(report["rewritten"].as_u64().unwrap() > 1);
    archive(&place, "b.tar", 40, true);
    assert_eq!(verified(place.forebay(args))["changed"], json!(["b.tar"]));
}

#[test]
fn mistakes_are_named() {
    let place = Place::new();
    place.write("a.bin", &content(1, 250));
    let data = place.data();
    let build = |options: &[&str]| {
        let args = ["digest", "build", data.to_str().unwrap(), "-o", "x.digest"];
        place.forebay(args.iter().chain(options))
    };
    build(&["--layout", "records"]).refuses(&["needs --record-size"]);
    build(&["--layout", "records", "--record-size", "0B"]).refuses(&["record of nothing"]);
    build(&["--layout", "tar", "--record-size", "5B"]).refuses(&["--layout records"]);
    build(&["--layout", "records", "--record-size", "100B"]).refuses(&[
        "a.bin",
        "250",
        "--record-size",
    ]);
    build(&["--layout", "tar"]).refuses(&["a.bin", "tar archive", "--exclude"]);
    archive(&place, "b.tar", 9, false);
    let whole = fs::read(data.join("b.tar")).unwrap();
    fs::remove_file(data.join("a.bin")).unwrap();
    place.write("b.tar", &whole[..2000]);
    build(&["--layout", "tar"]).refuses(&["b.tar", "cut off"]);
    place.write("b.tar", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0].repeat(200));
    build(&["--layout", "tar"]).refuses(&["b.tar", "compressed"]);
}
