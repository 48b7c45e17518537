//! Origins that do not exist, deny access, or have objects with invalid names.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

use crate::harness::{Sandbox, URL, listing, serve_always, tree};

fn build(sandbox: &Sandbox, url: &str) -> crate::harness::Forebay {
    sandbox.forebay(["digest", "build", url, "-o", "x.digest"])
}

#[test]
fn invalid_urls_are_rejected() {
    let sandbox = Sandbox::new();
    for (url, expected) in [
        ("ftp://host/x", "the scheme `ftp` is unknown"),
        ("", "it is empty"),
        ("s3://", "the bucket is missing"),
        ("s3:///key", "the bucket is missing"),
        ("file://relative/path", "three slashes"),
        ("https://user:hunter2@host/x", "it contains credentials; set them in the environment"),
        ("https://host/x?sig=hunter2", "query or fragment"),
    ] {
        let ran = build(&sandbox, url).refuses(&[expected, "use s3://"]);
        assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    }
    build(&sandbox, "s3://bucket/a/../b")
        .reaching_at("http://127.0.0.1:9")
        .refuses(&["s3://bucket"]);
    build(&sandbox, "az://container/x").refuses(&["az://container/x", "Account"]);
    assert!(sandbox.outputs().is_empty());
}

#[test]
fn missing_buckets_and_prefixes_are_named() {
    let sandbox = Sandbox::with_objects(2, 10);
    let origin = sandbox.serve(|_| {});
    for (url, expected) in [
        ("s3://no-such-bucket/train", "`s3://no-such-bucket/train` does not exist"),
        ("s3://no-such-bucket", "`s3://no-such-bucket` does not exist"),
        ("../root/none", "`../root/none` does not exist"),
        ("s3://bucket/none", "no objects under `s3://bucket/none`; check the prefix"),
        ("s3://bucket/trai", "no objects under `s3://bucket/trai`"),
        ("s3://bucket/train/none.bin", "no objects under"),
    ] {
        build(&sandbox, url).reaching(&origin).refuses(&[expected, "check"]);
        assert!(sandbox.outputs().is_empty(), "{url}");
    }
    fs::create_dir(sandbox.path("empty")).unwrap();
    let ran = build(&sandbox, "../empty").refuses(&["no objects under", "check the prefix"]);
    assert!(!ran.stderr.contains("--exclude"), "nothing was excluded: {ran:?}");
    sandbox
        .build_from(&origin, "x.digest", &["--exclude", "**"])
        .refuses(&["no objects under `s3://bucket/train`", "check the prefix and --exclude"]);
    assert!(sandbox.outputs().is_empty());
}

#[test]
fn wrong_credentials_are_denied() {
    let sandbox = Sandbox::with_objects(2, 10);
    let origin = sandbox.serve(|_| {});
    let denied = [URL, "is denied", "it needs other credentials", "--anonymous"];
    let build = || build(&sandbox, URL).reaching(&origin);
    let ran = build().env("AWS_SECRET_ACCESS_KEY", "hunter2").refuses(&denied);
    assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    build().env("AWS_ACCESS_KEY_ID", "other").refuses(&denied);
    sandbox.build_from(&origin, "x.digest", &["--anonymous"]).refuses(&denied);
    let single = format!("{URL}/item 000.bin");
    let args = ["digest", "build", &single, "-o", "x.digest"];
    sandbox.forebay(args).reaching(&origin).env("AWS_ACCESS_KEY_ID", "x").refuses(&denied[1..]);
    assert!(sandbox.outputs().is_empty());

    // Valid when the digest was built, revoked since.
    sandbox.build_from(&origin, "x.digest", &[]).succeeds();
    let verify = sandbox.forebay(["digest", "verify", "x.digest"]).reaching(&origin);
    verify.env("AWS_SECRET_ACCESS_KEY", "x").refuses(&denied[1..]);
}

#[test]
fn credentials_in_the_files_of_aws_tools_are_used() {
    let sandbox = Sandbox::with_objects(2, 10);
    let origin = sandbox.serve(|_| {});
    let aws = sandbox.path("home/.aws");
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
    build(&sandbox, URL).env("AWS_PROFILE", "team").succeeds();
    build(&sandbox, URL).env("AWS_ENDPOINT_URL", origin.endpoint()).refuses(&["is denied"]);
    let moved = sandbox.path("keys");
    fs::rename(aws.join("credentials"), &moved).unwrap();
    build(&sandbox, URL)
        .env("AWS_PROFILE", "team")
        .env("AWS_SHARED_CREDENTIALS_FILE", &moved)
        .succeeds();
}

#[test]
fn local_files_with_invalid_names_are_rejected() {
    for (name, expected) in [
        (&b"new\nline"[..], r"`new\nline`, which has a control character"),
        (b"bell\x07.bin", r"`bell\u{7}.bin`, which has a control character"),
        ("c1\u{85}.bin".as_bytes(), "control character"),
        (b"latin \xe9.bin", "whose name is not UTF-8"),
    ] {
        let sandbox = Sandbox::with_objects(3, 10);
        fs::write(sandbox.data().join(OsStr::from_bytes(name)), b"x").unwrap();
        let before = tree(&sandbox.data());
        let data = sandbox.data();
        build(&sandbox, data.to_str().unwrap()).refuses(&[expected, "rename"]);
        assert_eq!(tree(&sandbox.data()), before);
        assert!(!sandbox.out("x.digest").exists());
    }
}

#[test]
fn a_single_file_with_an_invalid_name_is_rejected() {
    let sandbox = Sandbox::new();
    let path = sandbox.data().join(OsStr::from_bytes(b"latin \xe9.bin"));
    fs::write(&path, b"x").unwrap();
    let args = [OsStr::new("digest"), OsStr::new("build"), path.as_os_str()];
    let ran = sandbox.forebay(args.into_iter().chain(["-o", "x.digest"].map(OsStr::new))).run();
    ran.must_refuse(&["UTF-8"]);
    std::os::unix::fs::symlink(&path, sandbox.path("link")).unwrap();
    build(&sandbox, "../link").refuses(&["UTF-8"]);
    assert!(sandbox.outputs().is_empty());
}

/// Most of these keys are possible in a bucket.
#[test]
fn listed_objects_with_invalid_names_are_rejected() {
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
        let sandbox = Sandbox::new();
        let endpoint = serve_always(listing(keys));
        build(&sandbox, URL).reaching_at(&endpoint).refuses(&["rename"]);
        assert!(!sandbox.out("x.digest").exists(), "{keys:?}");
    }
}

#[test]
fn answers_that_are_not_listings_are_rejected() {
    let sandbox = Sandbox::new();
    for body in
        ["", "<html>Welcome to the hotel</html>", "{\"error\": \"x\"}", "<ListBucketResult>"]
    {
        let endpoint = serve_always(body.to_owned());
        build(&sandbox, URL).reaching_at(&endpoint).refuses(&[URL]);
        assert!(sandbox.outputs().is_empty(), "{body}");
    }
}
