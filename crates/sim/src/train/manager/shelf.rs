//! One dataset in the cache: which items are there or on their way, and what its rotation makes of that.
//!
//! Rotation decides about chunks, or about halves of them where two chunks do not fit; the sampler sees
//! **pieces**, which are halves from the beginning, so that nothing changes for it when the cut does.

use std::{collections::VecDeque, ops::Range, time::Duration};

use forebay_core::{
    ByteSize, DatasetId,
    benefit::Mode,
    chunking::ChunkOrdinal,
    rotation::{Cut, Fact, Job as Member, Order, Policy as Rule, Rotation, Settings},
    sampler::Layout,
    units::ByteRate,
};

use super::fill::Fill;
use crate::train::{
    bits::Bits,
    job::{Epoch, Running, State},
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
    rule: Rule,
    item_bytes: u64,
    /// How fast its jobs can fetch together, in bytes per second.
    load_rate: u64,
    /// How many pieces a chunk has.
    halves: u32,
    pieces: Vec<Vec<u32>>,
    piece_of: Vec<u32>,
    /// How many chunks or halves have a place, and the rotation of these.
    cut: Cut,
    rotation: Rotation,
    deadline: Option<Nanos>,
    /// Whether what is fetched of a piece is kept.
    has_place: Vec<bool>,
    /// Whether it stays for good.
    held: Vec<bool>,
    resident: Bits,
    in_flight: Bits,
    fills: Vec<Fill>,
    waiting: Vec<Waiting>,
    members: Vec<Membership>,
    log: Vec<Stay>,
}

/// Somebody waits for an item that somebody else fetches.
#[derive(Debug, Clone, Copy)]
pub(in crate::train) struct Waiting {
    pub item: u32,
    pub job: usize,
    pub batch: BatchNumber,
}

/// What a job has told the rotation.
#[derive(Debug, Clone, Default)]
struct Membership {
    is_member: bool,
    /// By chunk: whether it draws from it, and whether it may.
    referenced: Vec<bool>,
    open: Vec<bool>,
}

/// A chunk in the cache, from when to when; by pieces, so that halves can be told.
#[derive(Debug)]
struct Stay {
    piece: u32,
    from: Nanos,
    to: Option<Nanos>,
}

impl Shelf {
    pub fn new(dataset: &Dataset, jobs: usize, rule: Rule, load_rate: u64, seed: u64) -> Self {
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
        let mut shelf = Self {
            name: dataset.name.clone(),
            rule,
            item_bytes: dataset.item_bytes,
            halves,
            has_place: vec![false; pieces.len()],
            held: vec![false; pieces.len()],
            pieces,
            piece_of,
            cut: Cut::Nothing,
            rotation: Rotation::new(&Settings {
                policy: rule,
                lease: LEASE,
                load_time: Duration::ZERO,
                chunk_sizes: Vec::new(),
            }),
            deadline: None,
            load_rate,
            resident: Bits::new(dataset.items),
            in_flight: Bits::new(dataset.items),
            fills: Vec::new(),
            waiting: Vec::new(),
            members: vec![Membership::default(); jobs],
            log: Vec::new(),
        };
        shelf.start_rotation();
        shelf
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
    pub fn fetched(&mut self, item: u32) -> Fetched {
        self.in_flight.remove(item);
        let piece = self.piece_of[item as usize];
        if self.resident.contains(item) {
            return Fetched::Duplicate;
        }
        if !self.has_place[piece as usize] {
            return Fetched::Outside;
        }
        self.resident.insert(item);
        let chunk = self.chunk_of_piece(piece);
        if let Some(fill) = self.fills.iter_mut().find(|fill| fill.chunk == chunk) {
            fill.arrived(self.item_bytes);
        }
        Fetched::Kept
    }

    /// Nobody fetches this item any more.
    pub fn abandon(&mut self, item: u32) {
        self.in_flight.remove(item);
        self.fills.iter_mut().for_each(Fill::look_again);
    }

    /// Items that nobody has asked for yet and some job will: what an idle link fetches ahead.
    pub fn ahead(&mut self, count: usize, readers: &[&Epoch]) -> Vec<u32> {
        let mut items = Vec::new();
        let Self { fills, pieces, resident, in_flight, .. } = self;
        for fill in fills {
            let is_wanted = |item: u32| {
                !resident.contains(item)
                    && !in_flight.contains(item)
                    && readers.iter().any(|epoch| !epoch.has_drawn(item))
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
        // What the rotation believes to be there is filled up again.
        let chunks: Vec<ChunkOrdinal> = self.rotation.resident().collect();
        for chunk in chunks {
            match self.fills.iter_mut().find(|fill| fill.chunk == chunk) {
                Some(fill) => fill.look_again(),
                None => self.fills.push(Fill::new(chunk, self.pieces_of(chunk), false)),
            }
        }
    }

    pub fn is_member(&self, job: usize) -> bool {
        self.members[job].is_member
    }

    /// A job draws from the cache from now on.
    pub fn join(&mut self, now: Nanos, job: usize, epoch: &Epoch, pace: u64) {
        self.leave(now, job);
        self.members[job] = Membership {
            is_member: true,
            referenced: vec![false; self.rotating_count()],
            open: vec![false; self.rotating_count()],
        };
        self.on(now, Fact::Joined { job: member(job) });
        let unread: Vec<_> =
            self.chunks().map(|chunk| (chunk, self.unread(chunk, epoch))).collect();
        self.on(now, Fact::Progress { job: member(job), unread: &unread, pace: rate(pace) });
    }

    /// A job wants nothing of the cache any more.
    pub fn leave(&mut self, now: Nanos, job: usize) {
        self.members[job].is_member = false;
        if self.rotation.jobs().any(|known| known == member(job)) {
            self.on(now, Fact::Left { job: member(job) });
        }
    }

    /// Everything is unread again.
    pub fn next_epoch(&mut self, now: Nanos, job: usize) {
        if self.is_member(job) {
            self.members[job].referenced.fill(false);
            self.on(now, Fact::NextEpoch { job: member(job) });
        }
    }

    /// Tells a job's sampler what to draw from.
    pub fn direct(&mut self, job: usize, epoch: &mut Epoch, batch: u64) {
        if !self.is_member(job) {
            epoch.open(&[], &[], None);
            return;
        }
        let open = self.rotation.open(member(job)).expect("a member is known");
        let known = &mut self.members[job].open;
        known.fill(false);
        for chunk in open.held.iter().chain(&open.first).chain(&open.then) {
            known[chunk.0 as usize] = true;
        }
        let pieces = |chunk: &ChunkOrdinal| self.pieces_of(*chunk).map(ChunkOrdinal);
        let held: Vec<ChunkOrdinal> = open.held.iter().flat_map(pieces).collect();
        // The first as one; when they are running out, the others as well, but the first before them.
        let mut rotating: Vec<ChunkOrdinal> = open.first.iter().flat_map(pieces).collect();
        let mut unread: u64 = rotating.iter().map(|piece| epoch.unread(*piece)).sum();
        let is_running_out = unread < batch;
        let leaving = rotating.iter().copied().find(|piece| epoch.unread(*piece) > 0);
        for chunk in &open.then {
            if unread >= batch {
                break;
            }
            unread += pieces(chunk).map(|piece| epoch.unread(piece)).sum::<u64>();
            rotating.extend(pieces(chunk));
        }
        epoch.open(&held, &rotating, leaving.filter(|_| is_running_out));
    }

    /// Where these items come from, if that is one place.
    pub fn mode(&self, job: usize, items: &[u32]) -> Option<Mode> {
        let piece = |item: &u32| self.piece_of[*item as usize] as usize;
        if !self.is_member(job) || !items.iter().any(|item| self.has_place[piece(item)]) {
            return Some(Mode::Miss);
        }
        let is_held = |item: &u32| self.held[piece(item)];
        if items.iter().any(|item| self.has_place[piece(item)] && !is_held(item)) {
            return Some(Mode::Rotating);
        }
        items.iter().all(|item| self.resident.contains(*item)).then_some(Mode::Hit)
    }

    /// A job has drawn these items.
    pub fn drawn(&mut self, now: Nanos, job: usize, epoch: &Epoch, items: &[u32], pace: u64) {
        if !self.is_member(job) {
            return;
        }
        let mut touched: Vec<ChunkOrdinal> = Vec::new();
        for item in items {
            let chunk = self.chunk_of_piece(self.piece_of[*item as usize]);
            if !touched.contains(&chunk) {
                touched.push(chunk);
            }
        }
        for chunk in &touched {
            let known = &mut self.members[job];
            if known.open[chunk.0 as usize] && !known.referenced[chunk.0 as usize] {
                known.referenced[chunk.0 as usize] = true;
                self.on(now, Fact::Referenced { job: member(job), chunk: *chunk });
            }
        }
        let unread: Vec<_> =
            touched.into_iter().map(|chunk| (chunk, self.unread(chunk, epoch))).collect();
        self.on(now, Fact::Progress { job: member(job), unread: &unread, pace: rate(pace) });
    }

    /// The last items of these pieces were given to a job.
    pub fn released(&mut self, now: Nanos, job: usize, epoch: &Epoch, pieces: &[ChunkOrdinal]) {
        if !self.is_member(job) {
            return;
        }
        let mut chunks: Vec<_> = pieces.iter().map(|piece| self.chunk_of_piece(piece.0)).collect();
        chunks.dedup();
        for chunk in chunks {
            let is_over =
                self.pieces_of(chunk).all(|piece| epoch.unyielded(ChunkOrdinal(piece)) == 0);
            let referenced = self.members[job].referenced.get_mut(chunk.0 as usize);
            if is_over && referenced.is_some_and(std::mem::take) {
                self.on(now, Fact::Exhausted { job: member(job), chunk });
            }
        }
    }

    /// Whether chunks that were being filled are full now, as far as anyone needs them.
    pub fn check_fills(&mut self, now: Nanos, readers: &[&Epoch]) {
        let mut at = 0;
        while at < self.fills.len() {
            let Self { fills, pieces, resident, item_bytes, .. } = self;
            let fill = &mut fills[at];
            let is_there = |item: u32| {
                resident.contains(item) || !readers.iter().any(|epoch| !epoch.has_drawn(item))
            };
            let (chunk, is_ordered) = (fill.chunk, fill.is_ordered);
            if fill.is_full(pieces, is_there) {
                self.fills.remove(at);
                if is_ordered {
                    self.on(now, Fact::Loaded { chunk });
                }
                // What follows may have changed the list.
                at = 0;
                continue;
            }
            let size = size_of(pieces, fill.pieces(), *item_bytes);
            let news = fill.news(size);
            if let Some(bytes) = news.filter(|_| is_ordered) {
                self.on(now, Fact::Loading { chunk, bytes: ByteSize(bytes) });
            }
            at += 1;
        }
    }

    pub fn tick(&mut self, now: Nanos) {
        self.on(now, Fact::Tick);
    }

    /// When [`Shelf::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    /// How many whole chunks have a place.
    pub fn placed(&self) -> u32 {
        match self.cut {
            Cut::Chunks(chunks) => chunks,
            Cut::Halves(_) => 1,
            Cut::Nothing => 0,
        }
    }

    /// The dataset has this much space from now on.
    pub fn place(&mut self, now: Nanos, cut: Cut, jobs: &[Running], paces: &[u64]) {
        if cut == self.cut {
            return;
        }
        let is_other_kind = matches!(cut, Cut::Halves(_)) != matches!(self.cut, Cut::Halves(_));
        if is_other_kind {
            self.empty(now);
        }
        self.cut = cut;
        if is_other_kind {
            self.start_rotation();
        }
        let chunks = match cut {
            Cut::Chunks(count) | Cut::Halves(count) => count,
            Cut::Nothing => 0,
        };
        self.on(now, Fact::Budget { chunks });
        if is_other_kind {
            for (job, running) in jobs.iter().enumerate() {
                if self.is_member(job) && running.state == State::Training {
                    self.join(now, job, &running.epoch, paces[job]);
                }
            }
        }
    }

    /// Evicts everything, because it will be cut otherwise.
    fn empty(&mut self, now: Nanos) {
        let chunks: Vec<ChunkOrdinal> = self.rotation.resident().collect();
        for chunk in chunks {
            self.free(now, chunk);
        }
    }

    fn start_rotation(&mut self) {
        let sizes: Vec<ByteSize> = self.chunks().map(|chunk| self.size_of(chunk)).collect();
        let largest = sizes.iter().max().map_or(0, |size| size.0);
        let settings = Settings {
            policy: self.rule,
            lease: LEASE,
            // If they had nothing else to fetch; the first load corrects it.
            load_time: Duration::from_secs_f64(largest as f64 / self.load_rate as f64),
            chunk_sizes: sizes,
        };
        self.rotation = Rotation::new(&settings);
    }

    /// Tells the rotation, and does what it orders.
    fn on(&mut self, now: Nanos, fact: Fact<'_>) {
        let mut orders = VecDeque::from(self.tell(now, fact));
        let mut obeyed = 0;
        while let Some(order) = orders.pop_front() {
            obeyed += 1;
            assert!(obeyed <= 4 * self.pieces.len() + 4, "{}: {order:?} without end", self.name);
            match order {
                Order::Load(chunk) => {
                    for piece in self.pieces_of(chunk) {
                        self.has_place[piece as usize] = true;
                        self.log.push(Stay { piece, from: now, to: None });
                    }
                    self.fills.push(Fill::new(chunk, self.pieces_of(chunk), true));
                }
                Order::Mark(_) => {}
                Order::Evict { chunk, .. } => {
                    self.free(now, chunk);
                    orders.extend(self.tell(now, Fact::Evicted { chunk }));
                }
            }
        }
        self.deadline = self.rotation.next_deadline().map(Nanos::from);
        self.held.fill(false);
        let is_whole = self.rule != Rule::ByNeed && self.placed() as usize >= self.rotating_count();
        let held: Vec<ChunkOrdinal> = if is_whole {
            self.rotation.resident().collect()
        } else {
            self.rotation.held().collect()
        };
        for chunk in held {
            self.pieces_of(chunk).for_each(|piece| self.held[piece as usize] = true);
        }
    }

    fn tell(&mut self, now: Nanos, fact: Fact<'_>) -> Vec<Order> {
        let orders = self.rotation.on(now.duration(), fact);
        orders.unwrap_or_else(|error| panic!("{}: {error} ({fact:?})", self.name))
    }

    fn free(&mut self, now: Nanos, chunk: ChunkOrdinal) {
        self.fills.retain(|fill| fill.chunk != chunk);
        for piece in self.pieces_of(chunk) {
            self.has_place[piece as usize] = false;
            for item in &self.pieces[piece as usize] {
                self.resident.remove(*item);
            }
            let stay = self.log.iter_mut().rev().find(|stay| stay.piece == piece);
            stay.expect("what is evicted was loaded").to = Some(now);
        }
        for member in &mut self.members {
            if let Some(referenced) = member.referenced.get_mut(chunk.0 as usize) {
                *referenced = false;
            }
        }
    }

    /// Bytes of everything that has a place, full or not.
    pub fn taken(&self) -> u64 {
        let pieces = self.pieces.iter().zip(&self.has_place).filter(|(_, has_place)| **has_place);
        pieces.map(|(items, _)| items.len() as u64 * self.item_bytes).sum()
    }

    pub fn residency(&self, end: Nanos) -> impl Iterator<Item = Residency> {
        // Both halves of a chunk come and go together, unless halves rotate.
        let stays = self.log.iter().filter(|stay| {
            stay.piece.is_multiple_of(self.halves) || matches!(self.cut, Cut::Halves(_))
        });
        stays.map(move |stay| Residency {
            dataset: self.name.clone(),
            chunk: stay.piece / self.halves,
            from_seconds: stay.from.seconds(),
            to_seconds: stay.to.unwrap_or(end).seconds(),
        })
    }

    /// How many chunks or halves the rotation knows.
    fn rotating_count(&self) -> usize {
        self.pieces.len() / self.pieces_per_chunk() as usize
    }

    fn chunks(&self) -> impl Iterator<Item = ChunkOrdinal> + use<> {
        (0..u32::try_from(self.rotating_count()).expect("few chunks")).map(ChunkOrdinal)
    }

    fn pieces_per_chunk(&self) -> u32 {
        if matches!(self.cut, Cut::Halves(_)) { 1 } else { self.halves }
    }

    fn pieces_of(&self, chunk: ChunkOrdinal) -> Range<u32> {
        let pieces = self.pieces_per_chunk();
        chunk.0 * pieces..(chunk.0 + 1) * pieces
    }

    fn chunk_of_piece(&self, piece: u32) -> ChunkOrdinal {
        ChunkOrdinal(piece / self.pieces_per_chunk())
    }

    fn size_of(&self, chunk: ChunkOrdinal) -> ByteSize {
        ByteSize(size_of(&self.pieces, self.pieces_of(chunk), self.item_bytes))
    }

    fn unread(&self, chunk: ChunkOrdinal, epoch: &Epoch) -> ByteSize {
        let items = self.pieces_of(chunk).map(|piece| epoch.unread(ChunkOrdinal(piece)));
        ByteSize(items.sum::<u64>() * self.item_bytes)
    }
}

fn size_of(pieces: &[Vec<u32>], those: Range<u32>, item_bytes: u64) -> u64 {
    those.map(|piece| pieces[piece as usize].len() as u64).sum::<u64>() * item_bytes
}

fn member(job: usize) -> Member {
    Member(job as u64)
}

fn rate(bytes_per_second: u64) -> ByteRate {
    ByteRate(ByteSize(bytes_per_second))
}
