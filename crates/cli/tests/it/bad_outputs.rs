//! Outputs that cannot be written, disks that are full, and flags that make no sense.

use std::{fs, process::Command};

use crate::harness::{Forebay, Sandbox};

fn build(sandbox: &Sandbox, output: &str) -> Forebay {
    let data = sandbox.data();
    sandbox.forebay(["digest", "build", data.to_str().unwrap(), "-o", output])
}

#[test]
fn an_output_that_cannot_be_written_is_rejected() {
    let sandbox = Sandbox::with_objects(3, 10);
    fs::create_dir(sandbox.out("directory")).unwrap();
    fs::write(sandbox.out("file"), b"mine").unwrap();
    for (output, expected) in [
        ("directory", &["`directory` is a directory", "name a file in it"][..]),
        (".", &["`.` is a directory"]),
        ("missing/x.digest", &["missing/x.digest", "No such file or directory"]),
        ("file/x.digest", &["file/x.digest", "Not a directory"]),
        ("/proc/x.digest", &["/proc/x.digest"]),
    ] {
        build(&sandbox, output).refuses(expected);
        assert_eq!(sandbox.outputs(), ["directory", "file"], "{output}");
    }
    assert_eq!(fs::read(sandbox.out("file")).unwrap(), b"mine");
}

#[test]
fn an_output_inside_the_dataset_is_rejected() {
    let sandbox = Sandbox::with_objects(3, 10);
    let before = crate::harness::tree(&sandbox.data());
    for output in ["../root/bucket/train/x.digest", "../root/bucket/train/../train/x.digest"] {
        build(&sandbox, output).refuses(&["lies in the dataset itself", "elsewhere"]);
    }
    fs::create_dir(sandbox.data().join("sub")).unwrap();
    build(&sandbox, "../root/bucket/train/sub/x").refuses(&["lies in the dataset itself"]);
    assert_eq!(crate::harness::tree(&sandbox.data()), before);
    // Beside a single file is allowed.
    let one = sandbox.data().join("item 000.bin");
    let output = sandbox.data().join("item.digest");
    let args = ["digest", "build", one.to_str().unwrap(), "-o", output.to_str().unwrap()];
    sandbox.forebay(args).succeeds();
}

/// An older digest stays until the newer one is complete.
#[test]
fn a_failed_build_leaves_the_older_digest() {
    let sandbox = Sandbox::with_objects(3, 10);
    sandbox.build("x.digest", &[]);
    let before = fs::read(sandbox.out("x.digest")).unwrap();
    sandbox.write("bad\nname", b"x");
    build(&sandbox, "x.digest").refuses(&["control character"]);
    assert_eq!(fs::read(sandbox.out("x.digest")).unwrap(), before);
    sandbox.forebay(["digest", "show", "x.digest"]).succeeds();
}

/// A build into a file system of this size, and the path of a list of the files left in it. `None`
/// where mounting is not allowed.
fn build_into(sandbox: &Sandbox, size: usize) -> Option<(Forebay, std::path::PathBuf)> {
    let (disk, left) = (sandbox.out("disk"), sandbox.path("left"));
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
    command.arg(env!("CARGO_BIN_EXE_forebay")).args(["digest", "build"]).arg(sandbox.data());
    command.args(["-o", "disk/x.digest"]).current_dir(sandbox.out(""));
    Some((Forebay(command), left))
}

#[expect(clippy::print_stderr, reason = "a skipped test prints a note")]
fn skipped(name: &str) {
    eprintln!("{name} was skipped: no file system can be mounted here (unshare --mount)");
}

#[test]
fn a_full_disk_while_writing_the_journal() {
    let sandbox = Sandbox::with_objects(600, 10);
    let Some((build, left)) = build_into(&sandbox, 16 << 10) else {
        return skipped("a_full_disk_while_writing_the_journal");
    };
    build.refuses(&["disk/x.digest.partial", "No space left on device", "run the build again"]);
    assert_eq!(fs::read_to_string(left).unwrap(), "x.digest.partial\n");
}

#[test]
fn a_full_disk_while_writing_the_digest() {
    let sandbox = Sandbox::with_objects(600, 10);
    sandbox.build("x.digest", &[]);
    let digest = fs::metadata(sandbox.out("x.digest")).unwrap().len();
    let args = ["digest", "build", "../root/bucket/train", "-o", "z.digest", "--chunks", "9999"];
    sandbox.forebay(args).refuses(&["ask for 1 to 600"]);
    let journal = fs::metadata(sandbox.out("z.digest.partial")).unwrap().len();
    // Space for the journal and for half of the digest.
    let size = usize::try_from(journal + digest / 2).unwrap();
    let Some((build, left)) = build_into(&sandbox, size) else {
        return skipped("a_full_disk_while_writing_the_digest");
    };
    build.refuses(&["cannot write `disk/x.digest`", "No space left on device"]);
    assert_eq!(fs::read_to_string(left).unwrap(), "x.digest.partial\n", "the journal is kept");
}

#[test]
fn invalid_options_are_rejected() {
    let sandbox = Sandbox::with_objects(3, 10);
    let data = sandbox.data();
    for (flags, expected) in [
        (&["--deadline", "5"][..], "is not a time"),
        (&["--deadline", "-5s"], "'-5'"),
        (&["--deadline", "99999999999999999999999min"], "is not a time"),
        (&["--requests", "0"], "--requests"),
        (&["--requests", "70000"], "--requests"),
        (&["--chunks", "0"], "--chunks"),
        (&["--chunks", "-1"], "'-1'"),
        (&["--chunks", "18446744073709551616"], "--chunks"),
        (&["--layout", "pack", "--pack-size", "0B"], "--pack-size is 0B"),
        (&["--pack-size", "1"], "the unit is missing"),
        (&["--pack-size", "99999999PB"], "too large"),
        (&["--layout", "zip"], "[possible values: files, pack, tar, records]"),
        (&["--format", "xml"], "[possible values: text, json]"),
        (&["--frobnicate"], "--frobnicate"),
    ] {
        let args = ["digest", "build", data.to_str().unwrap(), "-o", "x.digest"];
        sandbox.forebay(args.iter().chain(flags)).refuses(&[expected]);
        assert!(sandbox.outputs().is_empty(), "{flags:?}");
    }
    sandbox.forebay(["digest", "build", "x"]).refuses(&["--output <FILE>"]);
    sandbox.forebay(["digest", "build", "x", "-o", ""]).refuses(&["--output <FILE>"]);
    sandbox.forebay(["digest", "shwo", "x"]).refuses(&["shwo", "show"]);
    sandbox.forebay(["digest", "verify", "x.digest", "--sample", "few"]).refuses(&["--sample"]);
}

#[test]
fn help_goes_to_standard_output_and_is_no_error() {
    let sandbox = Sandbox::new();
    for args in [&["--help"][..], &["digest", "build", "--help"], &["--version"]] {
        assert!(sandbox.forebay(args).succeeds().stdout.contains("forebay"));
    }
    let ran = sandbox.forebay::<&str>([]).run();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("Usage:") && ran.stderr.contains("Examples:"), "{ran:?}");
}

/// A deadline that overflows the clock is treated as none.
#[test]
fn a_very_long_deadline_is_accepted() {
    let sandbox = Sandbox::with_objects(3, 10);
    let origin = sandbox.serve(|_| {});
    sandbox.build_from(&origin, "x.digest", &["--deadline", "9999999999999min"]).succeeds();
}
