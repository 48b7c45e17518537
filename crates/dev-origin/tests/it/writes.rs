//! Uploads: complete or not visible, and only if their conditions and checksums hold.

use std::{fs, io::Read as _, io::Write as _, net::Shutdown, thread, time::Duration};

use object_store::{
    Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    UpdateVersion, path::Path,
};

use crate::harness::{Fixture, content};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_complete_objects_during_replacement() {
    let fixture = Fixture::new();
    let key = Path::from("k");
    let payload = |byte: u8| PutPayload::from(vec![byte; 1 << 20]);
    fixture.store().put(&key, payload(0)).await.unwrap();
    let writer = tokio::spawn({
        let (store, key) = (fixture.store(), key.clone());
        async move {
            for byte in 1..40 {
                store.put(&key, payload(byte)).await.unwrap();
            }
        }
    });
    let (store, mut versions) = (fixture.store(), 0);
    while !writer.is_finished() {
        let bytes = store.get(&key).await.unwrap().bytes().await.unwrap();
        assert_eq!(bytes.len(), 1 << 20);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "two versions in one body");
        versions += 1;
    }
    writer.await.unwrap();
    assert!(versions > 1, "no reads during the writes");
}

#[tokio::test]
async fn conditional_writes() {
    let fixture = Fixture::new();
    let (store, key) = (fixture.store(), Path::from("dir/k"));
    let put = |mode, content: &'static str| {
        store.put_opts(&key, content.into(), PutOptions { mode, ..PutOptions::default() })
    };
    let first = put(PutMode::Create, "one").await.unwrap();
    let error = put(PutMode::Create, "two").await.unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    let update =
        |version: &object_store::PutResult| PutMode::Update(UpdateVersion::from(version.clone()));
    put(update(&first), "three").await.unwrap();
    let error = put(update(&first), "four").await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    assert_eq!(fs::read(fixture.path("dir/k")).unwrap(), b"three");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_concurrent_creators_succeeds() {
    let fixture = Fixture::new();
    let creators = (0..16).map(|_| {
        let store = fixture.store();
        tokio::spawn(async move {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            store.put_opts(&"k".into(), "x".into(), options).await.is_ok()
        })
    });
    let mut winners = 0;
    for creator in creators.collect::<Vec<_>>() {
        winners += u32::from(creator.await.unwrap());
    }
    assert_eq!(winners, 1);
}

#[test]
fn a_wrong_checksum_leaves_no_file() {
    let fixture = Fixture::new();
    for (name, wrong) in [
        ("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg=="),
        ("x-amz-checksum-crc32", "AAAAAA=="),
        ("x-amz-checksum-crc32c", "AAAAAA=="),
        ("x-amz-checksum-crc64nvme", "AAAAAAAAAAA="),
        ("x-amz-checksum-sha1", "2jmj7l5rSw0yVb/vlWAYkK/YBwk="),
        ("x-amz-checksum-sha256", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="),
    ] {
        let answer = fixture.raw("PUT", "/bucket/k", &[(name, wrong)], b"content");
        assert_eq!((answer.status, &*answer.code()), (400, "BadDigest"), "{name}");
        assert!(fixture.files().is_empty(), "{name}: {:?}", fixture.files());
    }
    let right = [("x-amz-checksum-sha256", "7XACtDnprIRfIjV9giusFERzD722AW0+yUMil7nsn3M=")];
    let answer = fixture.raw("PUT", "/bucket/k", &right, b"content");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(fixture.files(), [fixture.path("k")]);
}

#[test]
fn an_interrupted_upload_leaves_no_file() {
    let fixture = Fixture::new();
    let mut stream = fixture.send("PUT", "/bucket/k", &[("content-length", "1000000")], &[7; 1000]);
    stream.shutdown(Shutdown::Write).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    for _ in 0..100 {
        if fixture.files().is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert!(fixture.files().is_empty(), "{:?}", fixture.files());
}

#[tokio::test]
async fn multipart_uploads_are_joined_or_aborted() {
    let fixture = Fixture::new();
    let (store, key) = (fixture.store(), Path::from("dir/large"));
    let data = content(12 << 20);
    let mut upload = store.put_multipart(&key).await.unwrap();
    for part in data.chunks(5 << 20) {
        upload.put_part(part.to_vec().into()).await.unwrap();
    }
    assert!(!fixture.path("dir").exists(), "not visible before completion");
    upload.complete().await.unwrap();
    assert!(fs::read(fixture.path("dir/large")).unwrap() == data);
    assert_eq!(fixture.files().len(), 1, "the parts are gone");

    let mut upload = store.put_multipart(&"other".into()).await.unwrap();
    upload.put_part(data[..1000].to_vec().into()).await.unwrap();
    upload.abort().await.unwrap();
    assert_eq!(fixture.files(), [fixture.path("dir/large")]);

    let mut upload = store.put_multipart(&"small".into()).await.unwrap();
    for _ in 0..2 {
        upload.put_part(data[..1000].to_vec().into()).await.unwrap();
    }
    let error = upload.complete().await.unwrap_err().to_string();
    assert!(error.contains("EntityTooSmall"), "{error}");
}

#[tokio::test]
async fn copies_and_deletions() {
    let fixture = Fixture::new();
    let store = fixture.store();
    fixture.write("a/b", "content");
    store.copy(&"a/b".into(), &"c/d".into()).await.unwrap();
    store.delete(&"a/b".into()).await.unwrap();
    store.delete(&"a/b".into()).await.unwrap();
    assert_eq!(fixture.files(), [fixture.path("c/d")]);
    assert!(matches!(store.head(&"a/b".into()).await, Err(Error::NotFound { .. })));
}

#[test]
fn an_object_cannot_be_a_directory_of_another() {
    let fixture = Fixture::new();
    fixture.write("a/b", "content");
    for key in ["a", "a/b/c"] {
        let answer = fixture.raw("PUT", &format!("/bucket/{key}"), &[], b"x");
        assert_eq!((answer.status, &*answer.code()), (400, "InvalidRequest"), "{key}");
    }
    assert_eq!(fixture.files(), [fixture.path("a/b")]);
}

#[test]
fn a_body_may_arrive_byte_by_byte() {
    let fixture = Fixture::new();
    let mut stream = fixture.send("PUT", "/bucket/k", &[("content-length", "5")], b"");
    for byte in b"slow!" {
        thread::sleep(Duration::from_millis(2));
        stream.write_all(&[*byte]).unwrap();
    }
    stream.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(fs::read(fixture.path("k")).unwrap(), b"slow!");
}
