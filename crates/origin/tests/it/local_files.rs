//! Directories: links, special files, and files that change during a read.

use std::{
    fs,
    io::Write as _,
    os::unix::{fs::symlink, net::UnixListener},
};

use forebay_origin::{Origin, OriginError};

use crate::harness::{Fixture, listed, names, only};

#[tokio::test]
async fn links_are_followed_and_dangling_links_are_errors() {
    let fixture = Fixture::new();
    fixture.write("real/x", b"x");
    fixture.write("y", b"yy");
    symlink("y", fixture.path("link to y")).unwrap();
    symlink("real", fixture.path("link to real")).unwrap();
    symlink("nowhere", fixture.path("dangling")).unwrap();
    let origin = fixture.local();
    assert_eq!(names(&origin).await, ["dangling", "link to real/x", "link to y", "real/x", "y"]);
    for found in listed(&origin).await.unwrap() {
        match origin.read(&found.object, &found.version, 0..found.length).await {
            Ok(read) => assert_eq!(read.len() as u64, found.length),
            Err(error) => panic!("{error}"),
        }
    }
    let missing = origin.confirm("dangling", "missing").await;
    assert!(matches!(missing, Err(OriginError::Vanished { .. })), "{missing:?}");
}

#[tokio::test]
async fn a_loop_of_links_ends_with_an_error() {
    for target in [".", "../loop"] {
        let fixture = Fixture::new();
        fixture.write("loop/x", b"x");
        symlink(target, fixture.path("loop/again")).unwrap();
        let error = listed(&fixture.local()).await.unwrap_err();
        assert!(error.to_string().contains("again/again"), "{error}");
    }
}

#[tokio::test]
async fn only_files_are_data() {
    let fixture = Fixture::new();
    fixture.write("x", b"x");
    fs::create_dir(fixture.path("empty")).unwrap();
    let _socket = UnixListener::bind(fixture.path("socket")).unwrap();
    assert_eq!(names(&fixture.local()).await, ["x"]);
}

/// Bytes read before a change must not be used: they may mix two versions.
#[tokio::test]
async fn a_file_that_changes_during_a_read_is_an_error() {
    let fixture = Fixture::new();
    let origin = fixture.local();
    let Origin::Local(tree) = &origin else { panic!("not local") };
    let grow = |path: &std::path::Path| {
        fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap();
    };
    let cut = |path: &std::path::Path| {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(5).unwrap();
    };
    for change in [&grow as &dyn Fn(&std::path::Path), &cut] {
        fixture.write("x", [7; 100]);
        let version = only(&origin).await.version;
        let mut reader = tree.reader();
        let file = reader.open("x").unwrap();
        file.read_exact_at(&mut [0; 10], 0).unwrap();
        change(&fixture.path("x"));
        let rest = file.read_exact_at(&mut [0; 90], 10);
        let outcome = rest.and_then(|()| file.confirm(&version));
        assert!(matches!(outcome, Err(OriginError::Changed { .. })), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_replaced_file_has_another_version() {
    let fixture = Fixture::new();
    fixture.write("x", b"first");
    let origin = fixture.local();
    let version = only(&origin).await.version;
    let time = fs::metadata(fixture.path("x")).unwrap().modified().unwrap();
    fixture.write("y", b"other");
    fs::File::open(fixture.path("y")).unwrap().set_modified(time).unwrap();
    fs::rename(fixture.path("y"), fixture.path("x")).unwrap();
    let read = origin.read("x", &version, 0..5).await;
    assert!(matches!(read, Err(OriginError::Changed { .. })), "same time and length: {read:?}");
}
