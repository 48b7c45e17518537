//! `forebay digest build`: from a URL to a digest.
//!
//! Two phases. First the origin is listed, planned and hashed, and finished rows go to a journal
//! beside the output (`gather`); this part is long, and goes on where it was after any interruption.
//! Then the digest is written from the journal and published whole (`publish`).

mod archive;
mod gather;
mod publish;

use std::{path::PathBuf, time::Instant};

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use forebay_core::{
    ByteSize, Namespace,
    digest::{
        Summary,
        plan::{Layout, Records},
    },
};
use forebay_digest::{Journal, JournalHeader};
use forebay_origin::{Options, Origin};
use futures::StreamExt as _;
use indicatif::ProgressBar;
use serde::Serialize;

use self::{gather::Gathering, publish::publish};
use super::columns::Columns;
use crate::{
    output::{self, Format, Verdict, count},
    reach::{Reach, namespace, namespace_name},
    stop::{self, Interrupted},
};

pub const EXAMPLES: &str = "\
Examples:
  forebay digest build ./images -o images.digest
  forebay digest build s3://bucket/train -o train.digest --layout pack --columns labels.csv
  forebay digest build s3://bucket/x -o x.digest --endpoint http://127.0.0.1:9000
  forebay digest build gs://public-data/x -o x.digest --anonymous --exclude '*.txt'
  forebay digest build s3://bucket/shards -o x.digest --layout tar
  forebay digest build ./cifar -o x.digest --layout records --record-size 3073B

Credentials come from the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws,
AZURE_STORAGE_ACCOUNT_NAME and ..._KEY, GOOGLE_APPLICATION_CREDENTIALS).
Columns: a CSV file with a header; its first column names the object, relative to URL.";

/// A pack is what a small read is worth: a few milliseconds of a slow origin.
const PACK_SIZE: ByteSize = ByteSize::mib(1);
/// With fewer blobs to a chunk, a chunk of a sorted dataset no longer looks like it.
const CHUNK_BLOBS_MIN: u64 = 16;

/// What to build.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the data is: s3://, az://, gs://, http(s)://, file:// or a path.
    url: String,
    /// The digest to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// How items are found and packed.
    #[arg(long, value_enum, default_value_t = LayoutName::Files)]
    layout: LayoutName,
    /// The size that blobs of several items may reach.
    ///
    /// With every layout but files; 1MiB unless you say otherwise.
    #[arg(long, value_name = "SIZE")]
    pack_size: Option<ByteSize>,
    /// With --layout records: how long a record is.
    #[arg(long, value_name = "SIZE")]
    record_size: Option<ByteSize>,
    /// With --layout records: what every object begins with before its first record.
    #[arg(long, value_name = "SIZE")]
    record_header: Option<ByteSize>,
    /// Key file of the namespace; the public namespace if absent.
    #[arg(long, value_name = "FILE")]
    namespace: Option<PathBuf>,
    /// CSV file with columns of your own, such as labels.
    #[arg(long, value_name = "FILE")]
    columns: Option<PathBuf>,
    /// Cut into so many chunks, instead of chunks of a tenth or 15 GB.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    chunks: Option<u64>,
    /// Leave out objects that match; may be repeated. A pattern without a slash is held against the last
    /// step of a key, any other against the whole key.
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Forget what an interrupted build has done.
    #[arg(long)]
    restart: bool,
    /// How to report the result.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    reach: Reach,
}

/// Layouts by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LayoutName {
    /// One object is one item is one blob.
    Files,
    /// Small neighbouring objects share a blob.
    Pack,
    /// Objects are tar archives; members that differ only in their endings are one item (`WebDataset`).
    Tar,
    /// Objects are records of one length; each is an item.
    Records,
}

/// Everything that decides what a digest says.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Where the data is.
    pub url: String,
    /// How to get there.
    pub options: Options,
    /// The digest to write.
    pub output: PathBuf,
    /// How items are found and packed.
    pub layout: Layout,
    /// Whose addresses.
    pub namespace: Namespace,
    /// CSV file with the user's columns.
    pub columns: Option<PathBuf>,
    /// How many chunks, if the user says so.
    pub chunks: Option<u64>,
    /// Globs of keys to leave out.
    pub exclude: Vec<String>,
    /// Forget an interrupted build.
    pub restart: bool,
}

/// What a build did.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The digest.
    pub digest: PathBuf,
    /// What it says.
    #[serde(flatten)]
    pub summary: Summary,
    /// Blobs that an interrupted run had already done.
    pub blobs_resumed: u64,
    /// Bytes read from the origin by this run.
    pub bytes_read: u64,
    /// Items without a row in the columns' file.
    pub items_without_columns: u64,
    /// Rows of the columns' file that name no object.
    pub columns_without_items: u64,
    /// Patterns of --exclude that matched nothing.
    pub exclude_unused: Vec<String>,
    /// How long it took.
    pub seconds: f64,
    /// The most memory that this process has used.
    pub peak_memory: ByteSize,
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let layout = args.layout()?;
    let spec = Spec {
        options: args.reach.options(),
        namespace: namespace(args.namespace.as_ref())?,
        url: args.url,
        output: args.output,
        layout,
        columns: args.columns,
        chunks: args.chunks,
        exclude: args.exclude,
        restart: args.restart,
    };
    let progress = output::progress("hashing");
    let report = build(&spec, &progress).await;
    progress.finish_and_clear();
    let report = report?;
    match args.format {
        Format::Json => output::json(&report)?,
        Format::Text => output::data(&describe(&report))?,
    }
    Ok(Verdict::Yes)
}

impl Args {
    fn layout(&self) -> anyhow::Result<Layout> {
        let is_of_records = self.layout == LayoutName::Records;
        ensure!(
            is_of_records || self.record_size.is_none() && self.record_header.is_none(),
            "--record-size and --record-header need --layout records"
        );
        ensure!(
            self.pack_size != Some(ByteSize::ZERO),
            "a pack size of nothing packs nothing; try 1MiB"
        );
        let pack = self.pack_size.unwrap_or(PACK_SIZE);
        Ok(match self.layout {
            LayoutName::Files => {
                ensure!(
                    self.pack_size.is_none(),
                    "--pack-size needs --layout pack, tar or records"
                );
                Layout::Files
            }
            LayoutName::Pack => Layout::Pack(pack),
            LayoutName::Tar => Layout::Tar(pack),
            LayoutName::Records => {
                let size = self.record_size.context("--layout records needs --record-size")?;
                let header = self.record_header.unwrap_or(ByteSize::ZERO);
                let records = Records::new(size.0, header.0, pack);
                Layout::Records(records.context("a record of nothing is none; try 1KiB")?)
            }
        })
    }
}

fn describe(report: &Report) -> String {
    let Report { summary, seconds, .. } = report;
    let speed = match report.bytes_read {
        0 => String::new(),
        read => format!(", {}/s", rate(read, *seconds)),
    };
    let resumed = match report.blobs_resumed {
        0 => String::new(),
        resumed => format!(" ({} already done)", count(resumed, "blob")),
    };
    let notes: String = notes(report).iter().map(|note| format!("note     {note}\n")).collect();
    format!(
        "digest   {}\ndataset  {}\nitems    {} in {}, {}\nchunks   {}\ntime     {seconds:.1} s{speed}{resumed}\n{notes}",
        report.digest.display(),
        summary.dataset,
        summary.items,
        count(summary.blobs, "blob"),
        ByteSize(summary.bytes),
        summary.chunking.chunks(),
    )
}

/// What a person would want to know before using the digest.
fn notes(report: &Report) -> Vec<String> {
    let Summary { chunking, blobs, items, bytes, .. } = report.summary;
    let mut notes = Vec::new();
    if report.items_without_columns > 0 {
        let items = count(report.items_without_columns, "item");
        notes.push(format!("{items} without a row in the columns' file"));
    }
    if report.columns_without_items > 0 {
        let rows = count(report.columns_without_items, "row");
        notes.push(format!("{rows} of the columns' file without an object"));
    }
    for glob in &report.exclude_unused {
        notes.push(format!("--exclude '{}' matched nothing", glob.escape_debug()));
    }
    let packs_wanted = u64::from(chunking.chunks()) * CHUNK_BLOBS_MIN;
    if blobs < packs_wanted && items > blobs {
        let size = ByteSize::kib((bytes / packs_wanted / 1024).max(1));
        notes.push(format!(
            "a chunk holds few packs, and may not look like the dataset; try --pack-size {}KiB",
            size.0 / 1024
        ));
    }
    notes
}

/// Bytes per second, for people.
pub fn rate(bytes: u64, seconds: f64) -> ByteSize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
    ByteSize((bytes as f64 / seconds.max(1e-9)) as u64)
}

/// Builds a digest, or goes on with building it.
pub async fn build(spec: &Spec, progress: &ProgressBar) -> anyhow::Result<Report> {
    let started = Instant::now();
    // All that can be wrong with the arguments is found before the long work begins.
    let columns = spec.columns.as_deref().map(Columns::read).transpose()?.unwrap_or_default();
    for glob in &spec.exclude {
        ensure!(
            balanced(glob),
            "the pattern '{}' has a bracket without its other half; write *.txt, or a/**/b.[ch]",
            glob.escape_debug()
        );
    }
    ensure!(!spec.output.is_dir(), "`{}` is a directory; name a file in it", spec.output.display());
    let origin = Origin::locate(&spec.url, &spec.options).await?;
    if let Origin::Local(tree) = &origin {
        let journal = Journal::path(&spec.output);
        ensure!(
            !tree.would_hold(&spec.output) && !tree.would_hold(&journal),
            "`{}` or its journal lies in the dataset itself, and would change it; name a file elsewhere",
            spec.output.display()
        );
    }
    let header = JournalHeader {
        origin: origin.url(),
        layout: spec.layout.to_string(),
        namespace: namespace_name(&spec.namespace),
        filter: spec.exclude.join("\n"),
    };
    let mut journal = Journal::open(&spec.output, &header, spec.restart)?;
    count_ahead(&origin, progress);

    let mut gathering = Gathering::new(spec, &origin, &mut journal, progress);
    let asked = stop::asked()?;
    let outcome = tokio::select! {
        () = asked => {
            Err(Interrupted("stopped; run the same command again to go on from here").into())
        }
        outcome = gathering.run() => outcome,
    };
    let gathered = gathering.finish();
    journal.flush()?;
    if let Err(error) = outcome {
        // A journal without rows is of no use to the next run.
        return journal.close().map_or_else(|second| Err(second.into()), |()| Err(error));
    }

    let (blobs_resumed, bytes_read) = (gathered.blobs_resumed, gathered.bytes_read);
    let exclude_unused = gathered.exclude_unused(&spec.exclude);
    let published = publish(spec, &header, gathered, &mut journal, &columns);
    let published = match published {
        Ok(published) => published,
        Err(error) => {
            journal.close()?;
            return Err(error);
        }
    };
    journal.remove()?;
    Ok(Report {
        digest: spec.output.clone(),
        summary: published.summary,
        blobs_resumed,
        bytes_read,
        items_without_columns: published.items_without_columns,
        columns_without_items: published.columns_without_items,
        exclude_unused,
        seconds: started.elapsed().as_secs_f64(),
        peak_memory: peak_memory(),
    })
}

/// Whether every bracket of a pattern has its other half.
fn balanced(glob: &str) -> bool {
    let halves =
        |open: char, close: char| glob.matches(open).count() == glob.matches(close).count();
    halves('[', ']') && halves('{', '}')
}

/// While a person is watching, a second listing runs ahead to tell how much there is to do.
fn count_ahead(origin: &Origin, progress: &ProgressBar) {
    if progress.is_hidden() {
        return;
    }
    let (mut listing, progress) = (origin.list(), progress.clone());
    tokio::spawn(async move {
        let mut total = 0;
        while let Some(Ok(listed)) = listing.next().await {
            total += listed.length;
        }
        output::progress_total(&progress, total);
    });
}

/// The most memory that this process has used; nothing where the system does not tell.
fn peak_memory() -> ByteSize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
    ByteSize::kib(kib.unwrap_or(0))
}
