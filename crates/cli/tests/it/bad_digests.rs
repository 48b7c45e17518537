//! Files that are no digests, or no longer: refused by every command that opens one.

use std::{collections::HashMap, fs, fs::File};

use arrow_ipc::{reader::FileReader, writer::FileWriter};
use arrow_schema::Schema;

use crate::harness::Place;

/// A place with a sound digest and its bytes.
fn sound() -> (Place, Vec<u8>) {
    let place = Place::with_objects(200, 10);
    place.build("sound.digest", &["--layout", "pack", "--pack-size", "50B"]);
    let bytes = fs::read(place.out("sound.digest")).unwrap();
    (place, bytes)
}

fn all_commands_refuse(place: &Place, saying: &[&str]) {
    let saying = [&["`x.digest`"], saying].concat();
    for args in [
        &["digest", "show", "x.digest"][..],
        &["digest", "verify", "x.digest"],
        &["digest", "diff", "x.digest", "sound.digest"],
        &["digest", "diff", "sound.digest", "x.digest"],
    ] {
        place.forebay(args).refuses(&saying);
    }
    assert_eq!(place.outputs(), ["sound.digest", "sound.digest.checked", "x.digest"]);
}

#[test]
fn truncated_digests() {
    let (place, bytes) = sound();
    let length = bytes.len();
    for keep in [1, 7, 8, 100, length / 2, length - 100, length - 7, length - 1] {
        fs::write(place.out("x.digest"), &bytes[..keep]).unwrap();
        all_commands_refuse(&place, &["digest"]);
    }
    fs::write(place.out("x.digest"), [&bytes[..], b"more"].concat()).unwrap();
    all_commands_refuse(&place, &["digest"]);
}

#[test]
fn foreign_files() {
    let (place, _) = sound();
    for content in [&b""[..], b"object,label\na,1\n", b"PK\x03\x04 a zip file", &[0; 10_000]] {
        fs::write(place.out("x.digest"), content).unwrap();
        all_commands_refuse(&place, &["not a forebay digest"]);
    }
    rewrite(&place, |_| {});
    all_commands_refuse(&place, &["not a forebay digest", "an Arrow file"]);
}

/// A later forebay's file must be called that, not damaged, although its checksums mean nothing to us.
#[test]
fn newer_formats() {
    let (place, _) = sound();
    rewrite(&place, |metadata| {
        metadata.insert("forebay.format".to_owned(), "2".to_owned());
    });
    all_commands_refuse(&place, &["format 2", "install a newer forebay"]);
}

/// Writes the sound digest's rows as another Arrow file, with other metadata.
fn rewrite(place: &Place, metadata: impl FnOnce(&mut HashMap<String, String>)) {
    let reader = FileReader::try_new(File::open(place.out("sound.digest")).unwrap(), None).unwrap();
    let mut changed = HashMap::new();
    metadata(&mut changed);
    let schema = Schema::new_with_metadata(reader.schema().fields().clone(), changed);
    let file = File::create(place.out("x.digest")).unwrap();
    let mut writer = FileWriter::try_new(file, &schema).unwrap();
    for batch in reader {
        writer.write(&batch.unwrap()).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn flipped_bits() {
    let (place, bytes) = sound();
    for step in 0..24 {
        let mut flipped = bytes.clone();
        let at = step * bytes.len() / 24;
        flipped[at] ^= 1 << (step % 8);
        fs::write(place.out("x.digest"), flipped).unwrap();
        place.forebay(["digest", "show", "x.digest"]).refuses(&["`x.digest`", "digest"]);
        place.forebay(["digest", "verify", "x.digest"]).refuses(&["`x.digest`", "digest"]);
    }
}

/// The memory of an earlier check must not vouch for a file that has changed since.
#[test]
fn damage_after_a_check_is_found() {
    let (place, bytes) = sound();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    fs::write(place.out("sound.digest"), flipped).unwrap();
    place.forebay(["digest", "show", "sound.digest"]).refuses(&["damaged", "build it again"]);
}

#[test]
fn digests_that_are_not_files() {
    let place = Place::new();
    place.forebay(["digest", "show", "none.digest"]).refuses(&["none.digest", "No such file"]);
    place.forebay(["digest", "show", "."]).refuses(&["cannot read `.`", "directory"]);
    place.forebay(["digest", "diff", ".", "none"]).refuses(&["cannot read `.`"]);
}
