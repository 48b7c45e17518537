//! A job's part in the rotation of its dataset, as Python sees it: what is reported, and what is answered.

use std::time::{Duration, Instant};

use forebay_core::manager::{Answer, Membership};
use forebay_wire::ErrorCode;
use pyo3::prelude::*;

use crate::{errors::Fenced, layout::Layout, reader::Reader, sampler::Sampler};

/// Reports take at most one part in so many of the job's time: large pieces take long to look through.
const SHARE: u32 = 20;
/// Those that others wait for may take more.
const SHARE_URGENT: u32 = 4;

/// How a job takes part.
#[pyclass(module = "forebay._native")]
pub struct Member {
    pub membership: Membership,
    clock: Instant,
    /// Something was answered: there is something to go by.
    pub is_answered: bool,
    /// This node does not want to hear of it. Until the next epoch nothing is reported.
    is_refused: bool,
    /// When the last report was over, and how long it took.
    last: (Duration, Duration),
    reports: u64,
    held: Vec<u32>,
    rotating: Vec<u32>,
}

#[pymethods]
impl Member {
    /// A job in one of its lives, a random number.
    #[new]
    fn new(layout: &Layout, life: u64, gpus: u32, epoch_batches: u64) -> Self {
        Self {
            membership: Membership::new(life, gpus, epoch_batches, layout.sizes.clone()),
            clock: Instant::now(),
            is_answered: false,
            is_refused: false,
            last: (Duration::ZERO, Duration::ZERO),
            reports: 0,
            held: Vec::new(),
            rotating: Vec::new(),
        }
    }

    /// The job begins an epoch; every one has a number of its own.
    fn begin(&mut self, epoch: u64) {
        self.membership.begin(epoch);
        (self.is_answered, self.is_refused) = (false, false);
        // However long the last report took: without an answer the epoch would be drawn without directions.
        self.last = (Duration::ZERO, Duration::ZERO);
    }

    /// Reports, if it is time to. Whoever was replaced is told so.
    fn report(&mut self, py: Python<'_>, sampler: &Sampler, reader: &Reader) -> PyResult<()> {
        let began = self.clock.elapsed();
        let (over, took) = self.last;
        if self.is_refused || began < over + took * SHARE_URGENT {
            return Ok(());
        }
        let is_early = began < over + took * SHARE;
        if (is_early && !self.membership.is_urgent(&sampler.epoch))
            || !self.membership.is_due(began, &sampler.epoch)
        {
            return Ok(());
        }
        // Whoever is asked to tell all does so at once.
        for _ in 0..2 {
            let presence = reader.recent_presence(py)?;
            let resident = sampler.layout.get().residents(&presence);
            let report = self.membership.report(self.clock.elapsed(), &sampler.epoch, resident);
            match reader.report(py, &report)? {
                None => self.membership.unanswered(),
                Some(Ok(answer)) => {
                    let tells_all = answer == Answer::TellAll;
                    self.answered(answer);
                    if tells_all {
                        continue;
                    }
                }
                Some(Err(refusal)) if refusal.code == ErrorCode::Fenced => {
                    return Err(Fenced::new_err(refusal.text));
                }
                Some(Err(_)) => {
                    self.membership.unanswered();
                    self.is_refused = true;
                }
            }
            break;
        }
        let over = self.clock.elapsed();
        self.last = (over, over.saturating_sub(began));
        Ok(())
    }

    /// Items of pieces that are on their way which this rank has yet to draw and which are not resident.
    fn needed(
        &self,
        py: Python<'_>,
        sampler: &Sampler,
        reader: &Reader,
        count: usize,
    ) -> PyResult<Vec<u64>> {
        let loading = self.membership.loading();
        if loading.is_empty() || self.is_refused {
            return Ok(Vec::new());
        }
        let presence = reader.recent_presence(py)?;
        let resident = sampler.layout.get().residents(&presence);
        let missing = loading.iter().flat_map(|piece| {
            sampler.epoch.missing(forebay_core::chunking::ChunkOrdinal(*piece), &resident)
        });
        Ok(missing.take(count).map(|item| item.0).collect())
    }

    /// Whether the next batch would have to be completed by what is not open, though another piece may be
    /// open soon.
    fn is_short(&self, sampler: &Sampler) -> bool {
        self.is_answered && self.membership.is_short(&sampler.epoch)
    }

    /// Whether the node has said in this epoch what to draw from.
    #[getter(is_answered)]
    fn was_answered(&self) -> bool {
        self.is_answered
    }

    /// How many reports were answered.
    #[getter]
    fn reports(&self) -> u64 {
        self.reports
    }

    /// Pieces that are kept for good, and pieces that are there for a while.
    #[getter]
    fn open(&self) -> (Vec<u32>, Vec<u32>) {
        (self.held.clone(), self.rotating.clone())
    }
}

impl Member {
    fn answered(&mut self, answer: Answer) {
        self.reports += 1;
        if let Answer::Draw { open, .. } = &answer {
            self.is_answered = true;
            self.held = open.held.iter().map(|piece| piece.0).collect();
            self.rotating = open.rotating().map(|piece| piece.0).collect();
        }
        self.membership.answered(answer);
    }
}
