//! Tenant isolation: attacks of one tenant on another. They gain nothing and have no effect on
//! others.
//!
//! Promise 4: a client that receives bytes has proved its identity and that it holds the digest.
//! "Not allowed" and "not there" look alike. A put is copied, then hashed by the node, before it is
//! stored.

use bytes::Bytes;
use forebay_client::{Client, Handle, Next, Opening};
use forebay_core::{
    BlobOrdinal, DatasetId, Namespace, NamespaceId,
    cluster::ring::{Member, Weight},
    node::presence::KnownPresence,
    train::manager::Report,
};
use forebay_digest::proof_of;
use forebay_wire::{
    BODY_SIZE_MAX, BlobLength, BlobProgress, BlobRange, ClaimAnswer, ErrorCode, GetAnswer, Header,
    OpenAnswer, PutAnswer, RenewAnswer, Reply, Request, SELECTED_HANDLE,
};

use crate::{
    harness::{Data, Raw, TIMEOUT, get, put},
    test_ca::private,
    two_tenants::{
        OURS, THEIRS, TenantSetup, Transport, code, hello, on_each_transport, refusal, token_of,
    },
};

/// The attacked tenant's client, with a dataset of its private namespace and one resident blob.
struct Victim {
    data: Data,
    client: Client,
    handle: Handle,
}

impl Victim {
    fn new(setup: &TenantSetup) -> Self {
        let data = Data::of(&setup.namespace(OURS), &[1000; 20]);
        let mut client = setup.connect(&setup.by_token(OURS), "honest").unwrap();
        let handle = client.open(&data.digest).unwrap();
        put(&mut client, handle, &data, 0);
        Self { data, client, handle }
    }

    /// Checks that the client is still served.
    fn assert_served(&mut self) {
        let bytes = get(&mut self.client, self.handle, &self.data, 0, TIMEOUT).unwrap();
        assert_eq!(bytes, self.data.blobs[0]);
    }

    fn names(&self) -> (NamespaceId, DatasetId) {
        (self.data.digest.namespace().unwrap(), self.data.digest.summary().dataset)
    }
}

/// Uploads the table of a dataset under another namespace.
fn upload(data: &Data, namespace: NamespaceId) -> Request {
    let (mut opening, _) = Opening::begin(&data.digest).unwrap();
    match opening.reply(Reply::OpenAnswer(OpenAnswer::Upload)).unwrap() {
        Next::Ask(Request::Upload { dataset, chunks, partitions, blobs, first, page, .. }) => {
            Request::Upload { namespace, dataset, chunks, partitions, blobs, first, page }
        }
        other => panic!("{other:?}"),
    }
}

/// Selects the same blobs by address.
fn select(data: &Data, namespace: NamespaceId) -> Request {
    let rows = data.digest.blobs().map(Result::unwrap);
    let blobs = rows.map(|row| BlobLength { address: row.address, length: row.length }).collect();
    Request::SelectByAddress { namespace, blobs }
}

#[test]
fn a_tenant_must_authenticate() {
    on_each_transport(|setup| {
        let mut honest = Victim::new(setup);
        if setup.transport == Transport::Tls {
            let mut client = setup.connect(&setup.by_certificate(OURS), "honest").unwrap();
            let handle = client.open(&honest.data.digest).unwrap();
            get(&mut client, handle, &honest.data, 0, TIMEOUT).unwrap();
        }
        let refused = |token: &[u8]| refusal(setup.without_hello().call(&hello("x", token)));
        let wrong = refused(&[b'x'; 64]);
        assert_eq!(wrong.code, ErrorCode::Identity);
        let right = token_of(OURS);
        for token in [&b""[..], &right.as_bytes()[1..], &[0; 256], right.to_uppercase().as_bytes()]
        {
            assert_eq!(refused(token), wrong, "wrong and unknown look alike");
        }
        assert!(setup.node.service.counters().preauth_rejected.get() >= 5);
        honest.assert_served();
    });
}

#[test]
fn a_dataset_of_another_namespace_cannot_be_opened() {
    on_each_transport(|setup| {
        let mut honest = Victim::new(setup);
        let (namespace, dataset) = honest.names();
        let mut raw = setup.raw(THEIRS);
        let not_there = NamespaceId::from_bytes([9; 16]);
        let unknown = refusal(raw.call(&Request::Open { namespace: not_there, dataset }));
        assert_eq!(unknown.code, ErrorCode::Unknown);
        // The other tenant's namespace, with the dataset id and with a leaked table.
        let forbidden = refusal(raw.call(&Request::Open { namespace, dataset }));
        assert_eq!(forbidden, unknown, "forbidden and absent look alike");
        let forbidden = refusal(raw.call(&upload(&honest.data, namespace)));
        assert_eq!(forbidden, refusal(raw.call(&upload(&honest.data, not_there))));
        assert_eq!(forbidden, unknown);
        let forbidden = refusal(raw.call(&select(&honest.data, namespace)));
        assert_eq!(forbidden, refusal(raw.call(&select(&honest.data, not_there))));
        assert_eq!(forbidden, unknown);
        let proof = proof_of(&honest.data.digest, &[7; 32]).unwrap();
        assert_eq!(refusal(raw.call(&Request::Prove { dataset, proof })), unknown);
        honest.assert_served();
    });
}

/// A digest may leak. Uploaded under a namespace that the attacker may use, its addresses find no
/// blobs.
#[test]
fn addresses_of_another_namespace_find_nothing() {
    on_each_transport(|setup| {
        let mut honest = Victim::new(setup);
        for namespace in [Namespace::public().id(), setup.namespace(THEIRS).id()] {
            let mut raw = setup.raw(THEIRS);
            let (_, dataset) = honest.names();
            let answer = raw.call(&Request::Open { namespace, dataset });
            assert_eq!(answer, Reply::OpenAnswer(OpenAnswer::Upload), "as if it were unknown");
            assert_eq!(raw.call(&upload(&honest.data, namespace)), Reply::Open { handle: 0 });
            let presence = Request::Presence { handle: 0, first: 0, count: 20, since: 0 };
            let Reply::Presence { version, update } = raw.call(&presence) else {
                panic!("presence")
            };
            let mut known = KnownPresence::new(20);
            known.apply(version, &update).unwrap();
            assert!(known.bits().iter().all(|bits| *bits == 0), "no blob is resident");
            let ranges = vec![BlobRange { blob: BlobOrdinal::new(0), offset: 0, length: 1000 }];
            let reply = raw.call(&Request::Get { handle: 0, wait_ms: 0, ranges });
            assert!(
                matches!(&reply, Reply::Get { payload, .. } if payload.is_empty()),
                "{reply:?}"
            );
            let picked = raw.call(&select(&honest.data, namespace));
            assert_eq!(picked, Reply::Open { handle: SELECTED_HANDLE });
            let ranges = vec![BlobRange { blob: BlobOrdinal::new(0), offset: 0, length: 1000 }];
            let reply = raw.call(&Request::Get { handle: SELECTED_HANDLE, wait_ms: 0, ranges });
            assert!(matches!(&reply, Reply::Get { answer: GetAnswer::Miss, .. }), "{reply:?}");
            // Its claims are on other addresses, and its puts do not hash to them.
            let granted = honest.client.claim(honest.handle, &[BlobOrdinal::new(5)]).unwrap();
            assert_eq!(granted, [ClaimAnswer::Granted]);
            let claimed = raw
                .call(&Request::Claim { handle: 0, blobs: [0, 5].map(BlobOrdinal::new).to_vec() });
            let both = vec![ClaimAnswer::Granted; 2];
            assert_eq!(claimed, Reply::Claim { answers: both });
            let payload = honest.data.blobs[5].clone();
            let stored = raw.call(&Request::Put {
                handle: 0,
                blob: BlobOrdinal::new(5),
                offset: 0,
                payload,
            });
            assert_eq!(refusal(stored).code, ErrorCode::WrongBytes);
            // Its eviction does not affect the other tenant's blobs.
            raw.call(&Request::Evict { handle: 0 });
            honest.client.release(honest.handle, &[BlobOrdinal::new(5)]).unwrap();
            honest.assert_served();
        }
    });
}

#[test]
fn guessed_handles_and_ordinals_are_refused() {
    on_each_transport(|setup| {
        let mut honest = Victim::new(setup);
        let own = Data::of(&setup.namespace(THEIRS), &[500; 4]);
        let mut raw = setup.raw(THEIRS);
        let ranges = |blob| vec![BlobRange { blob, offset: 0, length: 100 }];
        for handle in [0, 1, 63, u32::MAX] {
            let got =
                raw.call(&Request::Get { handle, wait_ms: 0, ranges: ranges(BlobOrdinal::new(0)) });
            assert_eq!(refusal(got).code, ErrorCode::Unknown);
            assert_eq!(refusal(raw.call(&Request::Explain { handle })).code, ErrorCode::Unknown);
            assert_eq!(refusal(raw.call(&Request::Evict { handle })).code, ErrorCode::Unknown);
        }
        raw.open_first(&own);
        for blob in [4, 19, 1 << 40, u64::MAX] {
            let got = raw.call(&Request::Get {
                handle: 0,
                wait_ms: 0,
                ranges: ranges(BlobOrdinal::new(blob)),
            });
            assert_eq!(refusal(got).code, ErrorCode::Malformed);
            let claimed =
                raw.call(&Request::Claim { handle: 0, blobs: vec![BlobOrdinal::new(blob)] });
            assert_eq!(refusal(claimed).code, ErrorCode::Malformed);
        }
        let far = BlobRange { blob: BlobOrdinal::new(0), offset: 499, length: 2 };
        let got = raw.call(&Request::Get { handle: 0, wait_ms: 0, ranges: vec![far] });
        assert_eq!(refusal(got).code, ErrorCode::Malformed, "beyond the end of a blob");
        honest.assert_served();
    });
}

/// A proof is valid on one connection only.
#[test]
fn a_replayed_proof_opens_nothing() {
    on_each_transport(|setup| {
        let data = Data::new(&[1000; 20]);
        let mut holder = setup.connect(&setup.by_token(OURS), "honest").unwrap();
        let handle = holder.open(&data.digest).unwrap();
        let (namespace, dataset) = (Namespace::public().id(), data.digest.summary().dataset);
        let open = Request::Open { namespace, dataset };
        let nonce = |raw: &mut Raw| match raw.call(&open) {
            Reply::OpenAnswer(OpenAnswer::Prove { nonce }) => nonce,
            other => panic!("{other:?}"),
        };
        let mut honest = setup.raw(OURS);
        let observed = proof_of(&data.digest, &nonce(&mut honest)).unwrap();
        let proof = Request::Prove { dataset, proof: observed };
        assert!(matches!(honest.call(&proof), Reply::Open { .. }));
        let mut raw = setup.raw(THEIRS);
        assert_eq!(refusal(raw.call(&proof)).code, ErrorCode::Unknown, "without a challenge");
        nonce(&mut raw);
        assert_eq!(refusal(raw.call(&proof)).code, ErrorCode::Unknown, "another challenge");
        let again = refusal(raw.call(&hello("x", token_of(THEIRS).as_bytes())));
        assert_eq!(again.code, ErrorCode::Malformed, "a second hello");
        put(&mut holder, handle, &data, 3);
    });
}

/// Both tenants may use the public namespace, and have the dataset open.
#[test]
fn only_its_holder_can_use_a_claim() {
    on_each_transport(|setup| {
        let data = Data::new(&[1000; 20]);
        let mut holder = setup.connect(&setup.by_token(OURS), "honest").unwrap();
        let handle = holder.open(&data.digest).unwrap();
        assert_eq!(holder.claim(handle, &[BlobOrdinal::new(1)]).unwrap(), [ClaimAnswer::Granted]);
        let mut raw = setup.raw(THEIRS);
        raw.open_first(&data);
        let claimed = raw.call(&Request::Claim { handle: 0, blobs: vec![BlobOrdinal::new(1)] });
        assert_eq!(claimed, Reply::Claim { answers: vec![ClaimAnswer::Held] });
        let blobs = vec![BlobProgress { blob: BlobOrdinal::new(1), bytes: 500 }];
        let renewed = raw.call(&Request::Renew { handle: 0, blobs });
        assert_eq!(renewed, Reply::Renew { answers: vec![RenewAnswer::Lost] });
        raw.call(&Request::Release { handle: 0, blobs: vec![BlobOrdinal::new(1)] });
        let payload = data.blobs[1].clone();
        let stored =
            raw.call(&Request::Put { handle: 0, blob: BlobOrdinal::new(1), offset: 0, payload });
        assert_eq!(refusal(stored).code, ErrorCode::NotClaimed);
        assert_eq!(setup.node.service.gauges().claims_held, 1, "the holder still has it");
        holder.put(handle, BlobOrdinal::new(1), &data.blobs[1]).unwrap();
        // Wrong bytes are refused and counted, and another client can put the blob.
        raw.call(&Request::Claim { handle: 0, blobs: vec![BlobOrdinal::new(2)] });
        let payload = Bytes::from(vec![0; 1000]);
        let stored =
            raw.call(&Request::Put { handle: 0, blob: BlobOrdinal::new(2), offset: 0, payload });
        assert_eq!(refusal(stored).code, ErrorCode::WrongBytes);
        assert_eq!(setup.node.service.counters().put_hash_mismatches.get(), 1);
        raw.call(&Request::Release { handle: 0, blobs: vec![BlobOrdinal::new(2)] });
        put(&mut holder, handle, &data, 2);
        // A tenant cannot evict a dataset of a shared namespace.
        assert_eq!(refusal(raw.call(&Request::Evict { handle: 0 })).code, ErrorCode::Identity);
        assert!(get(&mut holder, handle, &data, 2, TIMEOUT).is_ok());
    });
}

/// Only its own tenant can fence a job or make it leave. Other tenants do not see it.
#[test]
fn jobs_of_two_tenants_may_have_the_same_name() {
    on_each_transport(|setup| {
        let data = Data::new(&[32 << 10; 640]);
        let report = |incarnation| Report {
            incarnation,
            gpus: 1,
            epoch_batches: 20,
            is_full: true,
            ..Report::default()
        };
        let job = |of: &str, name: &str| {
            let mut client = setup.connect(&setup.by_token(of), name).unwrap();
            let handle = client.open(&data.digest).unwrap();
            (client, handle)
        };
        let (mut honest, handle) = job(OURS, "secret-name");
        honest.report(handle, report(1)).unwrap();
        let (mut attacker, theirs) = job(THEIRS, "secret-name");
        attacker.report(theirs, report(2)).unwrap();
        honest.report(handle, report(1)).expect("not fenced");
        attacker.leave(theirs).unwrap();
        let seen = String::from_utf8(honest.explain(handle).unwrap().to_vec()).unwrap();
        assert!(seen.contains("secret-name"), "its own job is still listed: {seen}");
        let (mut other, theirs) = job(THEIRS, "other");
        other.report(theirs, report(3)).unwrap();
        let seen = String::from_utf8(other.explain(theirs).unwrap().to_vec()).unwrap();
        let jobs = serde_json::from_str::<serde_json::Value>(&seen).unwrap()["jobs"].take();
        let names: Vec<_> = jobs.as_array().unwrap().iter().map(|job| &job["name"]).collect();
        assert_eq!(names, ["other"], "{seen}");
        assert!(!seen.contains("secret-name") && !seen.contains(OURS), "{seen}");
        for (name, _) in other.stats().unwrap() {
            assert!(!name.contains("secret") && !name.contains(OURS), "{name}");
        }
        // The same tenant fences the old incarnation of its job.
        let (mut again, handle_again) = job(OURS, "secret-name");
        again.report(handle_again, report(4)).unwrap();
        assert_eq!(code(&honest.report(handle, report(1)).unwrap_err()), ErrorCode::Fenced);
    });
}

#[test]
fn malformed_input_ends_only_its_own_connection() {
    on_each_transport(|setup| {
        let mut honest = Victim::new(setup);
        let mut over = Header { kind: 1, id: 1, body_size: BODY_SIZE_MAX }.encode();
        over[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let hello_frame = hello("x", token_of(THEIRS).as_bytes()).encode(1).to_bytes();
        let long_token = {
            let mut bytes = hello("x", &[b'x'; 256]).encode(1).to_bytes();
            let at = bytes.len() - 258;
            bytes[at..at + 2].copy_from_slice(&u16::MAX.to_le_bytes());
            bytes
        };
        for bytes in [&over[..], &long_token, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &[0; 64]] {
            let mut raw = setup.without_hello();
            raw.send_bytes(bytes);
            let (_, reply) = raw.reply().expect("a refusal");
            assert_eq!(refusal(reply).code, ErrorCode::Malformed);
        }
        // Truncated at every byte, with and without a hello before.
        for cut in 0..hello_frame.len() {
            setup.without_hello().send_bytes(&hello_frame[..cut]);
        }
        let page = vec![BlobLength { address: Namespace::public().address(b"x"), length: 1 }; 50];
        let (namespace, dataset) = (Namespace::public().id(), DatasetId::from_bytes([3; 32]));
        let (chunks, partitions, blobs, first) = (1, 1, 1 << 60, 0);
        let upload = Request::Upload { namespace, dataset, chunks, partitions, blobs, first, page };
        let frame = upload.encode(2).to_bytes();
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..100 {
            let mut bytes = [&hello_frame[..], &frame[..random.usize(..frame.len())]].concat();
            if random.bool() {
                let at = random.usize(hello_frame.len()..=bytes.len());
                bytes.insert(at.min(bytes.len()), random.u8(..));
            }
            bytes.extend((0..random.usize(..200)).map(|_| random.u8(..)));
            setup.without_hello().send_bytes(&bytes);
        }
        honest.assert_served();
        setup.node.wait_until_connections(1);
        assert_eq!(setup.node.service.gauges().claims_held, 0);
    });
}

/// A client with the cluster token is an operator and may use every namespace, even without a
/// certificate. A client that also has the name of a node may send cluster messages only.
#[test]
fn the_cluster_token_is_for_operators_and_for_nodes() {
    let cluster = "token-of-the-cluster-".repeat(3);
    let setup = TenantSetup::with(Transport::Tls, |config| {
        let path = config.tls_key.as_ref().unwrap().with_file_name("cluster.token");
        private(&path, &cluster);
        config.tenants.iter_mut().for_each(|tenant| tenant.tokens.clear());
        config.cluster_token = Some(path);
        config.cluster_ca = config.tls_client_ca.clone();
        config.name = Some("a".parse().unwrap());
        let endpoints = [config.socket.as_path().into(), "/nowhere/b.sock".parse().unwrap()];
        let names = ["a", "b"].map(|name| name.parse().unwrap());
        let member =
            |(name, endpoint)| Member { name, endpoint, weight: Weight::default(), zone: None };
        config.nodes = names.into_iter().zip(endpoints).map(member).collect();
    });
    let data = Data::of(&setup.namespace(OURS), &[1000; 4]);
    let mut ours = setup.connect(&setup.by_certificate(OURS), "ours").unwrap();
    let handle = ours.open(&data.digest).unwrap();
    put(&mut ours, handle, &data, 0);
    let mut node = setup.raw_as("b", &cluster);
    for request in [Request::Stats, Request::Ring, upload(&data, setup.namespace(OURS).id())] {
        assert_eq!(refusal(node.call(&request)).code, ErrorCode::Identity, "{request:?}");
    }
    let mut operator = setup.raw_as("operator", &cluster);
    operator.open_first(&data);
    let evicted = operator.call(&Request::Evict { handle: 0 });
    assert_eq!(evicted, Reply::Evicted { bytes: 1000 });
}

/// Promise 6: the puts of one tenant leave memory for those of others.
#[test]
fn a_tenant_cannot_take_all_puts() {
    let setup = TenantSetup::new(Transport::Cleartext);
    let data = Data::of(&setup.namespace(THEIRS), &[1000; 200]);
    let mut begun = 0;
    let mut greedy: Vec<_> = (0..4).map(|_| setup.raw(THEIRS)).collect();
    for (number, raw) in (0_u64..).zip(&mut greedy) {
        raw.open_first(&data);
        for blob in number * 50..(number + 1) * 50 {
            raw.call(&Request::Claim { handle: 0, blobs: vec![BlobOrdinal::new(blob)] });
            let payload = data.blobs[usize::try_from(blob).unwrap()].slice(..1);
            match raw.call(&Request::Put {
                handle: 0,
                blob: BlobOrdinal::new(blob),
                offset: 0,
                payload,
            }) {
                Reply::Put(PutAnswer::More) => begun += 1,
                reply => assert_eq!(refusal(reply).code, ErrorCode::TooMuch),
            }
        }
    }
    assert_eq!(begun, 128, "half of the limit");
    let data = Data::of(&setup.namespace(OURS), &[1000; 4]);
    let mut honest = setup.connect(&setup.by_token(OURS), "honest").unwrap();
    let handle = honest.open(&data.digest).unwrap();
    put(&mut honest, handle, &data, 0);
}
