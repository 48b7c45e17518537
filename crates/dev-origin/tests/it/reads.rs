//! Ranges, preconditions and versions: the head of a response is true of its body.

use std::{fs, io::Read as _, ops::Range};

use object_store::{
    Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutPayload, path::Path,
};

use crate::harness::{Fixture, Raw, content};

#[tokio::test]
async fn ranges_are_served_exactly() {
    let fixture = Fixture::new();
    let data = content(1_000_000);
    fixture.write("k", &data);
    let store = fixture.store();
    let ranges: [(GetRange, Range<usize>); 6] = [
        (GetRange::Bounded(0..1), 0..1),
        (GetRange::Bounded(999_999..1_000_000), 999_999..1_000_000),
        (GetRange::Bounded(262_143..524_289), 262_143..524_289),
        (GetRange::Bounded(999_990..2_000_000), 999_990..1_000_000),
        (GetRange::Offset(700_000), 700_000..1_000_000),
        (GetRange::Suffix(17), 999_983..1_000_000),
    ];
    for (range, expected) in ranges {
        let options = GetOptions { range: Some(range.clone()), ..GetOptions::default() };
        let answer = store.get_opts(&"k".into(), options).await.unwrap();
        assert_eq!(answer.meta.size, 1_000_000, "{range:?}");
        let bytes = answer.bytes().await.unwrap();
        assert_eq!(bytes, data[expected], "{range:?}");
    }
    assert_eq!(store.get(&"k".into()).await.unwrap().bytes().await.unwrap(), data);
}

#[test]
fn ranges_beyond_the_end_are_errors() {
    let fixture = Fixture::new();
    fixture.write("k", "0123456789");
    fixture.write("empty", "");
    let beyond = fixture.raw("GET", "/bucket/k", &[("range", "bytes=10-")], b"");
    assert_eq!((beyond.status, &*beyond.code()), (416, "InvalidRange"));
    assert_eq!(beyond.header("content-range"), Some("bytes */10"));
    let suffix = fixture.raw("GET", "/bucket/k", &[("range", "bytes=-100")], b"");
    assert_eq!((suffix.status, &*suffix.body), (206, &b"0123456789"[..]));
    assert_eq!(suffix.header("content-range"), Some("bytes 0-9/10"));
    let empty = fixture.raw("GET", "/bucket/empty", &[], b"");
    assert_eq!((empty.status, empty.header("content-length")), (200, Some("0")));
    let head = fixture.raw("HEAD", "/bucket/k", &[("range", "bytes=2-3")], b"");
    assert_eq!((head.status, head.header("content-length")), (206, Some("2")));
}

#[tokio::test]
async fn preconditions_on_etags() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let (key, other) = (Path::from("k"), "\"0123456789abcdef0123456789abcdef-1\"".to_owned());
    let etag = store.put(&key, "one".into()).await.unwrap().e_tag.unwrap();
    for head in [false, true] {
        let ask = |if_match: Option<&String>, if_none_match: Option<&String>| {
            let options = GetOptions {
                if_match: if_match.cloned(),
                if_none_match: if_none_match.cloned(),
                head,
                ..GetOptions::default()
            };
            store.get_opts(&key, options)
        };
        assert!(ask(Some(&etag), None).await.is_ok());
        assert!(ask(None, Some(&other)).await.is_ok());
        assert!(matches!(ask(Some(&other), None).await, Err(Error::Precondition { .. })));
        assert!(matches!(ask(None, Some(&etag)).await, Err(Error::NotModified { .. })));
    }
}

#[test]
fn preconditions_on_dates_and_their_order() {
    let fixture = Fixture::new();
    fixture.write("k", "content");
    let now = fixture.raw("GET", "/bucket/k", &[], b"");
    let (modified, etag) = (now.header("last-modified").unwrap(), now.header("etag").unwrap());
    // The test harness lower-cases the head; dates have capitals.
    let modified = capitalise(modified);
    let (past, future) = ("Thu, 01 Jan 1970 00:00:01 GMT", "Fri, 01 Jan 2100 00:00:00 GMT");
    for method in ["GET", "HEAD"] {
        for (headers, status) in [
            (vec![("if-modified-since", &*modified)], 304),
            (vec![("if-modified-since", future)], 304),
            (vec![("if-modified-since", past)], 200),
            (vec![("if-unmodified-since", past)], 412),
            (vec![("if-unmodified-since", &*modified)], 200),
            // With a matching ETag the date is ignored.
            (vec![("if-match", etag), ("if-unmodified-since", past)], 200),
            (vec![("if-none-match", "\"x\""), ("if-modified-since", future)], 200),
            (vec![("if-none-match", "*")], 304),
            (vec![("if-match", "\"x\""), ("if-none-match", etag)], 412),
        ] {
            let answer = fixture.raw(method, "/bucket/k", &headers, b"");
            assert_eq!(answer.status, status, "{method} {headers:?}");
            if status == 304 {
                assert_eq!((answer.header("etag"), &*answer.body), (Some(etag), &b""[..]));
            }
        }
    }
}

fn capitalise(date: &str) -> String {
    let words = date.split(' ').map(|word| {
        let (first, rest) = word.split_at(1);
        if word == "gmt" { "GMT".to_owned() } else { first.to_uppercase() + rest }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn every_version_has_its_own_etag() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let key = Path::from("dir/k");
    let mut seen = Vec::new();
    for _ in 0..50 {
        let put = store.put(&key, "same length".into()).await.unwrap().e_tag.unwrap();
        let got = store.get(&key).await.unwrap().meta.e_tag.unwrap();
        let head = store.head(&key).await.unwrap().e_tag.unwrap();
        let listed = store.list_with_delimiter(Some(&"dir".into())).await.unwrap();
        let listed = listed.objects[0].e_tag.clone().unwrap();
        assert_eq!([&got, &head, &listed], [&put; 3]);
        assert!(put.starts_with('"') && put.ends_with("-1\""), "{put} is strong and no MD5");
        assert!(!seen.contains(&put), "{put} named an earlier version");
        seen.push(put);
    }
}

/// More than the sockets' buffers hold, so that a response is in progress while the file changes.
const LARGE: usize = 64 << 20;

fn read_while(fixture: &Fixture, change: impl FnOnce()) -> Raw {
    let mut stream = fixture.send("GET", "/bucket/k", &[], b"");
    let mut bytes = vec![0; 1 << 20];
    stream.read_exact(&mut bytes).unwrap();
    change();
    let _ = stream.read_to_end(&mut bytes);
    Raw::parse(&bytes)
}

#[tokio::test]
async fn a_response_continues_with_the_old_file_after_a_rename() {
    let fixture = Fixture::new();
    let (old, new) = (content(LARGE), vec![7; LARGE]);
    fixture.write("k", &old);
    fixture.write("new", &new);
    let answer = read_while(&fixture, || {
        fs::rename(fixture.path("new"), fixture.path("k")).unwrap();
    });
    assert!(answer.body == old, "all of the old content");
    let now = fixture.store().get(&"k".into()).await.unwrap().bytes().await.unwrap();
    assert!(now == new, "all of the new content");
}

#[test]
fn a_file_that_shrinks_or_changes_ends_the_response() {
    let fixture = Fixture::new();
    let old = content(LARGE);
    let changes: [fn(&Fixture); 2] = [
        |fixture| {
            let file = fs::OpenOptions::new().write(true).open(fixture.path("k")).unwrap();
            file.set_len(100).unwrap();
        },
        |fixture| fs::write(fixture.path("k"), vec![7; LARGE]).unwrap(),
    ];
    for change in changes {
        fixture.write("k", &old);
        let answer = read_while(&fixture, || change(&fixture));
        let received = answer.body.len();
        assert_eq!(answer.header("content-length"), Some(&*LARGE.to_string()));
        assert!(received < LARGE, "truncated, not padded");
        assert!(answer.body == old[..received], "not mixed");
    }
}

#[tokio::test]
async fn unusual_keys_are_stored_unchanged() {
    let fixture = Fixture::new();
    let store = fixture.store();
    for key in ["with space", "ünï/çødé", "100%", "a+b", "a%2Fb", "~-_.!*'()", ".hidden/x"] {
        let path = Path::parse(key).unwrap();
        store.put(&path, PutPayload::from(key.as_bytes().to_vec())).await.unwrap();
        assert_eq!(fs::read(fixture.path(key)).unwrap(), key.as_bytes());
        assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), key.as_bytes());
    }
}
