//! `forebay digest`: builds, shows, verifies and compares digests.

pub mod build;
mod columns;
mod diff;
pub mod hash;
mod list;
mod show;
pub mod verify;

use crate::output::Verdict;

/// Build, show, verify and compare digests.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List and hash the objects under a URL, and write the digest of the dataset.
    ///
    /// Run the same command again to resume an interrupted build.
    #[command(after_help = build::EXAMPLES)]
    Build(build::Args),
    /// List the objects under a URL, without reading them.
    ///
    /// A job that reads the listing learns the addresses of a digest. Exit code 1 if objects have
    /// no version.
    #[command(after_help = list::EXAMPLES)]
    List(list::Args),
    /// Show the summary and the first items of a digest.
    #[command(after_help = show::EXAMPLES)]
    Show(show::Args),
    /// Check a digest against its origin. Exit code 1 if the origin has changed.
    #[command(after_help = verify::EXAMPLES)]
    Verify(verify::Args),
    /// Compare two digests. Exit code 0 if they describe the same dataset, 1 if not.
    #[command(after_help = diff::EXAMPLES)]
    Diff(diff::Args),
}

pub async fn run(command: Command) -> anyhow::Result<Verdict> {
    match command {
        Command::Build(args) => build::run(args).await,
        Command::List(args) => list::run(args).await,
        Command::Show(args) => show::run(&args),
        Command::Verify(args) => verify::run(args).await,
        Command::Diff(args) => diff::run(&args),
    }
}
