//! `forebay bench`: the product against raw limits, measured on this machine.

mod digest;

use forebay_measure::{PAIRS, PAIRS_QUICK, Row};

use crate::output::{self, Format, Verdict};

/// Measure the product against raw limits.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Building and opening digests, against plain reads and plain hashing.
    ///
    /// Exit code 1 if a target is missed.
    Digest(Args),
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

pub async fn run(Command::Digest(args): Command) -> anyhow::Result<Verdict> {
    let rows: Vec<Row> = digest::run(&args).await?;
    match args.format {
        Format::Json => output::json(&rows)?,
        Format::Text => output::data(&forebay_measure::table(&rows))?,
    }
    let missed = rows.iter().any(|row| row.verdict == forebay_measure::Verdict::Missed);
    Ok(if missed { Verdict::No } else { Verdict::Yes })
}
