//! `forebay serve`: runs a node.

use std::{future::Future, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use forebay_auth::{disable_core_dumps, read_key_file};
use forebay_core::{ByteSize, Namespace, NodeName, units::parse_duration};
use forebay_gateway::Gateway;
use forebay_node::{Config, ExtraMetrics, Reloads, Server};
use futures::FutureExt as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinHandle,
};

use crate::{
    gateway, logging,
    node_facts::NodeFacts,
    output::{self, Verdict},
    signals,
};

/// Run a node: the cache that the jobs of this machine share.
///
/// The node listens on a Unix socket that only this user and root can use. It keeps blobs on flash:
/// in a file whose space is reserved when it is made, or on block devices. Blobs survive a restart
/// and a crash.
///
/// Eviction: where jobs report their progress, a manager decides which chunks of a dataset are
/// kept. Other data is evicted when space is needed, by regions of the least recently used dataset.
///
/// Options override the configuration file. When the node is ready, it prints one line of JSON.
/// SIGTERM and Ctrl-C stop it in order. SIGHUP reloads the configuration file.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Read this TOML file. Every key has a default; `--print-config` prints a template.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen on this Unix socket.
    ///
    /// [default: `$FOREBAY_SOCKET`, or `forebay/node.sock` in the runtime directory of this user]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Also listen on this TCP address.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Keep state and, without devices, the cache in this directory [default: `~/.cache/forebay`].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Use this file or block device for the cache. May be repeated.
    #[arg(long = "device", value_name = "PATH")]
    devices: Vec<PathBuf>,
    /// Reserve this size, on all devices together.
    ///
    /// [default: the size reserved before, or 20GB, but at most half of the free space]
    #[arg(long, value_name = "SIZE", env = "FOREBAY_CAPACITY")]
    capacity: Option<ByteSize>,
    /// Use this size of memory for blobs that were just put or are read repeatedly.
    ///
    /// [default: 1/16 of the memory of the machine or container, from 256MiB to 16GiB]
    #[arg(long, value_name = "SIZE")]
    memory_cache: Option<ByteSize>,
    /// Share this size of memory with the clients of this machine, together; 0B for none.
    ///
    /// [default: 1/8 of the memory of the machine or container, at most 512MiB]
    #[arg(long, value_name = "SIZE")]
    shared_memory: Option<ByteSize>,
    /// Expire a claim that is not renewed for this time, from 100ms to 10min [default: 10s].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    claim_lease: Option<Duration>,
    /// Serve /metrics, /livez and /readyz on this loopback address.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Serve the private namespace of this key file. May be repeated.
    #[arg(long = "namespace-key", value_name = "FILE")]
    namespaces: Vec<PathBuf>,
    /// Stop when no client has been connected for this time [default: never].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    idle_exit: Option<Duration>,
    /// Be the node of this name in the list of the configuration.
    ///
    /// With this option all nodes of a cluster can use the same file.
    #[arg(long, value_name = "NAME")]
    name: Option<NodeName>,
    /// Wait at most this time for requests in progress when stopping [default: 5s].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    shutdown_grace: Option<Duration>,
    /// Check the configuration and exit.
    #[arg(long)]
    check_config: bool,
    /// Print a template of the configuration file and exit.
    #[arg(long, conflicts_with = "check_config")]
    print_config: bool,
}

const EXAMPLES: &str = "\
Examples:
  forebay serve
  forebay serve --capacity 200GB --directory /mnt/nvme/forebay --metrics 127.0.0.1:9464
  forebay serve --print-config > forebay.toml
  forebay serve --config forebay.toml --check-config
  kill -HUP $(pgrep -f 'serve --config forebay.toml')  reload the configuration
  FOREBAY_LOG=debug FOREBAY_LOG_FORMAT=json forebay serve";

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    if args.print_config {
        output::data(&(Config::template() + &forebay_gateway::config::template()))?;
        return Ok(Verdict::Yes);
    }
    // Before secrets are read.
    disable_core_dumps().context("cannot switch off core dumps")?;
    let (config, namespaces) = load_config(args.clone())?;
    config.check_files()?;
    gateway::check_files(&config)?;
    if args.check_config {
        for warning in config.warnings() {
            output::note(&format!("warning: {warning}"));
        }
        output::note("the configuration is valid");
        return Ok(Verdict::Yes);
    }
    logging::set_level(&config.log);
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    raise_file_limit();
    signals::survive_file_size_limit()?;
    // Before the node announces that it is ready, since a signal may follow at once.
    let stop = signals::stop_requested()?;
    // Without a file there is nothing to reload, and a closed terminal ends the node.
    let hangups = args.config.is_some().then(|| signal(SignalKind::hangup())).transpose()?;
    let stop = stop.boxed().shared();
    // Before the node, whose recovery may take long: the S3 endpoint answers at once.
    let gateway = start_gateway(&config, stop.clone()).await?;
    let server = Server::bind(&config, namespaces).await?;
    let gateway = gateway.map(|gateway| gateway.show_in(&server));
    let gauges = server.node().gauges();
    let ready = serde_json::json!({
        "socket": config.socket,
        "listen": server.listen_address(),
        "directory": config.directory,
        "capacity_bytes": gauges.capacity_bytes,
        "resident_bytes": gauges.resident_bytes,
        "metrics": server.metrics_address(),
        "gateway": gateway.as_ref().map(|gateway| gateway.address),
    });
    let facts = NodeFacts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: i32::try_from(std::process::id()).context("the process id is out of range")?,
        name: config.name.as_ref().map(ToString::to_string),
        socket: std::path::absolute(&config.socket)?,
        directory: std::path::absolute(&config.directory)?,
        config: args.config.as_ref().map(std::path::absolute).transpose()?,
    };
    // Only `forebay status` reads them.
    if let Err(error) = facts.write() {
        tracing::warn!(error = output::one_line(&error), "node facts not written");
    }
    output::data(&format!("{ready}\n"))?;
    tracing::info!(
        socket = %config.socket.display(),
        capacity = %ByteSize(gauges.capacity_bytes),
        resident = %ByteSize(gauges.resident_bytes),
        memory_max = %ByteSize(gauges.memory_max_bytes),
        "node ready"
    );
    let reloading = reload_on_hangup(args, hangups, server.reloads());
    tokio::select! {
        ended = server.run(stop) => ended?,
        () = reloading => unreachable!("reloading does not end"),
    }
    if let Some(gateway) = gateway {
        gateway.task.await.context("the S3 endpoint")?;
    }
    tracing::info!("node stopped");
    Ok(Verdict::Yes)
}

/// A gateway that serves.
struct RunningGateway {
    address: SocketAddr,
    metrics: Option<ExtraMetrics>,
    task: JoinHandle<()>,
}

impl RunningGateway {
    /// Shows its metrics beside the node's.
    fn show_in(mut self, server: &Server) -> Self {
        if let Some(metrics) = self.metrics.take() {
            server.node().show_metrics(metrics);
        }
        self
    }
}

/// Starts the S3 endpoint, if one is configured.
async fn start_gateway(
    config: &Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<Option<RunningGateway>> {
    let Some(settings) = gateway::config_of(config)? else { return Ok(None) };
    let cache = settings.cache_settings(&config.directory)?;
    let bound = Gateway::bind(&settings, &cache).await?;
    let (address, read) = (bound.address(), bound.metrics());
    tracing::info!(%address, "S3 endpoint ready");
    let task = tokio::spawn(bound.run(stop, config.shutdown_grace));
    let metrics: ExtraMetrics = Box::new(move || gateway::extra_rows(read()));
    Ok(Some(RunningGateway { address, metrics: Some(metrics), task }))
}

/// Raises the limit of open files to its maximum. Each connection takes a descriptor, and the usual
/// limit is too low for many jobs.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where that is not allowed, the node runs with the limit that it has.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Reloads the configuration at every SIGHUP. An invalid configuration changes nothing.
async fn reload_on_hangup(args: Args, hangups: Option<Signal>, reloads: Reloads) {
    let Some(mut hangups) = hangups else { return std::future::pending().await };
    loop {
        if hangups.recv().await.is_none() {
            return std::future::pending().await;
        }
        let loaded = tokio::task::block_in_place(|| load_config(args.clone()));
        match loaded {
            Ok((config, namespaces)) => {
                logging::set_level(&config.log);
                let deferred = reloads.apply(&config, namespaces);
                if deferred.is_empty() {
                    tracing::info!("configuration reloaded");
                } else {
                    let keys = deferred.join(", ");
                    tracing::warn!(%keys, "configuration reloaded; these keys need a restart");
                }
            }
            Err(error) => {
                reloads.on_invalid();
                let error = output::one_line(&error);
                tracing::error!(%error, "configuration rejected; the last valid one stays");
            }
        }
    }
}

/// The configuration file with the options applied, and the namespaces of its key files.
fn load_config(args: Args) -> anyhow::Result<(Config, Vec<Namespace>)> {
    let file = args.config.clone();
    let config = with_options(args)?;
    let checked = config.check().and_then(|()| gateway::config_of(&config).map(drop));
    match file {
        Some(file) => {
            checked.with_context(|| format!("in the configuration `{}`", file.display()))?;
        }
        None => checked?,
    }
    let keys = config.namespaces.iter().map(|path| read_key_file(path));
    let namespaces = keys.collect::<Result<Vec<_>, _>>()?;
    Ok((config, namespaces))
}

fn with_options(args: Args) -> anyhow::Result<Config> {
    let file = args.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    Ok(Config {
        socket: args.socket.unwrap_or(file.socket),
        listen: args.listen.or(file.listen),
        directory: args.directory.unwrap_or(file.directory),
        devices: if args.devices.is_empty() { file.devices } else { args.devices },
        capacity: args.capacity.or(file.capacity),
        memory_cache: args.memory_cache.or(file.memory_cache),
        shared_memory: args.shared_memory.or(file.shared_memory),
        claim_lease: args.claim_lease.unwrap_or(file.claim_lease),
        metrics: args.metrics.or(file.metrics),
        namespaces: if args.namespaces.is_empty() { file.namespaces } else { args.namespaces },
        idle_exit: args.idle_exit.or(file.idle_exit),
        name: args.name.or(file.name),
        shutdown_grace: args.shutdown_grace.unwrap_or(file.shutdown_grace),
        ..file
    })
}
