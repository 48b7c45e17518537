//! Pass-through: what the origin receives of a request, and the client of an answer.

use forebay_gateway::sign::SignedTarget;
use http::Method;

use super::{
    harness::{Fixture, S3Client, start},
    recording_origin::RecordingOrigin,
};

const NOTHING_KEPT: &str = "capacity = \"0B\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn every_key_reaches_the_origin_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let origin = RecordingOrigin::start(200, &[]).await;
    let gateway = start(directory.path(), &origin.endpoint(), NOTHING_KEPT).await;
    let client = S3Client::new(gateway.address, "a.job-1");
    for path in [
        "/data/a/../b",
        "/data/..",
        "/data//a//b/",
        "/data/a%2Bb%20c%2520",
        "/data/%C3%BC/%E2%82%AC",
        "/data/a%0Ab%3F%23%22%3C%3E",
        &format!("/data/{}", "k".repeat(1024)),
    ] {
        for (method, query) in [
            (Method::GET, ""),
            (Method::HEAD, ""),
            (Method::GET, "versionId=a%2Fb"),
            (Method::PUT, "tagging"),
            (Method::DELETE, ""),
        ] {
            let request = client.request(&method, path, query, &[], b"");
            let answer = client.send(request).await;
            assert_eq!(answer.status, 200, "{method} {path}: {answer:?}");
            assert_eq!(answer.cache(), "pass");
            let received = origin.last();
            let wanted = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
            assert_eq!((received.method, received.target), (method, wanted));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_signed_again_and_loses_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let origin = RecordingOrigin::start(200, &[("x-amz-version-id", "7")]).await;
    let gateway = start(directory.path(), &origin.endpoint(), NOTHING_KEPT).await;
    let client = S3Client::new(gateway.address, "a");
    let headers = [
        ("x-amz-meta-name", "kept"),
        ("x-amz-request-payer", "requester"),
        ("content-type", "text/plain"),
        ("x-unknown", "kept too"),
    ];
    let request = client.request(&Method::PUT, "/data/k", "", &headers, b"content");
    let answer = client.send(request).await;
    assert_eq!(answer.headers["x-amz-version-id"], "7");
    let received = origin.last();
    assert_eq!(received.body.unwrap(), "content");
    for (name, value) in headers {
        assert_eq!(received.headers[name], value);
    }
    let authorization = received.headers["authorization"].to_str().unwrap();
    assert!(authorization.contains("Credential=origin-a/"), "{authorization}");
    assert_eq!(received.headers["host"], origin.address.to_string());
    assert_eq!(
        received.headers["x-amz-content-sha256"],
        forebay_gateway::sign::sha256_hex(b"content"),
        "the origin checks the hash that the client declared"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_of_the_origin_is_an_error_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let headers = [("location", "http://169.254.169.254/"), ("x-amz-bucket-region", "eu-west-1")];
    let origin = RecordingOrigin::start(307, &headers).await;
    let gateway = start(directory.path(), &origin.endpoint(), NOTHING_KEPT).await;
    let answer = S3Client::new(gateway.address, "a").get("/data/k", &[]).await;
    assert_eq!(answer.status, 502);
    assert!(!answer.headers.contains_key("location"));
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(text.contains("eu-west-1") && text.contains("`endpoint` and `region`"), "{text}");
    assert_eq!(origin.count(), 1, "no redirect is followed");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_written_read_listed_and_deleted_as_directly() {
    let fixture = Fixture::new(NOTHING_KEPT).await;
    let client = fixture.client("a");
    let content = vec![7; 3 << 20];
    assert_eq!(client.put("/data/dir/k", &content).await.status, 200);
    let answer = client.get("/data/dir/k", &[]).await;
    assert!(answer.status == 200 && answer.body == content);
    let part = client.get("/data/dir/k", &[("range", "bytes=5-9")]).await;
    assert_eq!((part.status, part.body.len()), (206, 5));
    assert_eq!(part.headers["content-range"], "bytes 5-9/3145728");
    let head = client.head("/data/dir/k").await;
    assert_eq!((head.status, &head.headers["content-length"]), (200, &"3145728".parse().unwrap()));
    let request = client.request(&Method::GET, "/data", "list-type=2&prefix=dir%2F", &[], b"");
    let listed = client.send(request).await;
    assert!(String::from_utf8_lossy(&listed.body).contains("<Key>dir/k</Key>"));
    let beyond = client.get("/data/dir/k", &[("range", "bytes=9999999-")]).await;
    assert_eq!((beyond.status, beyond.code().as_str()), (416, "InvalidRange"));
    assert_eq!(client.delete("/data/dir/k").await.status, 204);
    let absent = client.get("/data/dir/k", &[]).await;
    assert_eq!((absent.status, absent.code().as_str()), (404, "NoSuchKey"));
}

/// A hit is never older than a write that was answered, also under `immutable`.
#[tokio::test(flavor = "multi_thread")]
async fn writes_and_deletes_forget_the_object_before_they_are_answered() {
    let lines = "capacity = \"64MiB\"\nrules = [{ freshness = \"immutable\" }]\n";
    let fixture = Fixture::new(lines).await;
    let client = fixture.client("a");
    fixture.put("k", vec![1; 1 << 20]);
    // Until flash is ready, requests pass.
    for _ in 0..600 {
        if client.get("/data/k", &[]).await.cache() == "hit" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(client.get("/data/k", &[]).await.cache(), "hit");
    for version in 2..6 {
        assert_eq!(client.put("/data/k", &vec![version; 1 << 20]).await.status, 200);
        let answer = client.get("/data/k", &[]).await;
        assert!(answer.body.iter().all(|byte| *byte == version), "version {version}");
    }
    let body = b"<Delete><Object><Key>k</Key></Object></Delete>";
    let request = client.request(&Method::POST, "/data", "delete", &[], body);
    let deleted = client.send(request).await;
    assert_eq!(deleted.status, 200, "{deleted:?}");
    assert_eq!(client.get("/data/k", &[]).await.status, 404);
}

/// The chunks of a body in `aws-chunked`, and what follows them.
fn chunks(body: &[u8]) -> (Vec<u8>, String) {
    let (mut content, mut rest) = (Vec::new(), body);
    loop {
        let end = rest.windows(2).position(|pair| pair == b"\r\n").unwrap();
        let length = usize::from_str_radix(str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        rest = &rest[end + 2..];
        if length == 0 {
            return (content, String::from_utf8(rest.to_vec()).unwrap());
        }
        content.extend_from_slice(&rest[..length]);
        assert_eq!(&rest[length..length + 2], b"\r\n");
        rest = &rest[length + 2..];
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checksum_in_a_trailer_is_passed_on_as_a_trailer() {
    let directory = tempfile::tempdir().unwrap();
    let origin = RecordingOrigin::start(200, &[]).await;
    let gateway = start(directory.path(), &origin.endpoint(), NOTHING_KEPT).await;
    let client = S3Client::new(gateway.address, "a");
    for length in [1, 65_535, 65_536, 65_537, 300_000] {
        let content: Vec<u8> = (0..length).map(|at: u32| at.to_le_bytes()[0]).collect();
        let mut body = format!("{length:x}\r\n").into_bytes();
        body.extend_from_slice(&content);
        body.extend_from_slice(b"\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n");
        let headers = [
            ("content-encoding", "aws-chunked"),
            ("x-amz-decoded-content-length", &*length.to_string()),
            ("x-amz-trailer", "x-amz-checksum-crc32"),
        ];
        let target = SignedTarget {
            method: &Method::PUT,
            path: "/data/k",
            query: "",
            payload: "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        };
        let answer = client.send(client.request_of(target, &headers, &body)).await;
        assert_eq!(answer.status, 200, "{length}: {answer:?}");
        let received = origin.last();
        let body = received.body.expect("the announced length is the real one");
        let (sent, trailer) = chunks(&body);
        assert!(sent == content, "{length}");
        assert_eq!(trailer, "x-amz-checksum-crc32:AAAAAA==\r\n\r\n");
        assert_eq!(received.headers["content-encoding"], "aws-chunked");
        assert_eq!(received.headers["x-amz-trailer"], "x-amz-checksum-crc32");
        assert_eq!(received.headers["x-amz-decoded-content-length"], length.to_string());
    }
}
