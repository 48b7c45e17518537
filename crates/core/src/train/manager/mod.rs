//! The manager of one dataset (Quiver's cache manager): who reads it, what each of them gains, and which of its
//! pieces have a place in the cache.
//!
//! It is made of three state machines. `benefit` says of each job whether it gains from the cache; those who
//! do take part in the `rotation`, which says which chunks come and go; how many there may be, `placement`
//! says, for all datasets together ([`Space`]). Facts and the time go in, orders about pieces come out, and
//! whoever drives this (a node, the simulator) carries them out.
//!
//! A manager can be lost. All that it knows can be told again: by jobs, which join another manager with
//! what they have not read, and by nodes, which say what they find ([`Manager::take_over`]).
//!
//! Facts that contradict what is known change nothing: they are an error in the caller's hands, and counted.

mod courtesy;
mod description;
mod draining;
mod facts;
mod load;
mod managers;
mod membership;
mod open;
mod pieces;
mod reader;
mod space;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

pub use description::{Description, JobDescription, Piece};
pub use managers::{Answer, JOB_PIECES_MAX, Managers, Overview, Refusal, Report};
pub use membership::Membership;
pub use open::{Directions, Open, Place, mode};
use pieces::Pieces;
use reader::Reader;
pub use reader::Who;
pub use space::{Rule, Space};

use crate::{
    ByteSize,
    benefit::Mode,
    chunking::ChunkOrdinal,
    placement::{Choice, Dataset},
    rotation::{self, Contradiction, Counters, Fact, Job, Order as ChunkOrder, Policy, Rotation},
    units::ByteRate,
};
use load::Load;

/// What does not change while a dataset is managed.
#[derive(Debug, Clone)]
pub struct Settings {
    /// By which rule chunks come and go.
    pub policy: Policy,
    /// How long a job is believed to live without being heard of.
    pub lease: Duration,
    /// How fast its jobs can fetch together, until it has been measured.
    pub load_rate: ByteRate,
    /// The sizes of all pieces.
    pub piece_sizes: Vec<ByteSize>,
    /// How many of them make a chunk: two, or one where halves are not wanted.
    pub pieces_per_chunk: u32,
}

/// What is to be done with pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// What jobs fetch of them is kept from now on.
    Load(Range<u32>),
    /// They are to be freed; [`Manager::evicted`] when they are.
    Evict(Range<u32>),
    /// None of them, but more is kept from now on of what is put, or less: [`Manager::kept`].
    Keep,
}

/// The manager of one dataset.
#[derive(Debug)]
pub struct Manager {
    policy: Policy,
    lease: Duration,
    load_rate: ByteRate,
    now: Duration,
    pieces: Pieces,
    choice: Choice,
    rotation: Rotation,
    /// What rotations of former cuts have counted.
    counted: Counters,
    readers: BTreeMap<Job, Reader>,
    places: Vec<Place>,
    /// Pieces of which something is there, whether or not anybody was told to fetch it.
    here: BTreeSet<u32>,
    /// When a job was last heard of.
    read_at: Duration,
    /// Chunks that are on their way.
    loads: BTreeMap<ChunkOrdinal, Load>,
    /// Chunks that are to go when the last that was drawn of them has been given.
    draining: BTreeSet<ChunkOrdinal>,
    /// Pieces of a former cut that are not free yet: nothing comes before they are.
    clearing: BTreeSet<u32>,
    /// Changes whenever placement has a reason to think again.
    reasons: u64,
}

type Orders = Result<Vec<Order>, Contradiction>;

impl Manager {
    /// A dataset that nobody reads, with no space yet.
    pub fn new(settings: Settings) -> Self {
        let Settings { policy, lease, load_rate, piece_sizes, pieces_per_chunk } = settings;
        let places = vec![Place::None; piece_sizes.len()];
        let pieces = Pieces::new(piece_sizes, pieces_per_chunk);
        let rotation = new_rotation(policy, lease, load_rate, &pieces);
        Self {
            policy,
            lease,
            load_rate,
            now: Duration::ZERO,
            pieces,
            choice: Choice::Nothing,
            rotation,
            counted: Counters::default(),
            readers: BTreeMap::new(),
            places,
            here: BTreeSet::new(),
            read_at: Duration::ZERO,
            loads: BTreeMap::new(),
            draining: BTreeSet::new(),
            clearing: BTreeSet::new(),
            reasons: 0,
        }
    }

    /// When [`Manager::tick`] has something to do, if nothing happens until then.
    pub fn next_deadline(&self) -> Option<Duration> {
        let all = self.readers.values();
        let outside = all.filter(|reader| !reader.benefit.is_cached());
        let expiry = outside.map(|reader| reader.heard_at.saturating_add(self.lease)).min();
        let silent = self.members().filter_map(|job| self.rotation.silent_at(job));
        let silent = silent.filter(|at| *at > self.now).min();
        let silent = silent.filter(|_| !self.loads.is_empty() || !self.draining.is_empty());
        [self.rotation.next_deadline(), expiry, silent].into_iter().flatten().min()
    }

    /// Those who take part, and were heard of lately: nobody waits for the others.
    fn awake_members(&self, now: Duration) -> impl Iterator<Item = &Reader> {
        let awake = move |job: &Job| self.rotation.silent_at(*job).is_some_and(|at| at > now);
        self.members().filter(awake).map(|job| &self.readers[&job])
    }

    /// What a job draws from. One that gains nothing, or is not known, draws from nothing.
    pub fn open(&mut self, job: Job) -> Open {
        let Ok(open) = self.rotation.open(job) else { return Open::default() };
        let rotation::Open { held, first, then } = open;
        let of = |chunk: &ChunkOrdinal| self.pieces.of(*chunk).map(ChunkOrdinal);
        let all = |chunks: &[ChunkOrdinal]| chunks.iter().flat_map(of).collect();
        let open = Open {
            held: all(&held),
            first: all(&first),
            then: then.iter().map(|chunk| of(chunk).collect()).collect(),
        };
        if let Some(reader) = self.readers.get_mut(&job) {
            reader.told.clear();
            reader.told.extend(held.into_iter().chain(first).chain(then));
        }
        open
    }

    /// Where a mini-batch of a job comes from: see [`mode`].
    pub fn mode(
        &self,
        job: Job,
        pieces: impl IntoIterator<Item = u32>,
        all_resident: bool,
    ) -> Option<Mode> {
        if !self.is_member(job) {
            return Some(Mode::Miss);
        }
        mode(pieces.into_iter().map(|piece| self.places[piece as usize]), all_resident)
    }

    /// Pieces that are on their way: what jobs need of these is fetched ahead.
    pub fn loading(&self) -> impl Iterator<Item = u32> {
        self.loads.keys().flat_map(|chunk| self.pieces.of(*chunk))
    }

    /// How a piece stands.
    pub fn place_of(&self, piece: u32) -> Place {
        self.places.get(piece as usize).copied().unwrap_or_default()
    }

    /// The pieces of which what is fetched is kept, in order: those that have a place, and all of them where
    /// there is room for all, whichever are loaded first.
    pub fn kept(&self) -> impl Iterator<Item = u32> {
        let takes_all = self.is_whole() && self.clearing.is_empty();
        let kept = move |(_, place): &(u32, &Place)| takes_all || **place != Place::None;
        (0..).zip(&self.places).filter(kept).map(|(piece, _)| piece)
    }

    /// How many pieces the dataset has.
    pub fn piece_count(&self) -> u32 {
        self.pieces.count()
    }

    /// Whether there is room for all of the dataset.
    fn is_whole(&self) -> bool {
        matches!(self.choice, Choice::Chunks(chunks) if chunks >= self.pieces.chunks())
    }

    /// Whether a job has joined, and was heard of in time.
    pub fn knows(&self, now: Duration, job: Job) -> bool {
        self.alive(now, job).is_ok()
    }

    /// Whether a job takes part in the rotation.
    pub fn is_member(&self, job: Job) -> bool {
        self.readers.get(&job).is_some_and(|reader| reader.benefit.is_cached())
    }

    /// What placement is told of the dataset.
    pub fn wish(&self, now: Duration) -> Dataset {
        let (members, others): (Vec<&Reader>, Vec<&Reader>) =
            self.readers.values().partition(|reader| reader.benefit.is_cached());
        Dataset {
            chunks: self.pieces.chunks(),
            chunk_size: self.pieces.chunk_size_max(),
            half_size: self.pieces.size_max(),
            total: self.pieces.total(),
            jobs: members.into_iter().map(Reader::wish).collect(),
            others: others.into_iter().map(|reader| reader.who.name.clone()).collect(),
            placed: self.choice,
            here: u32::try_from(self.chunks_here().len()).expect("there are not so many"),
            idle_for: if self.readers.is_empty() {
                now.saturating_sub(self.read_at)
            } else {
                Duration::ZERO
            },
        }
    }

    /// Chunks of which something is there, or on its way.
    fn chunks_here(&self) -> BTreeSet<ChunkOrdinal> {
        let here = self.here.iter().map(|piece| self.pieces.holder_of(*piece));
        here.chain(self.rotation.open_chunks()).collect()
    }

    /// Changes whenever placement has a reason to think again.
    pub fn reasons(&self) -> u64 {
        self.reasons
    }

    /// What the dataset may have.
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.counted + self.rotation.counters()
    }

    fn members(&self) -> impl Iterator<Item = Job> {
        let cached = self.readers.iter().filter(|(_, reader)| reader.benefit.is_cached());
        cached.map(|(job, _)| *job)
    }

    fn reader(&self, job: Job) -> Result<&Reader, Contradiction> {
        self.readers.get(&job).ok_or(Contradiction::UnknownJob { job })
    }

    /// A job that speaks, unless it has been silent for too long.
    fn alive(&self, now: Duration, job: Job) -> Result<&Reader, Contradiction> {
        let reader = self.reader(job)?;
        let is_alive = !reader.benefit.is_cached() || self.rotation.knows(now, job);
        is_alive.then_some(reader).ok_or(Contradiction::UnknownJob { job })
    }

    fn heard(&mut self, now: Duration, job: Job) {
        if let Some(reader) = self.readers.get_mut(&job) {
            reader.heard_at = now;
            self.read_at = now;
        }
    }

    fn size_of(&self, piece: u32) -> Result<ByteSize, Contradiction> {
        let unknown =
            Contradiction::UnknownChunk { chunk: ChunkOrdinal(piece), chunks: self.places.len() };
        self.pieces.size(piece).ok_or(unknown)
    }

    /// All of these are pieces of the dataset.
    fn check_pieces<'a>(
        &self,
        pieces: impl IntoIterator<Item = &'a u32>,
    ) -> Result<(), Contradiction> {
        pieces.into_iter().try_for_each(|piece| self.size_of(*piece).map(|_| ()))
    }

    /// What is unread of a piece is no more than it was.
    fn check_unread(
        &self,
        unread: &[(u32, ByteSize)],
        known: impl Fn(u32) -> Option<ByteSize>,
        job: Job,
    ) -> Result<(), Contradiction> {
        for (piece, unread) in unread {
            self.size_of(*piece)?;
            let known = known(*piece).unwrap_or(ByteSize(0));
            if *unread > known {
                let (chunk, unread) = (ChunkOrdinal(*piece), *unread);
                return Err(Contradiction::UnreadGrew { job, chunk, unread, known });
            }
        }
        Ok(())
    }

    fn budget(&mut self, now: Duration) -> Orders {
        let chunks = match self.choice {
            Choice::Nothing => 0,
            Choice::Halves => 2,
            Choice::Chunks(chunks) => chunks,
        };
        self.tell(now, Fact::Budget { chunks })
    }

    fn tell_all_unread(&mut self, now: Duration, job: Job) -> Orders {
        let chunks = self.pieces.rotating();
        self.tell_unread(now, job, chunks)
    }

    fn tell_unread(
        &mut self,
        now: Duration,
        job: Job,
        chunks: impl IntoIterator<Item = ChunkOrdinal>,
    ) -> Orders {
        let reader = self.reader(job)?;
        let unread = |chunk| (chunk, reader.unread(&self.pieces, chunk));
        let (unread, pace): (Vec<_>, _) = (chunks.into_iter().map(unread).collect(), reader.pace);
        self.tell(now, Fact::Progress { job, unread: &unread, pace })
    }

    fn tell_if_member(&mut self, now: Duration, fact: Fact<'_>, job: Job) -> Orders {
        if self.rotation.knows(now, job) {
            self.tell(now, fact)
        } else {
            self.tell(now, Fact::Tick)
        }
    }

    /// Whether what is on its way has arrived, as far as anybody needs it.
    fn check_loaded(&mut self, now: Duration) -> Orders {
        let is_loaded = |(chunk, load): &(&ChunkOrdinal, &Load)| {
            let needs_nothing = |reader: &Reader| {
                self.pieces.of(**chunk).all(|piece| reader.needs_nothing_of(piece))
            };
            load.is_whole(self.pieces.rotating_size(**chunk))
                || self.awake_members(now).all(needs_nothing)
        };
        let loaded: Vec<ChunkOrdinal> =
            self.loads.iter().filter(is_loaded).map(|(chunk, _)| *chunk).collect();
        let mut orders = Vec::new();
        for chunk in loaded {
            // What followed from another may have taken it away.
            if self.loads.remove(&chunk).is_none() {
                continue;
            }
            orders.extend(self.tell(now, Fact::Loaded { chunk })?);
        }
        Ok(orders)
    }

    /// Tells the rotation, and says what follows for pieces.
    fn tell(&mut self, now: Duration, fact: Fact<'_>) -> Orders {
        let orders = self.rotation.on(now, fact)?;
        self.now = now;
        self.forget_silent(now);
        let mut result = Vec::new();
        for order in orders {
            match order {
                ChunkOrder::Load(chunk) => {
                    self.loads.insert(chunk, Load::default());
                    self.readers.values_mut().for_each(|reader| {
                        reader.lose(chunk, self.pieces.of(chunk));
                    });
                    result.push(Order::Load(self.pieces.of(chunk)));
                }
                // Who may draw from it, `open` says.
                ChunkOrder::Mark(_) => {}
                ChunkOrder::Evict { chunk, .. } => {
                    self.loads.remove(&chunk);
                    self.readers.values_mut().for_each(|reader| {
                        reader.lose(chunk, self.pieces.of(chunk));
                    });
                    self.draining.insert(chunk);
                }
            }
        }
        self.look();
        result.extend(self.drained(now));
        Ok(result)
    }

    /// Those who were not heard of in time read nothing any more.
    fn forget_silent(&mut self, now: Duration) {
        let (rotation, lease, before) = (&self.rotation, self.lease, self.readers.len());
        self.readers.retain(|job, reader| {
            if reader.benefit.is_cached() {
                rotation.knows(now, *job)
            } else {
                reader.heard_at.saturating_add(lease) > now
            }
        });
        self.reasons += u64::from(self.readers.len() < before);
    }

    /// Where everything stands now.
    fn look(&mut self) {
        self.places.fill(Place::None);
        // The paper holds nothing for good, unless there is room for all.
        let is_whole = self.is_whole();
        let draining = self.draining.iter().copied();
        for chunk in self.rotation.open_chunks().chain(draining) {
            let place = if is_whole { Place::Held } else { Place::Rotating };
            self.places[range(self.pieces.of(chunk))].fill(place);
        }
        for chunk in self.rotation.held() {
            self.places[range(self.pieces.of(chunk))].fill(Place::Held);
        }
    }
}

fn range(pieces: Range<u32>) -> Range<usize> {
    pieces.start as usize..pieces.end as usize
}

fn new_rotation(policy: Policy, lease: Duration, rate: ByteRate, pieces: &Pieces) -> Rotation {
    let chunk_sizes = pieces.rotating_sizes();
    let largest = chunk_sizes.iter().max().map_or(0, |size| size.0);
    // If its jobs had nothing else to fetch; the first load corrects it.
    let load_time = Duration::from_secs_f64(largest as f64 / rate.0.0.max(1) as f64);
    Rotation::new(&rotation::Settings { policy, lease, load_time, chunk_sizes })
}
