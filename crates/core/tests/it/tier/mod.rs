//! The tier's policies: the common contract, each policy's purpose, and invalid events.

mod contract;
mod estimates;
mod events;
mod next_use;
mod shift;
mod unannounced;

use std::time::Duration;

use forebay_core::{
    ByteSize,
    tier::{
        Answer, Bucket, Changes, Job, JobEvent, Policy, Request, Segment, Settings, Spec, Stage,
    },
};

/// Length of a segment in these tests.
pub const SEGMENT: u32 = 1000;

/// Settings with these capacities in segments.
pub fn settings(dram: u64, flash: u64) -> Settings {
    let bytes = |segments: u64| ByteSize(segments * u64::from(SEGMENT));
    Settings { segment: bytes(1), ..Settings::new(bytes(dram), bytes(flash)) }
}

/// A read of one segment of a bucket.
pub fn request(job: u64, bucket: u32, number: u64) -> Request {
    let segment = Segment(u64::from(bucket) << 32 | number);
    Request { segment, bucket: Bucket(bucket), job: Some(Job(job)), bytes: SEGMENT }
}

/// A specification with one bucket per stage, each of `segments` segments.
pub fn spec(buckets: &[u32], segments: u64) -> Spec {
    let size = ByteSize(segments * u64::from(SEGMENT));
    let stage = |bucket: &u32| Stage { buckets: vec![(Bucket(*bucket), size)] };
    let stages = buckets.iter().map(stage).collect();
    Spec { stages, rate: None, starts: None, lease: None }
}

/// A policy with a clock that advances by 10 ms per request.
pub struct World {
    pub policy: Box<dyn Policy>,
    pub now: Duration,
    pub changes: Changes,
    pub written: u64,
}

impl World {
    pub fn new(policy: Box<dyn Policy>) -> Self {
        Self { policy, now: Duration::ZERO, changes: Changes::default(), written: 0 }
    }

    pub fn read(&mut self, job: u64, bucket: u32, number: u64) -> Answer {
        self.now += Duration::from_millis(10);
        let request = request(job, bucket, number);
        let answer = self.policy.request(self.now, &request, &mut self.changes);
        self.written += self.changes.written.len() as u64;
        answer
    }

    pub fn announce(&mut self, job: u64, spec: &Spec) {
        self.policy.on_event(self.now, JobEvent::Announced { job: Job(job), spec }).unwrap();
    }

    /// Reads part of a bucket. Returns the number of hits.
    pub fn scan(&mut self, job: u64, bucket: u32, numbers: std::ops::Range<u64>) -> u64 {
        numbers.map(|number| u64::from(self.read(job, bucket, number).is_hit())).sum()
    }

    /// Number of resident segments in part of a bucket.
    pub fn kept(&self, bucket: u32, numbers: std::ops::Range<u64>) -> u64 {
        let is_kept = |number: u64| self.policy.contains(request(0, bucket, number).segment);
        numbers.map(|number| u64::from(is_kept(number))).sum()
    }
}
