//! `forebay digest build`: builds a digest from a URL.
//!
//! There are two phases. The first lists, plans and hashes the objects, and appends finished rows
//! to a journal beside the output (`scan`). It takes long, and resumes after any interruption. The
//! second writes the digest from the journal and publishes it atomically (`publish`).

mod archive;
pub mod fill;
mod publish;
mod scan;

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, anyhow, ensure};
use clap::ValueEnum;
use forebay_core::{ByteSize, Namespace, cluster::ring::Seeds};
use forebay_digest::{EarlierDigest, Journal, JournalHeader, Layout, Records, Summary};
use forebay_origin::{Options, Origin};
use futures::StreamExt as _;
use indicatif::ProgressBar;
use serde::Serialize;

use self::{
    fill::{Fill, Filled},
    publish::publish,
    scan::Scan,
};
use super::columns::Columns;
use crate::{
    args::origin::{OriginAccess, namespace, namespace_name},
    output::{self, Format, Verdict, count},
    signals::{self, Interrupted},
};

pub const EXAMPLES: &str = "\
Examples:
  forebay digest build ./images -o images.digest
  forebay digest build s3://bucket/train -o train.digest --layout pack --columns labels.csv
  forebay digest build s3://bucket/x -o x.digest --endpoint http://127.0.0.1:9000
  forebay digest build gs://public-data/x -o x.digest --anonymous --exclude '*.txt'
  forebay digest build s3://bucket/shards -o x.digest --layout tar
  forebay digest build s3://bucket/train -o new.digest --from old.digest
  forebay digest build s3://bucket/train -o train.digest --node /run/user/1000/forebay/node.sock
  forebay digest build ./cifar -o x.digest --layout records --record-size 3073B

Credentials come from the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws,
AZURE_STORAGE_ACCOUNT_NAME and ..._KEY, GOOGLE_APPLICATION_CREDENTIALS).
The file of --columns has a header. Its first column names the object, relative to URL.";

/// Default size of a pack: a few milliseconds of transfer from a slow origin. With its header it
/// fits into the shortest region of a device; a pack of 1 MiB would take two.
const PACK_SIZE: ByteSize = ByteSize::kib(960);
/// With fewer blobs per chunk, a chunk of a sorted dataset does not resemble the dataset.
const CHUNK_BLOBS_MIN: u64 = 16;

/// What to build.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The URL of the data: s3://, az://, gs://, http(s)://, file://, or a path.
    url: String,
    /// Write the digest to this file.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Use this layout of items and blobs.
    #[arg(long, value_enum, default_value_t = LayoutName::Files)]
    layout: LayoutName,
    /// Limit packs to this size [default: 960KiB]. With --layout pack, tar or records.
    #[arg(long, value_name = "SIZE")]
    pack_size: Option<ByteSize>,
    /// Use records of this size. With --layout records.
    #[arg(long, value_name = "SIZE")]
    record_size: Option<ByteSize>,
    /// Skip this size at the start of each object [default: 0B]. With --layout records.
    #[arg(long, value_name = "SIZE")]
    record_header: Option<ByteSize>,
    /// Use the namespace of this key file [default: the public namespace].
    #[arg(long, value_name = "FILE")]
    namespace_key: Option<PathBuf>,
    /// Add columns, such as labels, from this CSV file.
    #[arg(long, value_name = "FILE")]
    columns: Option<PathBuf>,
    /// Cut into N chunks [default: chunks of a tenth of the dataset, at most 15 GB].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    chunks: Option<u64>,
    /// Leave out objects that match this pattern. May be repeated.
    ///
    /// A pattern without a slash matches the last component of a key, any other the whole key.
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Read only what has changed since this digest was built, by version and length.
    #[arg(long, value_name = "DIGEST")]
    from: Option<PathBuf>,
    /// Put what is read into this node, so that the first epoch does not read it again.
    ///
    /// A socket path, tcp://HOST:PORT or tls://HOST:PORT; several are separated by commas. Nothing
    /// is evicted for it. Blobs over 32 MiB and local files are left out.
    #[arg(long, value_name = "ENDPOINTS")]
    node: Option<Seeds>,
    /// Discard the journal of an interrupted build.
    #[arg(long)]
    restart: bool,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    access: OriginAccess,
}

/// Layouts by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LayoutName {
    /// One item and one blob per object.
    Files,
    /// Packs of small neighbouring objects.
    Pack,
    /// Tar archives; members that differ only in their extension are one item (`WebDataset`).
    Tar,
    /// Records of one size, each an item.
    Records,
}

/// Input of a build.
#[derive(Debug, Clone)]
pub struct Spec {
    /// URL of the data.
    pub url: String,
    /// Access to the origin.
    pub options: Options,
    /// Path of the digest.
    pub output: PathBuf,
    /// Layout of items and blobs.
    pub layout: Layout,
    /// Namespace of the addresses.
    pub namespace: Namespace,
    /// CSV file of columns.
    pub columns: Option<PathBuf>,
    /// Number of chunks, if given.
    pub chunks: Option<u64>,
    /// Patterns of keys to leave out.
    pub exclude: Vec<String>,
    /// An earlier digest of the same data.
    pub from: Option<PathBuf>,
    /// Nodes to put blobs into.
    pub nodes: Option<Seeds>,
    /// Whether to discard the journal of an interrupted build.
    pub restart: bool,
}

/// Result of a build.
#[derive(Debug, Serialize)]
pub struct BuildReport {
    /// Path of the digest.
    pub digest: PathBuf,
    /// Summary of the digest.
    #[serde(flatten)]
    pub summary: Summary,
    /// Blobs taken from the journal of an interrupted run.
    pub blobs_resumed: u64,
    /// Blobs taken from the earlier digest.
    pub blobs_unchanged: u64,
    /// Bytes read from the origin by this run.
    pub bytes_read: u64,
    /// Blobs that the nodes have stored.
    pub blobs_cached: u64,
    /// Bytes of those.
    pub bytes_cached: u64,
    /// Items without a row in the file of columns.
    pub items_without_columns: u64,
    /// Rows of the file of columns without an object.
    pub columns_without_items: u64,
    /// Patterns of --exclude that matched nothing.
    pub exclude_unused: Vec<String>,
    /// Duration.
    pub seconds: f64,
    /// Peak memory of this process.
    pub peak_memory: ByteSize,
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let layout = args.layout()?;
    let spec = Spec {
        options: args.access.options(),
        namespace: namespace(args.namespace_key.as_ref())?,
        url: args.url,
        output: args.output,
        layout,
        columns: args.columns,
        chunks: args.chunks,
        exclude: args.exclude,
        from: args.from,
        nodes: args.node,
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
        let is_records = self.layout == LayoutName::Records;
        ensure!(
            is_records || self.record_size.is_none() && self.record_header.is_none(),
            "--record-size and --record-header need --layout records"
        );
        ensure!(
            self.pack_size != Some(ByteSize::ZERO),
            "--pack-size is 0B; use at least 1B, such as 1MiB"
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
                Layout::Records(
                    records.context("--record-size is 0B; use at least 1B, such as 1KiB")?,
                )
            }
        })
    }
}

fn describe(report: &BuildReport) -> String {
    let BuildReport { summary, seconds, .. } = report;
    let speed = match report.bytes_read {
        0 => String::new(),
        read => format!(", {}/s", rate(read, *seconds)),
    };
    let resumed = match report.blobs_resumed {
        0 => String::new(),
        resumed => format!(" ({} already done)", count(resumed, "blob")),
    };
    let unchanged = match report.blobs_unchanged {
        0 => String::new(),
        unchanged => format!(" ({} unchanged)", count(unchanged, "blob")),
    };
    let cached = match report.blobs_cached {
        0 => String::new(),
        blobs => {
            let bytes = ByteSize(report.bytes_cached);
            format!("cached   {} in {}\n", bytes, count(blobs, "blob"))
        }
    };
    let notes: String = notes(report).iter().map(|note| format!("note     {note}\n")).collect();
    format!(
        "digest   {}\ndataset  {}\nitems    {} in {}, {}\nchunks   {}\n\
         time     {seconds:.1} s{speed}{resumed}{unchanged}\n{cached}{notes}",
        report.digest.display(),
        summary.dataset,
        summary.items,
        count(summary.blobs, "blob"),
        ByteSize(summary.bytes).rounded(),
        summary.chunking.chunks(),
    )
}

/// Possible problems of the digest.
fn notes(report: &BuildReport) -> Vec<String> {
    let Summary { chunking, blobs, items, bytes, .. } = report.summary;
    let mut notes = Vec::new();
    if report.items_without_columns > 0 {
        let items = count(report.items_without_columns, "item");
        notes.push(format!("{items} without a row in the file of columns"));
    }
    if report.columns_without_items > 0 {
        let rows = count(report.columns_without_items, "row");
        notes.push(format!("{rows} of the file of columns without an object"));
    }
    for glob in &report.exclude_unused {
        notes.push(format!("--exclude '{}' matched nothing", glob.escape_debug()));
    }
    let packs_wanted = u64::from(chunking.chunks()) * CHUNK_BLOBS_MIN;
    if blobs < packs_wanted && items > blobs {
        let size = ByteSize::kib((bytes / packs_wanted / 1024).max(1));
        notes.push(format!(
            "a chunk has few packs and may not resemble the dataset; try --pack-size {}KiB",
            size.0 / 1024
        ));
    }
    notes
}

/// Bytes per second, rounded.
pub fn rate(bytes: u64, seconds: f64) -> ByteSize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rounded figure")]
    ByteSize((bytes as f64 / seconds.max(1e-9)) as u64)
}

/// Builds a digest, or resumes its build.
pub async fn build(spec: &Spec, progress: &ProgressBar) -> anyhow::Result<BuildReport> {
    let started = Instant::now();
    // Arguments are checked before the long scan.
    let columns = spec.columns.as_deref().map(Columns::read).transpose()?.unwrap_or_default();
    for glob in &spec.exclude {
        ensure!(
            is_balanced(glob),
            "the pattern '{}' has an unbalanced bracket; use a pattern such as a/**/b.[ch]",
            glob.escape_debug()
        );
    }
    ensure!(!spec.output.is_dir(), "`{}` is a directory; name a file in it", spec.output.display());
    let origin = Origin::locate(&spec.url, &spec.options).await?;
    if let Origin::Local(tree) = &origin {
        let journal = Journal::path(&spec.output);
        ensure!(
            !tree.would_hold(&spec.output) && !tree.would_hold(&journal),
            "`{}` or its journal lies in the dataset itself and would change it; name a file \
             elsewhere",
            spec.output.display()
        );
    }
    let header = JournalHeader {
        origin: origin.url(),
        layout: spec.layout.to_string(),
        namespace: namespace_name(&spec.namespace),
        filter: spec.exclude.join("\n"),
    };
    let earlier = spec.from.as_deref().map(|path| earlier(path, &header)).transpose()?;
    let mut journal = Journal::open(&spec.output, &header, spec.restart)?;
    count_bytes(&origin, progress);

    let is_remote = matches!(origin, Origin::Remote(_));
    let nodes = spec.nodes.clone().filter(|_| is_remote);
    let fill = nodes.map(|nodes| Fill::start(nodes, spec.namespace.clone())).transpose()?;
    let sink = fill.as_ref().map(Fill::sink);
    let mut scan = Scan::new(spec, &origin, earlier.as_ref(), sink, &mut journal, progress);
    let stop = signals::stop_requested()?;
    let outcome = tokio::select! {
        () = stop => {
            Err(Interrupted("interrupted; run the same command again to resume").into())
        }
        outcome = scan.run() => outcome,
    };
    let totals = scan.finish();
    journal.flush()?;
    if let Err(error) = outcome {
        // Closing removes a journal without rows. Reads in flight are not waited for.
        return journal.close().map_or_else(|second| Err(second.into()), |()| Err(error));
    }
    let filled = match fill {
        Some(fill) => tokio::task::spawn_blocking(|| fill.finish()).await?,
        None => Filled::default(),
    };

    let (blobs_resumed, blobs_unchanged) = (totals.blobs_resumed, totals.blobs_unchanged());
    let bytes_read = totals.bytes_read();
    let exclude_unused = totals.exclude_unused(&spec.exclude);
    let chunks = spec.chunks.or(earlier.map(|earlier| earlier.chunks().min(totals.blobs).max(1)));
    let published = publish(spec, &header, totals, chunks, &mut journal, &columns);
    let published = match published {
        Ok(published) => published,
        Err(error) => {
            journal.close()?;
            return Err(error);
        }
    };
    journal.remove()?;
    Ok(BuildReport {
        digest: spec.output.clone(),
        summary: published.summary,
        blobs_resumed,
        blobs_unchanged,
        bytes_read,
        blobs_cached: filled.blobs,
        bytes_cached: filled.bytes,
        items_without_columns: published.items_without_columns,
        columns_without_items: published.columns_without_items,
        exclude_unused,
        seconds: started.elapsed().as_secs_f64(),
        peak_memory: peak_memory(),
    })
}

/// Opens the earlier digest.
fn earlier(path: &Path, header: &JournalHeader) -> anyhow::Result<EarlierDigest> {
    let digest = forebay_digest::open(path)?.digest;
    EarlierDigest::new(digest, header).map_err(|difference| {
        anyhow!(
            "`{}` is no earlier digest of the same build: {}; leave out --from",
            path.display(),
            difference.escape_debug()
        )
    })
}

/// Whether every bracket of a pattern has its counterpart.
fn is_balanced(glob: &str) -> bool {
    let is_paired =
        |open: char, close: char| glob.matches(open).count() == glob.matches(close).count();
    is_paired('[', ']') && is_paired('{', '}')
}

/// Sets the total of a visible progress bar from a second listing, which runs in the background.
fn count_bytes(origin: &Origin, progress: &ProgressBar) {
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

/// Peak memory of this process; 0 where the system does not report it.
fn peak_memory() -> ByteSize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
    ByteSize::kib(kib.unwrap_or(0))
}
