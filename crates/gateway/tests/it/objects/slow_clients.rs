//! Slow clients: bytes that wait for them are bounded, and others are served (promise 6).

use forebay_core::ByteSize;
use forebay_gateway::objects::ObjectCacheSettings;
use http_body_util::BodyExt as _;

use super::{
    harness::{Gateway, SEGMENT, content, origin_client, scripted_identities, settings},
    scripted_origin::ScriptedOrigin,
};

/// 40 clients that have taken their heads and nothing else hold more than all read buffers; a
/// reader behind them is served from flash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_stop_reading_do_not_starve_others() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let settings = ObjectCacheSettings {
        memory: ByteSize(0),
        read_buffers: ByteSize::mib(4),
        send_memory: ByteSize::mib(64),
        ..settings(directory.path())
    };
    let gateway = Gateway::open(client, &settings).await;
    let bytes = content(1, 16 * SEGMENT);
    origin.write("a", Some(bytes.clone()), false);
    assert!(gateway.get(0, "a", &[]).await.body == bytes);
    gateway.settled().await;
    origin.forget();
    let mut stalled = Vec::new();
    for _ in 0..40 {
        let response = gateway.cache.serve(gateway.request(0, "a", &[])).await;
        assert_eq!(response.status(), 200);
        stalled.push(response.into_body());
    }
    let answer = gateway.get(0, "a", &[]).await;
    assert!(answer.body == bytes && answer.cache() == "hit");
    // The slow ones get the rest, too.
    for mut body in stalled {
        let mut received = 0;
        while let Some(frame) = body.frame().await {
            let chunk = frame.unwrap().into_data().unwrap();
            assert!(chunk == bytes.slice(received..received + chunk.len()));
            received += chunk.len();
        }
        assert_eq!(received, bytes.len());
    }
    assert_eq!(origin.count(&http::Method::GET), 0, "all from flash");
}

/// Promise 6: bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_beyond_the_memory_for_clients_are_slowed_down() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let send_memory = ByteSize::mib(4);
    let settings = ObjectCacheSettings { send_memory, ..settings(directory.path()) };
    let gateway = Gateway::open(client, &settings).await;
    origin.write("a", Some(content(1, 8 * SEGMENT)), false);
    let mut held = Vec::new();
    for _ in 0..4 {
        let response = gateway.cache.serve(gateway.request(0, "a", &[])).await;
        assert_eq!(response.status(), 200);
        held.push(response);
    }
    let refused = gateway.get(0, "a", &[]).await;
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (503, Some("1")));
    assert_eq!(gateway.head(0, "a", &[]).await.status, 200, "a HEAD has no bytes that wait");
    held.pop();
    while gateway.get(0, "a", &[]).await.status != 200 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
