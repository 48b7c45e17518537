//! Hostile clients: connections that the nodes have to survive.
//!
//! They are a tenant of their own, or strangers. None of them may receive a byte of the team's
//! private dataset (promise 4), store a wrong byte (promise 1), or take the nodes away from the
//! team and the owner (promises 5 and 6).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use forebay_auth::Credentials;
use forebay_core::{
    Address, BlobOrdinal, ByteSize, NamespaceId,
    cluster::replication,
    dataset::{DatasetIdHasher, chunking::Chunking},
};
use forebay_transport::Peer;
use forebay_wire::{
    BlobLength, BlobProgress, ClaimAnswer, ErrorCode, GetAnswer, PutAnswer, RenewAnswer, Reply,
    Request, SELECTED_HANDLE,
};
use futures::future::join_all;
use tokio::time::sleep;

use crate::{
    network::HostId,
    secrets::{SECRETS, Secrets},
    wire_client::{CallError, Called, WireClient},
    world::World,
};

/// Time that a hostile client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that a hoarder opens.
const HOARDED: usize = 120;
/// Rows of the table of a client that burns work, and its connections. A node scans this number in
/// two slices; more rows only cost the simulation time.
const BURNED_ROWS: u64 = 2_100;
const BURNING: u8 = 24;

struct Hostile {
    world: Arc<World>,
    host: HostId,
    random: Rng,
    credentials: Credentials,
}

/// Attacks until the world ends.
pub async fn run(world: Arc<World>, number: u8, mut random: Rng) {
    let kind = random.u8(..7);
    let credentials = Secrets::credentials(&SECRETS.other);
    let host = HostId(150 + number);
    let mut hostile = Hostile { world, host, random, credentials };
    loop {
        let pause = Duration::from_millis(hostile.random.u64(..1000));
        sleep(pause).await;
        let attacked = match kind {
            0 => hostile.hoard_connections().await,
            1 => hostile.send_garbage().await,
            2 => hostile.hog_claims().await,
            3 => hostile.put_wrong_bytes().await,
            4 => hostile.trespass().await,
            5 => hostile.read_slowly().await,
            _ => hostile.burn_work().await,
        };
        // An attack that is refused or cut off begins again.
        if let Err(error) = attacked {
            hostile.world.trace.event(format_args!("attack {kind}: {error:?}"));
        }
    }
}

impl Hostile {
    fn any_node(&mut self) -> HostId {
        self.world.nodes[self.random.usize(..self.world.nodes.len())].host
    }

    async fn connect(&self, node: HostId) -> Called<WireClient> {
        Ok(WireClient::new(self.world.network.connect(self.host, node, Peer::Tcp).await?))
    }

    async fn log_in(&self, node: HostId) -> Called<WireClient> {
        let mut client = self.connect(node).await?;
        client.hello("hostile", &self.credentials, PATIENCE).await?;
        Ok(client)
    }

    async fn open_public(&self, node: HostId) -> Called<(WireClient, u32)> {
        let mut client = self.log_in(node).await?;
        let handle = client.open(&self.world.public.digest, PATIENCE).await?;
        Ok((client, handle))
    }

    /// Asks for all blobs on many connections, stops sending, and never reads.
    async fn hoard_connections(&mut self) -> Called<()> {
        let node = self.any_node();
        let mut hoarded = Vec::new();
        for _ in 0..HOARDED {
            let Ok((mut client, handle)) = self.open_public(node).await else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            let public = &self.world.public;
            let ranges: Vec<_> = public.ordinals().map(|blob| public.whole(blob)).collect();
            for _ in 0..4 {
                let request = Request::Get { handle, wait_ms: 0, ranges: ranges.clone() };
                client.send(&request).await?;
            }
            client.half_close().await?;
            hoarded.push(client);
        }
        self.world.trace.event(format_args!("hoarder holds {}", hoarded.len()));
        sleep(Duration::from_secs(20)).await;
        Ok(())
    }

    /// Sends what is not a hello, or half of one.
    async fn send_garbage(&mut self) -> Called<()> {
        let mut silent = Vec::new();
        for _ in 0..10 {
            let node = self.any_node();
            let mut client = self.connect(node).await?;
            match self.random.u8(..4) {
                0 => {
                    let mut bytes = vec![0; self.random.usize(1..4000)];
                    self.random.fill(&mut bytes);
                    client.send_bytes(&bytes).await?;
                }
                // A body of 16 MiB is announced, and some of it sent.
                1 => {
                    let mut header = [0; 16];
                    header[..4].copy_from_slice(&(16_u32 << 20).to_le_bytes());
                    client.send_bytes(&header).await?;
                    client.send_bytes(&[0; 1000]).await?;
                }
                2 => {
                    client.send(&Request::Stats).await?;
                }
                _ => {}
            }
            silent.push(client);
            sleep(Duration::from_millis(self.random.u64(..100))).await;
        }
        sleep(Duration::from_secs(5)).await;
        Ok(())
    }

    /// Claims all blobs of the public dataset, and invents progress.
    async fn hog_claims(&mut self) -> Called<()> {
        let node = self.any_node();
        let (mut client, handle) = self.open_public(node).await?;
        let blobs: Vec<BlobOrdinal> = self.world.public.ordinals().collect();
        let claim = Request::Claim { handle, blobs: blobs.clone() };
        let Reply::Claim { answers } = client.call(&claim, PATIENCE).await? else { return Ok(()) };
        let is_granted = |(_, answer): &(BlobOrdinal, ClaimAnswer)| *answer == ClaimAnswer::Granted;
        let granted = blobs.into_iter().zip(answers).filter(is_granted);
        let mut held: Vec<BlobOrdinal> = granted.map(|(blob, _)| blob).collect();
        self.world.trace.event(format_args!("hog holds {} claims", held.len()));
        let mut bytes = 1;
        while !held.is_empty() {
            sleep(self.world.plan.nodes.claim_lease / 3).await;
            bytes += 1;
            let blobs = held.iter().map(|blob| BlobProgress { blob: *blob, bytes }).collect();
            let renew = Request::Renew { handle, blobs };
            let Reply::Renew { answers } = client.call(&renew, PATIENCE).await? else {
                return Ok(());
            };
            let mut answers = answers.into_iter();
            held.retain(|_| answers.next() == Some(RenewAnswer::Renewed));
        }
        Ok(())
    }

    /// Claims blobs and puts other bytes, or a part of them.
    async fn put_wrong_bytes(&mut self) -> Called<()> {
        let node = self.any_node();
        let (mut client, handle) = self.open_public(node).await?;
        for blob in self.world.public.ordinals() {
            if client.claim(handle, blob, PATIENCE).await? != ClaimAnswer::Granted {
                continue;
            }
            let mut bytes = self.world.public.blobs[usize::try_from(blob.0).expect("few")].to_vec();
            let at = self.random.usize(..bytes.len());
            bytes[at] ^= 1;
            let is_cut = self.random.bool();
            let length = if is_cut { self.random.usize(1..=bytes.len()) } else { bytes.len() };
            let payload = Bytes::from(bytes).slice(..length);
            let put = Request::Put { handle, blob, offset: 0, payload };
            if let Ok(Reply::Put(PutAnswer::Stored)) = client.call(&put, PATIENCE).await {
                self.world.trace.violate(1, format_args!("wrong bytes of blob {blob} are stored"));
            }
            if self.random.u8(..4) == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Tries every way to the team's private dataset.
    async fn trespass(&mut self) -> Called<()> {
        let world = Arc::clone(&self.world);
        let node = self.any_node();
        let mut client = self.log_in(node).await?;
        let private = &world.private;
        let (namespace, dataset) = (private.namespace.id(), private.digest.summary().dataset);
        let forbidden = client.call(&Request::Open { namespace, dataset }, PATIENCE).await;
        let mut other = [0; 16];
        self.random.fill(&mut other);
        let unknown = NamespaceId::from_bytes(other);
        let absent = client.call(&Request::Open { namespace: unknown, dataset }, PATIENCE).await;
        match (forbidden, absent) {
            (Err(CallError::Refused(one)), Err(CallError::Refused(two))) if one == two => {}
            (Err(CallError::Refused(one)), Err(CallError::Refused(two))) => {
                world.trace.violate(4, format_args!("two refusals differ: {one} and {two}"));
            }
            (Ok(reply), _) => {
                world.trace.violate(4, format_args!("a private dataset opens: {reply:?}"));
            }
            _ => {}
        }
        let whole = private.ordinals().map(|blob| private.whole(blob)).collect::<Vec<_>>();
        self.expect_no_hit(&mut client, 0, &whole).await?;
        for namespace in [world.public.namespace.id(), namespace] {
            let blobs = private.digest.blobs().flatten();
            let blobs = blobs.map(|row| BlobLength { address: row.address, length: row.length });
            let request = Request::SelectByAddress { namespace, blobs: blobs.collect() };
            if client.call(&request, PATIENCE).await.is_ok() {
                self.expect_no_hit(&mut client, SELECTED_HANDLE, &whole).await?;
            }
        }
        let message = Request::Cluster(replication::Request::Ping);
        if let Ok(reply) = client.call(&message, PATIENCE).await {
            world.trace.violate(4, format_args!("a tenant sends a cluster message: {reply:?}"));
        }
        let mut stranger = self.connect(node).await?;
        match stranger.hello("stranger", &Credentials::default(), PATIENCE).await {
            Err(CallError::Refused(refusal)) if refusal.code == ErrorCode::Identity => {}
            Ok(_) => world.trace.violate(4, format_args!("a stranger is greeted")),
            Err(_) => {}
        }
        Ok(())
    }

    async fn expect_no_hit(
        &self,
        client: &mut WireClient,
        handle: u32,
        ranges: &[forebay_wire::BlobRange],
    ) -> Called<()> {
        match client.get(handle, Duration::ZERO, ranges, PATIENCE).await {
            Ok(answers) if answers.iter().any(|(answer, _)| *answer == GetAnswer::Hit) => {
                self.world.trace.violate(4, format_args!("a private blob is served"));
                Ok(())
            }
            Ok(_) | Err(CallError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Asks for much and reads little.
    async fn read_slowly(&mut self) -> Called<()> {
        let node = self.any_node();
        let (mut client, handle) = self.open_public(node).await?;
        let public = &self.world.public;
        let ranges: Vec<_> = public.ordinals().map(|blob| public.whole(blob)).collect();
        for _ in 0..3 {
            client.send(&Request::Get { handle, wait_ms: 5000, ranges: ranges.clone() }).await?;
        }
        for _ in 0..200 {
            client.read_some(100).await?;
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Asks for the presence of large datasets of its own, on many connections at once. Each answer
    /// is a scan.
    async fn burn_work(&mut self) -> Called<()> {
        let node = self.any_node();
        let mut clients = Vec::new();
        for number in 0..BURNING {
            clients.push(self.upload_large(node, number).await?);
        }
        self.world.trace.event(format_args!("{BURNING} connections burn work"));
        let burn = clients.iter_mut().map(|(client, handle)| async move {
            for _ in 0..20 {
                client.presence(*handle, BURNED_ROWS, 20 * PATIENCE).await?;
            }
            Ok::<(), CallError>(())
        });
        join_all(burn).await.into_iter().collect()
    }

    /// Opens a dataset with many rows.
    async fn upload_large(&self, node: HostId, number: u8) -> Called<(WireClient, u32)> {
        let mut client = self.log_in(node).await?;
        let namespace = self.world.public.namespace.id();
        let mut address = *blake3::hash(&[self.host.0, number]).as_bytes();
        let mut page = Vec::new();
        let mut id = DatasetIdHasher::new();
        for row in 0..BURNED_ROWS {
            address[..8].copy_from_slice(&row.to_le_bytes());
            let row = BlobLength { address: Address::from_bytes(address), length: 1000 };
            id.push(&row.address, row.length);
            page.push(row);
        }
        let chunking = Chunking::for_dataset(ByteSize(1000 * BURNED_ROWS), BURNED_ROWS);
        let upload = Request::Upload {
            namespace,
            dataset: id.finish(chunking),
            chunks: chunking.chunks(),
            partitions: chunking.partitions(),
            blobs: BURNED_ROWS,
            first: 0,
            page,
        };
        match client.call(&upload, 4 * PATIENCE).await? {
            Reply::Open { handle } => Ok((client, handle)),
            _ => Err(CallError::Malformed("not an answer to an upload".to_owned())),
        }
    }
}
