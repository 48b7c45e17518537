//! A build that was interrupted goes on where it was, whatever ended it.

use std::{fs, os::unix::fs::FileExt as _};

use forebay_dev_origin::DevOrigin;
use rustix::process::Signal;

use crate::harness::{Place, Running, slow, until};

/// Far more than are under way at once, for within that window there is no order.
const OBJECTS: usize = 160;
const SIZE: usize = 20_000;
/// Nearly one after the other, so that some objects are done while others are not begun.
const IN_TURN: [&str; 2] = ["--requests", "2"];

/// An origin that needs about four seconds for all objects.
fn slow_origin(place: &Place) -> DevOrigin {
    place.serve(|config| slow(config, 800_000))
}

/// Starts a build and waits until some of its rows have reached the disk.
fn half_a_build(place: &Place, origin: &DevOrigin) -> Running {
    let mut build = place.build_from(origin, "x.digest", &IN_TURN).start();
    let journal = place.out("x.digest.partial");
    until("rows are in the journal", || {
        assert!(build.is_running(), "the build ended before it could be interrupted");
        fs::metadata(&journal).is_ok_and(|metadata| metadata.len() > 400)
    });
    build
}

/// The second run finishes, reads only what the first had not kept, and the result is the one that an
/// uninterrupted build gives, byte for byte.
fn goes_on(place: &Place, origin: &DevOrigin) {
    origin.reset_counters();
    let report = place.build_from(origin, "x.digest", &IN_TURN).succeeds().json();
    let resumed = usize::try_from(report["blobs_resumed"].as_u64().unwrap()).unwrap();
    assert!((1..OBJECTS).contains(&resumed), "{resumed} blobs resumed");
    let counters = origin.counters();
    let read: Vec<_> = counters.objects.keys().cloned().collect();
    let wanted: Vec<_> =
        (resumed..OBJECTS).map(|at| format!("bucket/train/item {at:03}.bin")).collect();
    assert_eq!(read, wanted);
    assert_eq!(report["bytes_read"], counters.bytes_sent);
    assert!(counters.bytes_sent < place.data_size());
    assert_eq!(place.outputs(), ["x.digest", "x.digest.checked"]);

    let fast = place.serve(|_| {});
    place.build_from(&fast, "y.digest", &[]).succeeds();
    assert_eq!(fs::read(place.out("x.digest")).unwrap(), fs::read(place.out("y.digest")).unwrap());
}

#[test]
fn after_an_interrupt_or_a_polite_kill() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::with_objects(OBJECTS, SIZE);
        let origin = slow_origin(&place);
        let build = half_a_build(&place, &origin);
        build.signal(signal);
        let ran = build.finish();
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(130), ""), "{ran:?}");
        assert_eq!(ran.stderr, "stopped; run the same command again to go on from here\n");
        assert_eq!(place.outputs(), ["x.digest.partial"]);
        goes_on(&place, &origin);
    }
}

#[test]
fn after_a_kill_without_warning() {
    let place = Place::with_objects(OBJECTS, SIZE);
    let origin = slow_origin(&place);
    let build = half_a_build(&place, &origin);
    build.signal(Signal::KILL);
    assert_eq!(build.finish().code, None);
    // As a crash may leave it: the last row torn.
    let journal = fs::OpenOptions::new().write(true).open(place.out("x.digest.partial")).unwrap();
    let length = journal.metadata().unwrap().len();
    journal.write_all_at(b"torn", length - 4).unwrap();
    goes_on(&place, &origin);
}

#[test]
fn what_changed_in_between_is_read_again() {
    let place = Place::with_objects(OBJECTS, SIZE);
    let origin = slow_origin(&place);
    let build = half_a_build(&place, &origin);
    build.signal(Signal::KILL);
    build.finish();
    place.write("item 001.bin", b"changed since");
    let report = place.build_from(&origin, "x.digest", &[]).succeeds().json();
    assert_eq!(report["blobs_resumed"], 1, "only what comes before the change");
    assert_eq!(report["bytes"], place.data_size());
    place.forebay(["digest", "verify", "x.digest"]).reaching(&origin).succeeds();
}

#[test]
fn verifying_can_be_interrupted() {
    let place = Place::with_objects(OBJECTS, SIZE);
    let fast = place.serve(|_| {});
    place.build_from(&fast, "x.digest", &[]).succeeds();
    let origin = slow_origin(&place);
    let verify = place.forebay(["digest", "verify", "x.digest"]).reaching(&origin).start();
    until("it reads", || origin.counters().bytes_sent > 0);
    verify.signal(Signal::INT);
    let ran = verify.finish();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(130), ""));
    assert_eq!(ran.stderr, "stopped before everything was verified\n");
}

#[test]
fn a_journal_of_another_build_is_refused_until_a_restart() {
    let place = Place::with_objects(OBJECTS, SIZE);
    let origin = slow_origin(&place);
    let build = half_a_build(&place, &origin);
    build.signal(Signal::INT);
    build.finish();
    let before = fs::read(place.out("x.digest.partial")).unwrap();
    let fast = place.serve(|_| {});
    for options in [&["--layout", "pack"][..], &["--exclude", "*.txt"]] {
        place.build_from(&fast, "x.digest", options).refuses(&[
            "x.digest.partial",
            "interrupted build of s3://bucket/train",
            "--restart",
        ]);
        assert_eq!(fs::read(place.out("x.digest.partial")).unwrap(), before);
    }
    let report =
        place.build_from(&fast, "x.digest", &["--layout", "pack", "--restart"]).succeeds().json();
    assert_eq!(report["blobs_resumed"], 0);
    assert_eq!(place.outputs(), ["x.digest", "x.digest.checked"]);
}

#[test]
fn a_torn_journal_is_no_obstacle_and_somebody_elses_file_is_left_alone() {
    for content in [&b""[..], b"fore", b"forebay journal1", b"forebay journal1 and then nonsense"] {
        let place = Place::with_objects(3, 10);
        fs::write(place.out("x.digest.partial"), content).unwrap();
        assert_eq!(place.build("x.digest", &[])["blobs_resumed"], 0);
        assert_eq!(place.outputs(), ["x.digest", "x.digest.checked"]);
    }
    let place = Place::with_objects(3, 10);
    fs::write(place.out("x.digest.partial"), "my notes").unwrap();
    for options in [&[][..], &["--restart"]] {
        let args = ["digest", "build", "../root/bucket/train", "-o", "x.digest"];
        place
            .forebay(args.iter().chain(options))
            .refuses(&["`x.digest.partial` is in the way", "choose another output"]);
    }
    assert_eq!(fs::read(place.out("x.digest.partial")).unwrap(), b"my notes");
}

/// A build never writes to its origin, not even where the two are the same file.
#[test]
fn an_output_that_is_the_data_is_refused() {
    let place = Place::with_objects(3, 10);
    fs::write(place.out("data.bin"), "precious").unwrap();
    fs::write(place.out("y.partial"), "precious").unwrap();
    fs::hard_link(place.out("data.bin"), place.out("other name")).unwrap();
    for (data, output) in [("data.bin", "data.bin"), ("data.bin", "other name"), ("y.partial", "y")]
    {
        place
            .forebay(["digest", "build", data, "-o", output])
            .refuses(&["lies in the dataset itself", "name a file elsewhere"]);
        assert_eq!(fs::read(place.out(data)).unwrap(), b"precious");
    }
}

#[test]
fn a_second_build_into_the_same_output_is_refused_and_the_first_finishes() {
    let place = Place::with_objects(OBJECTS, SIZE);
    let origin = slow_origin(&place);
    let first = place.build_from(&origin, "x.digest", &IN_TURN).start();
    until("the journal exists", || place.out("x.digest.partial").exists());
    until("it is in use", || origin.counters().bytes_sent > 0);
    for options in [&[][..], &["--restart"]] {
        place
            .build_from(&origin, "x.digest", options)
            .refuses(&["another build is writing `x.digest.partial`", "choose another output"]);
    }
    let ran = first.finish();
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert_eq!(ran.json()["bytes"], place.data_size());
}

/// However their starts and ends meet: each either builds the whole digest or stands back.
#[test]
fn a_crowd_of_builds_leaves_one_sound_digest() {
    let place = Place::with_objects(10, 100);
    let data = place.data();
    let args = ["digest", "build", data.to_str().unwrap(), "-o", "x.digest"];
    let mut done = 0;
    for _ in 0..5 {
        let crowd: Vec<_> = (0..8).map(|_| place.forebay(args).start()).collect();
        for build in crowd {
            let ran = build.finish();
            if ran.code == Some(0) {
                done += 1;
            } else {
                ran.must_refuse(&["another build is writing"]);
            }
        }
    }
    assert!(done >= 5, "{done}");
    assert_eq!(place.outputs(), ["x.digest", "x.digest.checked"]);
    place.forebay(["digest", "verify", "x.digest"]).succeeds();
}
