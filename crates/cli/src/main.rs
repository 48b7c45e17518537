//! The `forebay` binary: parses arguments, runs a command, and maps its result to an exit code.
//!
//! Data goes to standard output; progress, notes and errors go to standard error. Exit codes: 0 for
//! success or yes, 1 for no, 2 for a failure, 130 after an interrupt.

pub(crate) mod args;
pub(crate) mod commands;
mod gateway;
mod generated_page;
mod logging;
mod node_facts;
mod output;
mod signals;

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
  forebay demo                                        compare jobs with and without a cache
  forebay digest build s3://bucket/train -o train.digest
  forebay digest show train.digest
  forebay serve --capacity 50GB                       run a node
  forebay status
  forebay list                                        show datasets and what the node holds
  forebay warm train.digest                           load a dataset before jobs read it
  forebay doctor                                      check machine, node and dataset
  forebay explain train.digest                        show which chunks are kept, and why
  forebay sim compare one-job                         simulate training jobs and their cache
  forebay embed sim synthetic-criteo                  compare policies for embedding rows
  forebay stream put /nvme/spill tokens tokens.bin    write a file to a store of streams
  forebay dev origin --root ./data                    serve a directory over S3, for tests";

#[derive(Debug, Subcommand)]
enum Command {
    Demo(commands::demo::Args),
    #[command(hide = true)]
    DemoJob(commands::demo::job::Args),
    #[command(hide = true)]
    DemoStreamWay(commands::demo::streams::way::Args),
    Serve(commands::serve::Args),
    Status(commands::status::Args),
    Stop(commands::stop::Args),
    List(commands::list::Args),
    Top(commands::top::Args),
    Warm(commands::warm::Args),
    Doctor(commands::doctor::Args),
    /// Show which chunks of a dataset the node keeps, for which jobs, and why.
    #[command(after_help = commands::explain::EXAMPLES)]
    Explain(commands::explain::Args),
    /// Evict a dataset from the node. It is gone when the command returns.
    #[command(
        after_help = "Examples:\n  forebay evict train.digest\n  forebay evict s3://bucket/train"
    )]
    Evict(commands::explain::Args),
    Agent(commands::agent::Args),
    /// Build, show, verify and compare digests.
    #[command(subcommand)]
    Digest(commands::digest::Command),
    /// Make the key file of a namespace, or print its id.
    #[command(subcommand)]
    Namespace(commands::namespace::Command),
    /// Simulate training jobs and flash tiers under several cache policies.
    #[command(subcommand, after_help = commands::sim::EXAMPLES)]
    Sim(commands::sim::Command),
    /// Compare policies for embedding rows on traces; inspect and quantize files of tables.
    #[command(subcommand)]
    Embed(commands::embed::Command),
    /// Write, read, list and remove the streams of a store.
    #[command(subcommand)]
    Stream(commands::stream::Command),
    /// Run an S3 server for tests, and generate reference pages.
    #[command(subcommand)]
    Dev(commands::dev::Command),
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| output::exit_with_usage_error(&error));
    if let Err(error) = logging::init() {
        output::note(&format!("error: {}", output::one_line(&error)));
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let remedy = "raise the limits of open files and processes (ulimit -n, ulimit -u)";
            output::note(&format!("error: cannot start the runtime: {error}; {remedy}"));
            return ExitCode::from(2);
        }
    };
    let outcome = runtime.block_on(async {
        match cli.command {
            Command::Demo(args) => commands::demo::run(args).await,
            Command::DemoJob(args) => commands::demo::job::run(&args),
            Command::DemoStreamWay(args) => commands::demo::streams::way::run(&args),
            Command::Serve(args) => commands::serve::run(args).await,
            Command::Status(args) => commands::status::run(&args),
            Command::Stop(args) => commands::stop::run(args).await,
            Command::List(args) => commands::list::run(&args),
            Command::Top(args) => commands::top::run(args).await,
            Command::Warm(args) => commands::warm::run(args).await,
            Command::Doctor(args) => commands::doctor::run(args).await,
            Command::Explain(args) => commands::explain::explain(&args),
            Command::Evict(args) => commands::explain::evict(&args),
            Command::Agent(args) => commands::agent::run(args).await,
            Command::Digest(command) => commands::digest::run(command).await,
            Command::Namespace(command) => commands::namespace::run(command),
            Command::Sim(command) => commands::sim::run(command),
            Command::Embed(command) => commands::embed::run(command),
            Command::Stream(command) => commands::stream::run(command),
            Command::Dev(command) => commands::dev::run(command).await,
        }
    });
    // Background tasks are dropped: their results are no longer needed.
    runtime.shutdown_background();
    match outcome {
        Ok(Verdict::Yes) => ExitCode::SUCCESS,
        Ok(Verdict::No) => ExitCode::from(1),
        Ok(Verdict::Failed) => ExitCode::from(2),
        Err(error) if error.is::<signals::Interrupted>() => {
            output::note(&format!("{error:#}"));
            ExitCode::from(130)
        }
        Err(error) => {
            output::note(&format!("error: {}", output::one_line(&error)));
            ExitCode::from(2)
        }
    }
}
