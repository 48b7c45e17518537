//! `forebay digest build`: from a URL to a digest.
//!
//! Two phases. First the origin is listed, planned and hashed, and finished rows go to a journal
//! beside the output; this part is long, and goes on where it was after any interruption. Then the
//! digest is written from the journal and published whole.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use forebay_core::{
    ByteSize, Namespace,
    chunking::Chunking,
    digest::{
        Blob, DatasetIdHasher, Header, Summary,
        plan::{BlobPlan, Layout, Listed, Planner, check_name},
    },
};
use forebay_digest::{Journal, JournalHeader, PendingDigest};
use forebay_origin::{Options, Origin, OriginError};
use futures::{Stream, StreamExt as _, stream::BoxStream};
use indicatif::ProgressBar;
use serde::Serialize;

use super::{columns::Columns, hash};
use crate::{
    output::{self, Format, Verdict},
    reach::{Reach, namespace, namespace_name},
    stop::{self, Interrupted},
};

pub const EXAMPLES: &str = "\
Examples:
  forebay digest build ./images -o images.digest
  forebay digest build s3://bucket/train -o train.digest --layout pack --columns labels.csv
  forebay digest build s3://bucket/x -o x.digest --endpoint http://127.0.0.1:9000
  forebay digest build gs://public-data/x -o x.digest --anonymous --exclude '**/*.txt'

Credentials come from the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws,
AZURE_STORAGE_ACCOUNT_NAME and ..._KEY, GOOGLE_APPLICATION_CREDENTIALS).
Columns: a CSV file with a header; its first column names the object, relative to URL.";

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
    /// The size that packs of small neighbours may reach.
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    pack_size: ByteSize,
    /// Key file of the namespace; the public namespace if absent.
    #[arg(long, value_name = "FILE")]
    namespace: Option<PathBuf>,
    /// CSV file with columns of your own, such as labels.
    #[arg(long, value_name = "FILE")]
    columns: Option<PathBuf>,
    /// Cut into so many chunks, instead of chunks of a tenth or 15 GB.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    chunks: Option<u64>,
    /// Leave out objects whose key matches; may be repeated.
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
    /// How long it took.
    pub seconds: f64,
    /// The most memory that this process has used.
    pub peak_memory: ByteSize,
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let layout = match args.layout {
        LayoutName::Files => Layout::Files,
        LayoutName::Pack => {
            ensure!(
                args.pack_size > ByteSize::ZERO,
                "a pack size of nothing packs nothing; try 1MiB"
            );
            Layout::Pack(args.pack_size)
        }
    };
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

fn describe(report: &Report) -> String {
    let Report { summary, seconds, .. } = report;
    let resumed = match report.blobs_resumed {
        0 => String::new(),
        resumed => format!(" ({resumed} blobs were already done)"),
    };
    let unlabelled = match report.items_without_columns {
        0 => String::new(),
        items => format!("note     {items} items have no row in the columns' file\n"),
    };
    format!(
        "digest   {}\ndataset  {}\nitems    {} in {} blobs, {}\nchunks   {}\ntime     {seconds:.1} s, {}/s{resumed}\n{unlabelled}",
        report.digest.display(),
        summary.dataset,
        summary.items,
        summary.blobs,
        ByteSize(summary.bytes),
        summary.chunking.chunks(),
        rate(report.bytes_read, *seconds),
    )
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
    ensure!(!spec.output.is_dir(), "`{}` is a directory; name a file in it", spec.output.display());
    let origin = Origin::locate(&spec.url, &spec.options).await?;
    if let Origin::Local(tree) = &origin {
        ensure!(
            !tree.would_hold(&spec.output),
            "`{}` lies in the dataset itself, and would change it; name a file elsewhere",
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

    let mut work =
        Work { spec, origin: &origin, journal: &mut journal, progress, resumed: 0, read: 0 };
    let outcome = tokio::select! {
        outcome = work.run() => outcome,
        asked = stop::asked() => {
            asked?;
            Err(Interrupted("stopped; run the same command again to go on from here").into())
        }
    };
    let (blobs_resumed, bytes_read) = (work.resumed, work.read);
    journal.flush()?;
    if let Err(error) = outcome {
        // A journal without rows is of no use to the next run.
        return journal.close().map_or_else(|second| Err(second.into()), |()| Err(error));
    }

    let published = publish(spec, &header, &mut journal, &columns);
    let (summary, items_without_columns) = match published {
        Ok(published) => published,
        Err(error) => {
            journal.close()?;
            return Err(error);
        }
    };
    journal.remove()?;
    Ok(Report {
        digest: spec.output.clone(),
        summary,
        blobs_resumed,
        bytes_read,
        items_without_columns,
        seconds: started.elapsed().as_secs_f64(),
        peak_memory: peak_memory(),
    })
}

/// The first phase: everything up to a complete journal.
struct Work<'a> {
    spec: &'a Spec,
    origin: &'a Origin,
    journal: &'a mut Journal,
    progress: &'a ProgressBar,
    resumed: u64,
    read: u64,
}

impl Work<'_> {
    async fn run(&mut self) -> anyhow::Result<()> {
        match self.hash(self.origin.list()).await {
            Err(error) if matches!(error.downcast_ref(), Some(OriginError::Unsorted)) => {
                // Rows so far are in the order of an unsorted listing; those that are a prefix of the
                // sorted one are recalled, the others are made again.
                (self.resumed, self.read) = (0, 0);
                self.progress.set_position(0);
                self.journal.rewind()?;
                let listing = self.origin.list_sorted().await?;
                self.hash(futures::stream::iter(listing.into_iter().map(Ok)).boxed()).await
            }
            outcome => outcome,
        }
    }

    async fn hash(
        &mut self,
        listing: BoxStream<'_, Result<Listed, OriginError>>,
    ) -> anyhow::Result<()> {
        let mut plans = plans(listing, self.spec.layout, &self.spec.exclude).boxed();
        let first = loop {
            let Some(plan) = plans.next().await.transpose()? else { return Ok(()) };
            if self.journal.recall(&plan)?.is_none() {
                break plan;
            }
            self.resumed += 1;
            self.progress.inc(plan.length());
        };
        let plans = futures::stream::once(async { Ok(first) }).chain(plans);
        let mut rows =
            std::pin::pin!(hash::rows::<anyhow::Error>(self.origin, &self.spec.namespace, plans));
        let mut flushed = Instant::now();
        while let Some(row) = rows.next().await {
            let row = row?;
            self.journal.push(&row)?;
            self.read += row.length();
            self.progress.inc(row.length());
            if flushed.elapsed() > Duration::from_secs(1) {
                self.journal.flush()?;
                flushed = Instant::now();
            }
        }
        Ok(())
    }
}

/// The listing as blobs, without what is to be left out.
fn plans<'a>(
    listing: BoxStream<'a, Result<Listed, OriginError>>,
    layout: Layout,
    exclude: &'a [String],
) -> impl Stream<Item = anyhow::Result<BlobPlan>> + Send + 'a {
    let state = (listing, Some(Planner::new(layout)));
    futures::stream::unfold(state, move |(mut listing, mut planner)| async move {
        let planning = planner.as_mut()?;
        let ready = match listing.next().await {
            Some(Ok(listed)) if excluded(&listed.object, exclude) => Vec::new(),
            Some(Ok(listed)) => match check_name(&listed.object) {
                Ok(()) => planning.push(listed).into_iter().map(Ok).collect(),
                Err(problem) => {
                    planner = None;
                    vec![Err(anyhow::anyhow!(
                        "the origin holds {problem}; rename it, or leave it out with --exclude"
                    ))]
                }
            },
            Some(Err(error)) => {
                planner = None;
                vec![Err(error.into())]
            }
            None => planner.take()?.finish().into_iter().map(Ok).collect(),
        };
        Some((futures::stream::iter(ready), (listing, planner)))
    })
    .flatten()
}

fn excluded(object: &str, globs: &[String]) -> bool {
    globs.iter().any(|glob| fast_glob::glob_match(glob, object))
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

/// The second phase: from a complete journal to a digest.
fn publish(
    spec: &Spec,
    header: &JournalHeader,
    journal: &mut Journal,
    columns: &Columns,
) -> anyhow::Result<(Summary, u64)> {
    let (mut blobs, mut items, mut bytes) = (0_u64, 0_u64, 0_u64);
    let mut id = DatasetIdHasher::new();
    for row in journal.rows()? {
        id.push(&row.address, row.length());
        blobs += 1;
        items += row.items.len() as u64;
        bytes = bytes.checked_add(row.length()).context("the dataset is impossibly large")?;
    }
    if blobs == 0 {
        bail!("there are no objects under `{}`; check the prefix and --exclude", header.origin);
    }
    let chunking = match spec.chunks {
        Some(chunks) => Chunking::into_chunks(chunks, blobs)?,
        None => Chunking::for_dataset(ByteSize(bytes), blobs),
    };
    let summary = Summary {
        dataset: id.finish(chunking),
        namespace: header.namespace.clone(),
        origin: header.origin.clone(),
        layout: header.layout.clone(),
        chunking,
        items,
        blobs,
        bytes,
    };
    let unlabelled = write(&spec.output, &summary, journal, columns)?;
    Ok((summary, unlabelled))
}

fn write(
    output: &Path,
    summary: &Summary,
    journal: &mut Journal,
    columns: &Columns,
) -> anyhow::Result<u64> {
    let header = Header { summary: summary.clone(), columns: columns.kinds.clone() };
    let mut pending = PendingDigest::create(output, header)?;
    let mut unlabelled = 0;
    for row in journal.rows()? {
        if columns.kinds.is_empty() {
            pending.push(&row, &[])?;
            continue;
        }
        let Blob { parts, .. } = &row;
        let values: Vec<_> = parts.iter().map(|part| columns.values(&part.object)).collect();
        unlabelled += parts.iter().filter(|part| !columns.knows(&part.object)).count() as u64;
        pending.push(&row, &values)?;
    }
    if !columns.kinds.is_empty() && unlabelled == summary.items {
        bail!(
            "none of the {} objects in the columns' file is in the dataset; its first column names objects relative to {}",
            columns.len(),
            summary.origin
        );
    }
    pending.publish()?;
    Ok(unlabelled)
}

/// The most memory that this process has used; nothing where the system does not tell.
fn peak_memory() -> ByteSize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
    ByteSize::kib(kib.unwrap_or(0))
}
