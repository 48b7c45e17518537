//! The harness: a directory with data and outputs, the binary, and servers for it.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use forebay_core::{ByteSize, units::ByteRate};
use forebay_dev_origin::{ACCESS_KEY, Config, DevOrigin, REGION, SECRET_KEY};
use serde_json::Value;

/// URL of the data of every test, through a dev origin.
pub const URL: &str = "s3://bucket/train";

/// Longer than any condition takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The runtime directory of the binary under test, in a [`Sandbox`].
const RUNTIME: &str = "runtime";
/// Its directory for temporary files.
const TEMPORARY: &str = "tmp";

/// A dataset to build from (`root/bucket/train`), and an empty directory to build into (`out`).
pub struct Sandbox(tempfile::TempDir);

impl Sandbox {
    pub fn new() -> Self {
        let sandbox = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(sandbox.data()).unwrap();
        fs::create_dir(sandbox.out("")).unwrap();
        fs::create_dir(sandbox.path(TEMPORARY)).unwrap();
        let private = fs::Permissions::from_mode(0o700);
        fs::create_dir(sandbox.path(RUNTIME)).unwrap();
        fs::set_permissions(sandbox.path(RUNTIME), private).unwrap();
        sandbox
    }

    /// With `count` objects, `item 000.bin` and so on, of `size` to `size + 6` bytes.
    pub fn with_objects(count: usize, size: usize) -> Self {
        let sandbox = Self::new();
        for at in 0..count {
            sandbox.write(&format!("item {at:03}.bin"), &content(at as u64, size + at % 7));
        }
        sandbox
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

    /// Total size of the data.
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

    /// The binary, in the output directory and isolated from the user that runs the tests.
    ///
    /// Its environment holds nothing but what is set here. The runtime directory has to exist: the
    /// binary ignores one that does not and falls back to `/tmp`, where the user's own node
    /// listens.
    pub fn forebay<Arg: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = Arg>) -> Forebay {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(args).current_dir(self.out(""));
        let home = self.path("home");
        command
            .env_clear()
            .env("PATH", env!("PATH"))
            .env("XDG_CACHE_HOME", home.join(".cache"))
            .env("XDG_CONFIG_HOME", home.join(".config"))
            .env("XDG_RUNTIME_DIR", self.path(RUNTIME))
            .env("TMPDIR", self.path(TEMPORARY))
            .env("HOME", home);
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

/// Content and time of every file under a directory, to show that nothing has changed.
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

/// Pseudorandom bytes of a seed.
pub fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

pub fn slow(config: &mut Config, bytes_per_s: u64) {
    config.bandwidth = Some(ByteRate(ByteSize(bytes_per_s)));
}

/// A command that runs the binary.
pub struct Forebay(pub Command);

impl Forebay {
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// Adds the endpoint and the keys of this origin to the environment.
    pub fn reaching(self, origin: &DevOrigin) -> Self {
        self.reaching_at(&origin.endpoint())
    }

    pub fn reaching_at(self, endpoint: &str) -> Self {
        self.env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .env("AWS_REGION", REGION)
    }

    pub fn run(mut self) -> RunResult {
        RunResult::new(&self.0.output().unwrap())
    }

    /// Runs the command, which must succeed and print nothing to standard error.
    pub fn succeeds(self) -> RunResult {
        let ran = self.run();
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        ran
    }

    /// Runs the command, which must fail with exit code 2 and one line with all expected texts.
    pub fn refuses(self, expected: &[&str]) -> RunResult {
        let ran = self.run();
        ran.must_refuse(expected);
        ran
    }

    pub fn start(mut self) -> Running {
        let child = self.0.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Running(Some(child))
    }
}

/// A running process, killed on drop.
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

    pub fn finish(mut self) -> RunResult {
        RunResult::new(&self.0.take().unwrap().wait_with_output().unwrap())
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

/// Result of a command. The code is absent after a signal.
#[derive(Debug)]
pub struct RunResult {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl RunResult {
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

    /// The exit code, which must be 0 (yes) or 1 (no), and the data.
    pub fn verdict(&self) -> (i32, Value) {
        assert!(matches!(self.code, Some(0 | 1)) && self.stderr.is_empty(), "{self:?}");
        (self.code.unwrap(), self.json())
    }

    pub fn must_refuse(&self, expected: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(self.stderr.starts_with("error: ") && self.stderr.ends_with('\n'), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(!self.stderr.chars().any(|c| c.is_control() && c != '\n'), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        for text in expected {
            assert!(self.stderr.contains(text), "`{text}` is missing: {self:?}");
        }
    }
}

/// Waits until a condition holds, at most for [`TIMEOUT`].
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait_until_within(TIMEOUT, what, holds);
}

/// Waits until a condition holds, at most for `timeout`.
pub fn wait_until_within(timeout: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < timeout, "timed out: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A server that answers every GET with this body, for malformed answers.
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

/// A listing of objects of one byte. The keys are already escaped for XML.
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

/// Tests are isolated: a node of the user that runs them is never found.
#[test]
fn the_default_socket_lies_in_the_directory_of_the_test() {
    let sandbox = Sandbox::new();
    let socket = sandbox.path(RUNTIME).join("forebay/node.sock");
    sandbox.forebay(["status"]).refuses(&[socket.to_str().unwrap()]);
}
