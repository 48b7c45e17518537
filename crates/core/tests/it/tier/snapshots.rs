//! Snapshots: what a policy knows survives a restart, and damaged ones are refused.

use std::time::Duration;

use forebay_core::tier::{PolicyKind, SnapshotError, Spec};

use super::{World, next_use::rated, settings, spec, with_regions};
use crate::seeds;

/// A world in which jobs have read for a while.
fn busy(kind: PolicyKind) -> World {
    let mut settings = with_regions(0, 64, 10);
    settings.writes.limit = Some("100kB/s".parse().unwrap());
    settings.history.segments_max = 10_000;
    let mut world = World::new(kind, &settings);
    for job in [1, 2, 3] {
        world.announce(job, &rated(spec(&[1, 2], 1000)));
    }
    world.announce(9, &Spec { starts: Some(Duration::from_hours(1)), ..spec(&[7], 10) });
    for number in 0..600 {
        world.read(1, 1, number);
        world.read(4, 5, number);
        if number >= 300 {
            world.read(2, 1, number - 300);
        }
    }
    world
}

/// Warm restart: the next decisions are those that would have been made without it.
#[test]
fn a_restart_loses_little_of_what_was_known() {
    for kind in [PolicyKind::NextUse, PolicyKind::Hybrid, PolicyKind::Historic] {
        let rest = |restart: bool, with_snapshot: bool| {
            let mut world = busy(kind);
            if restart {
                let saved = world.policy.save();
                assert!(saved.len() < 100_000, "{kind}: {} bytes", saved.len());
                world.policy = kind.build(&{
                    let mut settings = with_regions(0, 64, 10);
                    settings.writes.limit = Some("100kB/s".parse().unwrap());
                    settings.history.segments_max = 10_000;
                    settings
                });
                if with_snapshot {
                    world.policy.restore(&saved).unwrap();
                    assert!(world.policy.save() == saved, "{kind}: saved again, it is the same");
                }
                world.flash.restart(&mut *world.policy, world.now);
            }
            let mut hits = 0;
            for number in 600..1000 {
                world.read(1, 1, number);
                hits += u64::from(world.read(2, 1, number - 300).is_hit());
                hits += u64::from(world.read(3, 1, number - 600).is_hit());
            }
            hits
        };
        let [kept, restored] = [rest(false, false), rest(true, true)];
        assert!(restored * 20 >= kept * 19, "{kind}: {restored} hits, {kept} without a restart");
        let without = rest(true, false);
        let learns_late = kind == PolicyKind::NextUse;
        assert!(!learns_late || without < restored, "{kind}: {without} without the snapshot");
    }
}

/// Promise 1: damage costs what was known, never more.
#[test]
fn a_damaged_snapshot_is_refused_and_changes_nothing() {
    let saved = busy(PolicyKind::NextUse).policy.save();
    let mut policy = busy(PolicyKind::NextUse).policy;
    let before = policy.save();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in seeds(300) {
        let mut damaged = saved.clone();
        match random.u32(..3) {
            0 => damaged.truncate(random.usize(..saved.len())),
            1 => damaged.push(0),
            _ => damaged[random.usize(..saved.len())] ^= 1 << random.u32(..8),
        }
        let error = policy.restore(&damaged).unwrap_err();
        assert_ne!(error, SnapshotError::OtherSettings);
        assert_eq!(error.to_string().lines().count(), 1);
        assert_eq!(policy.save(), before);
    }
    let mut other = PolicyKind::NextUse.build(&settings(0, 10));
    assert_eq!(other.restore(&saved), Err(SnapshotError::OtherSettings));
    assert_eq!(other.restore(b""), Err(SnapshotError::OtherVersion));
}

/// A history of more segments than a snapshot holds is sampled.
#[test]
fn a_snapshot_stays_small() {
    let mut settings = settings(0, 10);
    settings.history.segments_max = 3_000_000;
    let mut world = World::new(PolicyKind::Historic, &settings);
    for number in 0..1_300_000 {
        world.read(1, 1, number);
    }
    let saved = world.policy.save();
    assert!((4 << 20..17 << 20).contains(&saved.len()), "{} bytes", saved.len());
    let mut restored = PolicyKind::Historic.build(&settings);
    restored.restore(&saved).unwrap();
    assert_eq!(restored.counters().history_one_in, 2);
}
