//! One dataset in the cache: which items are there or on their way. What comes and goes, the core's manager of
//! the dataset decides; here it is carried out.

use std::{collections::VecDeque, ops::Range, time::Duration};

use forebay_core::{
    ByteSize, DatasetId,
    benefit::Mode,
    chunking::ChunkOrdinal,
    manager::{Manager, Order, Place, Settings, Who},
    placement::{Choice, Dataset as Wish},
    rotation::{Contradiction, Job as Member, Policy as Rule},
    sampler::Layout,
    units::ByteRate,
};

use super::fill::Fill;
use crate::train::{
    bits::Bits,
    job::Epoch,
    outcome::Residency,
    pipeline::BatchNumber,
    scenario::Dataset,
    store::{Fetched, is_on},
    time::Nanos,
};

/// A job is believed to live for so long.
const LEASE: Duration = Duration::from_mins(10);

/// A dataset in the cache.
#[derive(Debug)]
pub(in crate::train) struct Shelf {
    name: String,
    item_bytes: u64,
    /// How many pieces a chunk has.
    halves: u32,
    pieces: Vec<Vec<u32>>,
    piece_of: Vec<u32>,
    manager: Manager,
    resident: Bits,
    in_flight: Bits,
    fills: Vec<Fill>,
    waiting: Vec<Waiting>,
    log: Vec<Stay>,
}

/// Somebody waits for an item that somebody else fetches.
#[derive(Debug, Clone, Copy)]
pub(in crate::train) struct Waiting {
    pub item: u32,
    pub job: usize,
    pub batch: BatchNumber,
}

/// Pieces in the cache, from when to when.
#[derive(Debug)]
struct Stay {
    pieces: Range<u32>,
    from: Nanos,
    to: Option<Nanos>,
}

impl Shelf {
    pub fn new(dataset: &Dataset, rule: Rule, load_rate: u64, seed: u64) -> Self {
        // The paper knows no halves.
        let halves = if rule == Rule::ByNeed { 2 } else { 1 };
        let chunks = dataset.chunking.chunks();
        let mut pieces = vec![Vec::new(); (chunks * halves) as usize];
        let items = usize::try_from(dataset.items).expect("scenarios are checked");
        let mut piece_of = vec![0; items];
        for chunk in 0..chunks {
            for (unit, run) in (0..).zip(dataset.items_of(ChunkOrdinal(chunk))) {
                let piece: u32 = chunk * halves + unit % halves;
                for item in run {
                    let item = u32::try_from(item).expect("scenarios are checked");
                    pieces[piece as usize].push(item);
                    piece_of[item as usize] = piece;
                }
            }
        }
        // Jobs fetch in random order.
        let mut random = fastrand::Rng::with_seed(seed);
        for items in &mut pieces {
            random.shuffle(items);
        }
        let sizes = pieces.iter().map(|items| ByteSize(items.len() as u64 * dataset.item_bytes));
        let manager = Manager::new(Settings {
            policy: rule,
            lease: LEASE,
            load_rate: rate(load_rate),
            piece_sizes: sizes.collect(),
            pieces_per_chunk: halves,
        });
        Self {
            name: dataset.name.clone(),
            item_bytes: dataset.item_bytes,
            halves,
            pieces,
            piece_of,
            manager,
            resident: Bits::new(dataset.items),
            in_flight: Bits::new(dataset.items),
            fills: Vec::new(),
            waiting: Vec::new(),
            log: Vec::new(),
        }
    }

    /// As a sampler sees the dataset.
    pub fn layout(&self) -> Layout {
        let pieces = u32::try_from(self.pieces.len()).expect("few pieces");
        let chunk_of = self.piece_of.iter().map(|piece| ChunkOrdinal(*piece));
        Layout::new(DatasetId::from_bytes([0; 32]), pieces, chunk_of).expect("few pieces")
    }

    pub fn is_resident(&self, item: u32) -> bool {
        self.resident.contains(item)
    }

    pub fn is_in_flight(&self, item: u32) -> bool {
        self.in_flight.contains(item)
    }

    /// Somebody fetches an item.
    pub fn fetch(&mut self, item: u32) {
        self.in_flight.insert(item);
    }

    pub fn wait(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
    }

    /// Those who wait for these items, no longer.
    pub fn take_waiting(&mut self, wanted: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let (taken, left) = self.waiting.iter().partition(|waiting| wanted(waiting));
        self.waiting = left;
        taken
    }

    /// An item that was being fetched has arrived.
    pub fn fetched(&mut self, now: Nanos, item: u32) -> Fetched {
        self.in_flight.remove(item);
        let piece = self.piece_of[item as usize];
        if self.resident.contains(item) {
            return Fetched::Duplicate;
        }
        if self.manager.place_of(piece) == Place::None {
            return Fetched::Outside;
        }
        self.resident.insert(item);
        let bytes = ByteSize(self.item_bytes);
        self.tell(now, |manager| manager.arrived(now.duration(), piece, bytes));
        Fetched::Kept
    }

    /// Nobody fetches this item any more.
    pub fn abandon(&mut self, item: u32) {
        self.in_flight.remove(item);
        self.fills.iter_mut().for_each(Fill::look_again);
    }

    /// Items that nobody has asked for yet and some job will: what an idle link fetches ahead.
    pub fn ahead(&mut self, count: usize, readers: &[(usize, &Epoch)]) -> Vec<u32> {
        let mut items = Vec::new();
        let Self { fills, pieces, resident, in_flight, .. } = self;
        for fill in fills {
            let is_wanted = |item: u32| {
                !resident.contains(item)
                    && !in_flight.contains(item)
                    && readers.iter().any(|(_, epoch)| !epoch.has_drawn(item))
            };
            fill.next_items(pieces, count, is_wanted, &mut items);
            if items.len() == count {
                break;
            }
        }
        items
    }

    /// One of the nodes has lost what it held.
    pub fn lose_node(&mut self, node: u32, nodes: u32) {
        let items = u32::try_from(self.piece_of.len()).expect("items have 32 bits");
        for item in (0..items).filter(|item| is_on(*item, node, nodes)) {
            self.resident.remove(item);
        }
        // What the manager believes to be there is filled up again.
        let there = self.log.iter().filter(|stay| stay.to.is_none());
        for pieces in there.map(|stay| stay.pieces.clone()) {
            match self.fills.iter_mut().find(|fill| fill.pieces() == pieces) {
                Some(fill) => fill.look_again(),
                None => self.fills.push(Fill::new(pieces)),
            }
        }
    }

    pub fn knows(&self, now: Nanos, job: usize) -> bool {
        self.manager.knows(now.duration(), member(job))
    }

    pub fn is_member(&self, job: usize) -> bool {
        self.manager.is_member(member(job))
    }

    /// A job draws from the cache from now on.
    pub fn join(&mut self, now: Nanos, job: usize, who: Who, epoch: &Epoch, pace: u64) {
        let pieces = 0..u32::try_from(self.pieces.len()).expect("few pieces");
        let unread: Vec<_> = pieces.map(|piece| (piece, self.unread(piece, epoch))).collect();
        self.tell(now, |manager| {
            manager.join(now.duration(), member(job), who, &unread, rate(pace))
        });
    }

    /// A job lives.
    pub fn renew(&mut self, now: Nanos, job: usize) {
        self.tell(now, |manager| manager.renew(now.duration(), member(job)));
    }

    /// A job is done.
    pub fn leave(&mut self, now: Nanos, job: usize) {
        self.tell(now, |manager| manager.leave(now.duration(), member(job)));
    }

    /// Everything is unread again.
    pub fn next_epoch(&mut self, now: Nanos, job: usize) {
        self.tell(now, |manager| manager.next_epoch(now.duration(), member(job), &[]));
    }

    /// How many of the job's next mini-batches are to miss, whatever is resident.
    pub fn probe(&mut self, now: Nanos, job: usize) -> u32 {
        self.manager.probe(now.duration(), member(job)).expect("whoever draws has joined")
    }

    /// Tells a job's sampler what to draw from.
    pub fn direct(&mut self, job: usize, epoch: &mut Epoch, batch: u64) {
        let open = self.manager.open(member(job));
        let directions = open.directions(batch, |piece| epoch.unread(piece));
        epoch.open(&directions);
    }

    /// Where these items come from, if that is one place.
    pub fn mode(&self, job: usize, items: &[u32]) -> Option<Mode> {
        let pieces = items.iter().map(|item| self.piece_of[*item as usize]);
        let all_resident = items.iter().all(|item| self.resident.contains(*item));
        self.manager.mode(member(job), pieces, all_resident)
    }

    /// A job has drawn these items.
    pub fn drawn(&mut self, now: Nanos, job: usize, epoch: &Epoch, items: &[u32], pace: u64) {
        let mut touched: Vec<u32> =
            items.iter().map(|item| self.piece_of[*item as usize]).collect();
        touched.sort_unstable();
        touched.dedup();
        let unread: Vec<_> =
            touched.into_iter().map(|piece| (piece, self.unread(piece, epoch))).collect();
        self.tell(now, |manager| manager.drawn(now.duration(), member(job), &unread, rate(pace)));
    }

    /// The last items of these pieces were given to a job.
    pub fn released(&mut self, now: Nanos, job: usize, pieces: &[ChunkOrdinal]) {
        let pieces: Vec<u32> = pieces.iter().map(|piece| piece.0).collect();
        self.tell(now, |manager| manager.released(now.duration(), member(job), &pieces));
    }

    /// A mini-batch took so long, of which its GPUs waited `stalled`.
    pub fn computed(&mut self, now: Nanos, job: usize, mode: Mode, times: [Nanos; 2]) {
        let times = times.map(Nanos::duration);
        self.tell(now, |manager| manager.computed(now.duration(), member(job), mode, times));
    }

    /// Whether pieces that were being filled are full now, as far as anyone needs them.
    pub fn check_fills(&mut self, now: Nanos, readers: &[(usize, &Epoch)]) {
        let mut at = 0;
        while at < self.fills.len() {
            let Self { fills, pieces, resident, .. } = self;
            let is_there = |item: u32| {
                resident.contains(item) || readers.iter().all(|(_, epoch)| epoch.has_drawn(item))
            };
            if fills[at].is_full(pieces, is_there) {
                let filled: Vec<u32> = self.fills.remove(at).pieces().collect();
                for (job, _) in readers {
                    self.tell(now, |manager| manager.filled(now.duration(), member(*job), &filled));
                }
                // What follows may have changed the list.
                at = 0;
            } else {
                at += 1;
            }
        }
    }

    pub fn tick(&mut self, now: Nanos) {
        self.tell(now, |manager| manager.tick(now.duration()));
    }

    /// When [`Shelf::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.manager.next_deadline().map(Nanos::from)
    }

    pub fn wish(&self, now: Nanos) -> Wish {
        self.manager.wish(now.duration())
    }

    /// Changes whenever space should be split anew.
    pub fn reasons(&self) -> u64 {
        self.manager.reasons()
    }

    /// The dataset has this much space from now on.
    pub fn place(&mut self, now: Nanos, choice: Choice) {
        self.tell(now, |manager| manager.place(now.duration(), choice));
    }

    /// Tells the manager, and does what it orders.
    fn tell(
        &mut self,
        now: Nanos,
        fact: impl FnOnce(&mut Manager) -> Result<Vec<Order>, Contradiction>,
    ) {
        let name = &self.name;
        let expect = |orders: Result<Vec<Order>, Contradiction>| {
            orders.unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let mut orders = VecDeque::from(expect(fact(&mut self.manager)));
        let mut obeyed = 0;
        while let Some(order) = orders.pop_front() {
            obeyed += 1;
            assert!(obeyed <= 4 * self.pieces.len() + 4, "{name}: {order:?} without end");
            match order {
                Order::Load(pieces) => {
                    self.log.push(Stay { pieces: pieces.clone(), from: now, to: None });
                    self.fills.push(Fill::new(pieces));
                }
                Order::Evict(pieces) => {
                    self.fills.retain(|fill| fill.pieces() != pieces);
                    for piece in pieces.clone() {
                        for item in &self.pieces[piece as usize] {
                            self.resident.remove(*item);
                        }
                    }
                    let stay = self.log.iter_mut().rev().find(|stay| stay.pieces == pieces);
                    stay.expect("what is evicted was loaded").to = Some(now);
                    orders.extend(expect(self.manager.evicted(now.duration(), &pieces)));
                }
                // Only what has a place is fetched here.
                Order::Keep => {}
            }
        }
    }

    /// Bytes of everything that has a place, full or not.
    pub fn taken(&self) -> u64 {
        let there = self.log.iter().filter(|stay| stay.to.is_none());
        let items = there.flat_map(|stay| stay.pieces.clone());
        items.map(|piece| self.pieces[piece as usize].len() as u64 * self.item_bytes).sum()
    }

    pub fn residency(&self, end: Nanos) -> impl Iterator<Item = Residency> {
        self.log.iter().map(move |stay| Residency {
            dataset: self.name.clone(),
            chunk: stay.pieces.start / self.halves,
            from_seconds: stay.from.seconds(),
            to_seconds: stay.to.unwrap_or(end).seconds(),
        })
    }

    fn unread(&self, piece: u32, epoch: &Epoch) -> ByteSize {
        ByteSize(epoch.unread(ChunkOrdinal(piece)) * self.item_bytes)
    }
}

fn member(job: usize) -> Member {
    Member(job as u64)
}

fn rate(bytes_per_second: u64) -> ByteRate {
    ByteRate(ByteSize(bytes_per_second))
}
