//! Promise 2: "In one epoch a job is given every item exactly once: under substitution, faults, resume
//! from `state_dict` in mid-epoch, and resume with another number of ranks (from all ranks' states)."

use proptest::{collection::vec, prelude::*};

use super::*;

/// What happens to a job in the course of an epoch.
#[derive(Debug, Clone)]
enum Event {
    /// All ranks go on, so many batches each.
    Run(u64),
    /// Other chunks are open: bits say which, and which of those are held.
    Open { open: u32, held: u32 },
    /// This share of the items is resident, whichever.
    Resident { percent: u64, salt: u64 },
    /// All processes die, and come back with what they had yielded.
    Crash,
    /// The job goes on with so many ranks; some had yielded more than others.
    Resize { world: u32, batch: u32, uneven: u32 },
}

#[derive(Debug, Clone)]
struct Case {
    chunk_of: Vec<u32>,
    plan: Plan,
    /// How many batches a loader draws before the first of them is yielded.
    ahead: usize,
    events: Vec<Event>,
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1_u64..12).prop_map(Event::Run),
        2 => (any::<u32>(), any::<u32>()).prop_map(|(open, held)| Event::Open { open, held }),
        2 => (0_u64..=100, any::<u64>())
            .prop_map(|(percent, salt)| Event::Resident { percent, salt }),
        1 => Just(Event::Crash),
        1 => (1_u32..6, 1_u32..20, any::<u32>())
            .prop_map(|(world, batch, uneven)| Event::Resize { world, batch, uneven }),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let plan = (any::<u64>(), 1_u32..20, 1_u32..6, 1_u32..12, 1_u32..64, any::<[bool; 2]>());
    let plan = plan.prop_map(|(seed, batch, world, over_ask, window, [drop, like_length])| {
        let ending = if drop { Ending::DropLast } else { Ending::Pad };
        Plan { ending, over_ask, window, like_length, ..Plan::new(seed, 1, batch).on(0, world) }
    });
    let chunk_of = (1_u32..9).prop_flat_map(|chunks| vec(0..chunks, 0..400));
    let rest = (0_usize..5, vec(events(), 0..20));
    (chunk_of, plan, rest).prop_map(|(chunk_of, plan, (ahead, events))| Case {
        chunk_of,
        plan,
        ahead,
        events,
    })
}

/// One rank as a loader drives it.
struct Rank {
    sampler: Sampler,
    drawn: VecDeque<Batch>,
    /// Chunks that have items to be yielded, and were not released.
    unreleased: Vec<ChunkOrdinal>,
}

struct Job {
    case: Case,
    layout: Layout,
    ranks: Vec<Rank>,
    open: (Vec<ChunkOrdinal>, Vec<ChunkOrdinal>),
    resident: Vec<bool>,
    /// How often each item was yielded.
    seen: Vec<u32>,
    padding: u64,
}

impl Job {
    fn new(case: Case) -> Self {
        let chunk_of = case.chunk_of.iter().map(|chunk| ChunkOrdinal(*chunk));
        let layout = Layout::new(DatasetId::from_bytes([3; 32]), 8, chunk_of).unwrap();
        let layout = layout.with_units(|item| u32::try_from(item.0 / 7).unwrap());
        let plan = case.plan;
        let ranks = (0..plan.world).map(|rank| plan.on(rank, plan.world));
        let ranks = ranks.map(|plan| Rank::new(Sampler::new(&layout, plan).unwrap())).collect();
        let items = case.chunk_of.len();
        let (resident, seen) = (vec![false; items], vec![0; items]);
        let open = ((0..0).map(ChunkOrdinal).collect(), (0..8).map(ChunkOrdinal).collect());
        Self { case, layout, ranks, open, resident, seen, padding: 0 }
    }

    fn run(&mut self) {
        for event in self.case.events.clone() {
            match event {
                Event::Run(batches) => (0..batches).for_each(|_| self.round()),
                Event::Open { open, held } => self.open(open, held),
                Event::Resident { percent, salt } => {
                    let mut random = fastrand::Rng::with_seed(salt);
                    self.resident.fill_with(|| random.u64(..100) < percent);
                }
                Event::Crash => {
                    let states = self.states();
                    let ranks = states.iter().map(|state| Sampler::resume(&self.layout, state));
                    self.ranks = ranks.map(|sampler| Rank::new(sampler.unwrap())).collect();
                    self.reopen();
                }
                Event::Resize { world, batch, uneven } => self.resize(world, batch, uneven),
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
            check_batch(&batch, &self.case.chunk_of, resident, &self.open);
            rank.drawn.push_back(batch);
        }
        let Some(batch) = rank.drawn.pop_front() else { return false };
        for chunk in rank.sampler.yielded(batch.number()).unwrap() {
            let known = rank.unreleased.iter().position(|other| *other == chunk);
            rank.unreleased.remove(known.expect("released once, and not before it had items"));
            assert_eq!(rank.sampler.unyielded(chunk), 0);
        }
        let last = batch.number() + 1 == rank.sampler.batches();
        let plan = rank.sampler.state().plan();
        let padding = batch.count(Source::Padding);
        assert!(batch.items().len() == plan.batch as usize || (last && plan.ending == Ending::Pad));
        assert!(!batch.items().is_empty() && padding <= u32::from(last));
        assert!(!last || rank.unreleased.is_empty(), "released on every path");
        self.padding += u64::from(padding);
        let own = batch.items().len() - padding as usize;
        batch.items()[..own].iter().for_each(|item| self.seen[index(*item)] += 1);
        true
    }

    fn states(&self) -> Vec<State> {
        let states = self.ranks.iter().map(|rank| rank.sampler.state().encode());
        states.map(|bytes| State::decode(&bytes).unwrap()).collect()
    }

    fn resize(&mut self, world: u32, batch: u32, uneven: u32) {
        for rank in 0..self.ranks.len() {
            (0..uneven >> (2 * rank) & 3).for_each(|_| {
                self.step(rank);
            });
        }
        let states = self.states();
        let plan = Plan { batch, ..self.case.plan };
        let ranks = (0..world)
            .map(|rank| Sampler::resize(&self.layout, &states, plan.on(rank, world)).unwrap());
        self.ranks = ranks.map(Rank::new).collect();
        self.reopen();
    }

    fn open(&mut self, open: u32, held: u32) {
        let those =
            |bits: u32| (0..8).filter(move |chunk| bits >> chunk & 1 == 1).map(ChunkOrdinal);
        self.open = (those(open & held).collect(), those(open & !held).collect());
        self.reopen();
    }

    fn reopen(&mut self) {
        for rank in &mut self.ranks {
            rank.sampler.open(&self.open.0, &self.open.1).unwrap();
            rank.sampler.leaving(self.open.1.get(1).copied()).unwrap();
        }
    }
}

impl Rank {
    fn new(sampler: Sampler) -> Self {
        let chunks = (0..8).map(ChunkOrdinal);
        let unreleased = chunks.filter(|chunk| sampler.unyielded(*chunk) > 0).collect();
        Self { sampler, drawn: VecDeque::new(), unreleased }
    }
}

/// Items come from where the batch says.
fn check_batch(
    batch: &Batch,
    chunk_of: &[u32],
    resident: &[bool],
    (held, rotating): &(Vec<ChunkOrdinal>, Vec<ChunkOrdinal>),
) {
    let is_open = |item: ItemOrdinal| {
        let chunk = ChunkOrdinal(chunk_of[index(item)]);
        held.contains(&chunk) || rotating.contains(&chunk)
    };
    assert!(batch.of(Source::Resident).all(|item| resident[index(item)]));
    assert!(batch.of(Source::Claimed).all(|item| !resident[index(item)] && is_open(item)));
    assert!(batch.of(Source::Outside).all(|item| !resident[index(item)] && !is_open(item)));
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
                prop_assert!(dropped < (last.batch * last.world) as usize, "{dropped} were dropped");
                prop_assert_eq!(job.padding, 0);
            }
        }
    }

    /// What comes after a resume is what would have come without one.
    #[test]
    fn an_epoch_resumes_bit_for_bit(
        case in cases(),
        stops in vec((1_u64..9, 0_usize..5), 1..8),
        salt in any::<u64>(),
    ) {
        let job = Job::new(case);
        let plan = job.case.plan.on(job.case.plan.world - 1, job.case.plan.world);
        // Other items are resident and other chunks open for every batch, but the same for both.
        let draw = |sampler: &mut Sampler, number: u64| {
            let mut random = fastrand::Rng::with_seed(salt ^ number);
            let chunks = |bits: u8| (0..8).filter(move |at| bits >> at & 1 == 1).map(ChunkOrdinal);
            let (open, held) = (random.u8(..), random.u8(..));
            let (held, rotating): (Vec<_>, Vec<_>) =
                (chunks(open & held).collect(), chunks(open & !held).collect());
            sampler.open(&held, &rotating).unwrap();
            let resident: Vec<bool> = job.seen.iter().map(|_| random.bool()).collect();
            sampler.draw(|item| resident[index(item)])
        };
        let mut straight = Sampler::new(&job.layout, plan).unwrap();
        let expected: Vec<Batch> =
            (0..straight.batches()).map(|number| draw(&mut straight, number).unwrap()).collect();
        prop_assert_eq!(draw(&mut straight, 0), None);

        let mut stopped = Sampler::new(&job.layout, plan).unwrap();
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
                stopped.yielded(batch.number()).unwrap();
                yielded.push(batch);
            }
            let state = State::decode(&stopped.state().encode()).unwrap();
            stopped = Sampler::resume(&job.layout, &state).unwrap();
        }
        prop_assert_eq!(&yielded[..], &expected[..yielded.len()]);
    }
}
