//! A directory served by a dev origin, and a small HTTP server with scripted answers.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::Arc,
    thread,
};

use forebay_core::dataset::ListedObject;
use forebay_dev_origin::{ACCESS_KEY, Config, DevOrigin, SECRET_KEY};
use forebay_origin::{Credentials, Options, Origin, OriginError};
use futures::StreamExt as _;

/// Files in a bucket, read from the directory or over S3.
pub struct Fixture {
    pub server: DevOrigin,
    directory: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(shape: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("bucket")).unwrap();
        let mut config = Config::new(directory.path());
        shape(&mut config);
        Self { server: DevOrigin::start(config).unwrap(), directory }
    }

    pub fn path(&self, key: &str) -> PathBuf {
        self.directory.path().join("bucket").join(key)
    }

    pub fn write(&self, key: &str, content: impl AsRef<[u8]>) {
        let path = self.path(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn options(&self) -> Options {
        options(&self.server.endpoint())
    }

    pub fn remote(&self) -> Origin {
        Origin::new("s3://bucket", &self.options()).unwrap()
    }

    pub fn local(&self) -> Origin {
        Origin::new(self.path("").to_str().unwrap(), &Options::default()).unwrap()
    }

    /// The same objects as a local and as an S3 origin, with names.
    pub fn both(&self) -> [(&'static str, Origin); 2] {
        [("local", self.local()), ("s3", self.remote())]
    }
}

/// Options for an S3 server with a dev origin's keys.
pub fn options(endpoint: &str) -> Options {
    Options {
        endpoint: Some(endpoint.to_owned()),
        credentials: Some(Credentials {
            access_key: ACCESS_KEY.to_owned(),
            secret_key: SECRET_KEY.to_owned(),
            session_token: None,
        }),
        ..Options::default()
    }
}

/// The listing up to its end or its first error.
pub async fn listed(origin: &Origin) -> Result<Vec<ListedObject>, OriginError> {
    let mut all = Vec::new();
    let mut listing = origin.list();
    while let Some(entry) = listing.next().await {
        all.push(entry?);
    }
    Ok(all)
}

pub async fn names(origin: &Origin) -> Vec<String> {
    listed(origin).await.unwrap().into_iter().map(|listed| listed.object).collect()
}

/// The object of an origin with exactly one.
pub async fn only(origin: &Origin) -> ListedObject {
    let mut all = listed(origin).await.unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// A request.
pub struct Request {
    pub method: String,
    /// Path and query, still encoded.
    pub target: String,
    head: String,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// The requested range of an object of this length.
    pub fn range(&self, length: usize) -> Option<std::ops::Range<usize>> {
        let (start, end) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some(start.parse().ok()?..(end.parse::<usize>().ok()? + 1).min(length))
    }
}

/// An answer: status, further headers, body.
pub struct Answer(pub u16, pub Vec<(&'static str, String)>, pub Vec<u8>);

impl Answer {
    pub fn status(status: u16) -> Self {
        Self(status, Vec::new(), Vec::new())
    }
}

/// Starts a server with these answers and returns its endpoint. It runs until the process ends.
pub fn serve(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = Arc::clone(&answer);
            thread::spawn(move || serve_one(stream, &*answer));
        }
    });
    endpoint
}

fn serve_one(mut stream: TcpStream, answer: &dyn Fn(&Request) -> Answer) -> Option<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let mut fields = head.split(' ').map(str::to_owned);
    let (method, target) = (fields.next()?, fields.next()?);
    let request = Request { method, target, head };
    let Answer(status, headers, body) = answer(&request);
    let mut lines = vec![format!("HTTP/1.1 {status} Status"), "Connection: close".to_owned()];
    lines.push(format!("Content-Length: {}", body.len()));
    lines.extend(headers.into_iter().map(|(name, value)| format!("{name}: {value}")));
    stream.write_all((lines.join("\r\n") + "\r\n\r\n").as_bytes()).ok()?;
    if request.method != "HEAD" {
        stream.write_all(&body).ok()?;
    }
    Some(())
}

/// An answer with an object's content, or with the requested range of it.
pub fn object(
    request: &Request,
    content: &[u8],
    mut headers: Vec<(&'static str, String)>,
) -> Answer {
    match request.range(content.len()) {
        Some(range) => {
            let last = range.end - 1;
            let content_range = format!("bytes {}-{last}/{}", range.start, content.len());
            headers.push(("Content-Range", content_range));
            Answer(206, headers, content[range].to_vec())
        }
        None => Answer(200, headers, content.to_vec()),
    }
}
