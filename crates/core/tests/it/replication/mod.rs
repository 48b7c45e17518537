//! Several nodes agree on the manager of a dataset, under faults of nodes and network.

mod job;
mod world;

use std::time::Duration;

use forebay_core::{
    HalfChunk,
    cluster::replication::{HEARTBEAT_INTERVAL, PEER_TIMEOUT, TAKEOVER_TIMEOUT},
    train::placement::Allocation,
};
use job::REPORT_TIMEOUT;
use world::{DATASET, NO_FAULTS, NetworkFaults, Party, World, dataset, ms};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Time after healing within which one term wins: the longest delay, the timeout of silent nodes,
/// the takeover, one timed-out report per job, and the replication to the loser.
fn bound(network: NetworkFaults) -> Duration {
    network.delay_max
        + PEER_TIMEOUT
        + TAKEOVER_TIMEOUT
        + 2 * REPORT_TIMEOUT
        + 2 * HEARTBEAT_INTERVAL
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

/// Every job got its draw set from the one manager since `since`.
fn all_directed(world: &World, since: Duration) -> bool {
    world.jobs.iter().all(|job| {
        let manager = world.agreed(job.dataset);
        job.directed.is_some_and(|(at, by)| at >= since && Some(by) == manager)
    })
}

/// The keep-sets of all datasets fit into the capacity of all nodes.
fn check_space(world: &mut World) {
    let whole = world.capacity.0 * world.nodes.len() as u64;
    let mut kept = 0;
    for dataset in datasets_read(world) {
        let Some(manager) = world.agreed(dataset) else { continue };
        let replicator = world.replicator(manager);
        kept += replicator.managers().manager(&dataset).unwrap().keep_set().count() as u64
            * (DATASET / u64::from(world::HALF_CHUNKS));
    }
    assert!(kept <= whole, "{kept} of {whole}");
}

/// Rotation continues: chunks are loaded and evicted, and every job finishes an epoch.
fn check_rotation(world: &mut World) {
    let (loaded, epochs) =
        (world.chunks_loaded(), world.jobs.iter().map(|job| job.epochs).collect::<Vec<_>>());
    let epoch = s(12);
    world.run(epoch);
    for (job, before) in world.jobs.iter().zip(epochs) {
        assert!(job.epochs > before, "a job makes no progress");
    }
    let manager = world.agreed(dataset(0)).expect("agreed");
    let replicator = world.replicator(manager);
    let found = replicator.managers().manager(&dataset(0)).unwrap();
    let rotates = found.demand(s(0)).jobs.len() >= 2
        && matches!(found.allocation(), Allocation::Halves | Allocation::Chunks(2..10));
    assert!(!rotates || world.chunks_loaded() > loaded, "nothing rotates");
}

/// Promise 5: when the manager's node is killed in mid-rotation, one term wins within the bound,
/// and rotation continues.
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
        let within = PEER_TIMEOUT + TAKEOVER_TIMEOUT + 2 * REPORT_TIMEOUT + ms(200);
        assert!(took.expect("a node takes over") <= within, "seed {seed}: {took:?}");
        check_rotation(&mut world);
        // The restarted node does not take the dataset back.
        let manager = world.agreed(dataset(0)).unwrap();
        world.start(dead);
        world.run(s(5));
        assert_eq!(world.agreed(dataset(0)), Some(manager), "seed {seed}");
        check_rotation(&mut world);
        check_space(&mut world);
    }
}

/// A manager that was stopped and resumes after its successor took over gives up the dataset.
#[test]
fn a_manager_that_resumes_too_late_loses_leadership() {
    for seed in crate::seeds(10) {
        let mut world = World::new(seed, 3, 3);
        world.until(s(5), |world| all_agree(world)).expect("the first term");
        world.run(s(5));
        let stopped = world.agreed(dataset(0)).unwrap();
        world.pause(stopped, s(20));
        world.run(s(19));
        let others: Vec<usize> = (0..3).filter(|node| *node != stopped).collect();
        let manages = |world: &mut World, node: usize| world.replicator(node).manages(&dataset(0));
        assert!(others.iter().any(|node| manages(&mut world, *node)), "seed {seed}: a successor");
        assert!(manages(&mut world, stopped), "not yet superseded");
        world.run(s(1) + HEARTBEAT_INTERVAL + ms(100));
        assert!(!manages(&mut world, stopped), "seed {seed}: superseded");
        assert!(all_agree(&world), "seed {seed}");
        check_rotation(&mut world);
    }
}

/// A restarted node learns the keep-set within two heartbeats, and keeps nothing else.
#[test]
fn a_restarted_node_keeps_only_the_keep_set() {
    let mut world = World::new(1, 3, 3);
    world.until(s(5), |world| all_agree(world)).expect("the first term");
    world.run(s(10));
    let manager = world.agreed(dataset(0)).unwrap();
    let away = (manager + 1) % 3;
    let had = world.nodes[away].half_chunks(dataset(0));
    world.crash(away);
    world.run(s(20));
    let kept: Vec<HalfChunk> =
        world.replicator(manager).managers().manager(&dataset(0)).unwrap().keep_set().collect();
    assert!(
        had.iter().any(|half_chunk| !kept.contains(half_chunk)),
        "a half-chunk was evicted meanwhile"
    );
    world.start(away);
    world.run(2 * HEARTBEAT_INTERVAL);
    let replicator = world.nodes[away].replicator.as_ref().unwrap();
    let keep_set = replicator.follower().keep_set(&dataset(0)).expect("a keep-set").clone();
    let has = world.nodes[away].half_chunks(dataset(0));
    assert!(has.iter().all(|half_chunk| keep_set.kept.contains(half_chunk)), "{has:?}");
}

/// If every node that knew a term restarts, terms start at 1; resident blobs stay, and rotation
/// continues.
#[test]
fn terms_start_at_1_after_all_nodes_restart() {
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
        world.replicator(manager).follower().term(&dataset(0)).unwrap().number
    };
    assert!(number(&mut world) >= 4);
    let resident = |world: &World| -> usize {
        let flash = world.nodes.iter().flat_map(|node| &node.flash[0]);
        flash.filter(|is_resident| **is_resident).count()
    };
    let before = resident(&world);
    for node in 0..3 {
        world.crash(node);
    }
    world.run(ms(10));
    world.heal();
    world.until(bound(NO_FAULTS), |world| all_agree(world)).expect("a manager");
    assert_eq!(number(&mut world), 1, "terms start again");
    let after = resident(&world);
    assert!(after * 2 > before, "resident blobs stay: {after} of {before}");
    world.run(bound(NO_FAULTS));
    check_rotation(&mut world);
}

/// During a partition each side has a manager; after it, one of them wins.
#[test]
fn one_manager_wins_after_a_partition() {
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
        let managers = (0..4)
            .filter(|node| world.nodes[*node].replicator.as_ref().unwrap().manages(&dataset(0)));
        assert_eq!(managers.count(), 2, "seed {seed}: one per side");
        world.run(s(1));
        let healed = world.now;
        let took = world.until(s(60), |world| all_agree(world) && all_directed(world, healed));
        assert!(took.expect("one manager") <= bound(NO_FAULTS), "seed {seed}: {took:?}");
        check_rotation(&mut world);
        check_space(&mut world);
    }
}

/// A single node sends nothing and manages at once.
#[test]
fn a_single_node_manages_at_once() {
    let mut world = World::new(3, 1, 3);
    world.run(s(1));
    assert!(all_agree(&world));
    check_rotation(&mut world);
    assert_eq!(world.replicator(0).counters().takeovers, 2);
    check_space(&mut world);
}

/// Under random faults: the checks of `world.rs` hold after every event; after healing one term
/// wins within the bound, every job makes progress, and rotation continues.
#[test]
fn one_term_wins_after_random_faults() {
    for seed in crate::seeds(60) {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5EED);
        let (nodes, jobs) = (random.usize(2..=5), random.usize(2..=5));
        let mut world = World::new(seed, nodes, jobs);
        let network = NetworkFaults {
            lost: random.f64() * 0.3,
            repeated: random.f64() * 0.2,
            delay_max: ms(random.u64(20..4000)),
        };
        world.network = network;
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
        assert!(took.is_some_and(|took| took <= bound(network)), "seed {seed}: {took:?}");
        check_rotation(&mut world);
        assert!(all_agree(&world), "seed {seed}: still agreed");
        check_space(&mut world);
    }
}
