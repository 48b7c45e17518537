//! Model: random requests of three principals, with overwrites, deletes and faults. Every answer
//! is one that the origin could have given at a moment that the object's rule allows.
//!
//! The origin keeps the history of each object by a logical clock. For an answer between two
//! ticks, the allowed states are:
//!
//! - under `always`, those that existed between the two ticks;
//! - under `ttl`, those since the last write through the gateway that was answered before.
//!
//! `SEED=n` replays one seed, `SEEDS=n` runs the seeds 0 to n - 1.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::{
    ByteSize,
    gateway::{rights::Authorise, versions::Freshness},
};
use forebay_gateway::{
    object_request::{ObjectMethod, ObjectRequest},
    objects::{
        ObjectCacheSettings,
        settings::{PrefixRule, Rules},
    },
};

use super::{
    harness::{Answer, Gateway, SEGMENT, content, origin_client, scripted_identities, settings},
    scripted_origin::{Fault, ObjectState, ScriptedOrigin, byte_range},
};

const KEYS: [&str; 6] = ["always/a", "always/b", "always/secret", "ttl/a", "ttl/b", "ttl/secret"];
const TASKS: u64 = 6;
const STEPS: u64 = 60;

struct World {
    origin: Arc<ScriptedOrigin>,
    gateway: Gateway,
    has_faults: bool,
}

/// One request of a client.
#[derive(Debug)]
struct Read {
    of: u32,
    key: &'static str,
    is_head: bool,
    range: Option<String>,
    if_match: Option<String>,
    if_none_match: Option<String>,
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(4),
    }
}

/// Promises 1 and 4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_one_that_the_origin_could_have_given() {
    for seed in seeds() {
        run(seed).await;
    }
}

async fn run(seed: u64) {
    let origin = ScriptedOrigin::start().await;
    let directory = tempfile::tempdir().unwrap();
    let client = origin_client(&origin.endpoint(), scripted_identities());
    let rules = Rules::new(vec![PrefixRule {
        bucket: None,
        prefix: b"ttl/".to_vec(),
        freshness: Freshness::Ttl(Duration::from_hours(1)),
        authorise: Authorise::Object,
    }]);
    let mut random = fastrand::Rng::with_seed(seed);
    let settings = ObjectCacheSettings {
        // Small, so that regions are evicted and reads miss what was planned.
        capacity: ByteSize::mib(8),
        region_size: Some(ByteSize::mib(1)),
        memory: if random.bool() { ByteSize::mib(1) } else { ByteSize(0) },
        objects_max: if random.bool() { 2 } else { 1000 },
        rules,
        ..settings(directory.path())
    };
    let gateway = Gateway::open(client, &settings).await;
    let has_faults = seed % 2 == 1;
    for key in ["always/secret", "ttl/secret"] {
        origin.deny("key-2", key);
    }
    {
        let mut script = origin.script.lock();
        script.random = Some(random.fork());
        script.one_fault_in = has_faults.then_some(8);
    }
    let world = Arc::new(World { origin, gateway, has_faults });
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (world, random) = (Arc::clone(&world), random.fork());
            tokio::spawn(async move { client_task(&world, task, random, seed).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    world.gateway.settled().await;
    let bytes =
        |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::SeqCst);
    let counters = world.gateway.cache.counters();
    assert!(bytes(&counters.hit_bytes) > 0 && bytes(&counters.fill_bytes) > 0, "seed {seed}");
}

async fn client_task(world: &World, task: u64, mut random: fastrand::Rng, seed: u64) {
    for step in 0..STEPS {
        let key = KEYS[random.usize(..KEYS.len())];
        if random.u32(..6) == 0 {
            let length = match random.u32(..4) {
                0 => 0,
                1 => random.usize(..2000),
                _ => random.usize(..6 * SEGMENT),
            };
            let is_deleted = random.u32(..6) == 0;
            let bytes = (!is_deleted).then(|| content(seed << 32 | task << 16 | step, length));
            let is_through_gateway = random.bool();
            world.origin.write(key, bytes, is_through_gateway);
            if is_through_gateway {
                world.gateway.cache.invalidate(&world.gateway.name(key));
                // The write is answered from here on.
                let mut script = world.origin.script.lock();
                let now = world.origin.tick();
                let history = script.objects.get_mut(&format!("/bucket/{key}")).unwrap();
                history.iter_mut().filter(|state| state.is_through_gateway).for_each(|state| {
                    state.answered = state.answered.or(Some(now));
                });
            }
            continue;
        }
        let read = draw(world, key, &mut random);
        let started = world.origin.tick();
        let answer = world.gateway.send(request(world, &read)).await;
        let ended = world.origin.tick();
        check(world, &read, &answer, started, ended, seed);
    }
}

fn draw(world: &World, key: &'static str, random: &mut fastrand::Rng) -> Read {
    let range = match random.u32(..6) {
        0 | 1 => None,
        2 => Some(format!("bytes={}-", random.usize(..6 * SEGMENT))),
        3 => Some(format!("bytes=-{}", random.usize(1..6 * SEGMENT))),
        _ => {
            let first = random.usize(..6 * SEGMENT);
            Some(format!("bytes={first}-{}", first + random.usize(..3 * SEGMENT)))
        }
    };
    let history = world.origin.history(key);
    let mut some_tag = || {
        let versions: Vec<_> = history.iter().filter_map(|state| state.version.as_ref()).collect();
        let tag = random.choice(&versions).map(|version| version.etag.clone());
        tag.filter(|_| random.u32(..4) == 0)
    };
    let (if_match, if_none_match) = (some_tag(), some_tag());
    let (of, is_head) = (random.u32(..3), random.u32(..6) == 0);
    Read { of, key, is_head, range, if_match, if_none_match }
}

fn request(world: &World, read: &Read) -> ObjectRequest {
    let headers = [
        ("range", &read.range),
        ("if-match", &read.if_match),
        ("if-none-match", &read.if_none_match),
    ];
    let headers: Vec<(&str, &str)> = headers
        .into_iter()
        .filter_map(|(name, value)| value.as_deref().map(|value| (name, value)))
        .collect();
    let method = if read.is_head { ObjectMethod::Head } else { ObjectMethod::Get };
    ObjectRequest { method, ..world.gateway.request(read.of, read.key, &headers) }
}

fn check(world: &World, read: &Read, answer: &Answer, started: u64, ended: u64, seed: u64) {
    let history = world.origin.history(read.key);
    let injected: Vec<Fault> = {
        let script = world.origin.script.lock();
        let during = |(at, _): &&(u64, Fault)| (started..=ended).contains(at);
        script.injected.iter().filter(during).map(|(_, fault)| *fault).collect()
    };
    let allowed = allowed_states(&history, read, started, ended);
    let is_denied = read.of == 2 && read.key.ends_with("secret");
    let is_explained = if is_denied {
        answer.status == 403 && answer.header("etag").is_none()
    } else {
        allowed.iter().any(|state| could_answer(state.as_ref(), read, answer))
    };
    let is_fault = injected.iter().any(|fault| match fault {
        Fault::Status(status) => answer.status == *status,
        // The origin's answer breaks for a client without a gateway, too.
        Fault::CutBody => answer.status == 503,
        Fault::SlowHead(_) => false,
    });
    assert!(
        is_explained || is_fault && world.has_faults,
        "seed {seed}: {read:?} between {started} and {ended} answered {} {:?}, {} bytes, \
         cut: {}; {injected:?}; {:?}",
        answer.status,
        answer.headers,
        answer.body.len(),
        answer.is_cut,
        history
            .iter()
            .map(|state| (state.since, state.version.as_ref().map(|it| it.bytes.len())))
            .collect::<Vec<_>>()
    );
    if answer.is_cut {
        let has_changed = history.iter().any(|state| state.since >= started);
        let may_be_outdated = read.key.starts_with("ttl/");
        assert!(
            has_changed || may_be_outdated || !injected.is_empty(),
            "seed {seed}: {read:?} was cut without a reason"
        );
    }
}

/// The states that an answer may show.
fn allowed_states(
    history: &[ObjectState],
    read: &Read,
    started: u64,
    ended: u64,
) -> Vec<Option<super::scripted_origin::Version>> {
    let last_answered = history
        .iter()
        .filter(|state| state.answered.is_some_and(|answered| answered <= started))
        .map(|state| state.since)
        .max()
        .unwrap_or(0);
    let mut allowed = Vec::new();
    for (at, state) in history.iter().enumerate() {
        let until = history.get(at + 1).map_or(u64::MAX, |next| next.since);
        let in_time = if read.key.starts_with("ttl/") {
            state.since >= last_answered
        } else {
            until >= started
        };
        if state.since <= ended && in_time {
            allowed.push(state.version.clone());
        }
    }
    if history.first().is_none_or(|first| first.since >= started) {
        allowed.push(None);
    }
    allowed
}

/// Whether an origin with this version answers so.
fn could_answer(
    version: Option<&super::scripted_origin::Version>,
    read: &Read,
    answer: &Answer,
) -> bool {
    let Some(version) = version else { return answer.status == 404 };
    if read.if_match.as_ref().is_some_and(|tag| *tag != version.etag) {
        return answer.status == 412;
    }
    if read.if_none_match.as_ref().is_some_and(|tag| *tag == version.etag) {
        return answer.status == 304 && answer.body.is_empty();
    }
    let (status, part) = match &read.range {
        None => (200, version.bytes.clone()),
        Some(range) => match byte_range(range, version.bytes.len()) {
            // A suffix of an empty object is the whole of it.
            None if range.starts_with("bytes=-") && version.bytes.is_empty() => {
                return [200, 416].contains(&answer.status.as_u16()) && !has_bytes(answer);
            }
            None => return answer.status == 416,
            Some(part) => (206, version.bytes.slice(part)),
        },
    };
    let expected = if read.is_head { Bytes::new() } else { part.clone() };
    let is_right = if answer.is_cut {
        answer.body.len() < expected.len() && answer.body == expected.slice(..answer.body.len())
    } else {
        answer.body == expected
    };
    is_right
        && answer.status == status
        && answer.header("etag") == Some(&*version.etag)
        && answer.header("content-length") == Some(&*part.len().to_string())
}

fn has_bytes(answer: &Answer) -> bool {
    answer.status == 200 && !answer.body.is_empty()
}
