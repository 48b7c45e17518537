//! Limits of the endpoint, and its shutdown.

use std::time::Duration;

use forebay_dev_origin::Fault;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::harness::{Fixture, S3Client};

#[tokio::test(flavor = "multi_thread")]
async fn connections_and_requests_beyond_the_limit_get_slow_down() {
    let lines = "capacity = \"0B\"\nmax_connections = 2\n";
    let fixture = Fixture::new(lines).await;
    fixture.put("k", b"content");
    let mut idle = Vec::new();
    for _ in 0..2 {
        let mut socket = TcpStream::connect(fixture.gateway.address).await.unwrap();
        socket.write_all(b"GET /-/health HTTP/1.1\r\nhost: h\r\n\r\n").await.unwrap();
        let mut head = [0; 15];
        socket.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        idle.push(socket);
    }
    let refused = fixture.client("a").get("/data/k", &[]).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "SlowDown"));
    assert!(refused.headers.contains_key("retry-after"));
    drop(idle);
    for _ in 0..600 {
        if fixture.client("a").get("/data/k", &[]).await.status == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("closed connections still count");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_progress_finish_at_shutdown() {
    let fixture = Fixture::new("capacity = \"0B\"\n").await;
    fixture.put("k", vec![1; 4 << 20]);
    let client = fixture.client("a");
    let address = fixture.gateway.address;
    let request = client.request(&http::Method::GET, "/data/k", "", &[], b"");
    // Read the head by hand, so that the request is in progress.
    let mut socket = TcpStream::connect(address).await.unwrap();
    let mut head = "GET /data/k HTTP/1.1\r\n".to_owned();
    for (name, value) in request.headers() {
        head += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    socket.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    let mut first = [0; 15];
    socket.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    let draining = tokio::spawn(fixture.gateway.drain());
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() > 4 << 20 && rest.ends_with(&[1; 1000]));
    draining.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_does_not_answer_is_an_error_in_time() {
    let lines = "capacity = \"0B\"\nfirst_byte_timeout = \"1s\"\nprogress_timeout = \"1s\"\n";
    let fixture = Fixture::new(lines).await;
    fixture.put("k", vec![1; 1 << 20]);
    let client: S3Client = fixture.client("a");
    fixture.origin.inject([Fault::HangBeforeHead]);
    let late = client.get("/data/k", &[]).await;
    assert_eq!((late.status, late.code().as_str()), (503, "ServiceUnavailable"));
    fixture.origin.inject([Fault::HangInBody]);
    // The head was sent: the connection is cut, and the client sees a short body.
    let request = client.request(&http::Method::GET, "/data/k", "", &[], b"");
    let mut socket = TcpStream::connect(fixture.gateway.address).await.unwrap();
    let mut head = "GET /data/k HTTP/1.1\r\n".to_owned();
    for (name, value) in request.headers() {
        head += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    socket.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let _ = socket.read_to_end(&mut received).await;
    assert!(received.starts_with(b"HTTP/1.1 200") && received.len() < 1 << 20);
}
