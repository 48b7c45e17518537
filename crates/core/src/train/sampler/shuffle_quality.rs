//! How far batches are from draws of a full shuffle, measured while they are yielded (promise 8).
//!
//! Three numbers, each at the cost of a few additions for an item:
//!
//! - **Neighbours**: how often two items of a batch come from the same small part of the dataset (a 32nd
//!   to a 64th), compared with a full shuffle. 1 is good. Read in order it is the number of parts; packs
//!   that are drawn whole, or a shuffle buffer that is too small, lie between.
//! - **Displacement**: how far an item's place in the epoch lies from its place in the dataset, on
//!   average, compared with a full shuffle. 1 is good. It is 0 in the dataset's own order, up to 1.5
//!   backwards, and the buffer's share of the dataset for a shuffle buffer.
//! - **Held lead**: by how many held items batches are ahead of what was due in proportion, or behind,
//!   at worst, as a share of all held items (or of all others, if those are fewer). 0 is good; near 1, a
//!   job is given what is cached first and waits for the rest later.
//!
//! Chunks look like the dataset, so drawing from two of ten is as good as a full shuffle by the first two
//! numbers: that is what they measure, whether a batch looks like one drawn from everything. What takes
//! turns, and how often, is rotation's business and not measured here. All numbers carry noise: below a
//! hundred batches they say little.

/// Batches are taken together until there are as many items: pairs in tiny ones would be too few.
const GROUP_ITEMS: u32 = 64;
/// Into how many parts a dataset is divided, at most: a power of two.
const PARTS_MAX: u32 = 64;

/// A running measure of one rank's epoch.
#[derive(Debug, Clone)]
pub struct Mixing {
    items: f64,
    /// An item's part is its ordinal, shifted by this.
    shift: u32,
    /// How often two random items are in the same part.
    coincidence: f64,
    /// Items of the group at hand, by part.
    parts: Vec<u32>,
    group: u32,
    coincident: u64,
    pairs: u64,
    displaced: f64,
    displaced_fairly: f64,
    held: HeldLead,
}

/// What [`Mixing`] has found.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Mixed {
    /// Pairs of neighbours in a batch, as a multiple of a full shuffle's. 1 is good.
    pub neighbours: f64,
    /// How far items are from their places in the dataset, as a multiple of a full shuffle's. 1 is good.
    pub displacement: f64,
    /// By how much held items are ahead or behind, at worst. 0 is good.
    pub held_lead: f64,
}

impl Mixed {
    /// How far from a full shuffle, by whichever number is worst. Below 0.1 is good, once some hundred
    /// batches have been yielded; above 0.5 something is wrong.
    pub fn distance(&self) -> f64 {
        let [neighbours, displacement] =
            [self.neighbours, self.displacement].map(|ratio| (ratio - 1.0).abs());
        neighbours.max(displacement).max(self.held_lead)
    }
}

/// What a draw from held chunks was, and what it could have been.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeldShare {
    /// Items of the batch that are of held chunks.
    pub drawn: u32,
    /// Unread items of held chunks before.
    pub unread: u32,
    /// All unread items before.
    pub unread_total: u32,
}

#[derive(Debug, Clone, Default)]
struct HeldLead {
    lead: f64,
    worst: f64,
    /// The most that there was to be ahead by.
    most: f64,
}

impl Mixing {
    /// Nothing yet, of a dataset of `items` items.
    pub fn new(items: u32) -> Self {
        let shift = (0..32).find(|shift| items >> shift <= PARTS_MAX).expect("nought is fewer");
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
            displaced_fairly: 0.0,
            held: HeldLead::default(),
        }
    }

    /// A batch was yielded when this share of the epoch was over (by its middle).
    pub fn batch(&mut self, time: f64, items: impl IntoIterator<Item = u32>, held: HeldShare) {
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
        // What a random item's distance would be on average.
        self.displaced_fairly += f64::from(count) * (time * time - time + 0.5);
        if self.group >= GROUP_ITEMS {
            self.parts.fill(0);
            self.group = 0;
        }
        self.held.batch(count, held);
    }

    /// What was found so far; perfect if there is too little to tell.
    pub fn measured(&self) -> Mixed {
        let ratio = |found: f64, fair: f64| if fair > 0.0 { found / fair } else { 1.0 };
        Mixed {
            neighbours: ratio(self.coincident as f64, self.pairs as f64 * self.coincidence),
            displacement: ratio(self.displaced, self.displaced_fairly),
            held_lead: if self.held.most > 0.0 { self.held.worst / self.held.most } else { 0.0 },
        }
    }
}

impl HeldLead {
    fn batch(&mut self, count: u32, held: HeldShare) {
        if held.unread_total > 0 {
            let share = f64::from(held.unread) / f64::from(held.unread_total);
            self.lead += f64::from(held.drawn) - f64::from(count) * share;
            self.worst = self.worst.max(self.lead.abs());
            let others = held.unread_total - held.unread;
            self.most = self.most.max(held.unread.min(others).into());
        }
    }
}
