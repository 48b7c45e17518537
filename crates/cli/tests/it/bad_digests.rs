//! Files that are not digests, or damaged ones: rejected by every command.

use std::{collections::HashMap, fs, fs::File};

use arrow_ipc::{reader::FileReader, writer::FileWriter};
use arrow_schema::Schema;

use crate::harness::Sandbox;

/// A sandbox with an intact digest, and its bytes.
fn intact() -> (Sandbox, Vec<u8>) {
    let sandbox = Sandbox::with_objects(200, 10);
    sandbox.build("sound.digest", &["--layout", "pack", "--pack-size", "50B"]);
    let bytes = fs::read(sandbox.out("sound.digest")).unwrap();
    (sandbox, bytes)
}

fn all_commands_refuse(sandbox: &Sandbox, expected: &[&str]) {
    let expected = [&["`x.digest`"], expected].concat();
    for args in [
        &["digest", "show", "x.digest"][..],
        &["digest", "verify", "x.digest"],
        &["digest", "diff", "x.digest", "sound.digest"],
        &["digest", "diff", "sound.digest", "x.digest"],
    ] {
        sandbox.forebay(args).refuses(&expected);
    }
    assert_eq!(sandbox.outputs(), ["sound.digest", "sound.digest.checked", "x.digest"]);
}

#[test]
fn a_truncated_digest_is_rejected() {
    let (sandbox, bytes) = intact();
    let length = bytes.len();
    for keep in [1, 7, 8, 100, length / 2, length - 100, length - 7, length - 1] {
        fs::write(sandbox.out("x.digest"), &bytes[..keep]).unwrap();
        all_commands_refuse(&sandbox, &["digest"]);
    }
    fs::write(sandbox.out("x.digest"), [&bytes[..], b"more"].concat()).unwrap();
    all_commands_refuse(&sandbox, &["digest"]);
}

#[test]
fn another_file_is_not_a_digest() {
    let (sandbox, _) = intact();
    for content in [&b""[..], b"object,label\na,1\n", b"PK\x03\x04 a zip file", &[0; 10_000]] {
        fs::write(sandbox.out("x.digest"), content).unwrap();
        all_commands_refuse(&sandbox, &["not a forebay digest"]);
    }
    rewrite(&sandbox, |_| {});
    all_commands_refuse(&sandbox, &["not a forebay digest", "an Arrow file"]);
}

/// A newer format is named as such, not as damage, although its checksums are unknown.
#[test]
fn a_newer_format_asks_for_a_newer_forebay() {
    let (sandbox, _) = intact();
    rewrite(&sandbox, |metadata| {
        metadata.insert("forebay.format".to_owned(), "3".to_owned());
    });
    all_commands_refuse(&sandbox, &["format 3", "install a newer forebay"]);
}

/// Writes the rows of the digest as another Arrow file, with other metadata.
fn rewrite(sandbox: &Sandbox, metadata: impl FnOnce(&mut HashMap<String, String>)) {
    let reader =
        FileReader::try_new(File::open(sandbox.out("sound.digest")).unwrap(), None).unwrap();
    let mut changed = HashMap::new();
    metadata(&mut changed);
    let schema = Schema::new_with_metadata(reader.schema().fields().clone(), changed);
    let file = File::create(sandbox.out("x.digest")).unwrap();
    let mut writer = FileWriter::try_new(file, &schema).unwrap();
    for batch in reader {
        writer.write(&batch.unwrap()).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_flipped_bit_is_found() {
    let (sandbox, bytes) = intact();
    for step in 0..24 {
        let mut flipped = bytes.clone();
        let at = step * bytes.len() / 24;
        flipped[at] ^= 1 << (step % 8);
        fs::write(sandbox.out("x.digest"), flipped).unwrap();
        sandbox.forebay(["digest", "show", "x.digest"]).refuses(&["`x.digest`", "digest"]);
        sandbox.forebay(["digest", "verify", "x.digest"]).refuses(&["`x.digest`", "digest"]);
    }
}

/// An earlier check does not count for a file that has changed since.
#[test]
fn damage_after_a_check_is_found() {
    let (sandbox, bytes) = intact();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    fs::write(sandbox.out("sound.digest"), flipped).unwrap();
    sandbox.forebay(["digest", "show", "sound.digest"]).refuses(&["damaged", "build it again"]);
}

#[test]
fn a_missing_file_or_a_directory_is_not_a_digest() {
    let sandbox = Sandbox::new();
    sandbox
        .forebay(["digest", "show", "none.digest"])
        .refuses(&["there is no file `none.digest`", "forebay digest build"]);
    let expected = &["`.` is a directory; give a digest, built with `forebay digest build`"];
    sandbox.forebay(["digest", "diff", ".", "none"]).refuses(expected);
    // These take the directory of a dataset that was read before.
    let expected = &["there is no digest of `file:///", "build one with `forebay digest build"];
    sandbox.forebay(["digest", "show", "."]).refuses(expected);
    sandbox.forebay(["warm", "."]).refuses(expected);
}
