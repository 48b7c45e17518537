//! `forebay namespace`: keys for people who share a cache among themselves only.

use std::path::PathBuf;

use anyhow::Context as _;
use forebay_identity::{create_key_file, read_key_file};

use crate::output::{self, Verdict};

/// Make or look at the key file of a namespace.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a namespace with a fresh random key, in a new file that only you can read.
    New {
        /// The key file to make; it must not exist yet.
        file: PathBuf,
    },
    /// Print the id under which digests refer to a namespace. Never prints the key.
    Id {
        /// The key file.
        file: PathBuf,
    },
}

pub fn run(command: Command) -> anyhow::Result<Verdict> {
    let namespace = match command {
        Command::New { file } => create_key_file(&file).context("make a namespace")?,
        Command::Id { file } => read_key_file(&file).context("read a namespace")?,
    };
    output::data(&format!("{}\n", namespace.id()))?;
    Ok(Verdict::Yes)
}
