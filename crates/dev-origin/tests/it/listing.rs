//! Listings through a real client. A model beside the code checks their order (`list_page.rs`).

use futures::TryStreamExt as _;
use object_store::{ObjectStore, path::Path};

use crate::harness::Fixture;

async fn keys(store: &impl ObjectStore, prefix: Option<&Path>) -> Vec<String> {
    let listed = store.list(prefix).map_ok(|meta| meta.location.to_string());
    listed.try_collect().await.unwrap()
}

#[tokio::test]
async fn thousands_of_keys_are_listed_in_order_over_many_pages() {
    let fixture = Fixture::new();
    let mut expected: Vec<String> = (0..2500)
        .map(|number| match number % 4 {
            0 => format!("d/{number}"),
            1 => format!("d.{number}"),
            2 => format!("d-{number}/x"),
            _ => format!("ü{number}"),
        })
        .collect();
    for key in &expected {
        fixture.write(key, "x");
    }
    expected.sort();
    let store = fixture.store();
    assert_eq!(keys(&store, None).await, expected);
    assert_eq!(fixture.origin.counters().requests.list, 3);

    let below: Vec<_> = expected.iter().filter(|key| key.starts_with("d/")).cloned().collect();
    assert_eq!(keys(&store, Some(&"d".into())).await, below);

    let offset = store.list_with_offset(None, &Path::from(expected[1234].clone()));
    let offset: Vec<_> =
        offset.map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap();
    assert_eq!(offset, expected[1235..]);
}

#[tokio::test]
async fn a_delimiter_rolls_up_directories() {
    let fixture = Fixture::new();
    for key in ["a/1", "a/b/2", "a.b", "c/3", "c/4", "z"] {
        fixture.write(key, "x");
    }
    let store = fixture.store();
    let top = store.list_with_delimiter(None).await.unwrap();
    let names = |paths: &[Path]| paths.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(&top.common_prefixes), ["a", "c"]);
    let objects: Vec<_> = top.objects.iter().map(|meta| meta.location.to_string()).collect();
    assert_eq!(objects, ["a.b", "z"]);
    let below = store.list_with_delimiter(Some(&"a".into())).await.unwrap();
    assert_eq!(names(&below.common_prefixes), ["a/b"]);
    assert_eq!(below.objects[0].location.to_string(), "a/1");
}

#[test]
fn an_empty_directory_is_a_marker_and_vanishes_with_its_last_file() {
    let fixture = Fixture::new();
    let status = |method, path| fixture.raw(method, path, &[], b"").status;
    assert_eq!(status("PUT", "/bucket/dir/"), 200);
    assert!(fixture.path("dir").is_dir());
    assert_eq!(status("HEAD", "/bucket/dir/"), 200);
    assert_eq!(status("HEAD", "/bucket/dir"), 404);
    let listing = fixture.raw("GET", "/bucket", &[], b"");
    assert!(String::from_utf8(listing.body).unwrap().contains("<Key>dir/</Key>"));
    assert_eq!(fixture.raw("PUT", "/bucket/dir/", &[], b"content").status, 400);

    assert_eq!(status("PUT", "/bucket/dir/sub/file"), 200);
    assert_eq!(status("HEAD", "/bucket/dir/"), 404);
    assert_eq!(status("DELETE", "/bucket/dir/sub/file"), 204);
    assert!(!fixture.path("dir").exists() && fixture.path("").is_dir());
}
