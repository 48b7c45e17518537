//! `forebay-bench wire`: the cost of hits on their way from a node to a job.
//!
//! The node is a process of its own, its clients are threads of this one. Each client requests
//! random batches of a dataset that lies in the node's memory cache or on its device: over TCP,
//! over a Unix socket, and in shared memory. Over TCP, a job's reader is measured with and without
//! verification ([`verified`]).
//!
//! Yardsticks with the same batches: a bare loop that copies memory to a socket ([`bare`]), the
//! device engine in this process, and Redis and nginx ([`peers`]) if they are given. Processor time
//! is that of clients and server together.

mod bare;
mod load;
mod node;
mod peers;
mod verified;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use forebay_bench_stats::{Row, Target, evaluate, load::rows};
use forebay_core::{ByteSize, dataset::verification::VerifyPolicy};
use forebay_flash::io::Backend;

pub use self::bare::Args as BareArgs;
pub use self::bare::serve as serve_bare;
use self::{
    bare::Bare,
    load::{Run, Side},
    node::{Node, Transport},
    peers::{Nginx, Redis},
    verified::added_cpu,
};
use super::flash::{Case, Load, engine::Engine};
use crate::{Common, note, product::ProductArg};

/// Sizes of items.
const ITEMS: [usize; 2] = [128 << 10, 1 << 20];
/// Numbers of parallel clients.
const CLIENTS: [usize; 2] = [1, 8];
/// Size of the dataset in memory: larger than the caches of a processor.
const IN_MEMORY: ByteSize = ByteSize::mib(64);

/// What to measure, and how.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    product: ProductArg,
    /// Measure the device of this directory [default: the one for temporary files].
    ///
    /// The benchmark removes the files that it makes there.
    #[arg(long, value_name = "DIRECTORY")]
    device: Option<PathBuf>,
    /// Measure only rows whose names begin with this text, such as "128 KiB, 1 client, DRAM".
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Compare with this `redis-server`.
    #[arg(long, value_name = "PROGRAM")]
    redis: Option<PathBuf>,
    /// Compare with this `nginx`.
    #[arg(long, value_name = "PROGRAM")]
    nginx: Option<PathBuf>,
}

impl Args {
    fn limit(&self) -> Duration {
        Duration::from_millis(if self.common.quick { 120 } else { 250 })
    }
}

/// Items per request.
fn batch(item: usize) -> usize {
    if item >= 1 << 20 { 4 } else { 8 }
}

pub async fn run(args: &Args) -> anyhow::Result<Vec<Row>> {
    let directory = match &args.device {
        Some(path) => tempfile::tempdir_in(path),
        None => tempfile::tempdir(),
    };
    let directory = directory.context("make a temporary directory")?;
    let on_device = ByteSize::mib(if args.common.quick { 256 } else { 1024 });
    let needed = ByteSize(6 * on_device.0 + (1 << 30));
    let system = rustix::fs::statvfs(directory.path())?;
    let free = ByteSize(system.f_bavail * system.f_frsize);
    ensure!(
        free >= needed,
        "{free} are free in `{}`, {needed} are needed; free some space, or name another directory \
         with --device",
        directory.path().display(),
    );
    let mut rows = Vec::new();
    for item in ITEMS {
        let title = ByteSize(item as u64).to_string();
        let is_wanted = |clients: usize, tier: &str| {
            let name = format!("{title}, {}, {tier}", client_count(clients));
            name.starts_with(&args.only) || args.only.starts_with(&name)
        };
        let folder = directory.path().join(format!("{item}"));
        if CLIENTS.into_iter().any(|clients| is_wanted(clients, "DRAM")) {
            rows.extend(from_memory(args, &folder, item)?);
        }
        if CLIENTS.into_iter().any(|clients| is_wanted(clients, "flash")) {
            rows.extend(from_flash(args, &folder, item, on_device).await?);
        }
    }
    ensure!(!rows.is_empty(), "no row begins with {:?}; a --quick run prints all names", args.only);
    Ok(rows)
}

fn client_count(clients: usize) -> String {
    format!("{clients} client{}", if clients == 1 { "" } else { "s" })
}

/// Hits in the node's memory cache, against bare loops and peers.
fn from_memory(args: &Args, folder: &Path, item: usize) -> anyhow::Result<Vec<Row>> {
    let title = ByteSize(item as u64);
    note(&format!("items of {title}: filling memory"));
    let node = Node::start(&args.product, &folder.join("memory"), item, IN_MEMORY, true)?;
    let bare = Bare::start(&folder.join("bare"), item, IN_MEMORY)?;
    let redis = args.redis.as_deref();
    let redis = redis.map(|program| Redis::start(program, &folder.join("redis"), item, IN_MEMORY));
    let nginx = args.nginx.as_deref();
    let nginx = nginx.map(|program| Nginx::start(program, &folder.join("nginx"), item, IN_MEMORY));
    let (redis, nginx) = (redis.transpose()?, nginx.transpose()?);
    let (mut rows, mut verified_rows) = (Vec::new(), Vec::new());
    for clients in CLIENTS {
        let mut compare = |transport: Transport,
                           against: &str,
                           theirs: &dyn Fn() -> anyhow::Result<Side>,
                           targets| {
            let name = format!("{title}, {}, DRAM, {}", client_count(clients), transport.name());
            if !name.starts_with(&args.only) {
                return Ok(());
            }
            let mut ours = node.side(transport, clients, batch(item))?;
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
            rows.extend(evaluate_runs(&name, against, targets, &pairs));
            anyhow::Ok(())
        };
        let bare_unix = || bare.side(false, clients, batch(item));
        let bare_tcp = || bare.side(true, clients, batch(item));
        let unix = if item == ITEMS[0] { Target::AtLeast(0.85) } else { Target::Open };
        compare(Transport::Unix, "bare Unix loop", &bare_unix, (unix, Target::Open))?;
        compare(Transport::Tcp, "bare TCP loop", &bare_tcp, (Target::Open, Target::Open))?;
        compare(Transport::Copied, "bare Unix loop", &bare_unix, (Target::Open, Target::Open))?;
        compare(Transport::Shared, "bare Unix loop", &bare_unix, (Target::Open, Target::Open))?;
        let name = format!("{title}, {}, DRAM, TCP, verified", client_count(clients));
        if name.starts_with(&args.only) {
            let mut verified = node.readers(VerifyPolicy::Always, clients, batch(item))?;
            let mut plain = node.readers(VerifyPolicy::Never, clients, batch(item))?;
            let mut pairs = Vec::new();
            for pair in 0..args.common.pairs() {
                pairs.push(if pair % 2 == 0 {
                    let verified = verified.run(args.limit())?;
                    (verified, plain.run(args.limit())?)
                } else {
                    let plain = plain.run(args.limit())?;
                    (verified.run(args.limit())?, plain)
                });
            }
            verified_rows.push(added_cpu(&name, item == ITEMS[0], &pairs));
        }
        if let Some(redis) = &redis {
            let theirs = || redis.side(clients, batch(item));
            compare(Transport::Shared, "Redis GET", &theirs, (Target::Open, Target::AtMost(0.5)))?;
        }
        if let Some(nginx) = &nginx {
            let theirs = || nginx.side(clients, batch(item));
            compare(
                Transport::Shared,
                "nginx sendfile",
                &theirs,
                (Target::Open, Target::AtMost(0.7)),
            )?;
        }
    }
    rows.extend(verified_rows);
    Ok(rows)
}

/// Hits on the node's device, against the engine alone.
async fn from_flash(
    args: &Args,
    folder: &Path,
    item: usize,
    on_device: ByteSize,
) -> anyhow::Result<Vec<Row>> {
    let title = ByteSize(item as u64);
    note(&format!("items of {title}: filling two devices with {on_device} each"));
    let node = Node::start(&args.product, &folder.join("flash"), item, on_device, false)?;
    // Reads go to one half of its device.
    let mut engine = Engine::fill(folder, ByteSize(2 * on_device.0), Backend::Auto, item).await?;
    let mut rows = Vec::new();
    for clients in CLIENTS {
        let depth = clients * batch(item);
        let case = Case { load: Load::Read, item, depth, limit: args.limit() };
        for transport in [Transport::Shared, Transport::Copied, Transport::Unix, Transport::Tcp] {
            let name = format!("{title}, {}, flash, {}", client_count(clients), transport.name());
            if !name.starts_with(&args.only) {
                continue;
            }
            let mut ours = node.side(transport, clients, batch(item))?;
            let mut pairs = Vec::new();
            for pair in 0..args.common.pairs() {
                pairs.push(if pair % 2 == 0 {
                    let ours = ours.run(args.limit())?;
                    (ours, Run::in_process(engine.run(case).await?))
                } else {
                    let theirs = Run::in_process(engine.run(case).await?);
                    (ours.run(args.limit())?, theirs)
                });
            }
            let target =
                if transport == Transport::Shared { Target::AtLeast(0.9) } else { Target::Open };
            rows.extend(evaluate_runs(&name, "the engine alone", (target, Target::Open), &pairs));
        }
    }
    Ok(rows)
}

/// Rows of pairs of runs: with the processor time of both sides together, and of each.
fn evaluate_runs(
    name: &str,
    against: &str,
    (throughput, cpu): (Target, Target),
    pairs: &[(Run, Run)],
) -> Vec<Row> {
    let samples: Vec<_> =
        pairs.iter().map(|(ours, theirs)| (ours.sample.clone(), theirs.sample.clone())).collect();
    let mut rows = rows(name, against, throughput, cpu, &samples);
    // The engine alone has no server process.
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
