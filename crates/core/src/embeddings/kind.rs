//! Policy kinds: the names of the policies, and how each is built.

use super::{
    group::Group,
    policies::{
        arc::{Arc, EvArc},
        car::Car,
        clock_pro::ClockPro,
        frequency::{ByScore, Flushing, ScoreRule},
        lirs::Lirs,
        queues::{Clock, Fifo, Lru, Queue, Sieve},
        regret::{Cacheus, LeCaR},
        windowed::{S3Fifo, WTinyLfu},
    },
    policy::{Budget, Capacity, Policy, Replacement, Requests},
};
use crate::util::policy_names::policy_names;

policy_names! {
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
    /// LRU and LFU, weighted by regret.
    LeCaR = "lecar",
    /// Scan-resistant LRU and churn-resistant LFU, weighted by regret.
    Cacheus = "cacheus",
    /// A small FIFO in front of a main one.
    S3Fifo = "s3-fifo",
    /// CLOCK whose survivors stay in place.
    Sieve = "sieve",
    /// An LRU window in front of a main part with admission by count-min sketch.
    WTinyLfu = "w-tinylfu",
    /// The dissertation's: evicts the lowest maximum group score; flushing as in the pseudo-code.
    EvLfu = "ev-lfu",
    /// EV-LFU with flushing as in the text, at 20 %.
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
    /// Group-effective frequency, forebay's own policy.
    Group = "group",
}

impl PolicyKind {
    /// Builds a policy of this kind. The same budget, seed and requests give the same decisions.
    pub fn build(self, budget: &Budget, seed: u64) -> Box<dyn Policy> {
        fn boxed<R>(replacement: R, budget: &Budget) -> Box<dyn Policy>
        where
            R: Replacement + Send + 'static,
        {
            Box::new(Requests::new(replacement, budget.clone()))
        }
        let beside;
        let budget = match budget.limit() {
            Capacity::Memory(_) if self != Self::Group => {
                let bytes = budget.row_overhead() + self.bytes_per_row();
                beside = budget.clone().with_row_overhead(bytes);
                &beside
            }
            _ => budget,
        };
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
            Self::Group => Box::new(Group::new(budget)),
        }
    }

    /// Bytes that a policy other than `group` stores per row that fits, at most: entries with their
    /// links, the map, and room to grow of all three. The policies that remember evicted keys have
    /// up to three entries per row.
    const fn bytes_per_row(self) -> u32 {
        match self {
            Self::Fifo | Self::Lru | Self::Clock | Self::Sieve => 200,
            Self::Lfu
            | Self::EvLfu
            | Self::EvLfuText
            | Self::EvLfuAverage
            | Self::EvLfuSum
            | Self::EvLfuMedian
            | Self::EvLfuIncremental => 220,
            _ => 700,
        }
    }
}
