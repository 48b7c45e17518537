//! `forebay namespace`: key files of private namespaces.

use std::path::PathBuf;

use forebay_auth::{create_key_file, read_key_file};

use crate::output::{self, Verdict};

/// Make the key file of a namespace, or print its id.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a namespace with a random key, in a new file that only you can read. Print its id.
    #[command(after_help = "Examples:\n  forebay namespace new team.key")]
    New {
        /// The key file to make. It must not exist.
        file: PathBuf,
    },
    /// Print the id of a namespace, by which digests refer to it. The key is never printed.
    #[command(after_help = "Examples:\n  forebay namespace id team.key")]
    Id {
        /// The key file.
        file: PathBuf,
    },
}

pub fn run(command: Command) -> anyhow::Result<Verdict> {
    let namespace = match command {
        Command::New { file } => create_key_file(&file)?,
        Command::Id { file } => read_key_file(&file)?,
    };
    output::data(&format!("{}\n", namespace.id()))?;
    Ok(Verdict::Yes)
}
