//! The first phase of a build: lists, plans and hashes objects into a complete journal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::anyhow;
use forebay_core::dataset::DatasetIdHasher;
use forebay_core::dataset::ListedObject;
use forebay_digest::{Blob, BlobPlan, EarlierDigest, Journal, Layout, Planner, check_name};
use forebay_origin::{Origin, OriginError};
use futures::{Stream, StreamExt as _, stream::BoxStream};
use indicatif::ProgressBar;

use super::{Spec, archive, fill::FillSink};
use crate::{
    commands::digest::hash::{self, Task},
    output::count,
};

/// Interval between flushes of the journal: the work that a crash may cost.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// The scan of an origin.
pub struct Scan<'a> {
    spec: &'a Spec,
    origin: &'a Origin,
    earlier: Option<&'a EarlierDigest>,
    fill: Option<FillSink>,
    journal: &'a mut Journal,
    progress: &'a ProgressBar,
    totals: Totals,
}

/// Totals of the rows in the journal.
pub struct Totals {
    /// The dataset id, without the chunking.
    pub id: DatasetIdHasher,
    /// Rows.
    pub blobs: u64,
    /// Items in them.
    pub items: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Whether a row has a hash tree.
    pub has_trees: bool,
    /// Rows of an earlier run.
    pub blobs_resumed: u64,
    /// Bytes of rows that this run has made.
    bytes_made: u64,
    /// Those of them that the earlier digest has.
    unchanged: Arc<Unchanged>,
    /// For each pattern of --exclude, whether it has matched.
    exclude_used: Arc<[AtomicBool]>,
}

/// Rows that the earlier digest has.
#[derive(Default)]
struct Unchanged {
    blobs: AtomicU64,
    bytes: AtomicU64,
}

impl Totals {
    /// Rows that the earlier digest has.
    pub fn blobs_unchanged(&self) -> u64 {
        self.unchanged.blobs.load(Relaxed)
    }

    /// Bytes that this run has read.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_made.saturating_sub(self.unchanged.bytes.load(Relaxed))
    }

    fn new(spec: &Spec) -> Self {
        Self {
            id: DatasetIdHasher::new(),
            blobs: 0,
            items: 0,
            bytes: 0,
            has_trees: false,
            blobs_resumed: 0,
            bytes_made: 0,
            unchanged: Arc::default(),
            exclude_used: spec.exclude.iter().map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// The patterns that matched nothing.
    pub fn exclude_unused(&self, exclude: &[String]) -> Vec<String> {
        let unused = exclude.iter().zip(self.exclude_used.iter());
        unused.filter(|(_, used)| !used.load(Relaxed)).map(|(glob, _)| glob.clone()).collect()
    }

    fn add(&mut self, row: &Blob) {
        self.id.push(&row.address, row.length());
        self.blobs += 1;
        self.items += row.items.len() as u64;
        self.bytes += row.length();
        self.has_trees |= row.tree.is_some();
    }
}

impl Unchanged {
    fn add(&self, plan: &BlobPlan) {
        self.blobs.fetch_add(1, Relaxed);
        self.bytes.fetch_add(plan.length(), Relaxed);
    }
}

impl<'a> Scan<'a> {
    pub fn new(
        spec: &'a Spec,
        origin: &'a Origin,
        earlier: Option<&'a EarlierDigest>,
        fill: Option<FillSink>,
        journal: &'a mut Journal,
        progress: &'a ProgressBar,
    ) -> Self {
        Self { spec, origin, earlier, fill, journal, progress, totals: Totals::new(spec) }
    }

    /// Totals of the rows so far.
    pub fn finish(self) -> Totals {
        self.totals
    }

    /// Scans the origin. The future may be dropped at any time; rows in the journal stay.
    pub async fn run(&mut self) -> anyhow::Result<()> {
        match self.scan(self.origin.list()).await {
            Err(error) if matches!(error.downcast_ref(), Some(OriginError::Unsorted)) => {
                // The rows so far are in the order of an unsorted listing. A prefix that agrees
                // with the sorted listing is resumed, the rest is hashed again.
                self.totals = Totals::new(self.spec);
                self.progress.set_position(0);
                self.journal.rewind()?;
                let listing = self.origin.list_sorted().await?;
                self.scan(futures::stream::iter(listing.into_iter().map(Ok)).boxed()).await
            }
            outcome => outcome,
        }
    }

    async fn scan(
        &mut self,
        listing: BoxStream<'_, Result<ListedObject, OriginError>>,
    ) -> anyhow::Result<()> {
        let exclude = Exclude { globs: &self.spec.exclude, used: self.totals.exclude_used.clone() };
        let listing = included(listing, exclude).boxed();
        let mut plans = plans(self.origin, self.earlier, listing, self.spec.layout);
        let first = loop {
            let Some(plan) = plans.next().await.transpose()? else { return Ok(()) };
            let Some(row) = self.journal.recall(&plan)? else { break plan };
            self.totals.add(&row);
            self.totals.blobs_resumed += 1;
            self.progress.inc(row.length());
        };
        let (earlier, namespace) = (self.earlier, &self.spec.namespace);
        let unchanged = Arc::clone(&self.totals.unchanged);
        let tasks = futures::stream::once(async { Ok(first) }).chain(plans).map(move |plan| {
            let plan = plan?;
            let known = earlier.map(|earlier| earlier.recall(namespace, &plan)).transpose()?;
            let known = known.flatten().inspect(|_| unchanged.add(&plan));
            Ok(Task { plan, known })
        });
        let mut rows = std::pin::pin!(hash::rows::<anyhow::Error>(
            self.origin,
            namespace,
            self.fill.clone(),
            tasks
        ));
        let mut flushed = Instant::now();
        while let Some(row) = rows.next().await {
            let row = row?;
            self.journal.push(&row)?;
            self.totals.add(&row);
            self.totals.bytes_made += row.length();
            self.progress.inc(row.length());
            self.progress.set_message(count(self.totals.items, "item"));
            if flushed.elapsed() > FLUSH_INTERVAL {
                self.journal.flush()?;
                flushed = Instant::now();
            }
        }
        Ok(())
    }
}

/// The listing without excluded objects. An invalid name is an error.
fn included<'a>(
    listing: BoxStream<'a, Result<ListedObject, OriginError>>,
    exclude: Exclude<'a>,
) -> impl Stream<Item = anyhow::Result<ListedObject>> + Send + 'a {
    listing.filter_map(move |listed| {
        let kept = match listed {
            Ok(listed) if exclude.matches(&listed.object) => None,
            Ok(listed) => Some(match check_name(&listed.object) {
                Ok(()) => Ok(listed),
                Err(problem) => Err(anyhow::anyhow!(
                    "the origin has {problem}; rename it, or leave it out with --exclude"
                )),
            }),
            Err(error) => Some(Err(error.into())),
        };
        futures::future::ready(kept)
    })
}

type Plans<'a> = BoxStream<'a, anyhow::Result<BlobPlan>>;

/// Plans the blobs of a listing.
fn plans<'a>(
    origin: &'a Origin,
    earlier: Option<&'a EarlierDigest>,
    listing: BoxStream<'a, anyhow::Result<ListedObject>>,
    layout: Layout,
) -> Plans<'a> {
    match layout {
        Layout::Files => packed(listing, Planner::new(None)).boxed(),
        Layout::Pack(size) => packed(listing, Planner::new(Some(size))).boxed(),
        Layout::Records(records) => {
            let of_object = move |listed: anyhow::Result<ListedObject>| -> Plans<'a> {
                match listed.and_then(|listed| {
                    records.plan(listed).map_err(|error| anyhow!("{error}; {UNEVEN}"))
                }) {
                    Ok(plans) => futures::stream::iter(plans.map(Ok)).boxed(),
                    Err(error) => futures::stream::iter([Err(error)]).boxed(),
                }
            };
            listing.map(of_object).flatten().boxed()
        }
        Layout::Tar(pack) => {
            let of_archive = move |listed: anyhow::Result<ListedObject>| async move {
                let listed = listed?;
                let known = earlier.map(|earlier| earlier.plans_of(&listed)).transpose()?;
                match known.filter(|plans| !plans.is_empty()) {
                    Some(plans) => Ok(plans),
                    None => archive::plan(origin.clone(), listed, pack).await,
                }
            };
            let archives = listing.map(of_archive).buffered(archive::PARALLEL_ARCHIVES);
            let plans = archives.map(|plans| match plans {
                Ok(plans) => plans.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            });
            plans.map(futures::stream::iter).flatten().boxed()
        }
    }
}

const UNEVEN: &str = "check --record-size and --record-header, or leave it out with --exclude";

/// Plans blobs of whole objects, each alone or in packs.
fn packed(
    listing: BoxStream<'_, anyhow::Result<ListedObject>>,
    planner: Planner,
) -> impl Stream<Item = anyhow::Result<BlobPlan>> + Send {
    futures::stream::unfold((listing, Some(planner)), |(mut listing, mut planner)| async move {
        let planning = planner.as_mut()?;
        let ready = match listing.next().await {
            Some(Ok(listed)) => planning.push(listed).into_iter().map(Ok).collect(),
            Some(Err(error)) => {
                planner = None;
                vec![Err(error)]
            }
            None => planner.take()?.finish().into_iter().map(Ok).collect(),
        };
        Some((futures::stream::iter(ready), (listing, planner)))
    })
    .flatten()
}

/// The patterns of --exclude.
struct Exclude<'a> {
    globs: &'a [String],
    used: Arc<[AtomicBool]>,
}

impl Exclude<'_> {
    fn matches(&self, object: &str) -> bool {
        let file_name = object.rsplit('/').next().unwrap_or(object);
        let matched = self.globs.iter().position(|glob| {
            fast_glob::glob_match(glob, if glob.contains('/') { object } else { file_name })
        });
        matched.inspect(|at| self.used[*at].store(true, Relaxed)).is_some()
    }
}
