//! `forebay serve`: a node.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use forebay_core::{ByteSize, Namespace, NodeName, units::parse_duration};
use forebay_identity::read_key_file;
use forebay_server::{Config, Reloads, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    output::{self, Verdict},
    stop,
};

/// Run a node: the cache that this machine's jobs share.
///
/// It listens on a Unix socket that only this user (and root) can use, and keeps blobs on flash: in a file
/// whose space is reserved when it is made, or on block devices. What came first goes first. Flags override the configuration file. One line of JSON on standard output says
/// when it is ready. A polite kill or Ctrl-C stops it; what it holds is served again after a restart,
/// whatever ended it. With a configuration file, SIGHUP has it read again.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A TOML file; every key has a default. `--show-config` prints one to begin with.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where jobs connect; by default `$FOREBAY_SOCKET`, or a directory of this user's.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen on a TCP address as well.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where the node keeps what it needs, and its cache, unless devices are named; by default
    /// `~/.cache/forebay`.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// A file or block device for the cache; may be given several times.
    #[arg(long = "device", value_name = "PATH")]
    devices: Vec<PathBuf>,
    /// How much is reserved, on all devices together; by default what was reserved before, or 20GB, but at
    /// most half of what is free.
    #[arg(long, value_name = "SIZE", env = "FOREBAY_CAPACITY")]
    capacity: Option<ByteSize>,
    /// How much memory is used for blobs that were just put or are read again; by default a sixteenth of the
    /// machine's (or the container's), from 256MiB to 16GiB.
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// How much memory is shared with clients of this machine, with all of them together; by default 512MiB,
    /// and 0B for none.
    #[arg(long, value_name = "SIZE")]
    segments: Option<ByteSize>,
    /// How long a claim lives without being renewed.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    lease: Option<Duration>,
    /// Serve /metrics, /livez and /readyz there (loopback only).
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// The key file of a private namespace to be served; may be given several times.
    #[arg(long = "namespace-key", value_name = "FILE")]
    namespaces: Vec<PathBuf>,
    /// Stop when nobody has been connected for so long.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    idle_exit: Option<Duration>,
    /// Which node of the configuration's list this is, so that all may have the same file.
    #[arg(long, value_name = "NAME")]
    name: Option<NodeName>,
    /// How long what is under way may still take once a stop was asked for; by default 5s.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    grace: Option<Duration>,
    /// Only say whether the configuration can be used.
    #[arg(long)]
    check_config: bool,
    /// Only print a configuration file to begin with.
    #[arg(long, conflicts_with = "check_config")]
    show_config: bool,
}

const EXAMPLES: &str = "\
Examples:
  forebay serve
  forebay serve --capacity 200GB --directory /mnt/nvme/forebay --metrics 127.0.0.1:9464
  forebay serve --show-config > forebay.toml
  forebay serve --config forebay.toml --check-config
  kill -HUP $(pgrep -f 'serve --config forebay.toml')  read the configuration again
  FOREBAY_LOG=debug FOREBAY_LOG_FORMAT=json forebay serve";

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    if args.show_config {
        output::data(&Config::template())?;
        return Ok(Verdict::Yes);
    }
    let (config, namespaces) = configuration(args.clone())?;
    config.check_files()?;
    if args.check_config {
        for doubt in config.doubts() {
            output::note(&format!("warning: {doubt}"));
        }
        output::note("the configuration can be used");
        return Ok(Verdict::Yes);
    }
    output::log_at(&config.log);
    for doubt in config.doubts() {
        tracing::warn!("{doubt}");
    }
    allow_many_files();
    // Before anyone is told that it is ready, and so may ask.
    let asked = stop::asked()?;
    // Without a file there is nothing to read again, and a closed terminal ends the node.
    let hangups = args.config.is_some().then(|| signal(SignalKind::hangup())).transpose()?;
    let server = Server::bind(&config, namespaces).await?;
    let gauges = server.node().gauges();
    let ready = serde_json::json!({
        "socket": config.socket,
        "listen": server.listen_address(),
        "directory": config.directory,
        "capacity_bytes": gauges.capacity_bytes,
        "resident_bytes": gauges.resident_bytes,
        "metrics": server.metrics_address(),
    });
    output::data(&format!("{ready}\n"))?;
    tracing::info!(
        socket = %config.socket.display(),
        capacity = %ByteSize(gauges.capacity_bytes),
        resident = %ByteSize(gauges.resident_bytes),
        "serving"
    );
    let reloading = reload_when_asked(args, hangups, server.reloads());
    tokio::select! {
        ended = server.run(asked) => ended?,
        () = reloading => unreachable!("signals do not end"),
    }
    tracing::info!("stopped");
    Ok(Verdict::Yes)
}

/// Every connection takes a descriptor; the usual limit is too low for many jobs.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where that is not allowed, the node does with what it has.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Reads the configuration again whenever a SIGHUP comes. What cannot be used changes nothing.
async fn reload_when_asked(args: Args, hangups: Option<Signal>, reloads: Reloads) {
    let Some(mut hangups) = hangups else { return std::future::pending().await };
    loop {
        if hangups.recv().await.is_none() {
            return std::future::pending().await;
        }
        // It reads files.
        let read = tokio::task::block_in_place(|| configuration(args.clone()));
        match read {
            Ok((config, namespaces)) => {
                output::log_at(&config.log);
                let rest = reloads.take_up(&config, namespaces);
                if rest.is_empty() {
                    tracing::info!("read the configuration again");
                } else {
                    let keys = rest.join(", ");
                    tracing::warn!(%keys, "read the configuration again; these need a restart");
                }
            }
            Err(error) => {
                reloads.refused();
                let error = output::one_line(&error);
                tracing::error!(%error, "the configuration cannot be used; the last good one stays");
            }
        }
    }
}

/// What the file says, and the flags over it; with the keys of its namespaces.
fn configuration(args: Args) -> anyhow::Result<(Config, Vec<Namespace>)> {
    let file = args.config.clone();
    let config = with_flags(args)?;
    let checked = config.check();
    match file {
        Some(file) => {
            checked.with_context(|| format!("in the configuration `{}`", file.display()))?;
        }
        None => checked?,
    }
    let keys = config.namespaces.iter().map(|path| read_key_file(path));
    let namespaces = keys.collect::<Result<Vec<_>, _>>().context("use the namespaces")?;
    Ok((config, namespaces))
}

fn with_flags(args: Args) -> anyhow::Result<Config> {
    let file = args.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    Ok(Config {
        socket: args.socket.unwrap_or(file.socket),
        listen: args.listen.or(file.listen),
        tls_certificate: file.tls_certificate,
        tls_key: file.tls_key,
        tls_clients: file.tls_clients,
        tenants: file.tenants,
        directory: args.directory.unwrap_or(file.directory),
        devices: if args.devices.is_empty() { file.devices } else { args.devices },
        region_size: file.region_size,
        io: file.io,
        capacity: args.capacity.or(file.capacity),
        memory: args.memory.unwrap_or(file.memory),
        segments: args.segments.unwrap_or(file.segments),
        lease: args.lease.unwrap_or(file.lease),
        connections: file.connections,
        metrics: args.metrics.or(file.metrics),
        namespaces: if args.namespaces.is_empty() { file.namespaces } else { args.namespaces },
        idle_exit: args.idle_exit.or(file.idle_exit),
        name: args.name.or(file.name),
        nodes: file.nodes,
        zones_apart: file.zones_apart,
        cluster_token: file.cluster_token,
        cluster_authority: file.cluster_authority,
        grace: args.grace.unwrap_or(file.grace),
        log: file.log,
    })
}
