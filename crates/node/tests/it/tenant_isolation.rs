//! All that a curious neighbour might try. It gets nothing, and harms nobody.
//!
//! Promise 4: "Whoever is given bytes has proved its identity and that it holds the digest. 'Not allowed' and 'not
//! there' look alike. An insert is copied, then hashed by the node, before it is believed."

use bytes::Bytes;
use forebay_client::{Client, Handle, Next, Opening};
use forebay_core::{
    DatasetId, Namespace, NamespaceId,
    manager::Report,
    presence::Known,
    ring::{Member, Weight},
    table::proof_of,
};
use forebay_wire::{
    BODY_SIZE_MAX, BlobLength, BlobProgress, BlobRange, ClaimAnswer, ErrorCode, GetAnswer, Header,
    PICKED, PutAnswer, RenewAnswer, Reply, Request, ShowAnswer,
};

use crate::{
    authority::private,
    harness::{Data, PATIENCE, Raw, get, put},
    town::{OURS, THEIRS, Town, Way, code, hello, on_both_ways, refusal, token_of},
};

/// An honest client, with a dataset of its own namespace open and its first blob resident.
struct Honest {
    data: Data,
    client: Client,
    handle: Handle,
}

impl Honest {
    fn new(town: &Town) -> Self {
        let data = Data::of(&town.namespace(OURS), &[1000; 20]);
        let mut client = town.connect(&town.by_token(OURS), "honest").unwrap();
        let handle = client.open(&data.digest).unwrap();
        put(&mut client, handle, &data, 0);
        Self { data, client, handle }
    }

    /// It goes on being served.
    fn is_well(&mut self) {
        let bytes = get(&mut self.client, self.handle, &self.data, 0, PATIENCE).unwrap();
        assert_eq!(bytes, self.data.blobs[0]);
    }

    fn names(&self) -> (NamespaceId, DatasetId) {
        (self.data.digest.namespace().unwrap(), self.data.digest.summary().dataset)
    }
}

/// The table of a dataset, shown as one of this namespace.
fn upload(data: &Data, namespace: NamespaceId) -> Request {
    let (mut opening, _) = Opening::begin(&data.digest).unwrap();
    match opening.reply(Reply::Show(ShowAnswer::Upload)).unwrap() {
        Next::Ask(Request::Upload { dataset, chunks, partitions, blobs, first, page, .. }) => {
            Request::Upload { namespace, dataset, chunks, partitions, blobs, first, page }
        }
        other => panic!("{other:?}"),
    }
}

/// The same blobs, picked one by one.
fn pick(data: &Data, namespace: NamespaceId) -> Request {
    let rows = data.digest.blobs().map(Result::unwrap);
    let blobs = rows.map(|row| BlobLength { address: row.address, length: row.length }).collect();
    Request::Pick { namespace, blobs }
}

#[test]
fn a_tenant_is_who_it_proves_to_be() {
    on_both_ways(|town| {
        let mut honest = Honest::new(town);
        if town.way == Way::Tls {
            let mut client = town.connect(&town.by_certificate(OURS), "honest").unwrap();
            let handle = client.open(&honest.data.digest).unwrap();
            get(&mut client, handle, &honest.data, 0, PATIENCE).unwrap();
        }
        let greet = |token: &[u8]| refusal(town.silent().ask(&hello("x", token)));
        let wrong = greet(&[b'x'; 64]);
        assert_eq!(wrong.code, ErrorCode::Identity);
        let right = token_of(OURS);
        for token in [&b""[..], &right.as_bytes()[1..], &[0; 256], right.to_uppercase().as_bytes()]
        {
            assert_eq!(greet(token), wrong, "wrong and unknown look alike");
        }
        assert!(town.node.service.counters().strangers_refused.get() >= 5);
        honest.is_well();
    });
}

#[test]
fn names_of_another_namespace_open_nothing() {
    on_both_ways(|town| {
        let mut honest = Honest::new(town);
        let (namespace, dataset) = honest.names();
        let mut raw = town.raw(THEIRS);
        let not_there = NamespaceId::from_bytes([9; 16]);
        let unknown = refusal(raw.ask(&Request::Show { namespace: not_there, dataset }));
        assert_eq!(unknown.code, ErrorCode::Unknown);
        // Their namespace, by name and with a table that leaked.
        let forbidden = refusal(raw.ask(&Request::Show { namespace, dataset }));
        assert_eq!(forbidden, unknown, "forbidden and absent look alike");
        let forbidden = refusal(raw.ask(&upload(&honest.data, namespace)));
        assert_eq!(forbidden, refusal(raw.ask(&upload(&honest.data, not_there))));
        assert_eq!(forbidden, unknown);
        let forbidden = refusal(raw.ask(&pick(&honest.data, namespace)));
        assert_eq!(forbidden, refusal(raw.ask(&pick(&honest.data, not_there))));
        assert_eq!(forbidden, unknown);
        let proof = proof_of(&honest.data.digest, &[7; 32]).unwrap();
        assert_eq!(refusal(raw.ask(&Request::Prove { dataset, proof })), unknown);
        honest.is_well();
    });
}

/// A digest may leak. Shown as a dataset of a namespace that the neighbour may use, its addresses find nothing.
#[test]
fn addresses_of_another_namespace_find_nothing() {
    on_both_ways(|town| {
        let mut honest = Honest::new(town);
        for namespace in [Namespace::public().id(), town.namespace(THEIRS).id()] {
            let mut raw = town.raw(THEIRS);
            let (_, dataset) = honest.names();
            let shown = raw.ask(&Request::Show { namespace, dataset });
            assert_eq!(shown, Reply::Show(ShowAnswer::Upload), "as if nobody had it");
            assert_eq!(raw.ask(&upload(&honest.data, namespace)), Reply::Open { handle: 0 });
            let presence = Request::Presence { handle: 0, first: 0, count: 20, since: 0 };
            let Reply::Presence { version, told } = raw.ask(&presence) else { panic!("presence") };
            let mut known = Known::new(20);
            known.hear(version, &told).unwrap();
            assert!(known.bits().iter().all(|bits| *bits == 0), "nothing is there");
            let ranges = vec![BlobRange { blob: 0, offset: 0, length: 1000 }];
            let reply = raw.ask(&Request::Get { handle: 0, wait_ms: 0, ranges });
            assert!(
                matches!(&reply, Reply::Get { payload, .. } if payload.is_empty()),
                "{reply:?}"
            );
            let picked = raw.ask(&pick(&honest.data, namespace));
            assert_eq!(picked, Reply::Open { handle: PICKED });
            let ranges = vec![BlobRange { blob: 0, offset: 0, length: 1000 }];
            let reply = raw.ask(&Request::Get { handle: PICKED, wait_ms: 0, ranges });
            assert!(matches!(&reply, Reply::Get { answer: GetAnswer::Miss, .. }), "{reply:?}");
            // Its claims are about other blobs, and what it puts does not hash to their names.
            let granted = honest.client.claim(honest.handle, &[5]).unwrap();
            assert_eq!(granted, [ClaimAnswer::Granted]);
            let claimed = raw.ask(&Request::Claim { handle: 0, blobs: vec![0, 5] });
            let both = vec![ClaimAnswer::Granted; 2];
            assert_eq!(claimed, Reply::Claim { answers: both });
            let payload = honest.data.blobs[5].clone();
            let stored = raw.ask(&Request::Put { handle: 0, blob: 5, offset: 0, payload });
            assert_eq!(refusal(stored).code, ErrorCode::WrongBytes);
            // Nor does it have the honest one's blobs thrown out, or a say in what is kept.
            raw.ask(&Request::Evict { handle: 0 });
            honest.client.release(honest.handle, &[5]).unwrap();
            honest.is_well();
        }
    });
}

#[test]
fn guessed_handles_and_ordinals_are_refused() {
    on_both_ways(|town| {
        let mut honest = Honest::new(town);
        let own = Data::of(&town.namespace(THEIRS), &[500; 4]);
        let mut raw = town.raw(THEIRS);
        let ranges = |blob| vec![BlobRange { blob, offset: 0, length: 100 }];
        for handle in [0, 1, 63, u32::MAX] {
            let got = raw.ask(&Request::Get { handle, wait_ms: 0, ranges: ranges(0) });
            assert_eq!(refusal(got).code, ErrorCode::Unknown);
            assert_eq!(refusal(raw.ask(&Request::Explain { handle })).code, ErrorCode::Unknown);
            assert_eq!(refusal(raw.ask(&Request::Evict { handle })).code, ErrorCode::Unknown);
        }
        raw.open_first(&own);
        for blob in [4, 19, 1 << 40, u64::MAX] {
            let got = raw.ask(&Request::Get { handle: 0, wait_ms: 0, ranges: ranges(blob) });
            assert_eq!(refusal(got).code, ErrorCode::Malformed);
            let claimed = raw.ask(&Request::Claim { handle: 0, blobs: vec![blob] });
            assert_eq!(refusal(claimed).code, ErrorCode::Malformed);
        }
        let far = BlobRange { blob: 0, offset: 499, length: 2 };
        let got = raw.ask(&Request::Get { handle: 0, wait_ms: 0, ranges: vec![far] });
        assert_eq!(refusal(got).code, ErrorCode::Malformed, "beyond the end of a blob");
        honest.is_well();
    });
}

/// What was said on one connection is worth nothing on another.
#[test]
fn a_replayed_proof_opens_nothing() {
    on_both_ways(|town| {
        let data = Data::new(&[1000; 20]);
        let mut holder = town.connect(&town.by_token(OURS), "honest").unwrap();
        let handle = holder.open(&data.digest).unwrap();
        let (namespace, dataset) = (Namespace::public().id(), data.digest.summary().dataset);
        let show = Request::Show { namespace, dataset };
        let nonce = |raw: &mut Raw| match raw.ask(&show) {
            Reply::Show(ShowAnswer::Prove { nonce }) => nonce,
            other => panic!("{other:?}"),
        };
        let mut honest = town.raw(OURS);
        let heard = proof_of(&data.digest, &nonce(&mut honest)).unwrap();
        let proof = Request::Prove { dataset, proof: heard };
        assert!(matches!(honest.ask(&proof), Reply::Open { .. }));
        let mut raw = town.raw(THEIRS);
        assert_eq!(refusal(raw.ask(&proof)).code, ErrorCode::Unknown, "without a challenge");
        nonce(&mut raw);
        assert_eq!(refusal(raw.ask(&proof)).code, ErrorCode::Unknown, "another challenge");
        let again = refusal(raw.ask(&hello("x", token_of(THEIRS).as_bytes())));
        assert_eq!(again.code, ErrorCode::Malformed, "hello is said once");
        put(&mut holder, handle, &data, 3);
    });
}

/// Both may use the public namespace, and both have the dataset open.
#[test]
fn a_claim_is_its_holders_alone() {
    on_both_ways(|town| {
        let data = Data::new(&[1000; 20]);
        let mut holder = town.connect(&town.by_token(OURS), "honest").unwrap();
        let handle = holder.open(&data.digest).unwrap();
        assert_eq!(holder.claim(handle, &[1]).unwrap(), [ClaimAnswer::Granted]);
        let mut raw = town.raw(THEIRS);
        raw.open_first(&data);
        let claimed = raw.ask(&Request::Claim { handle: 0, blobs: vec![1] });
        assert_eq!(claimed, Reply::Claim { answers: vec![ClaimAnswer::Held] });
        let blobs = vec![BlobProgress { blob: 1, bytes: 500 }];
        let renewed = raw.ask(&Request::Renew { handle: 0, blobs });
        assert_eq!(renewed, Reply::Renew { answers: vec![RenewAnswer::Lost] });
        raw.ask(&Request::Release { handle: 0, blobs: vec![1] });
        let payload = data.blobs[1].clone();
        let stored = raw.ask(&Request::Put { handle: 0, blob: 1, offset: 0, payload });
        assert_eq!(refusal(stored).code, ErrorCode::NotClaimed);
        assert_eq!(town.node.service.gauges().claims_held, 1, "still its holder's");
        holder.put(handle, 1, &data.blobs[1]).unwrap();
        // Poison is refused and counted, and the next one may try.
        raw.ask(&Request::Claim { handle: 0, blobs: vec![2] });
        let payload = Bytes::from(vec![0; 1000]);
        let stored = raw.ask(&Request::Put { handle: 0, blob: 2, offset: 0, payload });
        assert_eq!(refusal(stored).code, ErrorCode::WrongBytes);
        assert_eq!(town.node.service.counters().puts_poisoned.get(), 1);
        raw.ask(&Request::Release { handle: 0, blobs: vec![2] });
        put(&mut holder, handle, &data, 2);
        // What all use, nobody throws out for all.
        assert_eq!(refusal(raw.ask(&Request::Evict { handle: 0 })).code, ErrorCode::Identity);
        assert!(get(&mut holder, handle, &data, 2, PATIENCE).is_ok());
    });
}

/// A job is fenced, and leaves, by its own tenant alone; others see nothing of it.
#[test]
fn jobs_of_two_tenants_may_have_one_name() {
    on_both_ways(|town| {
        let data = Data::new(&[32 << 10; 640]);
        let report =
            |life| Report { life, gpus: 1, epoch_batches: 20, is_all: true, ..Report::default() };
        let job = |of: &str, name: &str| {
            let mut client = town.connect(&town.by_token(of), name).unwrap();
            let handle = client.open(&data.digest).unwrap();
            (client, handle)
        };
        let (mut honest, handle) = job(OURS, "secret-name");
        honest.report(handle, report(1)).unwrap();
        let (mut curious, theirs) = job(THEIRS, "secret-name");
        curious.report(theirs, report(2)).unwrap();
        honest.report(handle, report(1)).expect("not fenced");
        curious.leave(theirs).unwrap();
        let seen = String::from_utf8(honest.explain(handle).unwrap().to_vec()).unwrap();
        assert!(seen.contains("secret-name"), "its own job is still there: {seen}");
        let (mut nosy, theirs) = job(THEIRS, "nosy");
        nosy.report(theirs, report(3)).unwrap();
        let seen = String::from_utf8(nosy.explain(theirs).unwrap().to_vec()).unwrap();
        let jobs = serde_json::from_str::<serde_json::Value>(&seen).unwrap()["jobs"].take();
        let names: Vec<_> = jobs.as_array().unwrap().iter().map(|job| &job["name"]).collect();
        assert_eq!(names, ["nosy"], "{seen}");
        assert!(!seen.contains("secret-name") && !seen.contains(OURS), "{seen}");
        for (name, _) in nosy.stats().unwrap() {
            assert!(!name.contains("secret") && !name.contains(OURS), "{name}");
        }
        // The same tenant does fence its job's former life.
        let (mut again, handle_again) = job(OURS, "secret-name");
        again.report(handle_again, report(4)).unwrap();
        assert_eq!(code(&honest.report(handle, report(1)).unwrap_err()), ErrorCode::Fenced);
    });
}

#[test]
fn nonsense_ends_its_connection_and_no_other() {
    on_both_ways(|town| {
        let mut honest = Honest::new(town);
        let mut over = Header { kind: 1, id: 1, body_size: BODY_SIZE_MAX }.encode();
        over[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let greeting = hello("x", token_of(THEIRS).as_bytes()).encode(1).to_bytes();
        let long_token = {
            let mut bytes = hello("x", &[b'x'; 256]).encode(1).to_bytes();
            let at = bytes.len() - 258;
            bytes[at..at + 2].copy_from_slice(&u16::MAX.to_le_bytes());
            bytes
        };
        for bytes in [&over[..], &long_token, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &[0; 64]] {
            let mut raw = town.silent();
            raw.send_bytes(bytes);
            let (_, reply) = raw.reply().expect("a word before it ends");
            assert_eq!(refusal(reply).code, ErrorCode::Malformed);
        }
        // Cut off anywhere, with and without a hello before.
        for cut in 0..greeting.len() {
            town.silent().send_bytes(&greeting[..cut]);
        }
        let page = vec![BlobLength { address: Namespace::public().address(b"x"), length: 1 }; 50];
        let (namespace, dataset) = (Namespace::public().id(), DatasetId::from_bytes([3; 32]));
        let (chunks, partitions, blobs, first) = (1, 1, 1 << 60, 0);
        let upload = Request::Upload { namespace, dataset, chunks, partitions, blobs, first, page };
        let frame = upload.encode(2).to_bytes();
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..100 {
            let mut bytes = [&greeting[..], &frame[..random.usize(..frame.len())]].concat();
            if random.bool() {
                let at = random.usize(greeting.len()..=bytes.len());
                bytes.insert(at.min(bytes.len()), random.u8(..));
            }
            bytes.extend((0..random.usize(..200)).map(|_| random.u8(..)));
            town.silent().send_bytes(&bytes);
        }
        honest.is_well();
        town.node.wait_for_connections(1);
        assert_eq!(town.node.service.gauges().claims_held, 0);
    });
}

/// Whoever knows the cluster's token runs it, also without a certificate where tenants have nothing else: it may use all
/// there is. But one who says that it is a node takes counsel, and nothing else.
#[test]
fn nodes_take_counsel_and_operators_do_the_rest() {
    let cluster = "token-of-the-cluster-".repeat(3);
    let town = Town::with(Way::Tls, |config| {
        let path = config.tls_key.as_ref().unwrap().with_file_name("cluster.token");
        private(&path, &cluster);
        config.tenants.iter_mut().for_each(|tenant| tenant.tokens.clear());
        config.cluster_token = Some(path);
        config.cluster_authority = config.tls_clients.clone();
        config.name = Some("a".parse().unwrap());
        let endpoints = [config.socket.as_path().into(), "/nowhere/b.sock".parse().unwrap()];
        let names = ["a", "b"].map(|name| name.parse().unwrap());
        let member =
            |(name, endpoint)| Member { name, endpoint, weight: Weight::default(), zone: None };
        config.nodes = names.into_iter().zip(endpoints).map(member).collect();
    });
    let data = Data::of(&town.namespace(OURS), &[1000; 4]);
    let mut ours = town.connect(&town.by_certificate(OURS), "ours").unwrap();
    let handle = ours.open(&data.digest).unwrap();
    put(&mut ours, handle, &data, 0);
    let mut node = town.raw_as("b", &cluster);
    for request in [Request::Stats, Request::Ring, upload(&data, town.namespace(OURS).id())] {
        assert_eq!(refusal(node.ask(&request)).code, ErrorCode::Identity, "{request:?}");
    }
    let mut operator = town.raw_as("operator", &cluster);
    operator.open_first(&data);
    let evicted = operator.ask(&Request::Evict { handle: 0 });
    assert_eq!(evicted, Reply::Evicted { bytes: 1000 });
}

/// Promise 6: what one tenant has begun to put leaves room for what others put.
#[test]
fn a_tenant_cannot_take_all_room_for_puts() {
    let town = Town::new(Way::Clear);
    let data = Data::of(&town.namespace(THEIRS), &[1000; 200]);
    let mut begun = 0;
    let mut greedy: Vec<_> = (0..4).map(|_| town.raw(THEIRS)).collect();
    for (number, raw) in (0_u64..).zip(&mut greedy) {
        raw.open_first(&data);
        for blob in number * 50..(number + 1) * 50 {
            raw.ask(&Request::Claim { handle: 0, blobs: vec![blob] });
            let payload = data.blobs[usize::try_from(blob).unwrap()].slice(..1);
            match raw.ask(&Request::Put { handle: 0, blob, offset: 0, payload }) {
                Reply::Put(PutAnswer::More) => begun += 1,
                reply => assert_eq!(refusal(reply).code, ErrorCode::TooMuch),
            }
        }
    }
    assert_eq!(begun, 128, "half of all");
    let data = Data::of(&town.namespace(OURS), &[1000; 4]);
    let mut honest = town.connect(&town.by_token(OURS), "honest").unwrap();
    let handle = honest.open(&data.digest).unwrap();
    put(&mut honest, handle, &data, 0);
}
