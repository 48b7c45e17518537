//! `forebay sim trace`: the policies of the tier on recorded traces.

use std::path::PathBuf;

use anyhow::bail;
use clap::builder::PossibleValuesParser;
use forebay_core::tier::PolicyKind;
use forebay_sim::{
    embeddings::CacheShare,
    tier::{Requests, TraceFormat, TraceRow},
};

use crate::output::{self, Format, Verdict};

/// What to replay.
#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    /// A trace, plain or compressed (gzip, zip, xz, zstd).
    file: PathBuf,
    /// Use these policies, separated by commas.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "fifo,lru,reject-first,historic,next-use",
        value_parser = PossibleValuesParser::new(PolicyKind::ALL.iter().map(|kind| kind.name()))
    )]
    policy: Vec<String>,
    /// Use these cache sizes, as shares of the distinct objects of the trace.
    #[arg(long, value_name = "SHARES", value_delimiter = ',', default_value = "1%,10%")]
    cache: Vec<CacheShare>,
    /// Read the file in this format [default: by the name of the file].
    #[arg(
        long,
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(TraceFormat::ALL.map(|(name, _)| name))
    )]
    trace_format: Option<String>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub const EXAMPLES: &str = "\
Examples:
  forebay sim trace web.oracleGeneral.zst --policy lru,next-use --cache 1%,10%
  forebay sim trace requests.csv --format json
  forebay sim trace arc_OLTP.lis.zst --trace-format pages";

pub fn run(args: &TraceArgs) -> anyhow::Result<Verdict> {
    let named = args.trace_format.as_deref().map(|wanted| {
        let found = TraceFormat::ALL.iter().find(|(name, _)| *name == wanted);
        found.expect("clap has checked the name").1
    });
    let format = named.unwrap_or_else(|| TraceFormat::of(&args.file));
    if args.file.is_dir() {
        bail!("`{}` is a directory; name a trace in it", args.file.display());
    }
    let trace = Requests::load(&args.file, Some(format))?;
    let mut rows = Vec::new();
    for share in &args.cache {
        let optimum = trace.optimum(*share);
        for name in &args.policy {
            let policy = name.parse().expect("clap has checked the name");
            rows.push(trace.replay(policy, *share, optimum));
        }
    }
    if trace.went_back > 0 {
        let count = output::count(trace.went_back, "time");
        output::note(&format!("{count} in the trace went backwards; the clock stood still there"));
    }
    match args.format {
        Format::Json => output::json(&rows)?,
        Format::Text => {
            let (requests, objects) = (trace.len(), trace.objects());
            let requests = output::count(requests as u64, "request");
            let objects = output::count(objects as u64, "object");
            let title = format!("{}, read as {}: {requests}, {objects}", trace.name, format.name());
            output::data(&format!("{title}\n{}", table(&rows)))?;
        }
    }
    Ok(Verdict::Yes)
}

fn table(rows: &[TraceRow]) -> String {
    let header = ["POLICY", "CACHE", "OBJECTS", "HITS", "OPTIMUM", "OF OPTIMUM", "WRITES"];
    let percent = |share: f64| format!("{:.2}%", share * 100.0);
    let line = |row: &TraceRow| {
        vec![
            row.policy.to_string(),
            row.share.to_string(),
            row.capacity.to_string(),
            percent(row.hit_rate()),
            percent(row.optimum_hits as f64 / row.requests.max(1) as f64),
            percent(row.of_optimum()),
            row.writes.to_string(),
        ]
    };
    output::table(&header, &rows.iter().map(line).collect::<Vec<_>>())
}
