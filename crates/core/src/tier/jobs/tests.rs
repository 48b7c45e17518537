//! Bounds of the registry, shared by the tests of the policies that use it.

use std::time::Duration;

use super::Jobs;
use crate::{
    ByteSize,
    tier::{
        JobEvent, Place, Policy,
        types::{Bucket, Job, Request, Segment, Spec, Stage},
    },
};

/// Promise 6 (bounded): one job is announced 100 times, each time with another bucket, and reads
/// none of them. Returns the number of buckets with a list of readers.
pub(in crate::tier) fn buckets_after_reannouncements<P: Policy>(
    mut policy: P,
    jobs: impl Fn(&P) -> &Jobs,
) -> usize {
    let request = Request::whole(Segment(0), Bucket(0), None, 1);
    for round in 0..100 {
        let now = Duration::from_mins(round);
        let bucket = Bucket(u32::try_from(round).expect("fewer than 100"));
        let stages = vec![Stage { buckets: vec![(bucket, ByteSize(1))] }];
        let spec = Spec { stages, rate: None, starts: None, lease: None };
        policy.on_event(now, JobEvent::Announced { job: Job(1), spec: &spec }).expect("valid");
        policy.on_request(now, &request, Place::Absent);
    }
    jobs(&policy).readers.len()
}
