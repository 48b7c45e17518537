//! Listings: one canonical order for every store, objects only.

use std::fs;

use forebay_origin::{Origin, OriginError, any_version};

use crate::{
    harness::{Answer, Fixture, listed, names, options, serve},
    reading::modified,
};

#[tokio::test]
async fn listings_are_in_the_byte_order_of_keys() {
    let fixture = Fixture::new();
    let mut keys = vec!["a.b", "a/b", "a/b.c/d", "a/b/c", "a0", "a b", "A", "é", "z", "日本/x"];
    keys.retain(|key| *key != "a/b"); // `a/b/c` makes it a directory
    for key in &keys {
        fixture.write(key, key);
    }
    keys.sort_unstable();
    for (kind, origin) in fixture.both() {
        assert_eq!(names(&origin).await, keys, "{kind}");
        let sorted = origin.list_sorted().await.unwrap();
        assert_eq!(sorted, listed(&origin).await.unwrap(), "{kind}");
    }
}

/// More than a page of S3 (1000 keys) and a group of the local walk, with names whose order depends
/// on how a slash compares.
#[tokio::test]
async fn long_listings_are_complete_and_in_order() {
    let fixture = Fixture::new();
    let mut random = fastrand::Rng::with_seed(5);
    let mut keys: Vec<String> = (0..2300)
        .map(|at| {
            let step = |random: &mut fastrand::Rng| {
                let separator = [".", "-", "/", "0", " ", "~"][random.usize(0..6)];
                format!("{}{separator}", ["a", "b", "ab"][random.usize(0..3)])
            };
            format!("{}{}k{at}", step(&mut random), step(&mut random))
        })
        .collect();
    for key in &keys {
        fixture.write(key, "x");
    }
    keys.sort_unstable();
    assert_eq!(names(&fixture.local()).await, keys);
    assert_eq!(names(&fixture.remote()).await, keys);
    assert_eq!(fixture.server.counters().requests.list, 3, "pages of a thousand");
}

#[tokio::test]
async fn keys_are_relative_to_the_prefix() {
    let fixture = Fixture::new();
    for key in ["train/a", "train/b/c", "train.txt", "trainer/x", "test/a"] {
        fixture.write(key, key);
    }
    for url in ["s3://bucket/train", "s3://bucket/train/", "s3://bucket//train"] {
        let origin = Origin::locate(url, &fixture.options()).await.unwrap();
        assert_eq!(names(&origin).await, ["a", "b/c"], "{url}");
        assert_eq!(origin.url(), "s3://bucket/train");
        assert_eq!(origin.read("b/c", &any_version(9), 0..9).await.unwrap(), "train/b/c");
    }
}

fn page(keys: &[&str]) -> Answer {
    let entry = |key: &&str| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00Z</LastModified>\
             <ETag>\"e\"</ETag><Size>0</Size></Contents>"
        )
    };
    let contents = keys.iter().map(entry).collect::<Vec<_>>().concat();
    let body = format!("<ListBucketResult>{contents}</ListBucketResult>");
    Answer(200, Vec::new(), body.into_bytes())
}

/// A bucket that lists these keys, and has an object for each except directory markers.
fn bucket(keys: &'static [&str]) -> Origin {
    let endpoint = serve(move |request| match request.method.as_str() {
        "HEAD" if keys.iter().any(|key| request.target == format!("/bucket/{key}")) => {
            Answer(200, vec![modified(1)], Vec::new())
        }
        "HEAD" => Answer::status(404),
        _ => page(keys),
    });
    Origin::new("s3://bucket/p", &options(&endpoint)).unwrap()
}

/// Consoles and tools create empty objects for directories. They are not data; empty files are.
#[tokio::test]
async fn directory_markers_are_skipped() {
    let keys = &["p/", "p/a.b", "p/a/", "p/a/b", "p/a/c/", "p/a/c/d", "p/e", "p/empty/", "p/f"];
    assert_eq!(names(&bucket(keys)).await, ["a.b", "a/b", "a/c/d", "e", "f"]);
    assert_eq!(names(&bucket(&["p/a", "p/a/b"])).await, ["a", "a/b"], "both are objects");
    assert!(names(&bucket(&["p/"])).await.is_empty());
}

#[tokio::test]
async fn an_unsorted_store_is_detected_and_sorted() {
    let origin = bucket(&["p/b", "p/a", "p/c", "p/c"]);
    assert!(matches!(listed(&origin).await, Err(OriginError::Unsorted)));
    let sorted = origin.list_sorted().await.unwrap();
    assert_eq!(sorted.iter().map(|listed| &*listed.object).collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[tokio::test]
async fn keys_that_no_client_can_request_are_errors() {
    for keys in [&["p/../x"][..], &["p/."], &["p//x"], &["p/a&#10;b"], &["p/a&#0;b"]] {
        let keys: &'static [&str] = keys;
        let error = listed(&bucket(keys)).await.unwrap_err();
        let named = matches!(error, OriginError::Name { .. } | OriginError::Unavailable { .. });
        assert!(named, "{keys:?}: {error}");
        assert!(!error.to_string().chars().any(char::is_control), "{error:?}");
    }
}

#[tokio::test]
async fn missing_and_denied_are_distinguished() {
    let fixture = Fixture::new();
    let locate = async |url: &str, options| Origin::locate(url, &options).await.map(|_| ());
    let missing = locate("s3://no-such-bucket/x", fixture.options()).await;
    assert!(matches!(missing, Err(OriginError::Missing { .. })), "{missing:?}");
    let missing = locate("/no/such/directory", fixture.options()).await;
    assert!(matches!(missing, Err(OriginError::Missing { .. })), "{missing:?}");

    let mut anonymous = fixture.options();
    (anonymous.anonymous, anonymous.credentials) = (true, None);
    let mut wrong = fixture.options();
    wrong.credentials.as_mut().unwrap().secret_key = "hunter2".to_owned();
    for options in [anonymous, wrong] {
        for url in ["s3://bucket", "s3://bucket/prefix"] {
            let denied = locate(url, options.clone()).await.unwrap_err();
            assert!(matches!(denied, OriginError::Denied { .. }), "{denied}");
            assert!(denied.to_string().contains("credentials"), "{denied}");
            assert!(!format!("{denied} {options:?}").contains("hunter2"));
        }
        let origin = Origin::new("s3://bucket", &options).unwrap();
        assert!(matches!(listed(&origin).await, Err(OriginError::Denied { .. })));
        let read = origin.read("x", "", 0..1).await;
        assert!(matches!(read, Err(OriginError::Denied { .. })), "{read:?}");
    }
}

#[tokio::test]
async fn an_empty_prefix_lists_nothing() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.path("empty/er")).unwrap();
    for (kind, origin) in fixture.both() {
        assert!(names(&origin).await.is_empty(), "{kind}");
    }
    let origin = Origin::locate("s3://bucket/none", &fixture.options()).await.unwrap();
    assert!(names(&origin).await.is_empty());
}

#[tokio::test]
async fn the_url_of_one_object_lists_one_key() {
    let fixture = Fixture::new();
    for key in ["dir/x.bin", "dir/x.bin.old", "dir/~50% #1.bin", "top"] {
        fixture.write(key, key);
    }
    for key in ["dir/x.bin", "dir/~50% #1.bin", "top"] {
        let (parent, name) = key.rsplit_once('/').unwrap_or(("", key));
        let remote = Origin::locate(&format!("s3://bucket/{key}"), &fixture.options()).await;
        let remote = remote.unwrap();
        assert_eq!(
            remote.url().trim_end_matches('/'),
            format!("s3://bucket/{parent}").trim_end_matches('/')
        );
        let local = fixture.path(key);
        let local = Origin::locate(local.to_str().unwrap(), &fixture.options()).await.unwrap();
        for origin in [remote, local] {
            let found = listed(&origin).await.unwrap();
            assert_eq!((found.len(), &*found[0].object), (1, name));
            let length = found[0].length;
            assert_eq!(origin.read(name, &found[0].version, 0..length).await.unwrap(), key);
        }
    }
}
