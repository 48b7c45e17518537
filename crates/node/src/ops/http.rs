//! HTTP endpoints `/metrics`, `/livez` and `/readyz`, on loopback.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpListener,
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use crate::ops::{health::Health, metrics, work_queue::Lane};

/// Concurrent connections. Every process of the machine can connect, and must not exhaust the
/// node's file descriptors. The next connection closes the oldest, so that idle ones do not block
/// probes.
const CONNECTIONS_MAX: usize = 32;
/// Longest life of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, health: Arc<Health>) {
    let (mut connections, mut oldest) = (JoinSet::new(), VecDeque::new());
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            // Most likely out of file descriptors: wait until some are free.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let health = Arc::clone(&health);
        let service = service_fn(move |request| {
            let response = answer(request, Arc::clone(&health));
            async move { Ok::<_, Infallible>(response.await) }
        });
        while connections.try_join_next().is_some() {}
        oldest.retain(|task: &AbortHandle| !task.is_finished());
        if oldest.len() >= CONNECTIONS_MAX
            && let Some(oldest) = oldest.pop_front()
        {
            oldest.abort();
        }
        oldest.push_back(connections.spawn(async move {
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).max_buf_size(16 << 10).keep_alive(true);
            let _ =
                timeout(CONNECTION_TIMEOUT, server.serve_connection(TokioIo::new(socket), service))
                    .await;
        }));
    }
}

async fn answer(request: Request<Incoming>, health: Arc<Health>) -> Response<Full<Bytes>> {
    let unavailable = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => match health.node() {
            Some(node) => {
                let gauges = node.gauges_in_queue(Lane::Node).await;
                let flash = node.flash_counters();
                (
                    StatusCode::OK,
                    metrics::exposition(&gauges, node.counters(), &flash, node.extra_rows()),
                )
            }
            None => unavailable("recovering"),
        },
        // Alive means that the process answers.
        (&Method::GET, "/livez") => (StatusCode::OK, "ok\n".to_owned()),
        (&Method::GET, "/readyz") => match health.unready_reason() {
            Some(why) => unavailable(why),
            None => (StatusCode::OK, "ok\n".to_owned()),
        },
        (&Method::GET, _) => {
            (StatusCode::NOT_FOUND, "not found; use /metrics, /livez or /readyz\n".to_owned())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "method not allowed; use GET\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let plain = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, plain);
    response
}
