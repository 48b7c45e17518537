//! `forebay digest`: build and inspect the tables of datasets.

pub mod build;
mod columns;
mod diff;
pub mod hash;
mod show;
pub mod verify;

use crate::output::Verdict;

/// Build and inspect digests.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List and hash the objects under a URL, and write the digest of the dataset.
    ///
    /// An interrupted build goes on where it was when the same command is run again.
    #[command(after_help = build::EXAMPLES)]
    Build(build::Args),
    /// Show what a digest says.
    Show(show::Args),
    /// Check a digest, and that the origin still holds what it says. Exit code 1 if it does not.
    #[command(after_help = verify::EXAMPLES)]
    Verify(verify::Args),
    /// Say how two digests differ. Exit code 0 if they hold the same dataset, 1 if not.
    Diff(diff::Args),
}

pub async fn run(command: Command) -> anyhow::Result<Verdict> {
    match command {
        Command::Build(args) => build::run(args).await,
        Command::Show(args) => show::run(&args),
        Command::Verify(args) => verify::run(args).await,
        Command::Diff(args) => diff::run(&args),
    }
}
