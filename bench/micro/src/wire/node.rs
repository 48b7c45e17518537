//! A node that holds a dataset, and its clients over every transport.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use forebay_client::{Client, Handle, ReadInto};
use forebay_core::dataset::DatasetIdHasher;
use forebay_core::{
    BlobOrdinal, ByteSize, Endpoint, Namespace,
    dataset::{chunking::Chunking, verification::VerifyPolicy},
};
use forebay_digest::{Blob, Digest, DigestWriter, Header, ItemSpan, Part, Summary};
use forebay_wire::{BlobRange, ClaimAnswer, GetAnswer};

use super::{
    load::{Demand, Fetch, Server, Side},
    verified::ReaderClient,
};
use crate::product::ProductArg;

/// Longer than any request takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How bytes come to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Unix,
    /// In shared memory, from where the client copies them.
    Copied,
    /// In shared memory, where the client reads them.
    Shared,
}

impl Transport {
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

/// The line that the node prints when it is ready.
#[derive(serde::Deserialize)]
struct Ready {
    listen: Option<std::net::SocketAddr>,
}

/// Content of an item: incompressible and unique.
pub fn content(item: usize, number: u64) -> Bytes {
    let mut bytes = vec![0; item];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    bytes.into()
}

impl Node {
    /// Starts a node and fills it with `bytes` bytes of items, in its memory cache or not.
    pub fn start(
        product: &ProductArg,
        directory: &Path,
        item: usize,
        bytes: ByteSize,
        in_memory: bool,
    ) -> anyhow::Result<Self> {
        let items = bytes.0 / item as u64;
        let socket = directory.join("run/node.sock");
        fs::create_dir_all(directory)?;
        let memory = if in_memory { 4 * bytes.0 } else { 0 };
        // The region size of the engine benchmark. A small device has smaller regions by default.
        let configuration = directory.join("node.toml");
        fs::write(&configuration, "region_size = \"32MiB\"\n")?;
        let mut child = product
            .command()?
            .args(["serve", "--listen", "127.0.0.1:0", "--shared-memory", "1GiB"])
            .args(["--capacity", &format!("{}B", 2 * bytes.0 + (64 << 20))])
            .args(["--memory-cache", &format!("{memory}B")])
            .arg("--socket")
            .arg(&socket)
            .arg("--directory")
            .arg(directory.join("cache"))
            .arg("--config")
            .arg(&configuration)
            .stdout(Stdio::piped())
            .spawn()
            .context("start a node")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout is piped")).read_line(&mut line)?;
        let server = Server { child, socket };
        let ready: Ready = serde_json::from_str(&line).context("the node did not start")?;
        let listen = ready.listen.context("the node does not listen on TCP")?;
        let tcp = format!("tcp://{listen}").parse().context("parse the address of the node")?;
        let mut node = Self { server, tcp, digest: digest(item, items)?, item, items };
        node.fill()?;
        Ok(node)
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        let mut client = Client::connect(&self.server.socket, "bench", TIMEOUT)?;
        let handle = client.open(&self.digest)?;
        for number in 0..self.items {
            let granted = client.claim(handle, &[BlobOrdinal::new(number)])?;
            ensure!(
                granted == [ClaimAnswer::Granted],
                "the node grants no claim for item {number}"
            );
            client.put(handle, BlobOrdinal::new(number), &content(self.item, number))?;
        }
        Ok(())
    }

    /// Connects clients, which have read one batch.
    pub fn side(&self, transport: Transport, clients: usize, batch: usize) -> anyhow::Result<Side> {
        let connect = || {
            let endpoint = match transport {
                Transport::Tcp => self.tcp.clone(),
                _ => Endpoint::from(&self.server.socket),
            };
            let mut client = Client::connect(endpoint, "bench", TIMEOUT)?;
            if transport == Transport::Unix {
                client = client.over_socket();
            }
            let handle = client.open(&self.digest)?;
            let memory = vec![vec![1; self.item]; batch];
            let mut job = NodeClient { client, handle, transport, memory };
            let some: Vec<u64> = (0..batch as u64).map(|number| number % self.items).collect();
            job.fetch(&some)?;
            job.check(&some)?;
            Ok(Box::new(job) as Box<dyn Fetch>)
        };
        Side::connect(&self.server, Demand { clients, batch, items: self.items }, connect)
    }
}

impl Node {
    /// Connects readers over TCP, as a job on another machine has them.
    pub fn readers(
        &self,
        policy: VerifyPolicy,
        clients: usize,
        batch: usize,
    ) -> anyhow::Result<Side> {
        let connect = || {
            let mut reader = ReaderClient::new(&self.digest, &self.tcp, policy)?;
            reader.fetch(&[0, self.items - 1])?;
            reader.check(policy)?;
            Ok(Box::new(reader) as Box<dyn Fetch>)
        };
        Side::connect(&self.server, Demand { clients, batch, items: self.items }, connect)
    }
}

/// One client of the node.
struct NodeClient {
    client: Client,
    handle: Handle,
    transport: Transport,
    /// Destination of copies.
    memory: Vec<Vec<u8>>,
}

impl NodeClient {
    fn ranges(&self, items: &[u64]) -> Vec<BlobRange> {
        let length = u32::try_from(self.memory[0].len()).expect("an item is shorter than 4 GiB");
        items
            .iter()
            .map(|item| BlobRange { blob: BlobOrdinal::new(*item), offset: 0, length })
            .collect()
    }

    /// Checks that the bytes are right, and that they came by the transport that is measured.
    fn check(&mut self, items: &[u64]) -> anyhow::Result<()> {
        let item = self.memory[0].len();
        let expected = |number: &u64| content(item, *number);
        if self.transport != Transport::Shared {
            let mut pairs = self.memory.iter().zip(items);
            ensure!(pairs.all(|(bytes, number)| bytes[..] == expected(number)[..]), "wrong bytes");
            return Ok(());
        }
        let views = self.client.get_views(self.handle, TIMEOUT, &self.ranges(items))?;
        for (view, number) in views.into_iter().zip(items) {
            let view = view.ok().context("an item is missing")?;
            ensure!(view.is_shared(), "the node granted no shared memory");
            ensure!(view[..] == expected(number)[..], "wrong bytes");
        }
        Ok(())
    }
}

impl Fetch for NodeClient {
    fn fetch(&mut self, items: &[u64]) -> anyhow::Result<u64> {
        if self.transport == Transport::Shared {
            let views = self.client.get_views(self.handle, TIMEOUT, &self.ranges(items))?;
            let lengths =
                views.iter().map(|view| view.as_ref().map_or(0, |view| view.len() as u64));
            return Ok(lengths.sum());
        }
        let wanted = self.memory.iter_mut().zip(items);
        let wanted =
            wanted.map(|(into, blob)| ReadInto { blob: BlobOrdinal::new(*blob), offset: 0, into });
        let mut wanted: Vec<ReadInto<'_>> = wanted.collect();
        let answers = self.client.get(self.handle, TIMEOUT, &mut wanted)?;
        let hits = answers.iter().filter(|answer| **answer == GetAnswer::Hit).count();
        ensure!(hits == items.len(), "an item that was put is missing");
        Ok((hits * self.memory[0].len()) as u64)
    }
}

/// The digest of `items` items of `item` bytes.
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
            tree: None,
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
    let mut writer =
        DigestWriter::new(Vec::new(), Header { summary, columns: Vec::new(), has_trees: false })?;
    for row in &rows {
        writer.push(row, &[vec![]])?;
    }
    Ok(Digest::open(writer.finish()?.into())?)
}
