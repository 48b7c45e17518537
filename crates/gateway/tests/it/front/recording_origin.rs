//! An origin that answers each request with what it received, for tests of what passes.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub method: Method,
    /// The raw path and query.
    pub target: String,
    pub headers: HeaderMap,
    /// `None` if the body broke.
    pub body: Option<Bytes>,
}

pub struct RecordingOrigin {
    pub address: SocketAddr,
    pub requests: Arc<Mutex<Vec<Recorded>>>,
}

impl RecordingOrigin {
    /// Answers every request with this status and these headers.
    pub async fn start(status: u16, headers: &[(&'static str, &'static str)]) -> Self {
        Self::with_body(status, headers, "done").await
    }

    /// Answers every request with this body.
    pub async fn with_body(
        status: u16,
        headers: &[(&'static str, &'static str)],
        body: &'static str,
    ) -> Self {
        let answer = body;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&requests);
        let headers = headers.to_vec();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (recorded, headers) = (Arc::clone(&recorded), headers.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (recorded, headers) = (Arc::clone(&recorded), headers.clone());
                    async move {
                        let (head, body) = request.into_parts();
                        let body =
                            body.collect().await.ok().map(http_body_util::Collected::to_bytes);
                        recorded.lock().push(Recorded {
                            method: head.method,
                            target: head.uri.to_string(),
                            headers: head.headers,
                            body,
                        });
                        let mut response =
                            Response::new(Full::new(Bytes::from_static(answer.as_bytes())));
                        *response.status_mut() = StatusCode::from_u16(status).unwrap();
                        for (name, value) in headers {
                            response.headers_mut().insert(name, value.parse().unwrap());
                        }
                        Ok::<_, Infallible>(response)
                    }
                });
                let server = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
                tokio::spawn(server);
            }
        });
        Self { address, requests }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The last request.
    pub fn last(&self) -> Recorded {
        self.requests.lock().last().cloned().expect("a request arrived")
    }

    pub fn count(&self) -> usize {
        self.requests.lock().len()
    }
}
