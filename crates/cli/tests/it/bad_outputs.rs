//! Outputs that cannot be written, disks that are full, and flags that make no sense.

use std::{fs, process::Command};

use crate::harness::{Forebay, Place};

fn build(place: &Place, output: &str) -> Forebay {
    let data = place.data();
    place.forebay(["digest", "build", data.to_str().unwrap(), "-o", output])
}

#[test]
fn outputs_that_cannot_be_written() {
    let place = Place::with_objects(3, 10);
    fs::create_dir(place.out("directory")).unwrap();
    fs::write(place.out("file"), b"mine").unwrap();
    for (output, saying) in [
        ("directory", &["`directory` is a directory", "name a file in it"][..]),
        (".", &["`.` is a directory"]),
        ("missing/x.digest", &["missing/x.digest", "No such file or directory"]),
        ("file/x.digest", &["file/x.digest", "Not a directory"]),
        ("/proc/x.digest", &["/proc/x.digest"]),
    ] {
        build(&place, output).refuses(saying);
        assert_eq!(place.outputs(), ["directory", "file"], "{output}");
    }
    assert_eq!(fs::read(place.out("file")).unwrap(), b"mine");
}

#[test]
fn an_output_inside_the_dataset_would_change_it() {
    let place = Place::with_objects(3, 10);
    let before = crate::harness::tree(&place.data());
    for output in ["../root/bucket/train/x.digest", "../root/bucket/train/../train/x.digest"] {
        build(&place, output).refuses(&["lies in the dataset itself", "elsewhere"]);
    }
    fs::create_dir(place.data().join("sub")).unwrap();
    build(&place, "../root/bucket/train/sub/x").refuses(&["lies in the dataset itself"]);
    assert_eq!(crate::harness::tree(&place.data()), before);
    // Beside a single file is where people want it.
    let one = place.data().join("item 000.bin");
    let output = place.data().join("item.digest");
    let args = ["digest", "build", one.to_str().unwrap(), "-o", output.to_str().unwrap()];
    place.forebay(args).succeeds();
}

/// An older digest stays until a newer one is complete.
#[test]
fn a_failed_build_leaves_the_digest_that_was_there() {
    let place = Place::with_objects(3, 10);
    place.build("x.digest", &[]);
    let before = fs::read(place.out("x.digest")).unwrap();
    place.write("bad\nname", b"x");
    build(&place, "x.digest").refuses(&["control character"]);
    assert_eq!(fs::read(place.out("x.digest")).unwrap(), before);
    place.forebay(["digest", "show", "x.digest"]).succeeds();
}

/// Runs a build into a file system of its own, of this size; tells what is left in it. `None` where
/// nobody may mount one.
fn build_into(place: &Place, size: usize) -> Option<(Forebay, std::path::PathBuf)> {
    let (disk, left) = (place.out("disk"), place.path("left"));
    let _ = fs::create_dir(&disk);
    let script = r#"mount -t tmpfs -o size="$1" forebay-test "$2" || exit 77
        shift 2; left=$1; shift; "$@"; code=$?; ls -A disk > "$left"; exit $code"#;
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh", &size.to_string()]);
    command.arg(&disk).arg(&left);
    let probe = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs x \"$0\""])
        .arg(&disk)
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        return None;
    }
    command.arg(env!("CARGO_BIN_EXE_forebay")).args(["digest", "build"]).arg(place.data());
    command.args(["-o", "disk/x.digest"]).current_dir(place.out(""));
    Some((Forebay(command), left))
}

#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
fn skipped(name: &str) {
    eprintln!("{name} was skipped: no file system can be mounted here (unshare --mount)");
}

#[test]
fn a_full_disk_while_writing_the_journal() {
    let place = Place::with_objects(600, 10);
    let Some((build, left)) = build_into(&place, 16 << 10) else {
        return skipped("a_full_disk_while_writing_the_journal");
    };
    build.refuses(&["disk/x.digest.partial", "No space left on device", "run it again"]);
    assert_eq!(fs::read_to_string(left).unwrap(), "x.digest.partial\n");
}

#[test]
fn a_full_disk_while_writing_the_digest() {
    let place = Place::with_objects(600, 10);
    place.build("x.digest", &[]);
    let digest = fs::metadata(place.out("x.digest")).unwrap().len();
    let args = ["digest", "build", "../root/bucket/train", "-o", "z.digest", "--chunks", "9999"];
    place.forebay(args).refuses(&["ask for 1 to 600"]);
    let journal = fs::metadata(place.out("z.digest.partial")).unwrap().len();
    // Room for the journal and for half of the digest.
    let size = usize::try_from(journal + digest / 2).unwrap();
    let Some((build, left)) = build_into(&place, size) else {
        return skipped("a_full_disk_while_writing_the_digest");
    };
    build.refuses(&["cannot write `disk/x.digest`", "No space left on device"]);
    assert_eq!(fs::read_to_string(left).unwrap(), "x.digest.partial\n", "what was read is kept");
}

#[test]
fn flags_that_make_no_sense() {
    let place = Place::with_objects(3, 10);
    let data = place.data();
    for (flags, saying) in [
        (&["--deadline", "5"][..], "is not a time"),
        (&["--deadline", "-5s"], "'-5'"),
        (&["--deadline", "99999999999999999999999min"], "is not a time"),
        (&["--requests", "0"], "--requests"),
        (&["--requests", "70000"], "--requests"),
        (&["--chunks", "0"], "--chunks"),
        (&["--chunks", "-1"], "'-1'"),
        (&["--chunks", "18446744073709551616"], "--chunks"),
        (&["--layout", "pack", "--pack-size", "0B"], "a pack size of nothing packs nothing"),
        (&["--pack-size", "1"], "the unit is missing"),
        (&["--pack-size", "99999999PB"], "too large"),
        (&["--layout", "zip"], "[possible values: files, pack, tar, records]"),
        (&["--format", "xml"], "[possible values: text, json]"),
        (&["--frobnicate"], "--frobnicate"),
    ] {
        let args = ["digest", "build", data.to_str().unwrap(), "-o", "x.digest"];
        place.forebay(args.iter().chain(flags)).refuses(&[saying]);
        assert!(place.outputs().is_empty(), "{flags:?}");
    }
    place.forebay(["digest", "build", "x"]).refuses(&["--output <FILE>"]);
    place.forebay(["digest", "build", "x", "-o", ""]).refuses(&["--output <FILE>"]);
    place.forebay(["digest", "shwo", "x"]).refuses(&["shwo", "show"]);
    place.forebay(["digest", "verify", "x.digest", "--sample", "few"]).refuses(&["--sample"]);
}

#[test]
fn help_is_no_error_and_goes_where_it_was_asked_for() {
    let place = Place::new();
    for args in [&["--help"][..], &["digest", "build", "--help"], &["--version"]] {
        assert!(place.forebay(args).succeeds().stdout.contains("forebay"));
    }
    let ran = place.forebay::<&str>([]).run();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("Usage:") && ran.stderr.contains("Examples:"), "{ran:?}");
}

/// A deadline beyond all calendars is as good as none.
#[test]
fn a_very_long_deadline_is_honoured() {
    let place = Place::with_objects(3, 10);
    let origin = place.serve(|_| {});
    place.build_from(&origin, "x.digest", &["--deadline", "9999999999999min"]).succeeds();
}
