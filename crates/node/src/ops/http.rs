//! `/metrics`, `/livez` and `/readyz`, on loopback.

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

use crate::{counters, health::Health};

/// Anyone on this machine can connect here, and must not use up the node's descriptors. The next one takes the
/// place of the oldest, so that nobody keeps others from asking whether the node lives.
const CONNECTIONS_MAX: usize = 32;

/// No connection is kept longer.
const CONNECTION_MAX: Duration = Duration::from_secs(30);

/// Serves until it is dropped.
pub(crate) async fn serve(listener: TcpListener, health: Arc<Health>) {
    let (mut connections, mut oldest) = (JoinSet::new(), VecDeque::new());
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            // Out of descriptors, most likely: wait for some to be returned.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let health = Arc::clone(&health);
        let service = service_fn(move |request| {
            let response = answer(&request, &health);
            async move { Ok::<_, Infallible>(response) }
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
            let _ = timeout(CONNECTION_MAX, server.serve_connection(TokioIo::new(socket), service))
                .await;
        }));
    }
}

fn answer(request: &Request<Incoming>, health: &Health) -> Response<Full<Bytes>> {
    let not_now = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => match health.node() {
            Some(node) => (
                StatusCode::OK,
                counters::exposition(&node.gauges(), node.counters(), &node.flash_counters()),
            ),
            None => not_now("recovering"),
        },
        // The process answers: that is all it says.
        (&Method::GET, "/livez") => (StatusCode::OK, "ok\n".to_owned()),
        (&Method::GET, "/readyz") => match health.unready() {
            Some(why) => not_now(why),
            None => (StatusCode::OK, "ok\n".to_owned()),
        },
        (&Method::GET, _) => {
            (StatusCode::NOT_FOUND, "there are /metrics, /livez and /readyz\n".to_owned())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let plain = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, plain);
    response
}
