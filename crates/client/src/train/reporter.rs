//! A job's part in the rotation of its dataset: when it reports, and what it makes of the answers. What it
//! says, and what follows, is decided in `core::manager`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_core::{
    ItemOrdinal,
    benefit::Mode,
    chunking::ChunkOrdinal,
    manager::{Answer, Directions, Membership, Report},
    sampler::Sampler,
};
use forebay_wire::{ErrorCode, Refusal};

use crate::{epoch::Epoch, layout::Layout};

/// The way to the nodes, whatever waits for them.
pub trait Ask {
    /// Why there is no way.
    type Error;

    /// A bit for each blob that the nodes hold, lowest first, as of a moment ago; nothing without a node.
    fn presence(&mut self) -> Result<Arc<[u8]>, Self::Error>;

    /// What the manager of the dataset answers to a report; nothing without a node.
    fn report(&mut self, report: &Report) -> Result<Option<Result<Answer, Refusal>>, Self::Error>;
}

/// What became of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reported {
    /// It was not time for one, or nobody answered.
    Nothing,
    /// It was answered.
    Answered,
    /// Another process reports under the job's name; this is what it was told.
    Fenced(String),
}

/// How a job takes part, over all epochs of one of its lives.
#[derive(Debug)]
pub struct Member {
    membership: Membership,
    clock: Instant,
    /// Something was answered in this epoch: there is something to go by.
    is_answered: bool,
    /// This node does not want to hear of it. Until the next epoch nothing is reported.
    is_refused: bool,
    reports: u64,
    open: [Vec<u32>; 2],
}

impl Member {
    /// A job in one of its lives, a random number.
    pub fn new(layout: &Layout, life: u64, gpus: u32, epoch_batches: u64) -> Self {
        Self {
            membership: Membership::new(life, gpus, epoch_batches, layout.sizes().to_vec()),
            clock: Instant::now(),
            is_answered: false,
            is_refused: false,
            reports: 0,
            open: Default::default(),
        }
    }

    /// The job begins an epoch; every one has a number of its own.
    pub fn begin(&mut self, epoch: u64) {
        self.membership.begin(epoch);
        (self.is_answered, self.is_refused) = (false, false);
    }

    /// Reports, if it is time to.
    pub fn report<A: Ask>(
        &mut self,
        ask: &mut A,
        layout: &Layout,
        epoch: &Epoch,
    ) -> Result<Reported, A::Error> {
        let began = self.clock.elapsed();
        if self.is_refused || !self.membership.is_due(began, epoch.sampler()) {
            return Ok(Reported::Nothing);
        }
        let mut reported = Reported::Nothing;
        // Whoever is asked to tell all does so at once.
        for _ in 0..2 {
            let presence = ask.presence()?;
            let resident = layout.residents(&presence);
            let report = self.membership.report(self.clock.elapsed(), epoch.sampler(), resident);
            match ask.report(&report)? {
                None => self.membership.unanswered(),
                Some(Ok(answer)) => {
                    reported = Reported::Answered;
                    let tells_all = answer == Answer::TellAll;
                    self.answered(answer);
                    if tells_all {
                        continue;
                    }
                }
                Some(Err(refusal)) if refusal.code == ErrorCode::Fenced => {
                    return Ok(Reported::Fenced(refusal.text));
                }
                Some(Err(_)) => {
                    self.membership.unanswered();
                    self.is_refused = true;
                }
            }
            break;
        }
        let now = self.clock.elapsed();
        self.membership.report_took(now, now.saturating_sub(began));
        Ok(reported)
    }

    /// Whether the next batch would have to be completed by what is not open, though another piece may be open
    /// soon.
    pub fn is_short(&self, epoch: &Epoch) -> bool {
        self.is_answered && self.membership.is_short(epoch.sampler())
    }

    /// Whether the next batch is better drawn later, since others are behind; see
    /// [`Membership::holds_back`].
    pub fn holds_back(&self, epoch: &Epoch) -> bool {
        self.is_answered && self.membership.holds_back(epoch.sampler())
    }

    /// The job has waited for others for so long.
    pub fn waited(&mut self, took: Duration, epoch: &Epoch) {
        self.membership.waited(took, epoch.sampler());
    }

    /// Items of pieces that are on their way which this rank has yet to draw and which are not resident.
    pub fn needed(
        &self,
        layout: &Layout,
        epoch: &Epoch,
        presence: &[u8],
        count: usize,
    ) -> Vec<ItemOrdinal> {
        if self.is_refused {
            return Vec::new();
        }
        let resident = layout.residents(presence);
        let loading = self.membership.loading().iter();
        let missing =
            loading.flat_map(|piece| epoch.sampler().missing(ChunkOrdinal(*piece), &resident));
        missing.take(count).collect()
    }

    /// Whether the node has said in this epoch what to draw from.
    pub fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// How many reports were answered.
    pub fn reports(&self) -> u64 {
        self.reports
    }

    /// Pieces that are kept for good, and pieces that are there for a while.
    pub fn open(&self) -> &[Vec<u32>; 2] {
        &self.open
    }

    pub(crate) fn directions(&self, sampler: &Sampler) -> Directions {
        self.membership.directions(sampler.plan().batch.into(), sampler)
    }

    pub(crate) fn forces_miss(&mut self) -> bool {
        self.membership.forces_miss()
    }

    pub(crate) fn mode(
        &self,
        pieces: impl IntoIterator<Item = u32>,
        all_resident: bool,
    ) -> Option<Mode> {
        self.membership.mode(pieces, all_resident)
    }

    pub(crate) fn released(&mut self, pieces: Vec<ChunkOrdinal>) {
        self.membership.released(pieces);
    }

    pub(crate) fn computed(&mut self, mode: Option<Mode>, bytes: u64, times: [Duration; 2]) {
        self.membership.computed(mode, bytes, times);
    }

    fn answered(&mut self, answer: Answer) {
        self.reports += 1;
        if let Answer::Draw { open, .. } = &answer {
            self.is_answered = true;
            self.open = [
                open.held.iter().map(|piece| piece.0).collect(),
                open.rotating().map(|piece| piece.0).collect(),
            ];
        }
        self.membership.answered(answer);
    }
}
