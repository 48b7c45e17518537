//! Through forebay: the job takes part in the rotation of its dataset, as Python's loader does. It reports,
//! draws from what the node has opened, and tells its agent what it will want.
//!
//! All of that is on a thread of its own, which reads ahead while the job computes, as PyTorch's workers do. The
//! job tells it what it was given, and how long that took.

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
    Ask, ClientError, Drawn, Epoch, Layout, Member, Reader, RecentPresence, Reported, View,
};
use forebay_core::{
    digest::Digest,
    look_ahead::LookAhead,
    manager::{Answer, Report},
    ring::Contacts,
    sampler::{Plan, Sampler},
};
use forebay_wire::Refusal;

use super::{AHEAD, Args, Batch, Loader};

/// Items of pieces that are on their way which the agent is told of at a time.
const LOADING_AT_ONCE: usize = 1024;
/// While nothing can be read ahead, it is looked so often whether it is time for a report.
const TICK: Duration = Duration::from_millis(10);

/// The job's side.
pub struct Through {
    /// Nothing is the end of an epoch.
    batches: Receiver<Option<Batch<View>>>,
    notices: Sender<Notice>,
    reading: Option<JoinHandle<anyhow::Result<Counted>>>,
}

type Counted = BTreeMap<String, u64>;

/// What the job tells its loader.
enum Notice {
    /// It was given the oldest batch.
    Yielded,
    /// The last one took so long, of which it waited for so long.
    Computed(Duration, Duration),
}

/// The loader's side.
struct Reading {
    way: Way,
    layout: Layout,
    member: Member,
    epoch: Epoch,
    plan: Plan,
    look_ahead: LookAhead,
    batches: SyncSender<Option<Batch<View>>>,
    notices: Receiver<Notice>,
}

/// The way to the nodes and to the agent.
struct Way {
    reader: Reader,
    presence: RecentPresence,
}

impl Ask for Way {
    type Error = ClientError;

    fn presence(&mut self) -> Result<Arc<[u8]>, ClientError> {
        if let Some(mut asking) = self.presence.asks() {
            let bytes = self.reader.presence(&mut asking.known);
            self.presence.answered(asking, bytes);
        }
        Ok(self.presence.bits())
    }

    fn report(&mut self, report: &Report) -> Result<Option<Result<Answer, Refusal>>, ClientError> {
        match self.reader.report(report) {
            Ok(answer) => Ok(answer.map(Ok)),
            Err(ClientError::Refused(refusal)) => Ok(Some(Err(refusal))),
            Err(error) => Err(error),
        }
    }
}

impl Through {
    pub fn new(
        args: &Args,
        digest: &Digest,
        nodes: &Contacts,
        agent: &Path,
    ) -> anyhow::Result<Self> {
        // One more is in the loader's hands.
        let (to_job, batches) = mpsc::sync_channel(AHEAD - 1);
        let (notices, from_job) = mpsc::channel();
        let reader = Reader::new(digest.clone(), Some(nodes.clone()), agent, &args.name);
        let reading = Reading::new(args, reader, to_job, from_job)?;
        let epochs = args.epochs;
        let reading = Some(thread::spawn(move || reading.run(epochs)));
        Ok(Self { batches, notices, reading })
    }

    /// What the loader has to say in the end, or what ended it.
    fn ended(&mut self) -> anyhow::Result<Counted> {
        let reading = self.reading.take().context("the loader has ended already")?;
        reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Loader for Through {
    type Content = View;

    fn begin(&mut self, _epoch: u64) -> anyhow::Result<()> {
        Ok(())
    }

    fn next(&mut self) -> anyhow::Result<Option<Batch<View>>> {
        let Ok(batch) = self.batches.recv() else {
            self.ended()?;
            bail!("the loader ended too soon");
        };
        if batch.is_some() {
            // Whoever hears nothing any more is asked in the end.
            let _ = self.notices.send(Notice::Yielded);
        }
        Ok(batch)
    }

    fn computed(&mut self, took: Duration, stalled: Duration) {
        let _ = self.notices.send(Notice::Computed(took, stalled));
    }

    fn end(&mut self) -> anyhow::Result<(u64, Counted)> {
        let counted = self.ended()?;
        let bytes = counted.get("agent_origin_bytes");
        Ok((*bytes.context("the agent does not say what it has read")?, counted))
    }
}

impl Reading {
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
        let layout = Layout::new(reader.digest())?;
        let plan = Plan::new(args.seed, 0, args.batch);
        let epoch_batches = summary.items.div_ceil(args.batch.into());
        Ok(Self {
            member: Member::new(&layout, fastrand::u64(..), 1, epoch_batches),
            epoch: Epoch::new(Sampler::new(layout.pieces(), plan)?),
            way: Way { presence: RecentPresence::new(summary.blobs), reader },
            layout,
            plan,
            look_ahead: LookAhead::new(capacity.map(|(_, bytes)| *bytes), blob_bytes),
            batches,
            notices,
        })
    }

    /// All epochs. Says what was drawn, and what the agent has counted.
    fn run(mut self, epochs: u64) -> anyhow::Result<Counted> {
        let mut counted = Counted::new();
        for epoch in 0..epochs {
            let plan = Plan { epoch, ..self.plan };
            self.epoch = Epoch::new(Sampler::new(self.layout.pieces(), plan)?);
            self.member.begin(epoch + 1);
            self.report()?;
            while let Some(batch) = self.read()? {
                self.hand_over(Some(batch))?;
            }
            self.hand_over(None)?;
            // What it has not been given yet, it still reports.
            while self.epoch.sampler().batches_yielded() < self.epoch.sampler().batches() {
                self.wait()?;
            }
            self.report()?;
            let drawn = self.epoch.sampler().counts();
            for (name, count) in [
                ("drawn_resident", drawn.resident),
                ("drawn_claimed", drawn.claimed),
                ("drawn_outside", drawn.outside),
            ] {
                *counted.entry(name.to_owned()).or_default() += count;
            }
        }
        self.way.reader.leave()?;
        counted.insert("reports".to_owned(), self.member.reports());
        counted.extend(self.way.reader.agent_stats()?);
        Ok(counted)
    }

    /// Draws a batch, and reads it.
    fn read(&mut self) -> anyhow::Result<Option<Batch<View>>> {
        self.report()?;
        self.let_others_come_along()?;
        let presence = self.way.presence()?;
        let drawn = self.epoch.draw(&self.layout, &presence, Some(&mut self.member));
        let Some(Drawn { items, missing, is_forced }) = drawn else { return Ok(None) };
        self.way.presence.drew(items.len());
        let hits_before = self.way.reader.counts().hits;
        let contents = if is_forced {
            let contents = self.way.reader.get_past_the_cache(&items)?;
            contents.into_iter().map(View::from).collect()
        } else {
            self.way.reader.want(&missing)?;
            self.way.reader.want(&self.epoch.upcoming(self.look_ahead.items()))?;
            self.way.reader.get_views(&items)?
        };
        let hits = self.way.reader.counts().hits - hits_before;
        Ok(Some(Batch { items, contents, hits }))
    }

    /// While others are behind, the job goes on with what it has, and then waits a little.
    fn let_others_come_along(&mut self) -> anyhow::Result<()> {
        while self.member.holds_back(&self.epoch) {
            let (is_idle, began) = (!self.epoch.is_awaited(), Instant::now());
            self.wait()?;
            if is_idle {
                self.member.waited(began.elapsed(), &self.epoch);
            }
        }
        Ok(())
    }

    /// Gives the job a batch, as soon as it has room for one.
    fn hand_over(&mut self, mut batch: Option<Batch<View>>) -> anyhow::Result<()> {
        loop {
            match self.batches.try_send(batch) {
                Ok(()) => {
                    self.hear();
                    return Ok(());
                }
                Err(TrySendError::Disconnected(_)) => bail!("the job has ended"),
                Err(TrySendError::Full(unsent)) => batch = unsent,
            }
            self.wait()?;
        }
    }

    /// Waits for what the job has to say, and goes on reporting meanwhile.
    fn wait(&mut self) -> anyhow::Result<()> {
        match self.notices.recv_timeout(TICK) {
            Ok(notice) => self.heard(&notice),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the job has ended"),
        }
        self.hear();
        self.report()
    }

    fn hear(&mut self) {
        while let Ok(notice) = self.notices.try_recv() {
            self.heard(&notice);
        }
    }

    fn heard(&mut self, notice: &Notice) {
        match notice {
            Notice::Yielded => {
                self.epoch.yielded(&self.layout, Some(&mut self.member));
            }
            Notice::Computed(took, stalled) => {
                self.epoch.computed(&mut self.member, *took, *stalled);
            }
        }
    }

    /// Reports, if it is time to, and has the agent fetch what the job needs of pieces that are on their way.
    fn report(&mut self) -> anyhow::Result<()> {
        match self.member.report(&mut self.way, &self.layout, &self.epoch)? {
            Reported::Nothing => {}
            Reported::Answered => {
                let presence = self.way.presence()?;
                let needed =
                    self.member.needed(&self.layout, &self.epoch, &presence, LOADING_AT_ONCE);
                self.way.reader.want(&needed)?;
            }
            Reported::Fenced(text) => bail!(text),
        }
        Ok(())
    }
}
