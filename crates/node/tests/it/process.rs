//! Harness: a node in a process of its own, in a control group if the test asks for one. The
//! process is this test binary, which runs [`serve_for_a_parent`] only.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use forebay_client::{Client, Handle};
use forebay_core::ByteSize;
use forebay_node::{Config, Server};

use crate::harness::{Data, TIMEOUT};

/// Variables of the child: the node's directory, and the control group to enter.
const DIRECTORY: &str = "FOREBAY_TEST_NODE_DIRECTORY";
const GROUP: &str = "FOREBAY_TEST_NODE_GROUP";

/// A node in another process. It is killed when dropped.
pub struct NodeProcess {
    directory: tempfile::TempDir,
    child: Child,
    pub listen: String,
}

/// A control group with a memory limit. Removed when dropped.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// A group with this limit, or `None` where groups cannot be made.
    pub fn new(limit: ByteSize) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let root = Path::new("/sys/fs/cgroup");
        let (parent, file) = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
            match controllers {
                "memory" => Some((root.join("memory").join(path), "memory.limit_in_bytes")),
                "" if root.join(path).join("memory.max").exists() => {
                    Some((root.join(path), "memory.max"))
                }
                _ => None,
            }
        })?;
        let group = parent.join(format!("forebay-test-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let group = Self(group);
        fs::write(group.0.join(file), limit.0.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A group can be removed a moment after its last process has ended.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl NodeProcess {
    /// Starts a node with defaults, except for a small capacity.
    pub fn start(group: Option<&MemoryGroup>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "process::serve_for_a_parent", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(group) = group {
            command.env(GROUP, &group.0);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let listen = lines
            .map(Result::unwrap)
            .find_map(|line| line.split("listens on ").nth(1).map(str::to_owned));
        Self { directory, child, listen: listen.expect("the node starts") }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("run/node.sock")
    }

    pub fn open(&self, data: &Data) -> (Client, Handle) {
        let mut client = Client::connect(self.socket(), "test", TIMEOUT).unwrap();
        let handle = client.open(&data.digest).unwrap();
        (client, handle)
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// A size of `/proc/PID/status`, such as `VmRSS`.
    pub fn memory(&self, field: &str) -> ByteSize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
        let kib = line.trim_start_matches(':').trim().strip_suffix("kB").unwrap().trim();
        ByteSize(kib.parse::<u64>().unwrap() << 10)
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body of the child process. In a run of all tests it does nothing.
#[test]
#[expect(clippy::print_stdout, reason = "the parent reads the address")]
fn serve_for_a_parent() {
    let Some(directory) = env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    if let Some(group) = env::var_os(GROUP) {
        fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
    let config = Config {
        socket: directory.join("run/node.sock"),
        directory: directory.join("cache"),
        capacity: Some(ByteSize::mib(64)),
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::bind(&config, Vec::new()).await.unwrap();
        println!("listens on {}", server.listen_address().unwrap());
        // The parent's end of the pipe closes when the parent ends.
        let parent = tokio::task::spawn_blocking(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        });
        server.run(async { parent.await.unwrap_or(()) }).await.unwrap();
    });
}
