//! Policies by name.

use super::{
    arc::{Arc, EvArc},
    car::Car,
    clock_pro::ClockPro,
    experts::{Cacheus, LeCaR},
    frequency::{ByScore, Flushing, ScoreRule},
    group::Group,
    lirs::Lirs,
    policy::{Budget, Policy, Replacement, Requests},
    queues::{Clock, Fifo, Lru, Queue, Sieve},
    segmented::{S3Fifo, WTinyLfu},
};
use crate::kinds::kinds;

kinds! {
    /// First in, first out.
    Fifo = "fifo",
    /// Least recently used.
    Lru = "lru",
    /// Second chance.
    Clock = "clock",
    /// Least frequently used.
    Lfu = "lfu",
    /// Adaptive replacement.
    Arc = "arc",
    /// ARC's lists as clocks.
    Car = "car",
    /// Low inter-reference recency.
    Lirs = "lirs",
    /// LIRS on a clock.
    ClockPro = "clock-pro",
    /// LRU and LFU, chosen by regret.
    LeCaR = "lecar",
    /// The same with better experts.
    Cacheus = "cacheus",
    /// A small FIFO before a main one.
    S3Fifo = "s3-fifo",
    /// CLOCK whose survivors stay in place.
    Sieve = "sieve",
    /// A window before a main part that a sketch guards.
    WTinyLfu = "w-tinylfu",
    /// The dissertation's: lowest of the highest group scores, knobs of the pseudo-code.
    EvLfu = "ev-lfu",
    /// EV-LFU with the text's flushing knob, 20 %.
    EvLfuText = "ev-lfu-text",
    /// Rejected by the dissertation: mean group score.
    EvLfuAverage = "ev-lfu-average",
    /// Rejected by the dissertation: sum of group scores.
    EvLfuSum = "ev-lfu-sum",
    /// Rejected by the dissertation: median group score.
    EvLfuMedian = "ev-lfu-median",
    /// Rejected by the dissertation: one more for every access.
    EvLfuIncremental = "ev-lfu-incremental",
    /// The dissertation's ARC.
    EvArc = "ev-arc",
    /// The dissertation's CAR.
    EvCar = "ev-car",
    /// Ours: group-effective frequency.
    Group = "group",
}

impl PolicyKind {
    /// A policy of this kind. The same budget, seed and requests give the same decisions, always.
    pub fn build(self, budget: &Budget, seed: u64) -> Box<dyn Policy> {
        fn boxed<R>(replacement: R, budget: &Budget) -> Box<dyn Policy>
        where
            R: Replacement + Send + 'static,
        {
            Box::new(Requests::new(replacement, budget.clone()))
        }
        let capacity = budget.capacity();
        let rows = budget.rows_max();
        let tables = u32::try_from(budget.tables().len()).expect("table ids are 16-bit");
        let ev_lfu = |rule, flushing| ByScore::ev_lfu(capacity, rule, tables, flushing);
        match self {
            Self::Fifo => boxed(Queue::<Fifo>::new(capacity), budget),
            Self::Lru => boxed(Queue::<Lru>::new(capacity), budget),
            Self::Clock => boxed(Queue::<Clock>::new(capacity), budget),
            Self::Lfu => boxed(ByScore::lfu(capacity), budget),
            Self::Arc => boxed(Arc::new(capacity), budget),
            Self::Car => boxed(Car::new(capacity), budget),
            Self::Lirs => boxed(Lirs::new(capacity), budget),
            Self::ClockPro => boxed(ClockPro::new(capacity), budget),
            Self::LeCaR => boxed(LeCaR::new(capacity, rows, seed), budget),
            Self::Cacheus => boxed(Cacheus::new(capacity, rows, seed), budget),
            Self::S3Fifo => boxed(S3Fifo::new(capacity), budget),
            Self::Sieve => boxed(Queue::<Sieve>::new(capacity), budget),
            Self::WTinyLfu => boxed(WTinyLfu::new(capacity, rows), budget),
            Self::EvLfu => boxed(ev_lfu(ScoreRule::Max, Flushing::PSEUDO_CODE), budget),
            Self::EvLfuText => boxed(ev_lfu(ScoreRule::Max, Flushing::TEXT), budget),
            Self::EvLfuAverage => boxed(ev_lfu(ScoreRule::Average, Flushing::PSEUDO_CODE), budget),
            Self::EvLfuSum => boxed(ev_lfu(ScoreRule::Sum, Flushing::PSEUDO_CODE), budget),
            Self::EvLfuMedian => boxed(ev_lfu(ScoreRule::Median, Flushing::PSEUDO_CODE), budget),
            Self::EvLfuIncremental => {
                boxed(ev_lfu(ScoreRule::Incremental, Flushing::PSEUDO_CODE), budget)
            }
            Self::EvArc => boxed(EvArc::new(capacity, tables), budget),
            Self::EvCar => boxed(Car::ev(capacity, tables), budget),
            Self::Group => boxed(Group::new(budget), budget),
        }
    }
}
