//! Chaos: kills, restarts, partitions, pauses, and faults of disks and of the origin, at random
//! times.
//!
//! Where nothing else may remove a blob, a restart is checked: what was resident for a second is
//! resident again (promise 7).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fastrand::Rng;
use forebay_core::BlobOrdinal;
use forebay_flash::io::sim::FaultRates;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    audit::{PROBE_TIMEOUT, Probe},
    disks::RunEnd,
    network::HostId,
    node_host::NodeHost,
    origin::OriginFaults,
    world::World,
};

/// Longest usual fault, and the longest one. An origin that fails longer would fail jobs.
const SHORT: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(90);
/// Time after which a put survives a kill: longer than `flush_after` and the disk's latency.
const DURABLE_AFTER: Duration = Duration::from_millis(1500);

/// Makes faults until the world ends.
pub async fn run(world: Arc<World>, mut random: Rng) {
    let faults = world.plan.faults;
    let mut restarts = JoinSet::new();
    loop {
        sleep(Duration::from_millis(random.u64(100..3000))).await;
        let node = random.usize(..world.nodes.len());
        // Most faults are over before a node is given up; some last.
        let longest = if random.u8(..6) == 0 { LONG } else { SHORT };
        let lasts = longest.mul_f64(random.f64());
        match random.u8(..8) {
            0 | 1 if faults.kills => restart(&world, node, lasts, &mut random, &mut restarts).await,
            2 if faults.network => {
                let (node, with) = any_pair(&world, node, &mut random);
                world.trace.event(format_args!("partition {node:?} {with:?} for {lasts:?}"));
                world.network.partition(node, with, lasts);
            }
            3 if faults.network => {
                let host = any_host(&world, &mut random);
                // A paused process reads nothing, whatever the cache does.
                let lasts = if world.is_node(host) { lasts } else { lasts.min(SHORT) };
                world.trace.event(format_args!("pause {host:?} for {lasts:?}"));
                world.network.pause(host, lasts);
            }
            4 if faults.network => {
                let (node, with) = any_pair(&world, node, &mut random);
                world.trace.event(format_args!("cut {node:?} {with:?}"));
                world.network.cut(node, with);
            }
            5 if faults.disks => {
                let rates = disk_faults(&mut random);
                world.trace.event(format_args!("disks of {node} fail "));
                world.nodes[node].set_faults(rates);
                sleep(lasts.min(SHORT)).await;
                world.nodes[node].set_faults(FaultRates::default());
            }
            6 if faults.origin => {
                let mut rate = |max| if random.bool() { random.u32(..max) } else { 0 };
                let faults = OriginFaults {
                    failed: rate(500),
                    hung: rate(60),
                    damaged: rate(100),
                    slow: rate(500),
                };
                world.trace.event(format_args!("origin: {faults:?}"));
                world.origin.set_faults(faults);
                sleep(lasts.min(SHORT)).await;
                world.origin.set_faults(OriginFaults::default());
            }
            7 if faults.network => {
                // The first ones: all of them at times.
                let count = random.usize(2..=world.nodes.len());
                world.trace.event(format_args!("pause {count} nodes for {lasts:?}"));
                for node in &world.nodes[..count] {
                    world.network.pause(node.host, lasts);
                }
            }
            _ => {}
        }
        while restarts.try_join_next().is_some() {}
    }
}

/// A node, or the machine of a job.
fn any_host(world: &World, random: &mut Rng) -> HostId {
    if random.bool() {
        world.nodes[random.usize(..world.nodes.len())].host
    } else {
        HostId(100 + random.u8(..world.plan.jobs))
    }
}

/// A node, and another host.
fn any_pair(world: &World, node: usize, random: &mut Rng) -> (HostId, HostId) {
    let node = world.nodes[node].host;
    loop {
        let with = any_host(world, random);
        if with != node {
            return (node, with);
        }
    }
}

fn disk_faults(random: &mut Rng) -> FaultRates {
    let mut rate = || if random.u8(..3) == 0 { random.u32(..100) } else { 0 };
    FaultRates {
        failed: rate(),
        read_failed: rate(),
        sync_failed: rate(),
        no_space: rate(),
        short: rate(),
        lost: rate(),
        misdirected: rate(),
        flipped: rate(),
    }
}

/// Ends a node and starts it again.
async fn restart(
    world: &Arc<World>,
    node: usize,
    lasts: Duration,
    random: &mut Rng,
    restarts: &mut JoinSet<()>,
) {
    let host = &world.nodes[node];
    let faults = world.plan.faults;
    let is_checked = !(faults.disks || faults.managed || faults.full) && random.bool();
    let before = if is_checked { resident_for_long(world, host).await } else { None };
    match random.u8(..4) {
        0 => {
            world.trace.event(format_args!("stop {node}"));
            host.stop().await;
        }
        1 if before.is_none() => {
            world.trace.event(format_args!("power failure of {node}"));
            host.kill(RunEnd::Power).await;
        }
        _ => {
            world.trace.event(format_args!("kill {node}"));
            host.kill(RunEnd::Process).await;
        }
    }
    if let Some(before) = before {
        sleep(lasts / 4).await;
        host.start();
        world.trace.event(format_args!("start {node}, {} blobs to be checked", before.len()));
        return check_warm(world, host, &before).await;
    }
    if random.bool() {
        host.change_devices(random.usize(..4));
    }
    let world = Arc::clone(world);
    restarts.spawn(async move {
        sleep(lasts).await;
        world.trace.event(format_args!("start {node}"));
        world.nodes[node].start();
    });
}

type Resident = BTreeSet<(usize, BlobOrdinal)>;

/// The blobs of both datasets that are resident now and were so before [`DURABLE_AFTER`]. `None` if
/// the node does not answer.
async fn resident_for_long(world: &World, host: &NodeHost) -> Option<Resident> {
    let earlier = resident(world, host).await?;
    sleep(DURABLE_AFTER).await;
    let now = resident(world, host).await?;
    Some(earlier.intersection(&now).copied().collect())
}

async fn resident(world: &World, host: &NodeHost) -> Option<Resident> {
    let mut all = Resident::new();
    for (at, dataset) in [&world.private, &world.public].into_iter().enumerate() {
        let mut probe = Probe::open(world, host, dataset).await.ok()?;
        all.extend(probe.resident().await.ok()?.into_iter().map(|blob| (at, blob)));
    }
    Some(all)
}

/// Promise 7: what was resident for long is served again.
async fn check_warm(world: &World, host: &NodeHost, before: &Resident) {
    for (at, dataset) in [&world.private, &world.public].into_iter().enumerate() {
        let Ok(mut probe) = Probe::open(world, host, dataset).await else { return };
        let blobs = before.iter().filter(|(of, _)| *of == at).map(|(_, blob)| *blob);
        let blobs: Vec<BlobOrdinal> = blobs.collect();
        let Ok(read) = probe.read(&blobs, PROBE_TIMEOUT).await else { return };
        for (blob, is_hit) in blobs.iter().zip(read) {
            if !is_hit {
                let text = format_args!("blob {blob} is lost by a restart of {:?}", host.host);
                world.trace.violate(7, text);
            }
        }
    }
}
