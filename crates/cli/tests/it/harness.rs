//! A directory with data and a place for outputs, the binary, and servers for it to talk to.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use forebay_core::{ByteSize, units::ByteRate};
use forebay_dev_origin::{ACCESS_KEY, Config, DevOrigin, REGION, SECRET_KEY};
use serde_json::Value;

/// Where the data of every test lies, seen through a dev origin.
pub const URL: &str = "s3://bucket/train";

/// Nothing here takes this long; whoever waits longer waits for nothing.
const PATIENCE: Duration = Duration::from_secs(30);

/// A dataset to build from (`root/bucket/train`), and an empty directory to build into (`out`).
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(place.data()).unwrap();
        fs::create_dir(place.out("")).unwrap();
        place
    }

    /// With so many objects, `item 000.bin` and so on, each of this size but for some bytes.
    pub fn with_objects(count: usize, size: usize) -> Self {
        let place = Self::new();
        for at in 0..count {
            place.write(&format!("item {at:03}.bin"), &content(at as u64, size + at % 7));
        }
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn data(&self) -> PathBuf {
        self.path("root/bucket/train")
    }

    pub fn out(&self, name: &str) -> PathBuf {
        self.path("out").join(name)
    }

    pub fn write(&self, object: &str, content: &[u8]) {
        let path = self.data().join(object);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// All bytes of the data.
    pub fn data_size(&self) -> u64 {
        tree(&self.data()).values().map(|(content, _)| content.len() as u64).sum()
    }

    /// The names in the output directory.
    pub fn outputs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.out("")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The binary, in the output directory, with nothing in its environment that could help it.
    pub fn forebay<Arg: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = Arg>) -> Forebay {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(args).current_dir(self.out(""));
        command.env_clear().env("HOME", self.path("home")).env("PATH", env!("PATH"));
        // No node of whoever runs the tests is found by accident.
        command.env("XDG_RUNTIME_DIR", self.path("run"));
        Forebay(command)
    }

    /// Builds `name` from the data on disk, and returns the report.
    pub fn build(&self, name: &str, options: &[&str]) -> Value {
        let data = self.data();
        let mut args = vec!["digest", "build", data.to_str().unwrap(), "-o", name];
        args.extend(["--format", "json"].iter().chain(options));
        self.forebay(args).succeeds().json()
    }

    /// Serves `root` over S3.
    pub fn serve(&self, shape: impl FnOnce(&mut Config)) -> DevOrigin {
        let mut config = Config::new(self.path("root"));
        shape(&mut config);
        DevOrigin::start(config).unwrap()
    }

    /// A build of the data behind an origin.
    pub fn build_from(&self, origin: &DevOrigin, name: &str, options: &[&str]) -> Forebay {
        let args = ["digest", "build", URL, "-o", name, "--format", "json"];
        self.forebay(args.iter().chain(options)).reaching(origin)
    }
}

/// Content and time of every file under a directory: equal before and after means untouched.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(tree(&path));
        } else {
            let changed = path.metadata().unwrap().modified().unwrap();
            files.insert(path.clone(), (fs::read(&path).unwrap(), changed));
        }
    }
    files
}

/// Bytes that look random but are the same every time.
pub fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

pub fn slow(config: &mut Config, bytes_per_s: u64) {
    config.bandwidth = Some(ByteRate(ByteSize(bytes_per_s)));
}

/// The binary, about to run.
pub struct Forebay(pub Command);

impl Forebay {
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// With the endpoint and the keys of this origin in its environment.
    pub fn reaching(self, origin: &DevOrigin) -> Self {
        self.reaching_at(&origin.endpoint())
    }

    pub fn reaching_at(self, endpoint: &str) -> Self {
        self.env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .env("AWS_REGION", REGION)
    }

    pub fn run(mut self) -> Ran {
        Ran::new(&self.0.output().unwrap())
    }

    /// Runs, and must succeed without a word on standard error.
    pub fn succeeds(self) -> Ran {
        let ran = self.run();
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        ran
    }

    /// Runs, and must refuse: exit code 2 and one line that says all of these.
    pub fn refuses(self, saying: &[&str]) -> Ran {
        let ran = self.run();
        ran.must_refuse(saying);
        ran
    }

    pub fn start(mut self) -> Running {
        let child = self.0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running(Some(child))
    }
}

/// The binary, running; killed if the test ends first.
pub struct Running(Option<Child>);

impl Running {
    pub fn signal(&self, signal: rustix::process::Signal) {
        let process = rustix::process::Pid::from_raw(i32::try_from(self.id()).unwrap()).unwrap();
        rustix::process::kill_process(process, signal).unwrap();
    }

    pub fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    pub fn is_running(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_none()
    }

    pub fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    pub fn finish(mut self) -> Ran {
        Ran::new(&self.0.take().unwrap().wait_with_output().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What came of a run. The code is absent if a signal ended it.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    fn new(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout.clone()).unwrap(),
            stderr: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The data, and whether all was as it should be (0) or not (1); anything else is a failure.
    pub fn verdict(&self) -> (i32, Value) {
        assert!(matches!(self.code, Some(0 | 1)) && self.stderr.is_empty(), "{self:?}");
        (self.code.unwrap(), self.json())
    }

    pub fn must_refuse(&self, saying: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(self.stderr.starts_with("error: ") && self.stderr.ends_with('\n'), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(!self.stderr.chars().any(|c| c.is_control() && c != '\n'), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        for text in saying {
            assert!(self.stderr.contains(text), "`{text}` is not said: {self:?}");
        }
    }
}

/// Waits until something holds; fails if it never does.
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(PATIENCE, what, holds);
}

/// The same, for what takes long.
pub fn until_within(patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < patience, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A server that answers every GET with this body, for what no honest server would send.
pub fn serve_always(body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { break };
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            while !request.windows(4).any(|window| window == b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(count) if count > 0 => request.extend_from_slice(&buffer[..count]),
                    _ => break,
                }
            }
            let known = request.starts_with(b"GET");
            let (status, body) = if known { ("200 OK", &*body) } else { ("404 Not Found", "") };
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n");
            let _ = stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes());
        }
    });
    endpoint
}

/// A listing of these keys, already escaped for XML, each of an object of one byte.
pub fn listing(keys: &[&str]) -> String {
    let entry = |key: &&str| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
             <ETag>&quot;e&quot;</ETag><Size>1</Size></Contents>"
        )
    };
    let contents = keys.iter().map(entry).collect::<Vec<_>>().concat();
    format!(
        "<?xml version=\"1.0\"?><ListBucketResult><Name>bucket</Name><KeyCount>{}</KeyCount>\
         <IsTruncated>false</IsTruncated>{contents}</ListBucketResult>",
        keys.len()
    )
}
