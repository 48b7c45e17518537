//! Shuffle quality: how far batches are from draws of a full shuffle, measured while they are
//! yielded (promise 8).
//!
//! Three numbers, each at the cost of a few additions per item:
//!
//! - **Neighbours**: how often two items of a batch come from the same small part of the dataset
//!   (1/32 to 1/64), relative to a full shuffle. 1 is good. Read in order, it is the number of
//!   parts. Packs that are drawn whole, or too small a shuffle buffer, are in between.
//! - **Displacement**: the mean distance between an item's position in the epoch and in the
//!   dataset, relative to a full shuffle. 1 is good. It is 0 in the dataset's own order, up to 1.5
//!   backwards, and for a shuffle buffer its share of the dataset.
//! - **Pinned lead**: by how many pinned items batches are ahead of their proportion, or behind, at
//!   worst, as a share of all pinned items (or of all others, if these are fewer). 0 is good. Near
//!   1, a job gets cached items first and waits for the rest later.
//!
//! Chunks look like the dataset, so drawing from two of ten is as good as a full shuffle by the
//! first two numbers: they measure whether a batch looks like one drawn from everything. How often
//! chunks rotate is not measured here. All numbers are noisy: below a hundred batches they say
//! little.

/// Batches are measured together until they have this number of items: tiny ones have too few
/// pairs.
const GROUP_ITEMS: u32 = 64;
/// Parts of a dataset at most: a power of two.
const PARTS_MAX: u32 = 64;

/// A running measurement of one rank's epoch.
#[derive(Debug, Clone)]
pub struct ShuffleMeter {
    items: f64,
    /// An item's part is its ordinal, shifted by this.
    shift: u32,
    /// Probability that two random items are in the same part.
    coincidence: f64,
    /// Items of the current group, by part.
    parts: Vec<u32>,
    group: u32,
    coincident: u64,
    pairs: u64,
    displaced: f64,
    displaced_expected: f64,
    pinned: PinnedLead,
}

/// The result of a [`ShuffleMeter`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct ShuffleQuality {
    /// Pairs of neighbours in a batch, relative to a full shuffle. 1 is good.
    pub neighbours: f64,
    /// Distance of items from their positions in the dataset, relative to a full shuffle. 1 is
    /// good.
    pub displacement: f64,
    /// How far pinned items are ahead or behind, at worst. 0 is good.
    pub pinned_lead: f64,
}

impl ShuffleQuality {
    /// Distance from a full shuffle, by the worst of the three numbers. Below 0.1 is good after
    /// some hundred batches; above 0.5 something is wrong.
    pub fn distance(&self) -> f64 {
        let [neighbours, displacement] =
            [self.neighbours, self.displacement].map(|ratio| (ratio - 1.0).abs());
        neighbours.max(displacement).max(self.pinned_lead)
    }
}

/// Pinned items of a draw, and what was there before.
#[derive(Debug, Clone, Copy, Default)]
pub struct PinnedShare {
    /// Items of the batch from pinned half-chunks.
    pub drawn: u32,
    /// Unread items of pinned half-chunks before.
    pub unread: u32,
    /// All unread items before.
    pub unread_total: u32,
}

#[derive(Debug, Clone, Default)]
struct PinnedLead {
    lead: f64,
    worst: f64,
    /// The largest possible lead.
    most: f64,
}

impl ShuffleMeter {
    /// A measurement of nothing, for a dataset of `items` items.
    pub fn new(items: u32) -> Self {
        let shift = (0..32).find(|shift| items >> shift <= PARTS_MAX).expect("zero is fewer");
        let size = 1_u64 << shift;
        let all = u64::from(items);
        let same = (0..all.div_ceil(size)).map(|part| {
            let size = size.min(all - part * size) as f64;
            size * (size - 1.0)
        });
        let coincidence = same.sum::<f64>() / (all as f64 * (all as f64 - 1.0)).max(1.0);
        Self {
            items: items.into(),
            shift,
            coincidence,
            parts: vec![0; usize::try_from(all.div_ceil(size)).expect("few parts")],
            group: 0,
            coincident: 0,
            pairs: 0,
            displaced: 0.0,
            displaced_expected: 0.0,
            pinned: PinnedLead::default(),
        }
    }

    /// A batch was yielded; `time` is the share of the epoch that was over at its middle.
    pub fn on_batch(
        &mut self,
        time: f64,
        items: impl IntoIterator<Item = u32>,
        pinned: PinnedShare,
    ) {
        let mut count = 0_u32;
        for item in items {
            let part = &mut self.parts[(item >> self.shift) as usize];
            self.coincident += u64::from(*part);
            *part += 1;
            self.pairs += u64::from(self.group);
            self.group += 1;
            self.displaced += (time - (f64::from(item) + 0.5) / self.items).abs();
            count += 1;
        }
        // The mean distance of a random item.
        self.displaced_expected += f64::from(count) * (time * time - time + 0.5);
        if self.group >= GROUP_ITEMS {
            self.parts.fill(0);
            self.group = 0;
        }
        self.pinned.on_batch(count, pinned);
    }

    /// The result so far; perfect if there is too little to measure.
    pub fn measured(&self) -> ShuffleQuality {
        let ratio = |found: f64, fair: f64| if fair > 0.0 { found / fair } else { 1.0 };
        ShuffleQuality {
            neighbours: ratio(self.coincident as f64, self.pairs as f64 * self.coincidence),
            displacement: ratio(self.displaced, self.displaced_expected),
            pinned_lead: if self.pinned.most > 0.0 {
                self.pinned.worst / self.pinned.most
            } else {
                0.0
            },
        }
    }
}

impl PinnedLead {
    fn on_batch(&mut self, count: u32, pinned: PinnedShare) {
        if pinned.unread_total > 0 {
            let share = f64::from(pinned.unread) / f64::from(pinned.unread_total);
            self.lead += f64::from(pinned.drawn) - f64::from(count) * share;
            self.worst = self.worst.max(self.lead.abs());
            let others = pinned.unread_total - pinned.unread;
            self.most = self.most.max(pinned.unread.min(others).into());
        }
    }
}
