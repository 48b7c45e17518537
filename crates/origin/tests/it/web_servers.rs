//! Single objects on plain web servers, which cannot list.

use forebay_origin::{Options, Origin, OriginError};

use crate::{
    harness::{Answer, Request, object, only, serve},
    reading::modified,
};

const CONTENT: &[u8] = b"first state of the object";

/// A server with one object, which cannot list.
fn web(
    target: &'static str,
    answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
) -> String {
    let endpoint = serve(move |request| match request.method.as_str() {
        "PROPFIND" => Answer::status(405),
        _ if request.target != target => Answer::status(404),
        _ => answer(request),
    });
    format!("{endpoint}{target}")
}

async fn locate(url: &str) -> Result<Origin, OriginError> {
    Origin::locate(url, &Options::default()).await
}

#[tokio::test]
async fn one_object_is_found_by_its_url() {
    for (target, name) in [
        ("/data/x.bin", "x.bin"),
        ("/x.bin", "x.bin"),
        ("/da%20ta/a%20b%20100%25.bin", "a b 100%.bin"),
        ("/data/%C3%BC.bin", "ü.bin"),
    ] {
        let url = web(target, |request| {
            object(request, CONTENT, vec![("ETag", "\"1\"".to_owned()), modified(1)])
        });
        let origin = locate(&url).await.unwrap();
        let found = only(&origin).await;
        assert_eq!((&*found.object, found.length), (name, CONTENT.len() as u64));
        assert_eq!(origin.url(), url.rsplit_once('/').unwrap().0);
        assert_eq!(origin.read(name, &found.version, 0..5).await.unwrap(), "first");
        // A digest stores the parent's URL; the object must be readable from there.
        let again = Origin::new(&origin.url(), &Options::default()).unwrap();
        assert_eq!(again.read(name, &found.version, 6..11).await.unwrap(), "state");
    }
}

#[tokio::test]
async fn a_change_is_detected_by_condition_tag_or_date() {
    let tag = |value: &str| ("ETag", format!("\"{value}\""));
    // Honours If-Match.
    let conditional = web("/x", move |request| match request.header("if-match") {
        Some(wanted) if wanted != "\"2\"" => Answer::status(412),
        _ => object(request, CONTENT, vec![tag("2"), modified(1)]),
    });
    // Ignores If-Match, but sends another tag.
    let unconditional =
        web("/x", move |request| object(request, CONTENT, vec![tag("2"), modified(1)]));
    for url in [conditional, unconditional] {
        let origin = locate(&url).await.unwrap();
        assert_eq!(only(&origin).await.version, "\"2\"");
        let read = origin.read("x", "\"1\"", 0..5).await;
        assert!(matches!(read, Err(OriginError::Changed { .. })), "{read:?}");
    }
    // Has dates but no tags.
    let dated = web("/x", |request| match request.method.as_str() {
        "HEAD" => object(request, CONTENT, vec![modified(1)]),
        _ => object(request, CONTENT, vec![modified(2)]),
    });
    let origin = locate(&dated).await.unwrap();
    let version = only(&origin).await.version;
    let read = origin.read("x", &version, 0..5).await;
    assert!(matches!(read, Err(OriginError::Changed { .. })), "{read:?}");
}

#[tokio::test]
async fn servers_without_ranges_never_cause_wrong_bytes() {
    let url = web("/x", |_| {
        Answer(200, vec![("ETag", "\"1\"".to_owned()), modified(1)], CONTENT.to_vec())
    });
    let origin = locate(&url).await.unwrap();
    let read = origin.read("x", "\"1\"", 6..11).await;
    assert!(read.is_err(), "{read:?}");
}

#[tokio::test]
async fn a_missing_object_and_an_unlistable_server_are_errors() {
    let url = web("/x", |request| object(request, CONTENT, vec![modified(1)]));
    let missing = locate(&url.replace("/x", "/y")).await.unwrap_err();
    assert!(matches!(missing, OriginError::Missing { .. }), "{missing}");
    assert!(missing.to_string().contains("/y` does not exist"), "{missing}");
    let unlistable = locate(url.strip_suffix("/x").unwrap()).await.unwrap_err();
    assert!(matches!(unlistable, OriginError::Unlistable { .. }), "{unlistable}");
    assert!(unlistable.to_string().contains("give the URL of one object"), "{unlistable}");
}
