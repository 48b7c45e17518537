//! The cached loader: takes part in the rotation of the dataset, as the Python loader does. It
//! sends reports, draws from the draw set, and sends prefetch hints to the agent.
//!
//! All of that runs on a thread, which reads ahead of the computation, as PyTorch's workers do. The
//! job notifies the thread of yielded batches and of their times.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use forebay_client::{
    ClientError, ItemMap, Job, JobRun, ManagerLink, NextBatch, PresenceCache, Reader,
    ReportOutcome, View,
};
use forebay_core::{
    agent::prefetch_window::PrefetchWindow,
    cluster::ring::Seeds,
    train::{
        benefit::BatchTime,
        manager::{Report, ReportAnswer},
        sampler::EpochPlan,
    },
};
use forebay_digest::Digest;
use forebay_wire::Refusal;

use super::{Args, Batch, Loader, READ_AHEAD};

/// Items of loading half-chunks in one prefetch hint.
const LOADING_HINT_ITEMS: usize = 1024;
/// Interval of checks whether a report is due, while the thread waits.
const TICK: Duration = Duration::from_millis(10);

/// The side of the job.
pub struct CachedLoader {
    /// `None` ends an epoch.
    batches: Receiver<Option<Batch<View>>>,
    notices: Sender<Notice>,
    thread: Option<JoinHandle<anyhow::Result<Counters>>>,
}

type Counters = BTreeMap<String, u64>;

/// A notice from the job to the thread.
enum Notice {
    /// The oldest batch was yielded.
    Yielded,
    /// The job has computed on the last batch.
    Computed(BatchTime),
}

/// The side of the thread.
struct ReadThread {
    connection: Connection,
    items: Arc<ItemMap>,
    run: JobRun,
    job: Job,
    plan: EpochPlan,
    prefetch_window: PrefetchWindow,
    batches: SyncSender<Option<Batch<View>>>,
    notices: Receiver<Notice>,
}

/// The connection to the nodes and to the agent.
struct Connection {
    reader: Reader,
    presence: PresenceCache,
}

impl ManagerLink for Connection {
    type Error = ClientError;

    fn presence(&mut self) -> Result<Arc<[u8]>, ClientError> {
        if let Some(mut query) = self.presence.asks() {
            let bytes = self.reader.presence(&mut query.known);
            self.presence.answered(query, bytes);
        }
        Ok(self.presence.bits())
    }

    fn report(
        &mut self,
        report: &Report,
    ) -> Result<Option<Result<ReportAnswer, Refusal>>, ClientError> {
        match self.reader.report(report) {
            Ok(answer) => Ok(answer.map(Ok)),
            Err(ClientError::Refused(refusal)) => Ok(Some(Err(refusal))),
            Err(error) => Err(error),
        }
    }
}

impl CachedLoader {
    pub fn new(args: &Args, digest: &Digest, nodes: &Seeds, agent: &Path) -> anyhow::Result<Self> {
        // The thread holds one more.
        let (to_job, batches) = mpsc::sync_channel(READ_AHEAD - 1);
        let (notices, from_job) = mpsc::channel();
        let reader = Reader::new(digest.clone(), Some(nodes.clone()), agent, &args.name);
        let worker = ReadThread::new(args, reader, to_job, from_job)?;
        let epochs = args.epochs;
        let thread = Some(thread::spawn(move || worker.run(epochs)));
        Ok(Self { batches, notices, thread })
    }

    /// Waits for the end of the thread: its counters, or its error.
    fn join(&mut self) -> anyhow::Result<Counters> {
        let thread = self.thread.take().context("the loader has ended already")?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Loader for CachedLoader {
    type Content = View;

    fn begin(&mut self, _epoch: u64) -> anyhow::Result<()> {
        Ok(())
    }

    fn next(&mut self) -> anyhow::Result<Option<Batch<View>>> {
        let Ok(batch) = self.batches.recv() else {
            self.join()?;
            bail!("the loader ended before the job");
        };
        if batch.is_some() {
            // If the thread has ended, `join` returns its error.
            let _ = self.notices.send(Notice::Yielded);
        }
        Ok(batch)
    }

    fn on_computed(&mut self, time: BatchTime) {
        let _ = self.notices.send(Notice::Computed(time));
    }

    fn finish(&mut self) -> anyhow::Result<(u64, Counters)> {
        let counters = self.join()?;
        let bytes = counters.get("agent_origin_bytes");
        Ok((*bytes.context("the agent reports no `agent_origin_bytes`")?, counters))
    }
}

impl ReadThread {
    fn new(
        args: &Args,
        mut reader: Reader,
        batches: SyncSender<Option<Batch<View>>>,
        notices: Receiver<Notice>,
    ) -> anyhow::Result<Self> {
        let stats = reader.node_stats().context("the node does not answer")?;
        let capacity = stats.iter().find(|(name, _)| name == "capacity_bytes");
        let summary = reader.digest().summary();
        let blob_bytes = summary.bytes / summary.blobs.max(1);
        let items = Arc::new(ItemMap::new(reader.digest())?);
        let plan = EpochPlan::new(args.seed, 0, args.batch);
        let epoch_batches = summary.items.div_ceil(args.batch.into());
        Ok(Self {
            run: JobRun { incarnation: fastrand::u64(..), gpus: 1, epoch_batches },
            job: Job::new(&items, plan)?,
            connection: Connection { presence: PresenceCache::new(summary.blobs), reader },
            items,
            plan,
            prefetch_window: PrefetchWindow::new(capacity.map(|(_, bytes)| *bytes), blob_bytes),
            batches,
            notices,
        })
    }

    /// Reads all epochs. Returns the counters of the sampler and of the agent.
    fn run(mut self, epochs: u64) -> anyhow::Result<Counters> {
        let mut counters = Counters::new();
        for epoch in 0..epochs {
            let plan = EpochPlan { epoch, ..self.plan };
            let mut job = Job::new(&self.items, plan)?;
            job.start_reporting(self.run, epoch + 1, Some(&mut self.job));
            self.job = job;
            self.report()?;
            while let Some(batch) = self.read()? {
                self.send(Some(batch))?;
            }
            self.send(None)?;
            // Reports go on until all batches are yielded.
            while self.job.batches_yielded() < self.job.batches() {
                self.wait()?;
            }
            self.report()?;
            let drawn = self.job.counts();
            for (name, count) in [
                ("drawn_resident", drawn.resident),
                ("drawn_claimed", drawn.claimed),
                ("drawn_uncached", drawn.uncached),
            ] {
                *counters.entry(name.to_owned()).or_default() += count;
            }
        }
        self.connection.reader.leave()?;
        counters.insert("reports".to_owned(), self.job.reports());
        counters.extend(self.connection.reader.agent_stats()?);
        Ok(counters)
    }

    /// Draws a batch and reads it.
    fn read(&mut self) -> anyhow::Result<Option<Batch<View>>> {
        self.report()?;
        self.pace()?;
        let presence = self.connection.presence()?;
        let next = self.job.next_batch(&presence);
        let Some(NextBatch { items, missing, is_probe }) = next else { return Ok(None) };
        self.connection.presence.drew(items.len());
        let hits_before = self.connection.reader.counts().hits;
        let contents = if is_probe {
            let contents = self.connection.reader.get_from_origin(&items)?;
            contents.into_iter().map(View::from).collect()
        } else {
            self.connection.reader.prefetch_hint(&missing)?;
            self.connection
                .reader
                .prefetch_hint(&self.job.upcoming(self.prefetch_window.items()))?;
            self.connection.reader.get_views(&items)?
        };
        let hits = self.connection.reader.counts().hits - hits_before;
        Ok(Some(Batch { items, contents, hits }))
    }

    /// Pacing: pauses for slower jobs, once the job has used up its batches.
    fn pace(&mut self) -> anyhow::Result<()> {
        while self.job.should_wait() {
            let (is_idle, began) = (!self.job.has_drawn(), Instant::now());
            self.wait()?;
            if is_idle {
                self.job.on_waited(began.elapsed());
            }
        }
        Ok(())
    }

    /// Sends a batch to the job, when its queue has space.
    fn send(&mut self, mut batch: Option<Batch<View>>) -> anyhow::Result<()> {
        loop {
            match self.batches.try_send(batch) {
                Ok(()) => {
                    self.drain_notices();
                    return Ok(());
                }
                Err(TrySendError::Disconnected(_)) => bail!("the job has ended"),
                Err(TrySendError::Full(unsent)) => batch = unsent,
            }
            self.wait()?;
        }
    }

    /// Waits for a notice from the job, at most for [`TICK`], and reports if that is due.
    fn wait(&mut self) -> anyhow::Result<()> {
        match self.notices.recv_timeout(TICK) {
            Ok(notice) => self.on_notice(&notice),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the job has ended"),
        }
        self.drain_notices();
        self.report()
    }

    fn drain_notices(&mut self) {
        while let Ok(notice) = self.notices.try_recv() {
            self.on_notice(&notice);
        }
    }

    fn on_notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Yielded => {
                self.job.on_yielded();
            }
            Notice::Computed(time) => {
                self.job.on_computed(*time);
            }
        }
    }

    /// Reports, if that is due, and sends a prefetch hint for loading half-chunks.
    fn report(&mut self) -> anyhow::Result<()> {
        match self.job.report(&mut self.connection)? {
            ReportOutcome::Nothing => {}
            ReportOutcome::Answered => {
                let presence = self.connection.presence()?;
                let loading = self.job.loading_items(&presence, LOADING_HINT_ITEMS);
                self.connection.reader.prefetch_hint(&loading)?;
            }
            ReportOutcome::Fenced(text) => bail!(text),
        }
        Ok(())
    }
}
