//! Promise 2: in one epoch a job gets every item exactly once, under substitution, faults, resume
//! from a state in mid-epoch, and resume with another number of ranks (from all ranks' states).

use proptest::{collection::vec, prelude::*};

use super::*;

/// An event in the course of an epoch.
#[derive(Debug, Clone)]
enum Event {
    /// All ranks yield this number of batches each.
    Run(u64),
    /// Another draw set: bits of its half-chunks, and of those that are pinned.
    DrawSet { open: u32, pinned: u32 },
    /// Other items are resident, this share of them.
    Resident { percent: u64, salt: u64 },
    /// All processes die, and come back with what they had yielded.
    Crash,
    /// The job goes on with `world` ranks; some had yielded more than others.
    Reshard { world: u32, batch: u32, uneven: u32 },
}

#[derive(Debug, Clone)]
struct Case {
    half_chunk_of: Vec<u32>,
    plan: EpochPlan,
    /// Batches that a loader draws before the first of them is yielded.
    ahead: usize,
    events: Vec<Event>,
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1_u64..12).prop_map(Event::Run),
        2 => (any::<u32>(), any::<u32>())
            .prop_map(|(open, pinned)| Event::DrawSet { open, pinned }),
        2 => (0_u64..=100, any::<u64>())
            .prop_map(|(percent, salt)| Event::Resident { percent, salt }),
        1 => Just(Event::Crash),
        1 => (1_u32..6, 1_u32..20, any::<u32>())
            .prop_map(|(world, batch, uneven)| Event::Reshard { world, batch, uneven }),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = (1_u32..20, 1_u32..6, 1_u32..12, 1_u32..64, 0_u32..20);
    let plan = (any::<u64>(), sizes, any::<[bool; 2]>());
    let plan = plan.prop_map(|(seed, sizes, [drop, like_length])| {
        let (batch, world, over_ask, window, pack_window) = sizes;
        let ending = if drop { Ending::DropLast } else { Ending::Pad };
        EpochPlan {
            ending,
            over_ask,
            window,
            like_length,
            pack_window,
            ..EpochPlan::new(seed, 1, batch).on(0, world)
        }
    });
    let half_chunk_of = (1_u32..9).prop_flat_map(|half_chunks| vec(0..half_chunks, 0..400));
    let rest = (0_usize..5, vec(events(), 0..20));
    (half_chunk_of, plan, rest).prop_map(|(half_chunk_of, plan, (ahead, events))| Case {
        half_chunk_of,
        plan,
        ahead,
        events,
    })
}

/// One rank as a loader drives it.
struct Rank {
    sampler: Sampler,
    drawn: VecDeque<Batch>,
    /// Half-chunks with items to be yielded, and not released.
    unreleased: Vec<HalfChunk>,
}

struct Job {
    case: Case,
    map: HalfChunkMap,
    ranks: Vec<Rank>,
    open: (Vec<HalfChunk>, Vec<HalfChunk>),
    resident: Vec<bool>,
    /// How often each item was yielded.
    seen: Vec<u32>,
    padding: u64,
}

impl Job {
    fn new(case: Case) -> Self {
        let half_chunk_of = case.half_chunk_of.iter().map(|half_chunk| HalfChunk(*half_chunk));
        let map = HalfChunkMap::new(DatasetId::from_bytes([3; 32]), 8, half_chunk_of).unwrap();
        let map = map.with_units(|item| u32::try_from(item.0 / 7).unwrap());
        let packs = (0_u32..).zip(&case.half_chunk_of);
        let map = map.with_packs(packs.map(|(item, half)| half * 1000 + item / 30).collect());
        let plan = case.plan;
        let ranks = (0..plan.world).map(|rank| plan.on(rank, plan.world));
        let ranks = ranks.map(|plan| Rank::new(Sampler::new(&map, plan).unwrap())).collect();
        let items = case.half_chunk_of.len();
        let (resident, seen) = (vec![false; items], vec![0; items]);
        let open = ((0..0).map(HalfChunk).collect(), (0..8).map(HalfChunk).collect());
        Self { case, map, ranks, open, resident, seen, padding: 0 }
    }

    fn run(&mut self) {
        for event in self.case.events.clone() {
            match event {
                Event::Run(batches) => (0..batches).for_each(|_| self.round()),
                Event::DrawSet { open, pinned } => self.open(open, pinned),
                Event::Resident { percent, salt } => {
                    let mut random = fastrand::Rng::with_seed(salt);
                    self.resident.fill_with(|| random.u64(..100) < percent);
                }
                Event::Crash => {
                    let states = self.states();
                    let ranks = states.iter().map(|state| Sampler::resume(&self.map, state));
                    self.ranks = ranks.map(|sampler| Rank::new(sampler.unwrap())).collect();
                    self.apply_draw_set();
                }
                Event::Reshard { world, batch, uneven } => self.reshard(world, batch, uneven),
            }
        }
        while self.ranks.iter().any(|rank| rank.sampler.state().yielded() < rank.sampler.batches())
        {
            self.round();
        }
    }

    /// Every rank yields a batch, or none does.
    fn round(&mut self) {
        let yielded: Vec<bool> = (0..self.ranks.len()).map(|rank| self.step(rank)).collect();
        assert!(
            yielded.iter().all(|one| *one == yielded[0]),
            "all ranks go on, or none: {yielded:?}"
        );
    }

    fn step(&mut self, rank: usize) -> bool {
        let Self { ranks, resident, .. } = self;
        let rank = &mut ranks[rank];
        while rank.drawn.len() <= self.case.ahead {
            let Some(batch) = rank.sampler.draw(|item| resident[index(item)]) else { break };
            check_batch(&batch, &self.case.half_chunk_of, resident, &self.open);
            rank.drawn.push_back(batch);
        }
        let Some(batch) = rank.drawn.pop_front() else { return false };
        for half_chunk in rank.sampler.on_yielded(batch.number()).unwrap() {
            let known = rank.unreleased.iter().position(|other| *other == half_chunk);
            rank.unreleased.remove(known.expect("released once, and not before it had items"));
            assert_eq!(rank.sampler.unyielded(half_chunk), 0);
        }
        let last = batch.number() + 1 == rank.sampler.batches();
        let plan = rank.sampler.state().plan();
        let padding = batch.count(ItemSource::Padding);
        assert!(batch.items().len() == plan.batch as usize || (last && plan.ending == Ending::Pad));
        assert!(!batch.items().is_empty() && padding <= u32::from(last));
        assert!(!last || rank.unreleased.is_empty(), "released on every path");
        self.padding += u64::from(padding);
        let own = batch.items().len() - padding as usize;
        batch.items()[..own].iter().for_each(|item| self.seen[index(*item)] += 1);
        true
    }

    fn states(&self) -> Vec<SamplerState> {
        let states = self.ranks.iter().map(|rank| rank.sampler.state().encode());
        states.map(|bytes| SamplerState::decode(&bytes).unwrap()).collect()
    }

    fn reshard(&mut self, world: u32, batch: u32, uneven: u32) {
        for rank in 0..self.ranks.len() {
            (0..uneven >> (2 * rank) & 3).for_each(|_| {
                self.step(rank);
            });
        }
        let states = self.states();
        let plan = EpochPlan { batch, ..self.case.plan };
        let ranks = (0..world)
            .map(|rank| Sampler::reshard(&self.map, &states, plan.on(rank, world)).unwrap());
        self.ranks = ranks.map(Rank::new).collect();
        self.apply_draw_set();
    }

    fn open(&mut self, open: u32, pinned: u32) {
        let of_class =
            |bits: u32| (0..8).filter(move |half_chunk| bits >> half_chunk & 1 == 1).map(HalfChunk);
        self.open = (of_class(open & pinned).collect(), of_class(open & !pinned).collect());
        self.apply_draw_set();
    }

    fn apply_draw_set(&mut self) {
        for rank in &mut self.ranks {
            let leaving = self.open.1.get(1).copied();
            let draw_set = BatchDrawSet { leaving, ..draw_set(&self.open.0, &self.open.1) };
            rank.sampler.set_draw_set(&draw_set).unwrap();
        }
    }
}

impl Rank {
    fn new(sampler: Sampler) -> Self {
        let half_chunks = (0..8).map(HalfChunk);
        let unreleased =
            half_chunks.filter(|half_chunk| sampler.unyielded(*half_chunk) > 0).collect();
        Self { sampler, drawn: VecDeque::new(), unreleased }
    }
}

/// Items come from the sources that the batch states.
fn check_batch(
    batch: &Batch,
    half_chunk_of: &[u32],
    resident: &[bool],
    (pinned, rotating): &(Vec<HalfChunk>, Vec<HalfChunk>),
) {
    let is_open = |item: ItemOrdinal| {
        let half_chunk = HalfChunk(half_chunk_of[index(item)]);
        pinned.contains(&half_chunk) || rotating.contains(&half_chunk)
    };
    assert!(batch.of(ItemSource::Resident).all(|item| resident[index(item)]));
    assert!(batch.of(ItemSource::Claimed).all(|item| !resident[index(item)] && is_open(item)));
    assert!(batch.of(ItemSource::Uncached).all(|item| !resident[index(item)] && !is_open(item)));
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn every_item_exactly_once(case in cases()) {
        let mut job = Job::new(case);
        job.run();
        let plan = job.case.plan;
        match plan.ending {
            Ending::Pad => prop_assert!(job.seen.iter().all(|times| *times == 1), "{:?}", job.seen),
            Ending::DropLast => {
                prop_assert!(job.seen.iter().all(|times| *times <= 1), "{:?}", job.seen);
                let dropped = job.seen.iter().filter(|times| **times == 0).count();
                let last = job.ranks[0].sampler.state().plan();
                let limit = (last.batch * last.world) as usize;
                prop_assert!(dropped < limit, "{dropped} were dropped");
                prop_assert_eq!(job.padding, 0);
            }
        }
    }

    /// What follows a resume is what would have come without one.
    #[test]
    fn an_epoch_resumes_bit_for_bit(
        case in cases(),
        stops in vec((1_u64..9, 0_usize..5), 1..8),
        salt in any::<u64>(),
    ) {
        let job = Job::new(case);
        let plan = job.case.plan.on(job.case.plan.world - 1, job.case.plan.world);
        // Resident items and draw set differ for every batch, but are the same for both.
        let draw = |sampler: &mut Sampler, number: u64| {
            let mut random = fastrand::Rng::with_seed(salt ^ number);
            let half_chunks =
                |bits: u8| (0..8).filter(move |at| bits >> at & 1 == 1).map(HalfChunk);
            let (open, pinned) = (random.u8(..), random.u8(..));
            let (pinned, rotating): (Vec<_>, Vec<_>) =
                (half_chunks(open & pinned).collect(), half_chunks(open & !pinned).collect());
            sampler.set_draw_set(&draw_set(&pinned, &rotating)).unwrap();
            let resident: Vec<bool> = job.seen.iter().map(|_| random.bool()).collect();
            sampler.draw(|item| resident[index(item)])
        };
        let mut straight = Sampler::new(&job.map, plan).unwrap();
        let expected: Vec<Batch> =
            (0..straight.batches()).map(|number| draw(&mut straight, number).unwrap()).collect();
        prop_assert_eq!(draw(&mut straight, 0), None);

        let mut stopped = Sampler::new(&job.map, plan).unwrap();
        let mut yielded: Vec<Batch> = Vec::new();
        for (batches, ahead) in stops {
            let mut drawn = VecDeque::new();
            for _ in 0..batches {
                while drawn.len() <= ahead {
                    let number = (yielded.len() + drawn.len()) as u64;
                    let Some(batch) = draw(&mut stopped, number) else { break };
                    drawn.push_back(batch);
                }
                let Some(batch) = drawn.pop_front() else { break };
                stopped.on_yielded(batch.number()).unwrap();
                yielded.push(batch);
            }
            let state = SamplerState::decode(&stopped.state().encode()).unwrap();
            stopped = Sampler::resume(&job.map, &state).unwrap();
        }
        prop_assert_eq!(&yielded[..], &expected[..yielded.len()]);
    }
}
