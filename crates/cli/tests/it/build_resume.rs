//! Interrupted builds: every kind of interruption is resumed.

use std::{fs, os::unix::fs::FileExt as _};

use forebay_dev_origin::DevOrigin;
use rustix::process::Signal;

use crate::harness::{Running, Sandbox, slow, wait_until};

/// Far more than are in flight, because objects in flight finish in any order.
const OBJECTS: usize = 160;
const SIZE: usize = 20_000;
/// Nearly sequential, so that some objects are done before others begin.
const SEQUENTIAL: [&str; 2] = ["--requests", "2"];

/// An origin that needs about 4 s for all objects.
fn slow_origin(sandbox: &Sandbox) -> DevOrigin {
    sandbox.serve(|config| slow(config, 800_000))
}

/// Starts a build, and waits until some of its rows are in the journal.
fn start_build(sandbox: &Sandbox, origin: &DevOrigin) -> Running {
    let mut build = sandbox.build_from(origin, "x.digest", &SEQUENTIAL).start();
    let journal = sandbox.out("x.digest.partial");
    wait_until("rows are in the journal", || {
        assert!(build.is_running(), "the build ended before it could be interrupted");
        fs::metadata(&journal).is_ok_and(|metadata| metadata.len() > 400)
    });
    build
}

/// The second run reads only what the journal does not have, and its digest is identical to that of
/// an uninterrupted build.
fn resumes(sandbox: &Sandbox, origin: &DevOrigin) {
    origin.reset_counters();
    let report = sandbox.build_from(origin, "x.digest", &SEQUENTIAL).succeeds().json();
    let resumed = usize::try_from(report["blobs_resumed"].as_u64().unwrap()).unwrap();
    assert!((1..OBJECTS).contains(&resumed), "{resumed} blobs resumed");
    let counters = origin.counters();
    let read: Vec<_> = counters.objects.keys().cloned().collect();
    let wanted: Vec<_> =
        (resumed..OBJECTS).map(|at| format!("bucket/train/item {at:03}.bin")).collect();
    assert_eq!(read, wanted);
    assert_eq!(report["bytes_read"], counters.bytes_sent);
    assert!(counters.bytes_sent < sandbox.data_size());
    assert_eq!(sandbox.outputs(), ["x.digest", "x.digest.checked"]);

    let fast = sandbox.serve(|_| {});
    sandbox.build_from(&fast, "y.digest", &[]).succeeds();
    assert_eq!(
        fs::read(sandbox.out("x.digest")).unwrap(),
        fs::read(sandbox.out("y.digest")).unwrap()
    );
}

#[test]
fn a_build_resumes_after_sigint_and_sigterm() {
    for signal in [Signal::INT, Signal::TERM] {
        let sandbox = Sandbox::with_objects(OBJECTS, SIZE);
        let origin = slow_origin(&sandbox);
        let build = start_build(&sandbox, &origin);
        build.signal(signal);
        let ran = build.finish();
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(130), ""), "{ran:?}");
        assert_eq!(ran.stderr, "interrupted; run the same command again to resume\n");
        assert_eq!(sandbox.outputs(), ["x.digest.partial"]);
        resumes(&sandbox, &origin);
    }
}

#[test]
fn a_build_resumes_after_sigkill() {
    let sandbox = Sandbox::with_objects(OBJECTS, SIZE);
    let origin = slow_origin(&sandbox);
    let build = start_build(&sandbox, &origin);
    build.signal(Signal::KILL);
    assert_eq!(build.finish().code, None);
    // A crash may leave a torn last row.
    let journal = fs::OpenOptions::new().write(true).open(sandbox.out("x.digest.partial")).unwrap();
    let length = journal.metadata().unwrap().len();
    journal.write_all_at(b"torn", length - 4).unwrap();
    resumes(&sandbox, &origin);
}

#[test]
fn objects_that_changed_since_the_interruption_are_read_again() {
    let sandbox = Sandbox::with_objects(OBJECTS, SIZE);
    let origin = slow_origin(&sandbox);
    let build = start_build(&sandbox, &origin);
    build.signal(Signal::KILL);
    build.finish();
    sandbox.write("item 001.bin", b"changed since");
    let report = sandbox.build_from(&origin, "x.digest", &[]).succeeds().json();
    assert_eq!(report["blobs_resumed"], 1, "only rows before the change");
    assert_eq!(report["bytes"], sandbox.data_size());
    sandbox.forebay(["digest", "verify", "x.digest"]).reaching(&origin).succeeds();
}

#[test]
fn verifying_can_be_interrupted() {
    let sandbox = Sandbox::with_objects(OBJECTS, SIZE);
    let fast = sandbox.serve(|_| {});
    sandbox.build_from(&fast, "x.digest", &[]).succeeds();
    let origin = slow_origin(&sandbox);
    let verify = sandbox.forebay(["digest", "verify", "x.digest"]).reaching(&origin).start();
    wait_until("the command reads", || origin.counters().bytes_sent > 0);
    verify.signal(Signal::INT);
    let ran = verify.finish();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(130), ""));
    assert_eq!(ran.stderr, "interrupted before everything was verified\n");
}

#[test]
fn a_journal_of_another_build_is_refused_until_a_restart() {
    let sandbox = Sandbox::with_objects(OBJECTS, SIZE);
    let origin = slow_origin(&sandbox);
    let build = start_build(&sandbox, &origin);
    build.signal(Signal::INT);
    build.finish();
    let before = fs::read(sandbox.out("x.digest.partial")).unwrap();
    let fast = sandbox.serve(|_| {});
    for options in [&["--layout", "pack"][..], &["--exclude", "*.txt"]] {
        sandbox.build_from(&fast, "x.digest", options).refuses(&[
            "x.digest.partial",
            "interrupted build of s3://bucket/train",
            "--restart",
        ]);
        assert_eq!(fs::read(sandbox.out("x.digest.partial")).unwrap(), before);
    }
    let report =
        sandbox.build_from(&fast, "x.digest", &["--layout", "pack", "--restart"]).succeeds().json();
    assert_eq!(report["blobs_resumed"], 0);
    assert_eq!(sandbox.outputs(), ["x.digest", "x.digest.checked"]);
}

#[test]
fn a_torn_journal_is_replaced_and_another_file_is_left_alone() {
    for content in [&b""[..], b"fore", b"forebay journal1", b"forebay journal1 and then nonsense"] {
        let sandbox = Sandbox::with_objects(3, 10);
        fs::write(sandbox.out("x.digest.partial"), content).unwrap();
        assert_eq!(sandbox.build("x.digest", &[])["blobs_resumed"], 0);
        assert_eq!(sandbox.outputs(), ["x.digest", "x.digest.checked"]);
    }
    let sandbox = Sandbox::with_objects(3, 10);
    fs::write(sandbox.out("x.digest.partial"), "my notes").unwrap();
    for options in [&[][..], &["--restart"]] {
        let args = ["digest", "build", "../root/bucket/train", "-o", "x.digest"];
        sandbox
            .forebay(args.iter().chain(options))
            .refuses(&["`x.digest.partial` is in the way", "choose another output"]);
    }
    assert_eq!(fs::read(sandbox.out("x.digest.partial")).unwrap(), b"my notes");
}

/// A build never writes to its origin, even if the output is the same file.
#[test]
fn an_output_that_is_the_data_is_rejected() {
    let sandbox = Sandbox::with_objects(3, 10);
    fs::write(sandbox.out("data.bin"), "precious").unwrap();
    fs::write(sandbox.out("y.partial"), "precious").unwrap();
    fs::hard_link(sandbox.out("data.bin"), sandbox.out("other name")).unwrap();
    for (data, output) in [("data.bin", "data.bin"), ("data.bin", "other name"), ("y.partial", "y")]
    {
        sandbox
            .forebay(["digest", "build", data, "-o", output])
            .refuses(&["lies in the dataset itself", "name a file elsewhere"]);
        assert_eq!(fs::read(sandbox.out(data)).unwrap(), b"precious");
    }
}

#[test]
fn a_second_build_into_the_same_output_is_rejected_and_the_first_finishes() {
    let sandbox = Sandbox::with_objects(OBJECTS, SIZE);
    let origin = slow_origin(&sandbox);
    let first = sandbox.build_from(&origin, "x.digest", &SEQUENTIAL).start();
    wait_until("the journal exists", || sandbox.out("x.digest.partial").exists());
    wait_until("the build reads", || origin.counters().bytes_sent > 0);
    for options in [&[][..], &["--restart"]] {
        sandbox
            .build_from(&origin, "x.digest", options)
            .refuses(&["another build is writing `x.digest.partial`", "choose another output"]);
    }
    let ran = first.finish();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert_eq!(ran.json()["bytes"], sandbox.data_size());
}

/// Each build either completes the digest or is rejected.
#[test]
fn parallel_builds_leave_one_valid_digest() {
    let sandbox = Sandbox::with_objects(10, 100);
    let data = sandbox.data();
    let args = ["digest", "build", data.to_str().unwrap(), "-o", "x.digest"];
    let mut done = 0;
    for _ in 0..5 {
        let builds: Vec<_> = (0..8).map(|_| sandbox.forebay(args).start()).collect();
        for build in builds {
            let ran = build.finish();
            if ran.code == Some(0) {
                done += 1;
            } else {
                ran.must_refuse(&["another build is writing"]);
            }
        }
    }
    assert!(done >= 5, "{done}");
    assert_eq!(sandbox.outputs(), ["x.digest", "x.digest.checked"]);
    sandbox.forebay(["digest", "verify", "x.digest"]).succeeds();
}
