//! `forebay stop`: ends a node of this machine in order.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use forebay_core::{Endpoint, units::parse_duration};
use rustix::process::{Signal, pidfd_send_signal};

use crate::{
    args::node::NodeArg,
    node_facts,
    output::{self, Verdict},
    signals,
};

/// Stop the node of this machine. What it stores is served again after its next start.
///
/// Requests in progress end first. Jobs that use the node read the origin, and a job of this user
/// may start it again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    node: NodeArg,
    /// Wait at most this time for its end.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    timeout: Duration,
}

const EXAMPLES: &str = "\
Examples:
  forebay stop
  forebay stop --node /run/forebay/node.sock --timeout 10s";

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let socket = socket(&args.node)?;
    // A connection that is greeted is one to a node.
    tokio::task::block_in_place(|| args.node.connect())?;
    let pid = node_facts::listener(&socket)?;
    let process = signals::open_process(pid)?;
    pidfd_send_signal(&process, Signal::TERM)
        .with_context(|| format!("cannot stop process {pid}; stop it as its own user"))?;
    tokio::select! {
        () = signals::process_ended(process) => {
            let shown = socket.display();
            output::note(&format!("the node at `{shown}` has stopped (process {pid})"));
            Ok(Verdict::Yes)
        }
        () = tokio::time::sleep(args.timeout) => bail!(
            "process {pid} has not ended after {} s; see its log, or give a longer --timeout",
            args.timeout.as_secs()
        ),
    }
}

/// The socket of the node: only a process of this machine can be stopped.
fn socket(node: &NodeArg) -> anyhow::Result<PathBuf> {
    let contacts = node.contacts();
    match contacts.endpoints() {
        [Endpoint::Unix(socket)] => Ok(socket.clone()),
        _ => bail!("a node of another machine is stopped there; give one socket with --node"),
    }
}
