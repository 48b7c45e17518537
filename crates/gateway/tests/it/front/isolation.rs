//! Isolation: what one tenant can learn of another's data. Promise 4: a hit is authorised.

use super::harness::{Fixture, S3Client};

/// Reads until the object is on flash.
async fn warm(client: &S3Client, path: &str) {
    for _ in 0..600 {
        if client.get(path, &[]).await.cache() == "hit" {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the object was not kept");
}

const KEPT: &str = "capacity = \"64MiB\"\nrules = [{ freshness = \"immutable\" }]\n";

/// Promise 4.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_gets_of_cached_data_what_the_origin_gives_it() {
    let fixture = Fixture::new(KEPT).await;
    fixture.put("secret/k", vec![1; 600_000]);
    fixture.put("shared/k", vec![2; 600_000]);
    let (a, b) = (fixture.client("a"), fixture.client("b.job"));
    warm(&a, "/data/secret/k").await;
    warm(&a, "/data/shared/k").await;
    for path in ["/data/secret/k", "/data/secret/absent"] {
        for headers in [&[][..], &[("range", "bytes=0-0")], &[("if-none-match", "\"x\"")]] {
            let refused = b.get(path, headers).await;
            assert_eq!((refused.status, refused.code().as_str()), (403, "AccessDenied"), "{path}");
        }
        assert_eq!(b.head(path).await.status, 403);
    }
    let shared = b.get("/data/shared/k", &[]).await;
    assert!(shared.status == 200 && shared.body.iter().all(|byte| *byte == 2));
    assert_eq!(a.get("/data/secret/k", &[]).await.cache(), "hit", "a refusal evicts nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_refused_changes_nothing() {
    let fixture = Fixture::new(KEPT).await;
    fixture.put("secret/k", b"mine");
    let (a, b) = (fixture.client("a"), fixture.client("b"));
    assert_eq!(b.put("/data/secret/k", b"theirs").await.status, 403);
    assert_eq!(b.delete("/data/secret/k").await.status, 403);
    assert_eq!(a.get("/data/secret/k", &[]).await.body, "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_an_unknown_key_and_a_changed_request_are_refused() {
    let fixture = Fixture::new(KEPT).await;
    fixture.put("k", b"content");
    let unknown = fixture.client("c").get("/data/k", &[]).await;
    assert_eq!((unknown.status, unknown.code().as_str()), (403, "InvalidAccessKeyId"));
    let client = fixture.client("a");
    // The signature of one request on another one.
    let signed = client.request(&http::Method::GET, "/data/other", "", &[], b"");
    let mut moved = client.request(&http::Method::GET, "/data/k", "", &[], b"");
    *moved.headers_mut() = signed.headers().clone();
    let refused = client.send(moved).await;
    assert_eq!((refused.status, refused.code().as_str()), (403, "SignatureDoesNotMatch"));
    // Another tenant's name with this tenant's secret.
    let mut renamed = client.request(&http::Method::GET, "/data/k", "", &[], b"");
    let text = renamed.headers()["authorization"].to_str().unwrap().replace("=a/", "=b/");
    renamed.headers_mut().insert("authorization", text.parse().unwrap());
    let refused = client.send(renamed).await;
    assert_eq!((refused.status, refused.code().as_str()), (403, "SignatureDoesNotMatch"));
    let unsigned = http::Request::get(format!("http://{}/data/k", fixture.gateway.address));
    let unsigned = client.send(unsigned.body(http_body_util::Full::default()).unwrap()).await;
    assert_eq!((unsigned.status, unsigned.code().as_str()), (403, "AccessDenied"));
    assert_eq!(fixture.origin.counters().requests_total(), 0, "no refused request reached it");
}
