//! `forebay bench wire`: what do hits cost on their way to a job?
//!
//! A node is a process of its own, its clients are threads of this one. Each asks for a few items at a time,
//! anywhere in a dataset that lies in the node's memory or on its device, over TCP, over a Unix socket, and in
//! shared memory. Yardsticks: a bare loop that copies memory into a socket ([`bare`]), the device engine alone,
//! and, if they are named, Redis and nginx ([`peers`]), each asked for as many items of the same size at a time.
//! Processor time is that of both sides: this process and the server's.

mod bare;
mod load;
mod node;
mod peers;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use forebay_core::ByteSize;
use forebay_flash::io::Backend;
use forebay_measure::{Row, Target, evaluate, load::rows};

pub use self::bare::Args as BareArgs;
pub use self::bare::serve as serve_bare;
use self::{
    bare::Bare,
    load::{Run, Side},
    node::{Node, Path as Way},
    peers::{Nginx, Redis},
};
use super::flash::{Case, Load, engine::Engine};
use crate::output::{self, Format};

/// Sizes of items.
const ITEMS: [usize; 2] = [128 << 10, 1 << 20];
/// How many ask at once.
const CLIENTS: [usize; 2] = [1, 8];
/// What lies in memory: more than any processor's caches.
const IN_MEMORY: ByteSize = ByteSize::mib(64);

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: super::Args,
    /// A directory on the device to be measured; the files made there are removed again.
    #[arg(long, value_name = "DIRECTORY")]
    device: Option<PathBuf>,
    /// Measure only rows whose names begin like this, such as "128 KiB, 1 client, DRAM".
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Compare with this Redis, too.
    #[arg(long, value_name = "PROGRAM")]
    redis: Option<PathBuf>,
    /// Compare with this nginx, too.
    #[arg(long, value_name = "PROGRAM")]
    nginx: Option<PathBuf>,
}

impl Args {
    /// How to report.
    pub fn format(&self) -> Format {
        self.common.format
    }

    fn limit(&self) -> Duration {
        Duration::from_millis(if self.common.quick { 120 } else { 250 })
    }
}

/// Items that a client asks for at a time.
fn batch(item: usize) -> usize {
    if item >= 1 << 20 { 4 } else { 8 }
}

pub async fn run(args: &Args) -> anyhow::Result<Vec<Row>> {
    let directory = match &args.device {
        Some(path) => tempfile::tempdir_in(path),
        None => tempfile::tempdir(),
    };
    let directory = directory.context("make room for the benchmark")?;
    let on_device = ByteSize::mib(if args.common.quick { 256 } else { 1024 });
    let needed = ByteSize(6 * on_device.0 + (1 << 30));
    let system = rustix::fs::statvfs(directory.path())?;
    let free = ByteSize(system.f_bavail * system.f_frsize);
    ensure!(
        free >= needed,
        "{free} are free in {}, and {needed} are needed: make room, or name another directory with --device",
        directory.path().display(),
    );
    let mut rows = Vec::new();
    for item in ITEMS {
        let title = ByteSize(item as u64).to_string();
        let is_wanted = |clients: usize, tier: &str| {
            let name = format!("{title}, {}, {tier}", in_words(clients));
            name.starts_with(&args.only) || args.only.starts_with(&name)
        };
        let place = directory.path().join(format!("{item}"));
        if CLIENTS.into_iter().any(|clients| is_wanted(clients, "DRAM")) {
            rows.extend(from_memory(args, &place, item)?);
        }
        if CLIENTS.into_iter().any(|clients| is_wanted(clients, "flash")) {
            rows.extend(from_flash(args, &place, item, on_device).await?);
        }
    }
    ensure!(
        !rows.is_empty(),
        "no row begins with {:?}: see a --quick run for their names",
        args.only
    );
    Ok(rows)
}

fn in_words(clients: usize) -> String {
    format!("{clients} client{}", if clients == 1 { "" } else { "s" })
}

/// What the node has in memory, against bare loops and against peers.
fn from_memory(args: &Args, place: &Path, item: usize) -> anyhow::Result<Vec<Row>> {
    let title = ByteSize(item as u64);
    output::note(&format!("items of {title}: filling memory"));
    let node = Node::start(&place.join("memory"), item, IN_MEMORY, true)?;
    let bare = Bare::start(&place.join("bare"), item, IN_MEMORY)?;
    let redis = args.redis.as_deref();
    let redis = redis.map(|program| Redis::start(program, &place.join("redis"), item, IN_MEMORY));
    let nginx = args.nginx.as_deref();
    let nginx = nginx.map(|program| Nginx::start(program, &place.join("nginx"), item, IN_MEMORY));
    let (redis, nginx) = (redis.transpose()?, nginx.transpose()?);
    let mut rows = Vec::new();
    for clients in CLIENTS {
        let mut compare =
            |way: Way, against: &str, theirs: &dyn Fn() -> anyhow::Result<Side>, targets| {
                let name = format!("{title}, {}, DRAM, {}", in_words(clients), way.name());
                if !name.starts_with(&args.only) {
                    return Ok(());
                }
                let mut ours = node.side(way, clients, batch(item))?;
                let mut theirs = theirs()?;
                let mut pairs = Vec::new();
                for pair in 0..args.common.pairs() {
                    pairs.push(if pair % 2 == 0 {
                        let ours = ours.run(args.limit())?;
                        (ours, theirs.run(args.limit())?)
                    } else {
                        let theirs = theirs.run(args.limit())?;
                        (ours.run(args.limit())?, theirs)
                    });
                }
                rows.extend(judge(&name, against, targets, &pairs));
                anyhow::Ok(())
            };
        let bare_unix = || bare.side(false, clients, batch(item));
        let bare_tcp = || bare.side(true, clients, batch(item));
        let unix = if item == ITEMS[0] { Target::AtLeast(0.85) } else { Target::Open };
        compare(Way::Unix, "bare Unix loop", &bare_unix, (unix, Target::Open))?;
        compare(Way::Tcp, "bare TCP loop", &bare_tcp, (Target::Open, Target::Open))?;
        compare(Way::Copied, "bare Unix loop", &bare_unix, (Target::Open, Target::Open))?;
        compare(Way::Shared, "bare Unix loop", &bare_unix, (Target::Open, Target::Open))?;
        if let Some(redis) = &redis {
            let theirs = || redis.side(clients, batch(item));
            compare(Way::Shared, "Redis GET", &theirs, (Target::Open, Target::AtMost(0.5)))?;
        }
        if let Some(nginx) = &nginx {
            let theirs = || nginx.side(clients, batch(item));
            compare(Way::Shared, "nginx sendfile", &theirs, (Target::Open, Target::AtMost(0.7)))?;
        }
    }
    Ok(rows)
}

/// What the node has on its device, against the engine alone.
async fn from_flash(
    args: &Args,
    place: &Path,
    item: usize,
    on_device: ByteSize,
) -> anyhow::Result<Vec<Row>> {
    let title = ByteSize(item as u64);
    output::note(&format!("items of {title}: filling two devices with {on_device} each"));
    let node = Node::start(&place.join("flash"), item, on_device, false)?;
    // Half of its device is read.
    let mut engine = Engine::fill(place, ByteSize(2 * on_device.0), Backend::Auto, item).await?;
    let mut rows = Vec::new();
    for clients in CLIENTS {
        let depth = clients * batch(item);
        let case = Case { load: Load::Read, item, depth, limit: args.limit() };
        for way in [Way::Shared, Way::Copied, Way::Unix, Way::Tcp] {
            let name = format!("{title}, {}, flash, {}", in_words(clients), way.name());
            if !name.starts_with(&args.only) {
                continue;
            }
            let mut ours = node.side(way, clients, batch(item))?;
            let mut pairs = Vec::new();
            for pair in 0..args.common.pairs() {
                pairs.push(if pair % 2 == 0 {
                    let ours = ours.run(args.limit())?;
                    (ours, Run::alone(engine.run(case).await?))
                } else {
                    let theirs = Run::alone(engine.run(case).await?);
                    (ours.run(args.limit())?, theirs)
                });
            }
            let target = if way == Way::Shared { Target::AtLeast(0.9) } else { Target::Open };
            rows.extend(judge(&name, "the engine alone", (target, Target::Open), &pairs));
        }
    }
    Ok(rows)
}

/// What pairs of runs say; processor time of both sides together, and of each.
fn judge(
    name: &str,
    against: &str,
    (throughput, cpu): (Target, Target),
    pairs: &[(Run, Run)],
) -> Vec<Row> {
    let samples: Vec<_> =
        pairs.iter().map(|(ours, theirs)| (ours.sample.clone(), theirs.sample.clone())).collect();
    let mut rows = rows(name, against, throughput, cpu, &samples);
    // The engine alone has no other side.
    if pairs.iter().all(|(_, theirs)| theirs.server_seconds > 0.0) {
        let mut side = |unit: &str, seconds: &dyn Fn(&Run) -> f64| {
            let figure = |run: &Run| seconds(run) / (run.sample.bytes as f64 / 1e9);
            let pairs: Vec<_> =
                pairs.iter().map(|(ours, theirs)| (figure(ours), figure(theirs))).collect();
            rows.push(evaluate(name, unit, against, Target::Open, &pairs));
        };
        side("node s/GB", &|run| run.server_seconds);
        side("job s/GB", &|run| run.sample.cpu_seconds - run.server_seconds);
    }
    rows
}
