//! Several nodes agree on who manages a dataset, whatever happens to them and between them.

mod job;
mod world;

use std::time::Duration;

use forebay_core::{
    council::{ASK_WITHIN, SILENCE, TELL_EVERY},
    placement::Choice,
};
use job::PATIENCE;
use world::{CALM, DATASET, Party, Weather, World, dataset, ms};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// After all is well again, one term has won by then: the longest delay, and then whoever was silent is
/// given up, the others are asked, jobs have asked in vain once, and the loser has been told.
fn bound(weather: Weather) -> Duration {
    weather.delay_max + SILENCE + ASK_WITHIN + 2 * PATIENCE + 2 * TELL_EVERY
}

fn datasets_read(world: &World) -> Vec<forebay_core::DatasetId> {
    let mut read: Vec<_> = world.jobs.iter().map(|job| job.dataset).collect();
    read.sort_unstable();
    read.dedup();
    read
}

fn all_agree(world: &World) -> bool {
    datasets_read(world).into_iter().all(|dataset| world.agreed(dataset).is_some())
}

/// Every job was told what to draw from by the one manager, not long ago.
fn all_directed(world: &World, since: Duration) -> bool {
    world.jobs.iter().all(|job| {
        let manager = world.agreed(job.dataset);
        job.directed.is_some_and(|(at, by)| at >= since && Some(by) == manager)
    })
}

/// What is kept of all datasets together fits into all nodes together.
fn check_space(world: &mut World) {
    let whole = world.capacity.0 * world.nodes.len() as u64;
    let mut kept = 0;
    for dataset in datasets_read(world) {
        let Some(manager) = world.agreed(dataset) else { continue };
        let council = world.council(manager);
        kept += council.managers().manager(&dataset).unwrap().kept().count() as u64
            * (DATASET / u64::from(world::PIECES));
    }
    assert!(kept <= whole, "{kept} of {whole}");
}

/// Rotation goes on: chunks come and go, and every job finishes an epoch.
fn check_rotation(world: &mut World) {
    let (loaded, epochs) =
        (world.chunks_loaded(), world.jobs.iter().map(|job| job.epochs).collect::<Vec<_>>());
    let epoch = s(12);
    world.run(epoch);
    for (job, before) in world.jobs.iter().zip(epochs) {
        assert!(job.epochs > before, "a job stands still");
    }
    let manager = world.agreed(dataset(0)).expect("agreed");
    let council = world.council(manager);
    let found = council.managers().manager(&dataset(0)).unwrap();
    let rotates = found.wish(s(0)).jobs.len() >= 2
        && matches!(found.choice(), Choice::Halves | Choice::Chunks(2..10));
    assert!(!rotates || world.chunks_loaded() > loaded, "nothing rotates");
}

/// Promise 5, and the manager's node killed in mid-rotation: one term wins in time, and rotation goes on.
#[test]
fn the_next_node_takes_over_when_the_manager_dies() {
    for seed in crate::seeds(10) {
        let mut world = World::new(seed, 3, 3);
        world.until(s(5), |world| all_agree(world)).expect("the first term");
        world.run(s(10));
        let dead = world.agreed(dataset(0)).unwrap();
        world.crash(dead);
        let died = world.now;
        let took = world
            .until(s(60), |world| world.agreed(dataset(0)).is_some() && all_directed(world, died));
        let within = SILENCE + ASK_WITHIN + 2 * PATIENCE + ms(200);
        assert!(took.expect("somebody takes over") <= within, "seed {seed}: {took:?}");
        check_rotation(&mut world);
        // Whoever returns does not take it back.
        let manager = world.agreed(dataset(0)).unwrap();
        world.start(dead);
        world.run(s(5));
        assert_eq!(world.agreed(dataset(0)), Some(manager), "seed {seed}");
        check_rotation(&mut world);
        check_space(&mut world);
    }
}

/// A manager that was stopped and wakes up after its successor took over changes nothing any more.
#[test]
fn a_manager_that_wakes_up_too_late_steps_down() {
    for seed in crate::seeds(10) {
        let mut world = World::new(seed, 3, 3);
        world.until(s(5), |world| all_agree(world)).expect("the first term");
        world.run(s(5));
        let stopped = world.agreed(dataset(0)).unwrap();
        world.pause(stopped, s(20));
        world.run(s(19));
        let others: Vec<usize> = (0..3).filter(|node| *node != stopped).collect();
        let manages = |world: &mut World, node: usize| world.council(node).manages(&dataset(0));
        assert!(others.iter().any(|node| manages(&mut world, *node)), "seed {seed}: a successor");
        assert!(manages(&mut world, stopped), "it does not know");
        world.run(s(1) + TELL_EVERY + ms(100));
        assert!(!manages(&mut world, stopped), "seed {seed}: it has been told");
        assert!(all_agree(&world), "seed {seed}");
        check_rotation(&mut world);
    }
}

/// A node that was away learns what is kept before long, and keeps nothing else.
#[test]
fn a_node_that_returns_keeps_what_has_a_place() {
    let mut world = World::new(1, 3, 3);
    world.until(s(5), |world| all_agree(world)).expect("the first term");
    world.run(s(10));
    let manager = world.agreed(dataset(0)).unwrap();
    let away = (manager + 1) % 3;
    let had = world.nodes[away].pieces(dataset(0));
    world.crash(away);
    world.run(s(20));
    let kept: Vec<u32> =
        world.council(manager).managers().manager(&dataset(0)).unwrap().kept().collect();
    assert!(had.iter().any(|piece| !kept.contains(piece)), "something has gone meanwhile");
    world.start(away);
    world.run(2 * TELL_EVERY);
    let council = world.nodes[away].council.as_ref().unwrap();
    let places = council.obeying().places(&dataset(0)).expect("it was told").clone();
    let has = world.nodes[away].pieces(dataset(0));
    assert!(has.iter().all(|piece| places.kept.contains(piece)), "{has:?}");
}

/// If all who knew a term are restarted, terms begin anew; what was found stays, and rotation goes on.
#[test]
fn terms_that_all_have_forgotten_begin_anew() {
    let mut world = World::new(2, 3, 3);
    world.until(s(5), |world| all_agree(world)).expect("the first term");
    // A few terms pass.
    for _ in 0..3 {
        let manager = world.agreed(dataset(0)).unwrap();
        world.crash_for(manager, s(8));
        world.run(s(10));
    }
    let number = |world: &mut World| {
        let manager = world.agreed(dataset(0)).expect("agreed");
        world.council(manager).obeying().term(&dataset(0)).unwrap().number
    };
    assert!(number(&mut world) >= 4);
    let there = |world: &World| -> usize {
        let flash = world.nodes.iter().flat_map(|node| &node.flash[0]);
        flash.filter(|there| **there).count()
    };
    let before = there(&world);
    for node in 0..3 {
        world.crash(node);
    }
    world.run(ms(10));
    world.heal();
    world.until(bound(CALM), |world| all_agree(world)).expect("a manager");
    assert_eq!(number(&mut world), 1, "from the beginning");
    let after = there(&world);
    assert!(after * 2 > before, "what was there is not thrown away: {after} of {before}");
    world.run(bound(CALM));
    check_rotation(&mut world);
}

/// When the network falls apart, each side has a manager; when it is whole again, one of them.
#[test]
fn two_sides_become_one() {
    for seed in crate::seeds(10) {
        let mut world = World::new(seed, 4, 6);
        world.until(s(5), |world| all_agree(world)).expect("the first term");
        let side = |party: Party| match party {
            Party::Node(number) | Party::Job(number) => number % 2,
        };
        let parties: Vec<Party> = (0..4).map(Party::Node).chain((0..6).map(Party::Job)).collect();
        for a in &parties {
            for b in parties.iter().filter(|b| side(*a) != side(**b)) {
                world.cut_for(*a, *b, s(20));
            }
        }
        world.run(s(19));
        let managers =
            (0..4).filter(|node| world.nodes[*node].council.as_ref().unwrap().manages(&dataset(0)));
        assert_eq!(managers.count(), 2, "seed {seed}: one on either side");
        world.run(s(1));
        let healed = world.now;
        let took = world.until(s(60), |world| all_agree(world) && all_directed(world, healed));
        assert!(took.expect("one of them") <= bound(CALM), "seed {seed}: {took:?}");
        check_rotation(&mut world);
        check_space(&mut world);
    }
}

/// One node alone is a council of one: nothing is sent, and it manages at once.
#[test]
fn one_node_needs_nobody() {
    let mut world = World::new(3, 1, 3);
    world.run(s(1));
    assert!(all_agree(&world));
    check_rotation(&mut world);
    assert_eq!(world.council(0).counters().takeovers, 2);
    check_space(&mut world);
}

/// Whatever happens: what `world.rs` checks after every event holds, and when all is well again one term wins
/// within a bounded time, every job goes on, and rotation does.
#[test]
fn one_term_wins_whatever_happens() {
    for seed in crate::seeds(60) {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5EED);
        let (nodes, jobs) = (random.usize(2..=5), random.usize(2..=5));
        let mut world = World::new(seed, nodes, jobs);
        let weather = Weather {
            lost: random.f64() * 0.3,
            repeated: random.f64() * 0.2,
            delay_max: ms(random.u64(20..4000)),
        };
        world.weather = weather;
        let end = world.now + s(random.u64(20..40));
        while world.now < end {
            world.run(ms(random.u64(200..3000)));
            let node = random.usize(..nodes);
            let time = ms(random.u64(100..10_000));
            match random.u8(..6) {
                0 => world.crash_for(node, time),
                1 => world.pause(node, time),
                2 => (0..nodes).for_each(|node| {
                    if random.u8(..4) == 0 {
                        world.crash_for(node, time);
                    }
                }),
                3 => world.cut_for(Party::Node(node), Party::Job(random.usize(..jobs)), time),
                _ => {
                    let other = random.usize(..nodes);
                    if other != node {
                        world.cut_for(Party::Node(node), Party::Node(other), time);
                    }
                }
            }
        }
        world.heal();
        let healed = world.now;
        let took = world.until(s(100), |world| all_agree(world) && all_directed(world, healed));
        assert!(took.is_some_and(|took| took <= bound(weather)), "seed {seed}: {took:?}");
        check_rotation(&mut world);
        assert!(all_agree(&world), "seed {seed}: it stays so");
        check_space(&mut world);
    }
}
