//! Audit: probes and checks that a world runs beside its jobs, and at its end.
//!
//! Limits hold at every moment (promise 6). The owner of a node is always served (promises 5 and
//! 6). At the end nothing is left over, no blob is resident and unreadable, and every claim and
//! every read of the origin is accounted for (promise 3).

use std::{sync::Arc, time::Duration};

use forebay_auth::Credentials;
use forebay_core::BlobOrdinal;
use forebay_origin::PIECE;
use forebay_transport::Peer;
use forebay_wire::{ClaimAnswer, GetAnswer, Reply, Request};
use tokio::time::{Instant, sleep};

use crate::{
    dataset::Dataset,
    node_host::NodeHost,
    wire_client::{CallError, Called, WireClient},
    world::World,
};

/// Time that a probe waits for an answer.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the checks of limits.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of the owner's requests.
const OWNER_INTERVAL: Duration = Duration::from_millis(400);
/// Longest time until the owner is greeted: nothing on the way takes time.
const GREETING_MAX: Duration = Duration::from_millis(200);
/// Slices of work that one request of the owner waits for: those of three other lanes, twice.
const SLICES_MAX: u32 = 8;
/// Connections that receive a refusal before they are closed, at most.
const REJECTED_MAX: usize = 64;
/// Rounds in which a blob may be reported as present and then not be served: one per device, and
/// one for a put in between.
const FALSE_PRESENTS_MAX: u32 = 3;
/// Time after which nothing of a job is left.
const QUIET_AFTER: Duration = Duration::from_mins(3);

/// A connection of a node's owner, on the node's machine.
pub struct Probe<'a> {
    client: WireClient,
    handle: u32,
    dataset: &'a Dataset,
}

async fn log_in(world: &World, host: &NodeHost) -> Called<WireClient> {
    let peer = Peer::Unix { uid: rustix::process::geteuid().as_raw() };
    let stream = world.network.connect(host.host, host.host, peer).await?;
    let mut client = WireClient::new(stream);
    client.hello("owner", &Credentials::default(), PROBE_TIMEOUT).await?;
    Ok(client)
}

impl<'a> Probe<'a> {
    /// Opens a dataset.
    pub async fn open(world: &World, host: &NodeHost, dataset: &'a Dataset) -> Called<Self> {
        let mut client = log_in(world, host).await?;
        let handle = client.open(&dataset.digest, PROBE_TIMEOUT).await?;
        Ok(Self { client, handle, dataset })
    }

    /// The blobs that are resident.
    pub async fn resident(&mut self) -> Called<Vec<BlobOrdinal>> {
        let blobs = self.dataset.digest.summary().blobs;
        self.client.presence(self.handle, blobs, PROBE_TIMEOUT).await
    }

    /// Whether each of these blobs is read, with the right bytes.
    pub async fn read(&mut self, blobs: &[BlobOrdinal], within: Duration) -> Called<Vec<bool>> {
        let ranges: Vec<_> = blobs.iter().map(|blob| self.dataset.whole(*blob)).collect();
        let answers = self.client.get(self.handle, Duration::ZERO, &ranges, within).await?;
        let is_right = |((answer, bytes), range): (&(GetAnswer, bytes::Bytes), _)| {
            *answer == GetAnswer::Hit && self.dataset.content(range) == *bytes
        };
        Ok(answers.iter().zip(&ranges).map(is_right).collect())
    }
}

/// Checks the limits of all nodes until the world ends.
pub async fn watch_limits(world: Arc<World>) {
    loop {
        for (at, host) in world.nodes.iter().enumerate() {
            let Some(node) = host.node() else { continue };
            let gauges = node.gauges();
            let max = host.max_connections();
            if gauges.connections_open > max as u64 {
                let open = gauges.connections_open;
                let text = format_args!("node {at} counts {open} connections; {max} are allowed");
                world.trace.violate(6, text);
            }
            let open = world.network.open_at(host.host);
            if open > max + REJECTED_MAX {
                let text = format_args!("node {at} holds {open} connections; {max} are allowed");
                world.trace.violate(6, text);
            }
            let (taken, limit) = (gauges.connection_bytes, host.connection_memory().0);
            if taken > limit {
                let text = format_args!("node {at} holds {taken} bytes; {limit} are allowed");
                world.trace.violate(6, text);
            }
        }
        sleep(WATCH_INTERVAL).await;
    }
}

/// Sends requests as the owner of a node until the world ends.
pub async fn watch_as_owner(world: Arc<World>, at: usize) {
    let host = &world.nodes[at];
    loop {
        sleep(OWNER_INTERVAL).await;
        let (Some(before), began) = (host.node(), Instant::now()) else { continue };
        let asked = ask_as_owner(&world, host).await;
        let is_same = host.node().is_some_and(|now| Arc::ptr_eq(&before, &now));
        let was_paused = world.network.was_paused_since(host.host, began);
        if !is_same || was_paused {
            continue;
        }
        let slices_max = world.plan.nodes.slice * SLICES_MAX + Duration::from_millis(2);
        match asked {
            Ok((greeted, answered)) if greeted <= GREETING_MAX && answered <= slices_max => {}
            Ok((greeted, answered)) => {
                let text = format_args!(
                    "node {at} greets its owner after {greeted:?}, and answers after {answered:?}"
                );
                world.trace.violate(5, text);
            }
            Err(error) => {
                world.trace.violate(6, format_args!("node {at} fails its owner: {error:?}"));
            }
        }
    }
}

/// Times until the node has greeted its owner, and until it has answered a request that needs work.
async fn ask_as_owner(world: &World, host: &NodeHost) -> Called<(Duration, Duration)> {
    let began = Instant::now();
    let mut client = log_in(world, host).await?;
    let greeted = began.elapsed();
    let Reply::Stats { .. } = client.call(&Request::Stats, PROBE_TIMEOUT).await? else {
        return Err(CallError::Malformed("not an answer to stats".to_owned()));
    };
    Ok((greeted, began.elapsed().saturating_sub(greeted)))
}

/// The checks after the last job.
pub async fn at_end(world: &World) {
    for host in &world.nodes {
        host.start();
    }
    // Peers connect, claims of lost connections expire, slow connections are closed.
    sleep(QUIET_AFTER).await;
    for (at, host) in world.nodes.iter().enumerate() {
        check_left_over(world, host, at);
        for dataset in [&world.private, &world.public] {
            if let Err(error) = check_residents(world, host, dataset).await {
                let text = format_args!("node {at} does not answer at the end: {error:?}");
                world.trace.violate(5, text);
            }
        }
    }
    if world.plan.faults.is_none() {
        check_one_fetch(world);
    }
}

/// Promise 6: what a connection has taken is given back.
fn check_left_over(world: &World, host: &NodeHost, at: usize) {
    let node = host.node().expect("started");
    let (gauges, counters) = (node.gauges(), node.counters());
    world.trace.event(format_args!(
        "node {at} at the end: {} connections, {} bytes, {} claims, {} hits, {} puts",
        gauges.connections_open,
        gauges.connection_bytes,
        gauges.claims_held,
        counters.hits.get(),
        counters.puts.get(),
    ));
    let peers = world.nodes.len() as u64 - 1;
    if gauges.connections_open > peers || gauges.connection_bytes > 0 || gauges.claims_held > 0 {
        let text = format_args!(
            "node {at} has {} connections of {peers} peers, {} bytes and {} claims left",
            gauges.connections_open, gauges.connection_bytes, gauges.claims_held
        );
        world.trace.violate(6, text);
    }
    let ended = [
        &counters.claims_fulfilled,
        &counters.claims_expired,
        &counters.claims_abandoned,
        &counters.claims_overtaken,
        &counters.claims_released,
    ];
    let (granted, ended) =
        (counters.claims_granted.get(), ended.iter().map(|counter| counter.get()).sum::<u64>());
    if granted != ended {
        let text = format_args!("node {at} granted {granted} claims, and counts {ended} as ended");
        world.trace.violate(3, text);
    }
}

/// Promises 3 and 7: a blob that is reported as present is served, or can be claimed.
async fn check_residents(world: &World, host: &NodeHost, dataset: &Dataset) -> Called<()> {
    let mut probe = Probe::open(world, host, dataset).await?;
    let mut doubtful = probe.resident().await?;
    for _ in 0..FALSE_PRESENTS_MAX {
        let read = probe.read(&doubtful, PROBE_TIMEOUT).await?;
        let mut is_hit = read.into_iter();
        doubtful.retain(|_| !is_hit.next().unwrap_or(false));
        let mut present = Vec::new();
        for blob in doubtful {
            if probe.client.claim(probe.handle, blob, PROBE_TIMEOUT).await? == ClaimAnswer::Present
            {
                present.push(blob);
            }
        }
        doubtful = present;
        if doubtful.is_empty() {
            return Ok(());
        }
    }
    let text = format_args!("{:?} has {doubtful:?} present, and does not serve them", host.host);
    world.trace.violate(3, text);
    Ok(())
}

/// Promise 3: without faults, each blob is read from the origin once.
fn check_one_fetch(world: &World) {
    for dataset in [&world.private, &world.public] {
        for blob in dataset.ordinals() {
            let reads = world.origin.reads_of(&dataset.object(blob));
            let pieces = u64::from(dataset.whole(blob).length).div_ceil(PIECE);
            if reads != pieces {
                let text = format_args!("the object of blob {blob} is read {reads} times");
                world.trace.violate(3, text);
            }
        }
    }
    let (fetches, exceptions) = world.fetched();
    if exceptions > 0 {
        let text = format_args!("{exceptions} of {fetches} fetches are exceptions without a fault");
        world.trace.violate(3, text);
    }
}
