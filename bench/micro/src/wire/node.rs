//! A node with a dataset, and clients on every way to it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use forebay_client::{Client, Handle, Wanted};
use forebay_core::{
    ByteSize, Endpoint, Namespace,
    chunking::Chunking,
    digest::{Blob, DatasetIdHasher, Digest, DigestWriter, Header, ItemSpan, Part, Summary},
};
use forebay_wire::{BlobRange, ClaimAnswer, GetAnswer};

use super::load::{Fetch, Server, Side};

const PATIENCE: Duration = Duration::from_secs(30);

/// How bytes come to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    Tcp,
    Unix,
    /// In shared memory, and copied out of it.
    Copied,
    /// In shared memory, where they are read.
    Shared,
}

impl Path {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Unix => "Unix socket",
            Self::Copied => "shared memory, copied",
            Self::Shared => "shared memory",
        }
    }
}

/// A node that holds all items.
pub struct Node {
    server: Server,
    tcp: Endpoint,
    digest: Digest,
    item: usize,
    items: u64,
}

/// What one line of the node says.
#[derive(serde::Deserialize)]
struct Ready {
    listen: Option<std::net::SocketAddr>,
}

/// Incompressible, and no two alike.
pub fn content(item: usize, number: u64) -> Bytes {
    let mut bytes = vec![0; item];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    bytes.into()
}

impl Node {
    /// Starts one and fills it, with so many bytes in its memory or none.
    pub fn start(
        directory: &path::Path,
        item: usize,
        bytes: ByteSize,
        in_memory: bool,
    ) -> anyhow::Result<Self> {
        let items = bytes.0 / item as u64;
        let socket = directory.join("run/node.sock");
        fs::create_dir_all(directory)?;
        let memory = if in_memory { 4 * bytes.0 } else { 0 };
        // As the engine alone: by default a small device has smaller regions.
        let configuration = directory.join("node.toml");
        fs::write(&configuration, "region_size = \"32MiB\"\n")?;
        let mut child = Command::new(std::env::current_exe().context("find our own binary")?)
            .args(["serve", "--listen", "127.0.0.1:0", "--segments", "1GiB"])
            .args(["--capacity", &format!("{}B", 2 * bytes.0 + (64 << 20))])
            .args(["--memory", &format!("{memory}B")])
            .arg("--socket")
            .arg(&socket)
            .arg("--directory")
            .arg(directory.join("cache"))
            .arg("--config")
            .arg(&configuration)
            .env("FOREBAY_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .context("start a node")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line)?;
        let server = Server { child, socket };
        let ready: Ready = serde_json::from_str(&line).context("the node did not start")?;
        let listen = ready.listen.context("the node does not listen on TCP")?;
        let tcp = format!("tcp://{listen}").parse().context("the node's address")?;
        let mut node = Self { server, tcp, digest: digest(item, items)?, item, items };
        node.fill()?;
        Ok(node)
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        let mut client = Client::connect(&self.server.socket, "bench", PATIENCE)?;
        let handle = client.open(&self.digest)?;
        for number in 0..self.items {
            let granted = client.claim(handle, &[number])?;
            ensure!(granted == [ClaimAnswer::Granted], "the node takes no item {number}");
            client.put(handle, number, &content(self.item, number))?;
        }
        Ok(())
    }

    /// Clients that are connected, and have what they need.
    pub fn side(&self, path: Path, clients: usize, batch: usize) -> anyhow::Result<Side> {
        let connect = || {
            let endpoint = match path {
                Path::Tcp => self.tcp.clone(),
                _ => Endpoint::from(&self.server.socket),
            };
            let mut client = Client::connect(endpoint, "bench", PATIENCE)?;
            if path == Path::Unix {
                client = client.over_socket();
            }
            let handle = client.open(&self.digest)?;
            let memory = vec![vec![1; self.item]; batch];
            let mut job = Job { client, handle, path, memory };
            let some: Vec<u64> = (0..batch as u64).map(|number| number % self.items).collect();
            job.fetch(&some)?;
            job.check(&some)?;
            Ok(Box::new(job) as Box<dyn Fetch>)
        };
        Side::of(&self.server, (clients, batch, self.items), connect)
    }
}

/// One client of the node.
struct Job {
    client: Client,
    handle: Handle,
    path: Path,
    /// Where copies go.
    memory: Vec<Vec<u8>>,
}

impl Job {
    fn ranges(&self, items: &[u64]) -> Vec<BlobRange> {
        let length = u32::try_from(self.memory[0].len()).expect("an item is small");
        items.iter().map(|item| BlobRange { blob: *item, offset: 0, length }).collect()
    }

    /// What is measured is what was asked for, by the path that it is called.
    fn check(&mut self, items: &[u64]) -> anyhow::Result<()> {
        let item = self.memory[0].len();
        let expected = |number: &u64| content(item, *number);
        if self.path != Path::Shared {
            let mut pairs = self.memory.iter().zip(items);
            ensure!(pairs.all(|(bytes, number)| bytes[..] == expected(number)[..]), "wrong bytes");
            return Ok(());
        }
        let views = self.client.get_views(self.handle, PATIENCE, &self.ranges(items))?;
        for (view, number) in views.into_iter().zip(items) {
            let view = view.ok().context("an item is gone")?;
            ensure!(view.is_shared(), "the node shares no memory");
            ensure!(view[..] == expected(number)[..], "wrong bytes");
        }
        Ok(())
    }
}

impl Fetch for Job {
    fn fetch(&mut self, items: &[u64]) -> anyhow::Result<u64> {
        if self.path == Path::Shared {
            let views = self.client.get_views(self.handle, PATIENCE, &self.ranges(items))?;
            let lengths =
                views.iter().map(|view| view.as_ref().map_or(0, |view| view.len() as u64));
            return Ok(lengths.sum());
        }
        let wanted = self.memory.iter_mut().zip(items);
        let wanted = wanted.map(|(into, blob)| Wanted { blob: *blob, offset: 0, into });
        let mut wanted: Vec<Wanted<'_>> = wanted.collect();
        let answers = self.client.get(self.handle, PATIENCE, &mut wanted)?;
        let hits = answers.iter().filter(|answer| **answer == GetAnswer::Hit).count();
        ensure!(hits == items.len(), "an item is gone that was put");
        Ok((hits * self.memory[0].len()) as u64)
    }
}

/// The table of such a dataset.
fn digest(item: usize, items: u64) -> anyhow::Result<Digest> {
    let namespace = Namespace::public();
    let rows = (0..items).map(|number| {
        let content = content(item, number);
        let length = content.len() as u64;
        let part =
            Part { object: format!("{number:08}"), version: "\"1\"".to_owned(), offset: 0, length };
        Blob {
            address: namespace.address(&content),
            parts: vec![part],
            items: vec![ItemSpan { offset: 0, length }],
        }
    });
    let rows: Vec<Blob> = rows.collect();
    let bytes = rows.iter().map(Blob::length).sum();
    let chunking = Chunking::for_dataset(ByteSize(bytes), items);
    let mut id = DatasetIdHasher::new();
    for row in &rows {
        id.push(&row.address, row.length());
    }
    let summary = Summary {
        dataset: id.finish(chunking),
        namespace: "public".to_owned(),
        origin: "file:///nowhere".to_owned(),
        layout: "files".to_owned(),
        chunking,
        items,
        blobs: items,
        bytes,
    };
    let mut writer = DigestWriter::new(Vec::new(), Header { summary, columns: Vec::new() })?;
    for row in &rows {
        writer.push(row, &[vec![]])?;
    }
    Ok(Digest::open(writer.finish()?.into())?)
}
