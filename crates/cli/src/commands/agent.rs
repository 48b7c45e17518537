//! `forebay agent`: the process beside a job that fetches from the origin.

use std::{
    collections::BTreeMap, fs, io::Read as _, os::fd::OwnedFd, path::PathBuf, time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use forebay_agent::{Agent, Config};
use forebay_auth::disable_core_dumps;
use forebay_core::{ByteSize, cluster::ring::Seeds};
use forebay_digest::open_with_listings;
use forebay_node::read_node_list;
use forebay_origin::Origin;

use crate::{
    args::origin::{self, OriginAccess},
    output::{self, Verdict},
    signals,
};

/// Largest size of the options on standard input.
const OPTIONS_SIZE_MAX: u64 = 64 << 10;

/// Run the agent of a job: it holds the origin credentials, fetches misses and prefetches.
///
/// The loader of the job starts the agent and connects to its private socket. Credentials come from
/// the environment, or as JSON on standard input with `--options-from-stdin`, never as arguments.
/// When the agent is ready, it prints one line of JSON.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The digest of the dataset.
    #[arg(value_name = "DIGEST")]
    digest: PathBuf,
    /// Listen on this private socket.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Connect to this node: a socket path, tcp://HOST:PORT or tls://HOST:PORT.
    ///
    /// Of several endpoints, separated by commas, the first that answers reports the list of its
    /// cluster [default: no node; all reads go to the origin].
    #[arg(long, value_name = "ENDPOINTS")]
    node: Option<Seeds>,
    /// Read the list of nodes from this file, in the format of a node's configuration.
    #[arg(long, value_name = "FILE", conflicts_with = "node")]
    node_list: Option<PathBuf>,
    /// Use this name for the job.
    #[arg(long, value_name = "NAME", default_value = "job")]
    job: String,
    /// Stop when this process ends.
    #[arg(long, value_name = "PID")]
    job_pid: Option<i32>,
    /// Remove the directory of the socket if the process of the job ends first.
    #[arg(long, requires = "job_pid")]
    remove_directory: bool,
    /// Read the data from this URL instead of the origin in the digest.
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// Use this namespace key, if the digest has a private namespace.
    #[arg(long, value_name = "FILE")]
    namespace_key: Option<PathBuf>,
    /// Keep at most this size of uncached blobs in memory: prefetched ones, and packs.
    #[arg(long, value_name = "SIZE", env = "FOREBAY_AGENT_MEMORY", default_value = "256MiB")]
    memory: ByteSize,
    /// Read origin options from standard input, as one JSON object.
    ///
    /// Keys: `endpoint`, `region`, `profile`, `access_key`, `secret_key`, `session_token`,
    /// `anonymous`, `deadline_seconds`.
    #[arg(long)]
    options_from_stdin: bool,
    #[command(flatten)]
    access: OriginAccess,
}

const EXAMPLES: &str = "\
Examples:
  forebay agent train.digest --socket /tmp/job/agent.sock --job-pid $$
  forebay agent train.digest --socket /tmp/job/agent.sock --node \"$FOREBAY_SOCKET\" \\
      --options-from-stdin < options.json";

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    // Before secrets are read.
    disable_core_dumps().context("cannot switch off core dumps")?;
    let stop = signals::stop_requested()?;
    let job =
        args.job_pid.map(signals::open_process).transpose().context("cannot watch the job")?;
    let file = open_with_listings(&args.digest)?;
    let key_file = args.namespace_key.as_ref();
    let namespace = origin::namespace_of(&args.digest, &file.digest, key_file)?;
    let summary = file.digest.summary();
    let mut options = args.access.options();
    if args.options_from_stdin {
        read_options(&mut options)?;
    }
    let url = args.origin.as_ref().unwrap_or(&summary.origin);
    let origin = Origin::new(url, &options)?;
    let nodes = match &args.node_list {
        Some(path) => {
            let (list, zone) = read_node_list(path)?;
            Seeds::of_list(list, zone).context("the list has no node in this zone")?
        }
        None => args.node.unwrap_or_default(),
    };
    ensure!(
        nodes.is_empty() || !file.digest.is_listing(),
        "`{}` is a listing, whose addresses no node knows; leave out --node",
        args.digest.display()
    );
    let agent = Agent::bind(Config {
        socket: args.socket.clone(),
        nodes,
        credentials: forebay_auth::Credentials::from_environment()?,
        job: args.job,
        digest: file.digest.clone(),
        origin,
        mirror: *url != summary.origin,
        namespace,
        memory: args.memory,
    })?;
    output::data(&format!("{}\n", serde_json::json!({ "socket": args.socket })))?;
    let mut job_ended = false;
    agent
        .run(async {
            tokio::select! {
                () = stop => {}
                () = job_process_ended(job) => job_ended = true,
            }
        })
        .await;
    // A job that ends in order removes the directory itself. This one was killed.
    if job_ended
        && args.remove_directory
        && let Some(directory) = args.socket.parent()
    {
        fs::remove_dir_all(directory).context("cannot remove the job's directory")?;
    }
    Ok(Verdict::Yes)
}

/// Completes when the process of the job has ended; never without a process.
async fn job_process_ended(job: Option<OwnedFd>) {
    match job {
        Some(job) => signals::process_ended(job).await,
        None => std::future::pending().await,
    }
}

fn read_options(options: &mut forebay_origin::Options) -> anyhow::Result<()> {
    let mut text = String::new();
    std::io::stdin()
        .take(OPTIONS_SIZE_MAX)
        .read_to_string(&mut text)
        .context("cannot read the options")?;
    // The text holds secrets, so no message quotes it.
    let given: BTreeMap<String, serde_json::Value> = serde_json::from_str(&text)
        .map_err(|_| anyhow::anyhow!("the options are not a JSON object"))?;
    let (mut keys, mut session_token) = ((None, None), None);
    for (name, value) in given {
        let text = || {
            let text = value.as_str().map(str::to_owned);
            text.with_context(|| format!("the option `{name}` must be a string"))
        };
        match name.as_str() {
            "endpoint" => options.endpoint = Some(text()?),
            "region" => options.region = Some(text()?),
            "profile" => options.profile = Some(text()?),
            "session_token" => session_token = Some(text()?),
            "access_key" => keys.0 = Some(text()?),
            "secret_key" => keys.1 = Some(text()?),
            "anonymous" => {
                options.anonymous =
                    value.as_bool().context("the option `anonymous` must be true or false")?;
            }
            "deadline_seconds" => {
                let seconds = value.as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
                options.deadline =
                    seconds.context("the option `deadline_seconds` must be a number of seconds")?;
            }
            _ => bail!(
                "there is no option `{}`; use endpoint, region, profile, access_key, secret_key, \
                 session_token, anonymous or deadline_seconds",
                name.escape_debug()
            ),
        }
    }
    options.credentials = match keys {
        (Some(access_key), Some(secret_key)) => {
            Some(forebay_origin::Credentials { access_key, secret_key, session_token })
        }
        (None, None) if session_token.is_some() => {
            bail!(
                "the option `session_token` belongs to a key pair; give access_key and secret_key"
            )
        }
        (None, None) => None,
        _ => bail!("the options `access_key` and `secret_key` go together; give both or neither"),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Args as _;
    use forebay_core::agent::agent_cache::AGENT_CACHE_SIZE_MAX;

    use super::*;

    #[test]
    fn the_default_memory_is_the_limit_of_the_agent_cache() {
        let command = Args::augment_args(clap::Command::new("agent"));
        let memory = command.get_arguments().find(|arg| arg.get_id() == "memory").unwrap();
        let default = memory.get_default_values()[0].to_str().unwrap();
        assert_eq!(default.parse(), Ok(AGENT_CACHE_SIZE_MAX));
    }
}
