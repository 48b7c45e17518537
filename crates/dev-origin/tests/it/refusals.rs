//! Refused requests get S3's error codes and change nothing.

use std::fs;

use forebay_dev_origin::{Config, SECRET_KEY, run};
use object_store::{Error, ObjectStore, ObjectStoreExt};

use crate::harness::Fixture;

#[tokio::test]
async fn wrong_credentials() {
    let fixture = Fixture::new();
    fixture.write("k", "content");
    for (access_key, secret_key, code) in [
        ("other", SECRET_KEY, "InvalidAccessKeyId"),
        (forebay_dev_origin::ACCESS_KEY, "guess", "SignatureDoesNotMatch"),
    ] {
        let error = fixture.store_as(access_key, secret_key).get(&"k".into()).await.unwrap_err();
        assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
        assert!(format!("{error:?}").contains(code), "{error:?}");
    }
    let unsigned = reqwest::get(format!("{}/bucket/k", fixture.origin.endpoint())).await.unwrap();
    assert_eq!(unsigned.status(), 403);
    assert!(unsigned.text().await.unwrap().contains("AccessDenied"));
    assert_eq!(fixture.origin.counters().bytes_sent, 0);
}

#[tokio::test]
async fn missing_buckets_and_keys() {
    let fixture = Fixture::new();
    fixture.write("file", "content");
    for key in ["missing", "file/below", "dir"] {
        fs::create_dir_all(fixture.path("dir/sub")).unwrap();
        let answer = fixture.raw("GET", &format!("/bucket/{key}"), &[], b"");
        assert_eq!((answer.status, &*answer.code()), (404, "NoSuchKey"), "{key}");
    }
    for (method, path) in [("GET", "/missing/k"), ("PUT", "/missing/k"), ("GET", "/missing")] {
        let answer = fixture.raw(method, path, &[], b"");
        assert_eq!((answer.status, &*answer.code()), (404, "NoSuchBucket"), "{method} {path}");
    }
    let store = fixture.builder().with_bucket_name("missing").build().unwrap();
    assert!(matches!(store.head(&"k".into()).await, Err(Error::NotFound { .. })));
    assert!(store.list_with_delimiter(None).await.is_err());
}

#[test]
fn hostile_keys_are_refused_and_change_nothing() {
    let fixture = Fixture::new();
    fixture.write("k", "content");
    let outside = fixture.path("../outside");
    fs::write(&outside, "secret").unwrap();
    let before = fixture.files();
    for path in [
        "/bucket/../outside",
        "/bucket/../../etc/passwd",
        "/bucket/%2e%2e/outside",
        "/bucket/%2E%2E%2Foutside",
        "/bucket/a/../../outside",
        "/bucket/./k",
        "/bucket/k/..",
        "/bucket//k",
        "/bucket//etc/passwd",
        "/bucket/a%2F%2Fb",
        "/bucket/k%00",
        "/bucket/%00/../k",
        "/../outside",
        "/%2e%2e/outside",
        "/%2e%2e%2foutside",
        "//etc/passwd",
        "/.forebay/x",
    ] {
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            let answer = fixture.raw(method, path, &[], b"");
            assert_eq!(answer.status, 400, "{method} {path}: {answer:?}");
            if method == "GET" {
                let code = answer.code();
                let expected = ["InvalidArgument", "InvalidBucketName"];
                assert!(expected.contains(&&*code), "{path}: {code}");
            }
        }
    }
    let source = [("x-amz-copy-source", "/bucket/../outside")];
    let answer = fixture.raw("PUT", "/bucket/copy", &source, b"");
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(!fixture.path("copy").exists());
    let delete = b"<Delete><Object><Key>../outside</Key></Object></Delete>";
    let answer = fixture.raw("POST", "/bucket?delete=", &[], delete);
    assert_eq!((answer.status, &*answer.code()), (200, "InvalidArgument"), "{answer:?}");
    assert_eq!(fixture.files(), before);
    assert_eq!(fs::read(outside).unwrap(), b"secret");
}

#[test]
fn keys_too_long_for_a_directory_are_refused() {
    let fixture = Fixture::new();
    let segment = fixture.raw("PUT", &format!("/bucket/{}", "x".repeat(256)), &[], b"");
    assert_eq!((segment.status, &*segment.code()), (400, "InvalidArgument"));
    let whole = fixture.raw("PUT", &format!("/bucket/{}x", "x/".repeat(512)), &[], b"");
    assert_eq!((whole.status, &*whole.code()), (400, "KeyTooLongError"));
}

#[tokio::test]
async fn it_listens_on_loopback_only_and_serves_directories_only() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config::new(directory.path());
    let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let error = run(listener, config.clone(), async {}).await.unwrap_err().to_string();
    assert!(error.contains("0.0.0.0") && error.contains("127.0.0.1:"), "{error}");

    let listen = || tokio::net::TcpListener::bind("127.0.0.1:0");
    let config = Config { root: directory.path().join("missing"), ..config };
    let error = run(listen().await.unwrap(), config.clone(), async {}).await.unwrap_err();
    assert!(format!("{error:#}").contains("missing"), "{error:#}");

    let config = Config { fail_rate: 1.5, root: directory.path().to_owned(), ..config };
    let error = run(listen().await.unwrap(), config, async {}).await.unwrap_err().to_string();
    assert!(error.contains("1.5"), "{error}");
}
