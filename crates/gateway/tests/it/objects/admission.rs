//! Admission: what is not kept costs the origin the bytes asked for, and what is kept is accounted
//! for until its region goes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use forebay_core::ByteSize;
use forebay_flash::{
    Appended, EntryKey, RegionRef,
    format::RegionId,
    shard::{Candidate, Eviction},
};
use forebay_gateway::objects::{
    ObjectCacheSettings,
    admission::{SegmentAdmission, SegmentRead},
};
use http::Method;

use super::{
    harness::{Gateway, SEGMENT, content, origin_client, scripted_identities, settings},
    scripted_origin::ScriptedOrigin,
};

/// Keeps the objects below `keep/`, and follows where they are.
#[derive(Debug, Clone, Default)]
struct ByPrefix(Arc<Mutex<BTreeMap<RegionRef, u64>>>);

impl SegmentAdmission for ByPrefix {
    fn on_read(&self, read: &SegmentRead<'_>) -> bool {
        read.object.key.starts_with(b"keep/")
    }

    fn on_stored(&self, _: EntryKey, place: Appended) {
        *self.0.lock().unwrap().entry(place.region).or_default() += 1;
    }

    fn eviction(&self) -> Box<dyn Eviction> {
        Box::new(self.clone())
    }
}

impl Eviction for ByPrefix {
    fn named_victim(&mut self) -> Option<RegionRef> {
        let regions = self.0.lock().unwrap();
        regions.keys().min_by_key(|region| region.generation).copied()
    }

    fn on_freed(&mut self, region: RegionRef) {
        self.0.lock().unwrap().remove(&region);
    }

    fn victim(&mut self, _: &mut dyn Iterator<Item = Candidate<'_>>) -> Option<RegionId> {
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_is_not_admitted_costs_the_bytes_asked_for() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let admission = Arc::new(ByPrefix::default());
    let settings = ObjectCacheSettings { admission, ..settings(directory.path()) };
    let gateway = Gateway::open(client, &settings).await;
    let bytes = content(1, 5 * SEGMENT);
    origin.write("pass", Some(bytes.clone()), false);
    for _ in 0..2 {
        origin.forget();
        let answer = gateway.get(0, "pass", &[("range", "bytes=100000-799999")]).await;
        assert_eq!((answer.status.as_u16(), answer.cache()), (206, "pass"));
        assert!(answer.body == bytes.slice(100_000..800_000));
        let gets: Vec<_> = origin.seen().into_iter().filter_map(|seen| seen.range).collect();
        assert_eq!(gets, ["bytes=100000-799999"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_named_regions_are_evicted_and_every_segment_is_accounted_for() {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let admission = ByPrefix::default();
    let settings = ObjectCacheSettings {
        capacity: ByteSize::mib(8),
        region_size: Some(ByteSize::mib(1)),
        memory: ByteSize(0),
        admission: Arc::new(admission.clone()),
        ..settings(directory.path())
    };
    let gateway = Gateway::open(client, &settings).await;
    for number in 0..20 {
        let key = format!("keep/{number}");
        let bytes = content(number, 3 * SEGMENT);
        origin.write(&key, Some(bytes.clone()), false);
        assert!(gateway.get(0, &key, &[]).await.body == bytes);
        gateway.settled().await;
    }
    let flash = gateway.cache.flash_counters().unwrap();
    assert!(flash.regions_evicted > 0, "{flash:?}");
    let accounted: u64 = admission.0.lock().unwrap().values().sum();
    assert_eq!(accounted, flash.entries);
    // The latest object is there.
    origin.forget();
    assert_eq!(gateway.get(0, "keep/19", &[]).await.cache(), "hit");
    assert_eq!(origin.count(&Method::GET), 0);
}
