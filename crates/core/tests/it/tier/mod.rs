//! The tier's policies: the common contract, each policy's purpose, and invalid events.

mod contract;
mod estimates;
mod events;
mod next_use;
mod regions;
mod shift;
mod snapshots;
mod unannounced;

use std::time::Duration;

use forebay_core::{
    ByteSize,
    tier::{
        Bucket, Decision, FlashModel, Job, JobEvent, Place, Policy, PolicyKind, Request, Segment,
        Settings, Spec, Stage,
    },
};

/// Length of a segment in these tests.
pub const SEGMENT: u32 = 1000;

/// Settings with these capacities in segments. A region holds one segment.
pub fn settings(dram: u64, flash: u32) -> Settings {
    with_regions(dram, flash, 1)
}

/// Settings with regions of some segments.
pub fn with_regions(dram: u64, regions: u32, segments: u64) -> Settings {
    let bytes = |segments: u64| ByteSize(segments * u64::from(SEGMENT));
    let settings = Settings::new(bytes(dram), regions);
    Settings { segment: bytes(1), region: bytes(segments), ..settings }
}

/// A read of one segment of a bucket.
pub fn request(job: u64, bucket: u32, number: u64) -> Request {
    let segment = Segment(u64::from(bucket) << 32 | number);
    Request::whole(segment, Bucket(bucket), Some(Job(job)), SEGMENT)
}

/// A specification with one bucket per stage, each of `segments` segments.
pub fn spec(buckets: &[u32], segments: u64) -> Spec {
    let size = ByteSize(segments * u64::from(SEGMENT));
    let stage = |bucket: &u32| Stage { buckets: vec![(Bucket(*bucket), size)] };
    let stages = buckets.iter().map(stage).collect();
    Spec { stages, rate: None, starts: None, lease: None }
}

/// A policy, its driver, and a clock that advances by 10 ms per request.
pub struct World {
    pub policy: Box<dyn Policy>,
    pub flash: FlashModel,
    pub now: Duration,
    pub written: u64,
}

impl World {
    pub fn new(kind: PolicyKind, settings: &Settings) -> Self {
        let (policy, flash) = (kind.build(settings), FlashModel::new(settings));
        Self { policy, flash, now: Duration::ZERO, written: 0 }
    }

    pub fn read(&mut self, job: u64, bucket: u32, number: u64) -> Decision {
        self.now += Duration::from_millis(10);
        self.request(&request(job, bucket, number))
    }

    pub fn request(&mut self, request: &Request) -> Decision {
        let (decision, written) = self.flash.read(&mut *self.policy, self.now, request);
        self.written += written.segments;
        decision
    }

    pub fn announce(&mut self, job: u64, spec: &Spec) {
        self.policy.on_event(self.now, JobEvent::Announced { job: Job(job), spec }).unwrap();
    }

    pub fn end(&mut self, job: u64) {
        self.policy.on_event(self.now, JobEvent::Ended { job: Job(job) }).unwrap();
    }

    /// Reads part of a bucket. Returns the number of hits.
    pub fn scan(&mut self, job: u64, bucket: u32, numbers: std::ops::Range<u64>) -> u64 {
        numbers.map(|number| u64::from(self.read(job, bucket, number).is_hit())).sum()
    }

    /// Number of resident segments in part of a bucket.
    pub fn kept(&self, bucket: u32, numbers: std::ops::Range<u64>) -> u64 {
        let place = |number: u64| self.flash.place(request(0, bucket, number).segment);
        numbers.map(|number| u64::from(place(number) != Place::Absent)).sum()
    }
}
