//! Redis and nginx with the same items: Redis by `GET`, nginx by HTTP from files.
//!
//! Both get pipelined requests on persistent connections over Unix sockets.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use forebay_core::ByteSize;

use super::{
    load::{Demand, Fetch, Server, Side},
    node::content,
};

/// A Redis server with all items in memory.
pub struct Redis(Peer);

/// An nginx server with all items in files, which are in the page cache.
pub struct Nginx(Peer);

struct Peer {
    server: Server,
    item: usize,
    items: u64,
}

impl Redis {
    pub fn start(
        program: &Path,
        directory: &Path,
        item: usize,
        bytes: ByteSize,
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(directory)?;
        let (socket, items) = (directory.join("redis.sock"), bytes.0 / item as u64);
        let child = Command::new(program)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(directory)
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let mut server = Server { child, socket };
        server.wait()?;
        let mut connection = UnixStream::connect(&server.socket)?;
        let mut answers = BufReader::new(connection.try_clone()?);
        for number in 0..items {
            let (key, bytes) = (number.to_string(), content(item, number));
            write!(connection, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${item}\r\n", key.len())?;
            connection.write_all(&bytes)?;
            connection.write_all(b"\r\n")?;
            let mut answer = String::new();
            answers.read_line(&mut answer)?;
            ensure!(answer == "+OK\r\n", "Redis answered {answer:?}");
        }
        Ok(Self(Peer { server, item, items }))
    }

    pub fn side(&self, clients: usize, batch: usize) -> anyhow::Result<Side> {
        fn request_item(request: &mut Vec<u8>, item: u64) {
            let key = item.to_string();
            let get = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
            request.extend_from_slice(get.as_bytes());
        }
        fn head(line: &str, _: &mut usize) -> anyhow::Result<bool> {
            ensure!(line.starts_with('$') && line != "$-1", "Redis answered {line:?}");
            Ok(true)
        }
        self.0.side(clients, batch, request_item, head, b"\r\n")
    }
}

impl Nginx {
    pub fn start(
        program: &Path,
        directory: &Path,
        item: usize,
        bytes: ByteSize,
    ) -> anyhow::Result<Self> {
        let (socket, items) = (directory.join("nginx.sock"), bytes.0 / item as u64);
        let files = directory.join("files");
        fs::create_dir_all(&files)?;
        for number in 0..items {
            fs::write(files.join(number.to_string()), content(item, number))?;
            // A read brings the file into the page cache.
            ensure!(
                fs::read(files.join(number.to_string()))?.len() == item,
                "a file of the benchmark is short"
            );
        }
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let configuration = format!(
            "{user} worker_processes auto; pid {directory}/pid; error_log {directory}/log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; sendfile on; sendfile_max_chunk 2m; tcp_nopush on; etag off;\n\
             open_file_cache max=10000; keepalive_requests 1000000000; keepalive_timeout 600s;\n\
             client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;\n\
             fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi;\n\
             scgi_temp_path {directory}/scgi;\n\
             server {{ listen unix:{socket}; root {files}; }} }}\n",
            directory = directory.display(),
            socket = socket.display(),
            files = files.display(),
        );
        let file = directory.join("nginx.conf");
        fs::write(&file, configuration)?;
        let child = Command::new(program)
            .args(["-g", "daemon off;", "-p"])
            .arg(directory)
            .arg("-c")
            .arg(&file)
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let mut server = Server { child, socket };
        server.wait()?;
        Ok(Self(Peer { server, item, items }))
    }

    pub fn side(&self, clients: usize, batch: usize) -> anyhow::Result<Side> {
        fn request_item(request: &mut Vec<u8>, item: u64) {
            let get = format!("GET /{item} HTTP/1.1\r\nHost: bench\r\n\r\n");
            request.extend_from_slice(get.as_bytes());
        }
        fn head(line: &str, lines: &mut usize) -> anyhow::Result<bool> {
            ensure!(*lines > 0 || line == "HTTP/1.1 200 OK", "nginx answered {line:?}");
            *lines += 1;
            Ok(line.is_empty())
        }
        self.0.side(clients, batch, request_item, head, b"")
    }
}

impl Peer {
    fn side(
        &self,
        clients: usize,
        batch: usize,
        request_item: fn(&mut Vec<u8>, u64),
        head: fn(&str, &mut usize) -> anyhow::Result<bool>,
        tail: &'static [u8],
    ) -> anyhow::Result<Side> {
        let connect = || {
            let socket = BufReader::with_capacity(4096, UnixStream::connect(&self.server.socket)?);
            let memory = vec![vec![1; self.item]; batch];
            let mut job = PeerClient { socket, memory, request_item, head, tail };
            job.fetch(&vec![0; batch])?;
            ensure!(job.memory[0][..] == content(self.item, 0)[..], "wrong bytes");
            Ok(Box::new(job) as Box<dyn Fetch>)
        };
        Side::connect(&self.server, Demand { clients, batch, items: self.items }, connect)
    }
}

/// One client of a peer.
///
/// `request_item` appends a request, `head` returns whether a line ends the head of an answer, and
/// `tail` follows the bytes of an answer.
struct PeerClient {
    socket: BufReader<UnixStream>,
    memory: Vec<Vec<u8>>,
    request_item: fn(&mut Vec<u8>, u64),
    head: fn(&str, &mut usize) -> anyhow::Result<bool>,
    tail: &'static [u8],
}

impl Fetch for PeerClient {
    fn fetch(&mut self, items: &[u64]) -> anyhow::Result<u64> {
        let mut request = Vec::new();
        for item in items {
            (self.request_item)(&mut request, *item);
        }
        self.socket.get_mut().write_all(&request)?;
        let mut line = String::new();
        for memory in &mut self.memory {
            let mut lines = 0;
            loop {
                line.clear();
                if self.socket.read_line(&mut line)? == 0 {
                    bail!("the peer closed the connection");
                }
                if (self.head)(line.trim_end(), &mut lines)? {
                    break;
                }
            }
            self.socket.read_exact(memory)?;
            let mut tail = [0; 2];
            self.socket.read_exact(&mut tail[..self.tail.len()])?;
            ensure!(tail.starts_with(self.tail), "an answer of the peer does not end as expected");
        }
        Ok(self.memory.iter().map(|memory| memory.len() as u64).sum())
    }
}
