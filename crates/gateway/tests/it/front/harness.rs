//! A gateway over a real origin, and clients that sign.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use forebay_dev_origin::{Config, DevOrigin, LimitedKey};
use forebay_gateway::{
    Gateway, GatewayConfig, GatewayTenant,
    sign::{self, Credential, Scope, SignedTarget},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};

/// Secret of a tenant's clients.
fn secret_of(tenant: &str) -> String {
    format!("secret-of-{tenant}-0123456789")
}

/// Secret of every tenant at the origin.
pub const ORIGIN_SECRET: &str = "origin-secret-0123456789";

/// Objects of the bucket `data`, below the directory of a fixture.
pub struct Fixture {
    pub directory: TempDir,
    pub origin: DevOrigin,
    pub gateway: RunningGateway,
}

/// A gateway that serves until it is dropped.
pub struct RunningGateway {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl RunningGateway {
    /// Stops it, and waits until requests in progress are done.
    pub async fn drain(mut self) {
        drop(self.stop.take());
        (&mut self.task).await.unwrap();
    }
}

fn private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn key_file(directory: &Path, name: &str, id: &str, secret: &str) -> std::path::PathBuf {
    let path = directory.join(name);
    private(&path, &format!("aws_access_key_id={id}\naws_secret_access_key={secret}\n"));
    path
}

/// The tenants `a` and `b`, each with an access key and an origin key of its name.
pub fn tenants(directory: &Path) -> Vec<GatewayTenant> {
    let tenant = |name: &str| {
        let client = key_file(directory, &format!("{name}.client"), name, &secret_of(name));
        let origin_key = format!("origin-{name}");
        let origin = key_file(directory, &format!("{name}.origin"), &origin_key, ORIGIN_SECRET);
        let origin = format!("file = {:?}", origin.to_str().unwrap()).parse().unwrap();
        GatewayTenant { name: name.to_owned(), access_keys: vec![client], origin: Some(origin) }
    };
    vec![tenant("a"), tenant("b")]
}

/// Starts a gateway for an endpoint, with more lines of configuration.
pub async fn start(directory: &Path, endpoint: &str, lines: &str) -> RunningGateway {
    start_with(directory, endpoint, lines, &tenants(directory)).await
}

/// Starts a gateway with these tenants.
pub async fn start_with(
    directory: &Path,
    endpoint: &str,
    lines: &str,
    tenants: &[GatewayTenant],
) -> RunningGateway {
    let text = format!("listen = \"127.0.0.1:0\"\nendpoint = \"{endpoint}\"\n{lines}");
    let config = GatewayConfig::parse(&text.parse().unwrap(), tenants).unwrap();
    let settings = config.cache_settings(&directory.join("node")).unwrap();
    let gateway = Gateway::bind(&config, &settings).await.unwrap();
    let address = gateway.address();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { stopped.await.unwrap_or(()) };
    let task = tokio::spawn(gateway.run(stopped, Duration::from_secs(30)));
    RunningGateway { address, stop: Some(stop), task }
}

impl Fixture {
    /// Tenant `a` may touch `data/`, tenant `b` only `data/shared/`.
    pub async fn new(lines: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("data")).unwrap();
        let key = |name: &str, prefix: &str| LimitedKey {
            access_key: format!("origin-{name}"),
            secret_key: ORIGIN_SECRET.to_owned(),
            prefixes: vec![prefix.to_owned()],
        };
        let limited_keys = vec![key("a", "data/"), key("b", "data/shared/")];
        let origin = DevOrigin::start(Config { limited_keys, ..Config::new(root) }).unwrap();
        let gateway = start(directory.path(), &origin.endpoint(), lines).await;
        Self { directory, origin, gateway }
    }

    /// Writes an object at the origin.
    pub fn put(&self, key: &str, content: impl AsRef<[u8]>) {
        let path = self.directory.path().join("root/data").join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// A client of the gateway with this access key.
    pub fn client(&self, access_key: &str) -> S3Client {
        S3Client::new(self.gateway.address, access_key)
    }
}

/// A client that signs.
pub struct S3Client {
    http: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    credential: Credential,
}

/// A response that was read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    /// S3's code of an error.
    pub fn code(&self) -> String {
        let text = String::from_utf8_lossy(&self.body).into_owned();
        let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        code.map_or_else(String::new, |(code, _)| code.to_owned())
    }

    pub fn cache(&self) -> &str {
        self.headers.get("x-forebay-cache").map_or("", |value| value.to_str().unwrap())
    }
}

impl S3Client {
    pub fn new(address: SocketAddr, access_key: &str) -> Self {
        let http = Client::builder(TokioExecutor::new()).build_http();
        let secret = secret_of(access_key.split('.').next().unwrap_or_default());
        let credential = Credential::new(access_key.to_owned(), secret.into(), None);
        Self { http, address, credential }
    }

    /// A signed request, which may be changed before it is sent.
    pub fn request(
        &self,
        method: &Method,
        path: &str,
        query: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Request<Full<Bytes>> {
        let payload = sign::sha256_hex(body);
        self.request_of(SignedTarget { method, path, query, payload: &payload }, headers, body)
    }

    /// A signed request that declares this payload.
    pub fn request_of(
        &self,
        target: SignedTarget<'_>,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Request<Full<Bytes>> {
        let SignedTarget { method, path, query, .. } = target;
        let mut map = HeaderMap::new();
        map.insert(header::HOST, HeaderValue::from_str(&self.address.to_string()).unwrap());
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        let scope = Scope { region: "us-east-1", service: "s3", time: SystemTime::now() };
        sign::sign(&mut map, target, &self.credential, scope);
        let query = if query.is_empty() { String::new() } else { format!("?{query}") };
        let mut request = Request::new(Full::new(Bytes::copy_from_slice(body)));
        *request.method_mut() = method.clone();
        *request.uri_mut() = format!("http://{}{path}{query}", self.address).parse().unwrap();
        *request.headers_mut() = map;
        request
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let response: Response<_> = self.http.request(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(self.request(&Method::GET, path, "", headers, b"")).await
    }

    pub async fn head(&self, path: &str) -> Answer {
        self.send(self.request(&Method::HEAD, path, "", &[], b"")).await
    }

    pub async fn put(&self, path: &str, body: &[u8]) -> Answer {
        self.send(self.request(&Method::PUT, path, "", &[], body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(&Method::DELETE, path, "", &[], b"")).await
    }
}
