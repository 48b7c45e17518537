//! Reports of a job to the manager of its dataset: when they are sent, and what becomes of the
//! answers.
//!
//! The content of a report and the meaning of an answer are decided in
//! `core::train::job::reporter`. Here is what needs a clock and a connection. Without an answer the
//! job goes on with the last draw set: a lost manager costs hits, and nothing else.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use forebay_core::train::{
    job::{JobReporter, ReportTime, ReporterSettings},
    manager::{DrawSet, Report, ReportAnswer},
    sampler::{BatchDrawSet, Sampler},
};
use forebay_wire::{ErrorCode, Refusal};

use crate::{
    ClientEnvironment,
    environment::Clock,
    train::{
        item_map::ItemMap,
        job::{Job, JobRun},
    },
};

/// The connection to the nodes of a dataset, as [`Job::report`] needs it.
pub trait ManagerLink {
    /// Why the connection cannot be used at all.
    type Error;

    /// A bit for each blob that the nodes hold, lowest first, as of a moment ago; empty without a
    /// node.
    fn presence(&mut self) -> Result<Arc<[u8]>, Self::Error>;

    /// The manager's answer to a report; `None` without a node.
    fn report(
        &mut self,
        report: &Report,
    ) -> Result<Option<Result<ReportAnswer, Refusal>>, Self::Error>;
}

/// Result of [`Job::report`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportOutcome {
    /// No report was due, or none was answered.
    Nothing,
    /// The manager has answered.
    Answered,
    /// Another process reports under the job's name; the text is the node's.
    Fenced(String),
}

/// The reporter of one run of a job, passed on from epoch to epoch.
#[derive(Debug)]
pub(super) struct Reporter {
    incarnation: u64,
    content: JobReporter,
    clock: Clock,
    /// The manager has answered in this epoch.
    pub(super) is_answered: bool,
    /// The node refused a report: nothing is reported until the next epoch.
    pub(super) is_refused: bool,
    /// Reports that were answered.
    pub(super) answers: u64,
    /// The draw set of the last answer.
    pub(super) draw_set: DrawSet,
}

impl Reporter {
    pub(super) fn new(
        environment: &Arc<dyn ClientEnvironment>,
        run: JobRun,
        items: &ItemMap,
    ) -> Self {
        let JobRun { incarnation, gpus, epoch_batches } = run;
        let (half_chunks, probe_item) = (items.sizes().to_vec(), items.probe_item());
        Self {
            incarnation,
            content: JobReporter::new(ReporterSettings {
                incarnation,
                gpus,
                epoch_batches,
                half_chunks,
                probe_item,
            }),
            clock: Clock::start(environment),
            is_answered: false,
            is_refused: false,
            answers: 0,
            draw_set: DrawSet::default(),
        }
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(super) fn begin_epoch(&mut self, epoch: u64) {
        self.content.begin_epoch(epoch);
        (self.is_answered, self.is_refused) = (false, false);
    }

    pub(super) fn batch_draw_set(&self, sampler: &Sampler) -> BatchDrawSet {
        self.content.batch_draw_set(sampler.plan().batch.into(), sampler)
    }

    fn on_answer(&mut self, answer: ReportAnswer) {
        self.answers += 1;
        if let ReportAnswer::Draw { draw_set, .. } = &answer {
            self.is_answered = true;
            self.draw_set = draw_set.clone();
        }
        self.content.on_answer(answer);
    }
}

impl Deref for Reporter {
    type Target = JobReporter;

    fn deref(&self) -> &JobReporter {
        &self.content
    }
}

impl DerefMut for Reporter {
    fn deref_mut(&mut self) -> &mut JobReporter {
        &mut self.content
    }
}

impl Job {
    /// Sends a report, if one is due.
    pub fn report<L: ManagerLink>(&mut self, link: &mut L) -> Result<ReportOutcome, L::Error> {
        let Some(reporter) = self.reporter.as_mut().filter(|_| self.is_reporting) else {
            return Ok(ReportOutcome::Nothing);
        };
        let began = reporter.clock.elapsed();
        if reporter.is_refused || !reporter.is_due(began, &self.sampler) {
            return Ok(ReportOutcome::Nothing);
        }
        let mut outcome = ReportOutcome::Nothing;
        // A manager that needs a full report gets it at once.
        for _ in 0..2 {
            let presence = link.presence()?;
            let resident = self.items.residents(&presence);
            let now = reporter.clock.elapsed();
            let report = reporter.report(now, &self.sampler, resident);
            match link.report(&report)? {
                None => reporter.on_no_answer(),
                Some(Ok(answer)) => {
                    outcome = ReportOutcome::Answered;
                    let needs_full = answer == ReportAnswer::FullReportNeeded;
                    reporter.on_answer(answer);
                    if needs_full {
                        continue;
                    }
                }
                Some(Err(refusal)) if refusal.code == ErrorCode::Fenced => {
                    self.is_reporting = false;
                    return Ok(ReportOutcome::Fenced(refusal.text));
                }
                Some(Err(_)) => {
                    reporter.on_no_answer();
                    reporter.is_refused = true;
                }
            }
            break;
        }
        let ended_at = reporter.clock.elapsed();
        let took = ended_at.saturating_sub(began);
        reporter.on_report_done(ReportTime { ended_at, took });
        Ok(outcome)
    }
}
