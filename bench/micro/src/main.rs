//! `forebay bench`: the product against raw limits, measured on this machine.

mod digest;
mod embed;
mod flash;
mod wire;

use forebay_measure::{PAIRS, PAIRS_QUICK, Row};

use crate::output::{self, Format, Verdict};

/// Measure the product against raw limits.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Building and opening digests, against plain reads and plain hashing.
    ///
    /// Exit code 1 if a target is missed.
    Digest(Args),
    /// The device engine, against a bare loop of direct I/O on a file of the same size.
    ///
    /// Exit code 1 if a target is missed.
    Flash(flash::Args),
    /// Embedding lookups, against a bare copy in memory and against a mapped file under one limit.
    ///
    /// Needs to make control groups (root) for the latter. Exit code 1 if a target is missed.
    Embed(embed::Args),
    #[command(hide = true)]
    EmbedSide(embed::side::Args),
    /// Hits over TCP, a Unix socket and shared memory, against bare loops and the device engine alone.
    ///
    /// Exit code 1 if a target is missed.
    Wire(wire::Args),
    #[command(hide = true)]
    WireBare(wire::BareArgs),
}

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Five pairs and less data, for a first look.
    #[arg(long)]
    quick: bool,
    /// How to report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Args {
    fn pairs(&self) -> usize {
        if self.quick { PAIRS_QUICK } else { PAIRS }
    }
}

pub async fn run(command: Command) -> anyhow::Result<Verdict> {
    let (rows, format): (Vec<Row>, Format) = match command {
        Command::Digest(args) => (digest::run(&args).await?, args.format),
        Command::Flash(args) => (flash::run(&args).await?, args.format()),
        Command::Embed(args) => (embed::run(&args)?, args.format()),
        Command::Wire(args) => (wire::run(&args).await?, args.format()),
        Command::WireBare(args) => {
            wire::serve_bare(&args)?;
            return Ok(Verdict::Yes);
        }
        Command::EmbedSide(args) => {
            embed::side::run(&args)?;
            return Ok(Verdict::Yes);
        }
    };
    match format {
        Format::Json => output::json(&rows)?,
        Format::Text => output::data(&forebay_measure::table(&rows))?,
    }
    let missed = rows.iter().any(|row| row.verdict == forebay_measure::Verdict::Missed);
    Ok(if missed { Verdict::No } else { Verdict::Yes })
}
