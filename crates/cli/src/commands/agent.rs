//! `forebay agent`: the process beside a job.

use std::{
    collections::BTreeMap, fs, io::Read as _, os::fd::OwnedFd, path::PathBuf, time::Duration,
};

use anyhow::{Context as _, bail};
use forebay_agent::{Agent, Config};
use forebay_core::{ByteSize, kept::KEPT_MAX, ring::Contacts};
use forebay_digest::open;
use forebay_origin::Origin;
use forebay_server::read_node_list;

use crate::{
    output::{self, Verdict},
    reach::{self, Reach},
    stop,
};

/// No options are longer.
const OPTIONS_SIZE_MAX: u64 = 64 << 10;

/// Run beside a job: hold the origin's credentials, fetch what the job misses, and preload.
///
/// The job's loader starts it and speaks to it on a private socket. Credentials come from the
/// environment, or as JSON on standard input with `--options-from-stdin`; never as arguments. One line of
/// JSON on standard output says when it is ready.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dataset.
    #[arg(value_name = "DIGEST")]
    digest: PathBuf,
    /// The private socket to listen on.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Where a node listens: a socket's path, tcp://HOST:PORT or tls://HOST:PORT, or several of these with commas in
    /// between; the first that answers tells of all others. Without any, everything comes from the origin.
    #[arg(long, value_name = "ENDPOINTS")]
    node: Option<Contacts>,
    /// The list of nodes, in a file as nodes have it, so that none has to be asked for it.
    #[arg(long, value_name = "FILE", conflicts_with = "node")]
    node_list: Option<PathBuf>,
    /// What the job calls itself.
    #[arg(long, value_name = "NAME", default_value = "job")]
    job: String,
    /// Stop when this process does.
    #[arg(long, value_name = "PID")]
    job_pid: Option<i32>,
    /// The socket's directory is the job's own: remove it, and all that is in it, if the job's process ends
    /// and this one still runs.
    #[arg(long, requires = "job_pid")]
    remove_directory: bool,
    /// Read the data from here instead of where the digest says.
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// The key file of the digest's namespace, if it is private.
    #[arg(long, value_name = "FILE")]
    namespace_key: Option<PathBuf>,
    /// How much of what no node keeps is held in memory: what was fetched ahead, and packs that serve several items.
    #[arg(long, value_name = "SIZE", env = "FOREBAY_AGENT_MEMORY", default_value_t = KEPT_MAX)]
    memory: ByteSize,
    /// Read options as one JSON object from standard input: endpoint, `access_key`, `secret_key`, anonymous.
    #[arg(long)]
    options_from_stdin: bool,
    #[command(flatten)]
    reach: Reach,
}

const EXAMPLES: &str = "\
Examples:
  forebay agent train.digest --socket /tmp/job/agent.sock --job-pid $$
  forebay agent train.digest --socket /tmp/job/agent.sock --node \"$FOREBAY_SOCKET\" --options-from-stdin < options.json";

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let asked = stop::asked()?;
    let job = args.job_pid.map(stop::process).transpose().context("watch the job")?;
    let file = open(&args.digest)?;
    let key_file = args.namespace_key.as_ref();
    let namespace = reach::namespace_of(&args.digest, &file.digest, key_file)?;
    let summary = file.digest.summary();
    let mut options = args.reach.options();
    if args.options_from_stdin {
        take_options(&mut options)?;
    }
    let url = args.origin.as_ref().unwrap_or(&summary.origin);
    let origin = Origin::new(url, &options)?;
    let nodes = match &args.node_list {
        Some(path) => {
            let (list, zone) = read_node_list(path)?;
            Contacts::of_list(list, zone).context("no node of the list is in this zone")?
        }
        None => args.node.unwrap_or_default(),
    };
    let agent = Agent::bind(Config {
        socket: args.socket.clone(),
        nodes,
        credentials: forebay_identity::Credentials::from_environment()?,
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
                () = asked => {}
                () = ended(job) => job_ended = true,
            }
        })
        .await;
    // A job that ends in order removes it itself; this one was killed.
    if job_ended
        && args.remove_directory
        && let Some(directory) = args.socket.parent()
    {
        fs::remove_dir_all(directory).context("remove the job's directory")?;
    }
    Ok(Verdict::Yes)
}

/// Completes when the job's process has ended; never, if there is none to watch.
async fn ended(job: Option<OwnedFd>) {
    match job {
        Some(job) => stop::ended(job).await,
        None => std::future::pending().await,
    }
}

fn take_options(options: &mut forebay_origin::Options) -> anyhow::Result<()> {
    let mut text = String::new();
    std::io::stdin()
        .take(OPTIONS_SIZE_MAX)
        .read_to_string(&mut text)
        .context("read the options")?;
    // The text holds secrets, so no message quotes it.
    let given: BTreeMap<String, serde_json::Value> = serde_json::from_str(&text)
        .map_err(|_| anyhow::anyhow!("the options are no JSON object"))?;
    let mut keys = (None, None);
    for (name, value) in given {
        let text = || {
            let text = value.as_str().map(str::to_owned);
            text.with_context(|| format!("the option `{name}` should be a text"))
        };
        match name.as_str() {
            "endpoint" => options.endpoint = Some(text()?),
            "access_key" => keys.0 = Some(text()?),
            "secret_key" => keys.1 = Some(text()?),
            "anonymous" => {
                options.anonymous =
                    value.as_bool().context("the option `anonymous` should be true or false")?;
            }
            "deadline_seconds" => {
                let seconds = value.as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
                options.deadline =
                    seconds.context("the option `deadline_seconds` should be a number")?;
            }
            _ => bail!(
                "there is no option `{}`; there are endpoint, access_key, secret_key, anonymous, deadline_seconds",
                name.escape_debug()
            ),
        }
    }
    options.credentials = match keys {
        (Some(access_key), Some(secret_key)) => {
            Some(forebay_origin::Credentials { access_key, secret_key })
        }
        (None, None) => None,
        _ => bail!("the options `access_key` and `secret_key` go together"),
    };
    Ok(())
}
