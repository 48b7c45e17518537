//! The first phase of a build: everything up to a complete journal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use forebay_core::digest::{
    Blob, DatasetIdHasher,
    plan::{BlobPlan, Layout, Listed, Planner, check_name},
};
use forebay_digest::Journal;
use forebay_origin::{Origin, OriginError};
use futures::{Stream, StreamExt as _, stream::BoxStream};
use indicatif::ProgressBar;

use super::{Spec, archive};
use crate::{digest::hash, output::count};

/// What a kill may cost.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// Lists, plans and hashes the origin's objects, and journals the rows.
pub struct Gathering<'a> {
    spec: &'a Spec,
    origin: &'a Origin,
    journal: &'a mut Journal,
    progress: &'a ProgressBar,
    gathered: Gathered,
}

/// What the rows of the journal add up to.
pub struct Gathered {
    /// The dataset's id, but for its chunking.
    pub id: DatasetIdHasher,
    /// Rows.
    pub blobs: u64,
    /// Items in them.
    pub items: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Rows that an earlier run had already made.
    pub blobs_resumed: u64,
    /// Bytes that this run has read.
    pub bytes_read: u64,
    /// For each pattern of what is left out, whether it has matched.
    exclude_used: Arc<[AtomicBool]>,
}

impl Gathered {
    fn nothing(spec: &Spec) -> Self {
        Self {
            id: DatasetIdHasher::new(),
            blobs: 0,
            items: 0,
            bytes: 0,
            blobs_resumed: 0,
            bytes_read: 0,
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
    }
}

impl<'a> Gathering<'a> {
    /// Nothing has been gathered yet.
    pub fn new(
        spec: &'a Spec,
        origin: &'a Origin,
        journal: &'a mut Journal,
        progress: &'a ProgressBar,
    ) -> Self {
        Self { spec, origin, journal, progress, gathered: Gathered::nothing(spec) }
    }

    /// What has been gathered.
    pub fn finish(self) -> Gathered {
        self.gathered
    }

    /// Gathers all. May be dropped at any time; what is in the journal by then counts.
    pub async fn run(&mut self) -> anyhow::Result<()> {
        match self.gather(self.origin.list()).await {
            Err(error) if matches!(error.downcast_ref(), Some(OriginError::Unsorted)) => {
                // Rows so far are in the order of an unsorted listing; those that are a prefix of the
                // sorted one are recalled, the others are made again.
                self.gathered = Gathered::nothing(self.spec);
                self.progress.set_position(0);
                self.journal.rewind()?;
                let listing = self.origin.list_sorted().await?;
                self.gather(futures::stream::iter(listing.into_iter().map(Ok)).boxed()).await
            }
            outcome => outcome,
        }
    }

    async fn gather(
        &mut self,
        listing: BoxStream<'_, Result<Listed, OriginError>>,
    ) -> anyhow::Result<()> {
        let exclude =
            Exclude { globs: &self.spec.exclude, used: self.gathered.exclude_used.clone() };
        let listing = named(listing, exclude).boxed();
        let mut plans = plans(self.origin, listing, self.spec.layout);
        let first = loop {
            let Some(plan) = plans.next().await.transpose()? else { return Ok(()) };
            let Some(row) = self.journal.recall(&plan)? else { break plan };
            self.gathered.add(&row);
            self.gathered.blobs_resumed += 1;
            self.progress.inc(row.length());
        };
        let plans = futures::stream::once(async { Ok(first) }).chain(plans);
        let mut rows =
            std::pin::pin!(hash::rows::<anyhow::Error>(self.origin, &self.spec.namespace, plans));
        let mut flushed = Instant::now();
        while let Some(row) = rows.next().await {
            let row = row?;
            self.journal.push(&row)?;
            self.gathered.add(&row);
            self.gathered.bytes_read += row.length();
            self.progress.inc(row.length());
            self.progress.set_message(count(self.gathered.items, "item"));
            if flushed.elapsed() > FLUSH_EVERY {
                self.journal.flush()?;
                flushed = Instant::now();
            }
        }
        Ok(())
    }
}

/// The listing without what is to be left out, of objects whose names can be used.
fn named<'a>(
    listing: BoxStream<'a, Result<Listed, OriginError>>,
    exclude: Exclude<'a>,
) -> impl Stream<Item = anyhow::Result<Listed>> + Send + 'a {
    listing.filter_map(move |listed| {
        let kept = match listed {
            Ok(listed) if exclude.matches(&listed.object) => None,
            Ok(listed) => Some(match check_name(&listed.object) {
                Ok(()) => Ok(listed),
                Err(problem) => Err(anyhow::anyhow!(
                    "the origin holds {problem}; rename it, or leave it out with --exclude"
                )),
            }),
            Err(error) => Some(Err(error.into())),
        };
        futures::future::ready(kept)
    })
}

type Plans<'a> = BoxStream<'a, anyhow::Result<BlobPlan>>;

/// The listing as blobs.
fn plans<'a>(
    origin: &'a Origin,
    listing: BoxStream<'a, anyhow::Result<Listed>>,
    layout: Layout,
) -> Plans<'a> {
    match layout {
        Layout::Files => packed(listing, Planner::new(None)).boxed(),
        Layout::Pack(size) => packed(listing, Planner::new(Some(size))).boxed(),
        Layout::Records(records) => {
            let of_object = move |listed: anyhow::Result<Listed>| -> Plans<'a> {
                match listed.and_then(|listed| records.plan(listed).context(UNEVEN)) {
                    Ok(plans) => futures::stream::iter(plans.map(Ok)).boxed(),
                    Err(error) => futures::stream::iter([Err(error)]).boxed(),
                }
            };
            listing.map(of_object).flatten().boxed()
        }
        Layout::Tar(pack) => {
            let of_archive = move |listed: anyhow::Result<Listed>| async move {
                archive::plan(origin.clone(), listed?, pack).await
            };
            let archives = listing.map(of_archive).buffered(archive::AT_ONCE);
            let plans = archives.map(|plans| match plans {
                Ok(plans) => plans.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            });
            plans.map(futures::stream::iter).flatten().boxed()
        }
    }
}

const UNEVEN: &str = "check --record-size and --record-header, or leave it out with --exclude";

/// Whole objects as blobs, one by one or in packs.
fn packed(
    listing: BoxStream<'_, anyhow::Result<Listed>>,
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

/// What is left out.
struct Exclude<'a> {
    globs: &'a [String],
    used: Arc<[AtomicBool]>,
}

impl Exclude<'_> {
    fn matches(&self, object: &str) -> bool {
        let last_step = object.rsplit('/').next().unwrap_or(object);
        let matched = self.globs.iter().position(|glob| {
            fast_glob::glob_match(glob, if glob.contains('/') { object } else { last_step })
        });
        matched.inspect(|at| self.used[*at].store(true, Relaxed)).is_some()
    }
}
