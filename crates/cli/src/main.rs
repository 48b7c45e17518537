//! The one binary: `forebay`.
//!
//! Data goes to standard output; progress, notes and errors to standard error. Exit codes: 0 for yes
//! and done, 1 for no, 2 for failed, 130 when interrupted.

mod agent;
mod bench;
mod contact;
mod demo;
mod dev;
mod digest;
mod doctor;
mod embed;
mod explain;
mod members;
mod namespace;
mod output;
mod page;
mod reach;
mod serve;
mod sim;
mod status;
mod stop;
mod top;
mod warm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use output::Verdict;

/// An informed storage cache for machine learning.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  forebay demo                                        see it work, on data it makes itself
  forebay digest build s3://bucket/train -o train.digest
  forebay digest show train.digest
  forebay serve --capacity 50GB                       the cache that this machine's jobs share
  forebay status
  forebay warm train.digest                           fetch a dataset before the jobs come
  forebay doctor                                      is everything as it should be?
  forebay explain train.digest                        which chunks are kept, for whom, and why
  forebay sim compare one-job                         what a cache would do for training jobs
  forebay embed sim synthetic-criteo                  which embedding rows to keep in memory
  forebay dev origin --root ./data                    serve a directory over S3, for trying things";

#[derive(Debug, Subcommand)]
enum Command {
    /// Seven jobs read one dataset from a slow origin: first straight, then through a small cache.
    Demo(demo::Args),
    #[command(hide = true)]
    DemoJob(demo::job::Args),
    /// Run a node: the cache that this machine's jobs share.
    Serve(serve::Args),
    /// What the node is doing.
    Status(status::Args),
    /// What the node is doing, live.
    Top(top::Args),
    /// Bring a dataset into the node, before any job asks for it.
    Warm(warm::Args),
    /// Check this machine, the node and a dataset: what is well, what is not, and the remedy.
    Doctor(doctor::Args),
    /// How a dataset stands on the node: which chunks are kept, for whom, and why.
    #[command(
        after_help = "Examples:\n  forebay explain train.digest\n  forebay explain train.digest --format json | jq .why"
    )]
    Explain(explain::Args),
    /// Free all that the node keeps of a dataset. When it returns, that is gone for good.
    #[command(after_help = "Examples:\n  forebay evict train.digest")]
    Evict(explain::Args),
    /// Run beside a job: hold the origin's credentials, fetch and preload. Started by the job itself.
    Agent(agent::Args),
    /// Build and inspect digests, the tables of datasets.
    #[command(subcommand)]
    Digest(digest::Command),
    /// Make keys for namespaces, whose addresses only their members can compute.
    #[command(subcommand)]
    Namespace(namespace::Command),
    /// Training jobs on a simulated cluster, under several policies.
    #[command(subcommand, after_help = sim::EXAMPLES)]
    Sim(sim::Command),
    /// Embedding tables: policies compared on traces, and what files hold.
    #[command(subcommand)]
    Embed(embed::Command),
    /// Servers for tests, demos and development.
    #[command(subcommand)]
    Dev(dev::Command),
    /// Measure the product against raw limits.
    #[command(subcommand)]
    Bench(bench::Command),
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| output::refuse(&error));
    if let Err(error) = output::begin_logging() {
        output::note(&format!("error: {}", output::one_line(&error)));
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let remedy = "are too few files or threads allowed? (ulimit)";
            output::note(&format!("error: cannot start: {error}; {remedy}"));
            return ExitCode::from(2);
        }
    };
    let outcome = runtime.block_on(async {
        match cli.command {
            Command::Demo(args) => demo::run(args).await,
            Command::DemoJob(args) => demo::job::run(&args),
            Command::Serve(args) => serve::run(args).await,
            Command::Status(args) => status::run(&args),
            Command::Top(args) => top::run(args).await,
            Command::Warm(args) => warm::run(args).await,
            Command::Doctor(args) => doctor::run(args).await,
            Command::Explain(args) => explain::explain(&args),
            Command::Evict(args) => explain::evict(&args),
            Command::Agent(args) => agent::run(args).await,
            Command::Digest(command) => digest::run(command).await,
            Command::Namespace(command) => namespace::run(command),
            Command::Sim(command) => sim::run(command),
            Command::Embed(command) => embed::run(command),
            Command::Dev(command) => dev::run(command).await,
            Command::Bench(command) => bench::run(command).await,
        }
    });
    // What still runs in the background has no one left to report to.
    runtime.shutdown_background();
    match outcome {
        Ok(Verdict::Yes) => ExitCode::SUCCESS,
        Ok(Verdict::No) => ExitCode::from(1),
        Ok(Verdict::Failed) => ExitCode::from(2),
        Err(error) if error.is::<stop::Interrupted>() => {
            output::note(&format!("{error:#}"));
            ExitCode::from(130)
        }
        Err(error) => {
            output::note(&format!("error: {}", output::one_line(&error)));
            ExitCode::from(2)
        }
    }
}
