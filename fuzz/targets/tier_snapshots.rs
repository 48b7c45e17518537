//! Snapshots of the flash tier's policies, with any content under the right hash, and requests
//! after them.
#![no_main]

use std::time::Duration;

use forebay_core::{
    ByteSize,
    tier::{
        Bucket, Job, JobEvent, Place, PolicyKind, Request, Segment, Settings, Spec, Stage,
        sealed_for_tests,
    },
};
use forebay_fuzz::seed;
use libfuzzer_sys::fuzz_target;

fn settings() -> Settings {
    let mut settings = Settings::new(ByteSize::ZERO, 4);
    settings.history.segments_max = 64;
    settings
}

fn request(number: u64) -> Request {
    let (bucket, job) = (Bucket(u32::from(number % 3 == 0)), Some(Job(number % 4)));
    Request::whole(Segment(number % 16), bucket, job, 1000)
}

fuzz_target!(
    init: {
        let mut policy = PolicyKind::NextUse.build(&settings());
        let stages = vec![Stage { buckets: vec![(Bucket(0), ByteSize(9000))] }];
        let spec = Spec { stages, rate: None, starts: None, lease: None };
        let job = Job(1);
        policy.on_event(Duration::ZERO, JobEvent::Announced { job, spec: &spec }).expect("valid");
        for number in 0..100 {
            policy.on_request(Duration::from_secs(number), &request(number), Place::Absent);
        }
        let saved = policy.save();
        // Without magic and hash, which the target adds.
        seed("jobs", &saved[8..saved.len() - 32]);
    },
    |data: &[u8]| {
        for kind in [PolicyKind::NextUse, PolicyKind::Hybrid] {
            let mut policy = kind.build(&settings());
            assert!(policy.restore(data).is_err(), "no hash");
            if policy.restore(&sealed_for_tests(data)).is_err() {
                continue;
            }
            for number in 0..100 {
                let now = Duration::from_secs(number * 10);
                policy.on_request(now, &request(number), Place::Absent);
                policy.on_tick(now);
            }
            let saved = policy.save();
            let mut again = kind.build(&settings());
            again.restore(&saved).expect("what was saved can be restored");
        }
    }
);
