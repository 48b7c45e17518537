//! Hostile requests: what contradicts itself, ends early or lies is refused, and the gateway goes
//! on.

use http::Method;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    harness::{Fixture, S3Client, start},
    recording_origin::RecordingOrigin,
};

const NOTHING_KEPT: &str = "capacity = \"0B\"\n";

/// Sends a signed head with changes and a body by hand, and returns the status line.
async fn raw(client: &S3Client, socket: &mut TcpStream, request: RawRequest<'_>) -> String {
    let RawRequest { method, headers, drop, more, body, is_cut } = request;
    let signed = client.request(&method, "/data/k", "", headers, b"content");
    let mut head = format!("{method} /data/k HTTP/1.1\r\n");
    for (name, value) in signed.headers().iter().filter(|(name, _)| !drop.contains(&name.as_str()))
    {
        head += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    socket.write_all(format!("{head}connection: close\r\n{more}\r\n").as_bytes()).await.unwrap();
    let _ = socket.write_all(body).await;
    if is_cut {
        let _ = socket.shutdown().await;
    }
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

struct RawRequest<'a> {
    method: Method,
    headers: &'a [(&'a str, &'a str)],
    drop: &'a [&'a str],
    more: &'a str,
    body: &'a [u8],
    /// Whether the client's side ends after the body.
    is_cut: bool,
}

/// An upload whose body differs from what is declared is never complete at the origin.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_lies_or_stops_is_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let origin = RecordingOrigin::start(200, &[]).await;
    let gateway = start(directory.path(), &origin.endpoint(), NOTHING_KEPT).await;
    let client = S3Client::new(gateway.address, "a");
    for (more, body, is_cut, code) in [
        // Another content than the signed hash.
        ("content-length: 7\r\n", &b"CONTENT"[..], false, "XAmzContentSHA256Mismatch"),
        // Fewer bytes than declared, then the end of the connection.
        ("content-length: 70\r\n", b"content", true, ""),
    ] {
        let mut socket = TcpStream::connect(gateway.address).await.unwrap();
        let request =
            RawRequest { method: Method::PUT, headers: &[], drop: &[], more, body, is_cut };
        let answer = raw(&client, &mut socket, request).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains(code), "{answer}");
    }
    let received = origin.requests.lock().clone();
    let complete: Vec<_> = received.iter().filter(|request| request.body.is_some()).collect();
    assert!(complete.is_empty(), "{complete:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_chunk_signatures_are_refused_and_not_stored() {
    let directory = tempfile::tempdir().unwrap();
    let origin = RecordingOrigin::start(200, &[]).await;
    let gateway = start(directory.path(), &origin.endpoint(), NOTHING_KEPT).await;
    let client = S3Client::new(gateway.address, "a");
    // The seed signature is that of a request with another payload, so the first check fails.
    let chunk = format!("7;chunk-signature={}\r\ncontent\r\n0;chunk-signature=", "0".repeat(64));
    let body = format!("{chunk}{}\r\n\r\n", "0".repeat(64));
    let more = format!(
        "x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\ncontent-length: {}\r\n",
        body.len()
    );
    let mut socket = TcpStream::connect(gateway.address).await.unwrap();
    let request = RawRequest {
        method: Method::PUT,
        headers: &[("x-amz-decoded-content-length", "7"), ("content-encoding", "aws-chunked")],
        drop: &["x-amz-content-sha256"],
        more: &more,
        body: body.as_bytes(),
        is_cut: false,
    };
    let answer = raw(&client, &mut socket, request).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("SignatureDoesNotMatch"));
    assert_eq!(origin.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn contradictions_are_refused_and_do_not_stop_the_gateway() {
    let fixture = Fixture::new(NOTHING_KEPT).await;
    fixture.put("k", b"content");
    let client = fixture.client("a");
    let get = |more: &'static str| RawRequest {
        method: Method::GET,
        headers: &[],
        drop: &[],
        more,
        body: b"",
        is_cut: false,
    };
    for (more, status) in [
        ("x-amz-date: 20200101T000000Z\r\n", "400"),
        ("host: other\r\n", "400"),
        ("authorization: AWS a:b\r\n", "400"),
        ("x-amz-copy-source: data/secret\r\n", "403"),
        ("x-amz-security-token: x\r\n", "400"),
        ("content-length: 7\r\ncontent-length: 8\r\n", "400"),
        ("content-length: -1\r\n", "400"),
    ] {
        let mut socket = TcpStream::connect(fixture.gateway.address).await.unwrap();
        let answer = raw(&client, &mut socket, get(more)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{more}: {answer}");
    }
    let mut socket = TcpStream::connect(fixture.gateway.address).await.unwrap();
    socket.write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n").await.unwrap();
    let _ = socket.read_to_end(&mut Vec::new()).await;
    assert_eq!(client.get("/data/k", &[]).await.status, 200);
    // Two ranges are the origin's to answer.
    let two = client.get("/data/k", &[("range", "bytes=0-1,3-4")]).await;
    assert_eq!(two.cache(), "pass");
    let long = client.get(&format!("/data/{}", "k".repeat(1025)), &[]).await;
    assert_eq!((long.status, long.code().as_str()), (400, "KeyTooLongError"));
}
