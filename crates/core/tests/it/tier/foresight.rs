//! When our own policy expects readers.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    tier::{Bucket, Spec, Stage},
};

use super::{
    SEGMENT, World,
    next_use::{rated, world},
    spec,
};

/// Who brings segments for others; nobody knows of it.
const LEADER: u64 = 99;

/// The leader reads two buckets, so that both are there for whoever comes. Says how much of each is kept.
fn led(world: &mut World, buckets: [u32; 2], segments: u64) -> [u64; 2] {
    for bucket in buckets {
        world.scan(LEADER, bucket, 0..segments);
    }
    buckets.map(|bucket| world.kept(bucket, 0..segments))
}

/// "Buckets that a job reads side by side": of a tenth of what it reads it reads a tenth as fast.
#[test]
fn a_column_among_many_is_read_slowly() {
    let mut world = world(100);
    let size = ByteSize(100 * u64::from(SEGMENT));
    let columns = |columns: Vec<u32>| {
        let stage = Stage { buckets: columns.into_iter().map(|it| (Bucket(it), size)).collect() };
        let starts = Some(Duration::from_secs(2));
        Spec { stages: vec![stage], starts, ..rated(spec(&[], 0)) }
    };
    world.announce(1, &columns([1].into_iter().chain(11..20).collect()));
    world.announce(2, &columns(vec![2]));
    let [among_ten, alone] = led(&mut world, [1, 2], 100);
    assert!((5..=15).contains(&among_ten) && alone >= 85, "{among_ten} and {alone}");
}
