//! Origins that are not there, not ours, or hold what cannot be named.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

use crate::harness::{Place, URL, listing, serve_always, tree};

fn build(place: &Place, url: &str) -> crate::harness::Forebay {
    place.forebay(["digest", "build", url, "-o", "x.digest"])
}

#[test]
fn urls_that_nobody_understands() {
    let place = Place::new();
    for (url, saying) in [
        ("ftp://host/x", "the scheme `ftp` is unknown"),
        ("", "it is empty"),
        ("s3://", "the bucket is missing"),
        ("s3:///key", "the bucket is missing"),
        ("file://relative/path", "three slashes"),
        ("https://user:hunter2@host/x", "give those by the environment"),
        ("https://host/x?sig=hunter2", "query or fragment"),
    ] {
        let ran = build(&place, url).refuses(&[saying, "use s3://"]);
        assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    }
    build(&place, "s3://bucket/a/../b").reaching_at("http://127.0.0.1:9").refuses(&["s3://bucket"]);
    build(&place, "az://container/x").refuses(&["az://container/x", "Account"]);
    assert!(place.outputs().is_empty());
}

#[test]
fn what_is_not_there() {
    let place = Place::with_objects(2, 10);
    let origin = place.serve(|_| {});
    for (url, saying) in [
        ("s3://no-such-bucket/train", "`s3://no-such-bucket/train` does not exist"),
        ("s3://no-such-bucket", "`s3://no-such-bucket` does not exist"),
        ("../root/none", "`../root/none` does not exist"),
        ("s3://bucket/none", "no objects under `s3://bucket/none`; check the prefix"),
        ("s3://bucket/trai", "no objects under `s3://bucket/trai`"),
        ("s3://bucket/train/none.bin", "no objects under"),
    ] {
        build(&place, url).reaching(&origin).refuses(&[saying, "check"]);
        assert!(place.outputs().is_empty(), "{url}");
    }
    fs::create_dir(place.path("empty")).unwrap();
    let ran = build(&place, "../empty").refuses(&["no objects under", "check the prefix"]);
    assert!(!ran.stderr.contains("--exclude"), "nothing was excluded: {ran:?}");
    place
        .build_from(&origin, "x.digest", &["--exclude", "**"])
        .refuses(&["no objects under `s3://bucket/train`", "check the prefix and --exclude"]);
    assert!(place.outputs().is_empty());
}

#[test]
fn wrong_or_missing_credentials() {
    let place = Place::with_objects(2, 10);
    let origin = place.serve(|_| {});
    let denied = [URL, "is denied", "it needs other credentials", "--anonymous"];
    let build = || build(&place, URL).reaching(&origin);
    let ran = build().env("AWS_SECRET_ACCESS_KEY", "hunter2").refuses(&denied);
    assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    build().env("AWS_ACCESS_KEY_ID", "someone").refuses(&denied);
    place.build_from(&origin, "x.digest", &["--anonymous"]).refuses(&denied);
    let single = format!("{URL}/item 000.bin");
    let args = ["digest", "build", &single, "-o", "x.digest"];
    place.forebay(args).reaching(&origin).env("AWS_ACCESS_KEY_ID", "x").refuses(&denied[1..]);
    assert!(place.outputs().is_empty());

    // Good when the digest was built, withdrawn since.
    place.build_from(&origin, "x.digest", &[]).succeeds();
    let verify = place.forebay(["digest", "verify", "x.digest"]).reaching(&origin);
    verify.env("AWS_SECRET_ACCESS_KEY", "x").refuses(&denied[1..]);
}

#[test]
fn keys_that_are_in_the_files_of_aws_tools_are_found() {
    let place = Place::with_objects(2, 10);
    let origin = place.serve(|_| {});
    let aws = place.path("home/.aws");
    fs::create_dir_all(&aws).unwrap();
    fs::write(
        aws.join("credentials"),
        "[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n\
         [team]\naws_access_key_id = forebay\naws_secret_access_key = forebay-dev\n",
    )
    .unwrap();
    let config =
        format!("[profile team]\nendpoint_url = {}\nregion = eu-west-1\n", origin.endpoint());
    fs::write(aws.join("config"), config).unwrap();
    build(&place, URL).env("AWS_PROFILE", "team").succeeds();
    build(&place, URL).env("AWS_ENDPOINT_URL", origin.endpoint()).refuses(&["is denied"]);
    let elsewhere = place.path("keys");
    fs::rename(aws.join("credentials"), &elsewhere).unwrap();
    build(&place, URL)
        .env("AWS_PROFILE", "team")
        .env("AWS_SHARED_CREDENTIALS_FILE", &elsewhere)
        .succeeds();
}

#[test]
fn local_names_that_cannot_be_kept() {
    for (name, saying) in [
        (&b"new\nline"[..], r"`new\nline`, which has a control character"),
        (b"bell\x07.bin", r"`bell\u{7}.bin`, which has a control character"),
        ("c1\u{85}.bin".as_bytes(), "control character"),
        (b"latin \xe9.bin", "whose name is not UTF-8"),
    ] {
        let place = Place::with_objects(3, 10);
        fs::write(place.data().join(OsStr::from_bytes(name)), b"x").unwrap();
        let before = tree(&place.data());
        let data = place.data();
        build(&place, data.to_str().unwrap()).refuses(&[saying, "rename"]);
        assert_eq!(tree(&place.data()), before);
        assert!(!place.out("x.digest").exists());
    }
}

#[test]
fn one_file_whose_name_cannot_be_kept() {
    let place = Place::new();
    let path = place.data().join(OsStr::from_bytes(b"latin \xe9.bin"));
    fs::write(&path, b"x").unwrap();
    let args = [OsStr::new("digest"), OsStr::new("build"), path.as_os_str()];
    let ran = place.forebay(args.into_iter().chain(["-o", "x.digest"].map(OsStr::new))).run();
    ran.must_refuse(&["UTF-8"]);
    std::os::unix::fs::symlink(&path, place.path("link")).unwrap();
    build(&place, "../link").refuses(&["UTF-8"]);
    assert!(place.outputs().is_empty());
}

/// No honest server lists these, but nothing stops a bucket from holding most of them.
#[test]
fn listed_names_that_cannot_be_kept() {
    for keys in [
        &["train/../../etc/passwd"][..],
        &["train/.."],
        &["train/a", "train/./b"],
        &["train/new&#10;line"],
        &["train/new&#13;line"],
        &["train/bell\u{7}"],
        &["train/c1&#x85;name"],
        &["train//double"],
    ] {
        let place = Place::new();
        let endpoint = serve_always(listing(keys));
        build(&place, URL).reaching_at(&endpoint).refuses(&["rename"]);
        assert!(!place.out("x.digest").exists(), "{keys:?}");
    }
}

#[test]
fn answers_that_are_no_listing() {
    let place = Place::new();
    for body in
        ["", "<html>Welcome to the hotel</html>", "{\"error\": \"x\"}", "<ListBucketResult>"]
    {
        let endpoint = serve_always(body.to_owned());
        build(&place, URL).reaching_at(&endpoint).refuses(&[URL]);
        assert!(place.outputs().is_empty(), "{body}");
    }
}
