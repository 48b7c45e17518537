//! Power failures at any moment, and disks with faults: sealed data is read back byte for byte or
//! reported lost, and nothing that was destroyed returns.

use std::collections::BTreeMap;

use forebay_core::streams::{Lifetime, catalogue::CatalogueError};
use forebay_flash::io::sim::FaultRates;
use forebay_streams::{CreateOptions, FullPolicy, OpenOptions, Store, StreamError};

use crate::sim::{SimEngine, content, new_disk, open_store, seeds};

/// What has been acknowledged to a workload.
#[derive(Default)]
struct Acknowledged {
    sealed: BTreeMap<&'static str, Vec<usize>>,
    destroyed: Vec<&'static str>,
    /// A call on this stream has not returned, so either state is right.
    doubtful: Option<&'static str>,
}

const KEPT: CreateOptions = CreateOptions { lifetime: Lifetime::Kept, full: FullPolicy::Error };

fn seed_of(name: &str, block: usize) -> u64 {
    name.bytes().map(u64::from).sum::<u64>() * 1000 + block as u64
}

/// Creates, seals, reads, destroys and consumes; stops after `commands` commands. `None` if it was
/// stopped.
fn work(
    engine: &SimEngine,
    store: &Store,
    commands: u64,
    lengths: &[usize],
    done: &mut Acknowledged,
) -> Option<()> {
    let mut left = commands;
    let family = store.family("shared", Lifetime::Kept).unwrap();
    let names = ["alone", "one", "two", "process", "dropped"];
    for (number, name) in names.into_iter().enumerate() {
        done.doubtful = Some(name);
        let mut writer = match name {
            "alone" => store.create(name, KEPT).unwrap(),
            "process" => store.create(name, CreateOptions::default()).unwrap(),
            _ => family.create(name, FullPolicy::Error).unwrap(),
        };
        let lengths = &lengths[number..];
        for (block, length) in lengths.iter().enumerate() {
            let bytes = content(seed_of(name, block), *length);
            engine.run_for(writer.append_async(&bytes), &mut left)?.unwrap();
        }
        if name != "dropped" {
            let info = engine.run_for(writer.seal_async(), &mut left)?.unwrap();
            assert_eq!(info.blocks, lengths.len() as u64);
            if name != "process" {
                done.sealed.insert(name, lengths.to_vec());
            }
        }
        done.doubtful = None;
    }
    // Destroys one stream of a shared family, consumes a lone one, reads another.
    done.doubtful = Some("one");
    engine.run_for(store.destroy_async("one"), &mut left)?.unwrap();
    done.sealed.remove("one");
    done.destroyed.push("one");
    done.doubtful = Some("alone");
    let options = OpenOptions { depth: 2, consume: true, ..OpenOptions::default() };
    let mut reader = store.open("alone", options).unwrap();
    while let Some(block) = engine.run_for(reader.next_async(), &mut left)? {
        block.unwrap();
    }
    done.sealed.remove("alone");
    done.destroyed.push("alone");
    done.doubtful = None;
    drop(reader);
    let mut reader = store.open("two", OpenOptions { depth: 3, ..OpenOptions::default() }).unwrap();
    while let Some(block) = engine.run_for(reader.next_async(), &mut left)? {
        block.unwrap();
    }
    Some(())
}

/// Reads a stream whole. Its blocks are right, or it ends with an error.
fn read(
    engine: &SimEngine,
    store: &Store,
    name: &str,
    lengths: &[usize],
) -> Result<(), StreamError> {
    let mut reader = store.open(name, OpenOptions { depth: 3, ..OpenOptions::default() })?;
    let mut blocks = 0;
    while let Some(block) = engine.run(reader.next_async()) {
        let bytes = block?;
        assert_eq!(bytes[..], content(seed_of(name, blocks), lengths[blocks])[..], "promise 9");
        blocks += 1;
    }
    assert_eq!(blocks, lengths.len(), "promise 9: never shorter");
    Ok(())
}

fn check(engine: &SimEngine, store: &Store, lengths: &[usize], done: &Acknowledged) {
    let names = ["alone", "one", "two", "process", "dropped"];
    for (number, name) in names.into_iter().enumerate() {
        let outcome = read(engine, store, name, &lengths[number..]);
        let not_found = matches!(outcome, Err(StreamError::Catalogue(CatalogueError::NotFound(_))));
        if done.sealed.contains_key(name) && done.doubtful != Some(name) {
            assert_eq!(outcome, Ok(()), "{name} was sealed");
        } else if done.destroyed.contains(&name) || ["process", "dropped"].contains(&name) {
            assert!(not_found, "{name} is gone: {outcome:?}");
        } else if done.doubtful == Some(name) && name != "alone" {
            assert!(not_found || outcome.is_ok(), "{name}: {outcome:?}");
        }
    }
}

/// Promises 7 and 9, with a crash at every single command of create, append, seal, read, release,
/// destroy and collect.
#[test]
fn a_crash_at_every_single_command() {
    for seed in seeds(3) {
        let mut random = fastrand::Rng::with_seed(seed);
        let longest = [2000, 250_000];
        let lengths: Vec<usize> =
            (0..8_usize).map(|number| random.usize(..longest[number % 2])).collect();
        for commands in 0.. {
            let (engine, store) = open_store(new_disk(seed * 1000 + commands, 24), 1);
            let mut done = Acknowledged::default();
            let finished = work(&engine, &store, commands, &lengths, &mut done).is_some();
            let disk = engine.crash();
            drop((store, engine));
            let (engine, store) = open_store(disk, 2);
            check(&engine, &store, &lengths, &done);
            // A crash during recovery changes nothing.
            let disk = engine.crash();
            drop((store, engine));
            let (engine, store) = open_store(disk, 3);
            check(&engine, &store, &lengths, &done);
            if finished {
                assert!(commands > 40, "the workload has more than 40 commands");
                break;
            }
        }
    }
}

/// Promises 1 and 9 on a disk that fails, loses, misdirects and flips: right bytes or an error.
#[test]
fn a_faulty_disk_loses_streams_but_never_alters_or_shortens_them() {
    let (mut whole, mut lost) = (0, 0);
    for seed in seeds(1000) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (engine, store) = open_store(new_disk(seed, 24), 1);
        let rate = |random: &mut fastrand::Rng| random.u32(..3) * random.u32(..20);
        let faults = FaultRates {
            failed: rate(&mut random) / 4,
            read_failed: rate(&mut random) / 4,
            sync_failed: rate(&mut random) / 4,
            no_space: rate(&mut random) / 4,
            short: rate(&mut random) / 4,
            lost: rate(&mut random),
            misdirected: rate(&mut random),
            flipped: rate(&mut random),
        };
        engine.set_fault_rates(faults);
        let lengths: Vec<usize> = (0..random.usize(..9)).map(|_| random.usize(..60_000)).collect();
        let family = store.family("f", Lifetime::Kept).unwrap();
        let mut sealed = Vec::new();
        for name in ["a", "b", "c"] {
            let mut writer = family.create(name, FullPolicy::Error).unwrap();
            let all = lengths.iter().enumerate().all(|(block, length)| {
                let bytes = content(seed_of(name, block), *length);
                engine.run(writer.append_async(&bytes)).is_ok()
            });
            if all && engine.run(writer.seal_async()).is_ok() {
                sealed.push(name);
            }
        }
        let mut count = |outcome: Result<(), StreamError>| match outcome {
            Ok(()) => whole += 1,
            Err(_) => lost += 1,
        };
        for name in &sealed {
            count(read(&engine, &store, name, &lengths));
        }
        engine.set_fault_rates(FaultRates::default());
        let disk = engine.crash();
        drop((family, store, engine));
        let engine = SimEngine::open(disk);
        let shared: std::sync::Arc<dyn forebay_flash::device_thread::Engine> = engine.clone();
        let Ok(store) = engine.run(Store::on_engine(shared, || 2)) else { continue };
        for name in &sealed {
            count(read(&engine, &store, name, &lengths));
        }
    }
    assert!(whole > lost && lost > 0, "{whole} streams were whole, {lost} were reported lost");
}

/// A lease ends at its time, for the next owner at the latest; what is kept stays.
#[test]
fn leases_end_and_unsealed_streams_do_not_survive_their_owner() {
    let (engine, store) = open_store(new_disk(1, 24), 1000);
    let lease = Lifetime::Lease(std::time::Duration::from_secs(5));
    for (name, lifetime) in [("lease", lease), ("kept", Lifetime::Kept)] {
        let options = CreateOptions { lifetime, ..CreateOptions::default() };
        let mut writer = store.create(name, options).unwrap();
        engine.run(writer.append_async(&content(seed_of(name, 0), 100_000))).unwrap();
        engine.run(writer.seal_async()).unwrap();
    }
    let mut unsealed = store.create("unsealed", KEPT).unwrap();
    engine.run(unsealed.append_async(&[7; 1000])).unwrap();
    engine.settle();
    let (engine, store) = open_store(engine.crash(), 5999);
    drop(unsealed);
    let names = |store: &Store| store.list().iter().map(|s| s.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&store), ["kept", "lease"]);
    read(&engine, &store, "lease", &[100_000]).unwrap();
    let (engine, store) = open_store(engine.crash(), 6000);
    assert_eq!(names(&store), ["kept"]);
    read(&engine, &store, "kept", &[100_000]).unwrap();
    engine.run(store.destroy_async("kept")).unwrap();
    engine.settle();
    assert_eq!(store.facts().free, store.facts().capacity, "all space is back");
}
