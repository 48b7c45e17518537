//! Tests of the codec: round trips, malformed input, and the bytes of version 1.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use forebay_core::agent::free_space::FreeSpace;
use forebay_core::{
    Address, BlobOrdinal, ByteSize, DatasetId, HalfChunk, NamespaceId,
    cluster::{
        replication::{self, KeepSet, LeaderView, Term},
        ring::{Member, NodeList, RingMembership, Weight},
    },
    node::{presence::PresenceUpdate, stream_quotas::AccountFacts},
    streams::{
        BlockNumber, Lifetime, StreamName,
        catalogue::{StreamInfo, StreamState},
    },
    train::{
        benefit::{BatchTime, Mode},
        manager::{DrawSet, HalfChunkBytes, MeasuredBatch, Report, ReportAnswer},
        placement::{Allocation, DatasetDemand, JobDemand, ModeTimes, Share},
    },
    units::ByteRate,
};
use proptest::{collection::vec, prelude::*};

use super::*;

fn address() -> impl Strategy<Value = Address> {
    any::<[u8; 32]>().prop_map(Address::from_bytes)
}

fn dataset() -> impl Strategy<Value = DatasetId> {
    any::<[u8; 32]>().prop_map(DatasetId::from_bytes)
}

fn namespace() -> impl Strategy<Value = NamespaceId> {
    any::<[u8; 16]>().prop_map(NamespaceId::from_bytes)
}

fn payload() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

fn blob() -> impl Strategy<Value = BlobOrdinal> {
    any::<u64>().prop_map(BlobOrdinal::new)
}

fn request() -> impl Strategy<Value = Request> {
    let row =
        || (address(), any::<u64>()).prop_map(|(address, length)| BlobLength { address, length });
    let range = || {
        (blob(), any::<u64>(), 0..=16_u32 << 20).prop_map(|(blob, offset, length)| BlobRange {
            blob,
            offset,
            length,
        })
    };
    let progress = (blob(), any::<u64>()).prop_map(|(blob, bytes)| BlobProgress { blob, bytes });
    let blobs = || (any::<u32>(), vec(blob(), 0..20));
    prop_oneof![
        (any::<u16>(), any::<u16>(), "\\PC{0,64}", vec(any::<u8>(), 0..=256)).prop_map(
            |(version_min, version_max, job, token)| {
                let token = SentToken(token);
                Request::Hello { version_min, version_max, job, token }
            }
        ),
        (namespace(), dataset())
            .prop_map(|(namespace, dataset)| Request::Open { namespace, dataset }),
        (dataset(), any::<[u8; 32]>())
            .prop_map(|(dataset, proof)| Request::Prove { dataset, proof }),
        (
            (namespace(), dataset()),
            (any::<u32>(), any::<u32>()),
            (any::<u64>(), any::<u64>()),
            vec(row(), 0..20)
        )
            .prop_map(
                |((namespace, dataset), (chunks, partitions), (blobs, first), page)| {
                    Request::Upload { namespace, dataset, chunks, partitions, blobs, first, page }
                }
            ),
        (namespace(), vec(row(), 0..20))
            .prop_map(|(namespace, blobs)| Request::SelectByAddress { namespace, blobs }),
        (any::<u32>(), any::<u64>(), 0..=PRESENCE_MAX, any::<u64>()).prop_map(
            |(handle, first, count, since)| Request::Presence { handle, first, count, since }
        ),
        (any::<u32>(), any::<u32>(), vec(range(), 0..20))
            .prop_map(|(handle, wait_ms, ranges)| Request::Get { handle, wait_ms, ranges }),
        any::<u64>().prop_map(|size| Request::ShmMap { size }),
        (any::<u32>(), any::<u32>(), vec(any::<u32>(), 0..20), vec(range(), 0..20)).prop_map(
            |(handle, wait_ms, released, ranges)| Request::GetShm {
                handle,
                wait_ms,
                released,
                ranges
            }
        ),
        blobs().prop_map(|(handle, blobs)| Request::Claim { handle, blobs }),
        (any::<u32>(), vec(progress, 0..20))
            .prop_map(|(handle, blobs)| Request::Renew { handle, blobs }),
        blobs().prop_map(|(handle, blobs)| Request::Release { handle, blobs }),
        (any::<u32>(), blob(), any::<u64>(), payload()).prop_map(
            |(handle, blob, offset, payload)| Request::Put { handle, blob, offset, payload }
        ),
        Just(Request::Stats),
        Just(Request::FreeSpace),
        blobs().prop_map(|(handle, blobs)| Request::PrefetchHint { handle, blobs }),
        (any::<u32>(), report()).prop_map(|(handle, report)| Request::Report { handle, report }),
        any::<u32>().prop_map(|handle| Request::Leave { handle }),
        any::<u32>().prop_map(|handle| Request::Explain { handle }),
        any::<u32>().prop_map(|handle| Request::Evict { handle }),
        blobs().prop_map(|(handle, blobs)| Request::WrongBytes { handle, blobs }),
        Just(Request::Ring),
        stream_request().prop_map(Request::Stream),
        cluster_request().prop_map(Request::Cluster),
        any::<(u32, bool)>()
            .prop_map(|(handle, is_forced)| Request::ProbeMode { handle, is_forced }),
    ]
}

fn lifetime() -> impl Strategy<Value = Lifetime> {
    prop_oneof![
        Just(Lifetime::Process),
        Just(Lifetime::Kept),
        any::<u64>().prop_map(|ms| Lifetime::Lease(Duration::from_millis(ms))),
    ]
}

fn stream_request() -> impl Strategy<Value = StreamRequest> {
    let name = || "\\PC{0,40}";
    let block = || any::<u64>().prop_map(BlockNumber);
    prop_oneof![
        (name(), lifetime()).prop_map(|(name, lifetime)| StreamRequest::Create { name, lifetime }),
        (any::<u32>(), block(), payload()).prop_map(|(handle, block, payload)| {
            StreamRequest::Append { handle, block, payload }
        }),
        any::<(u32, u64, u64)>().prop_map(|(handle, blocks, bytes)| StreamRequest::Seal {
            handle,
            blocks,
            bytes
        }),
        (name(), any::<bool>()).prop_map(|(name, consume)| StreamRequest::Open { name, consume }),
        (any::<u32>(), block()).prop_map(|(handle, block)| StreamRequest::Next { handle, block }),
        any::<u32>().prop_map(|handle| StreamRequest::Close { handle }),
        name().prop_map(|name| StreamRequest::Destroy { name }),
        name().prop_map(|after| StreamRequest::List { after }),
        Just(StreamRequest::Facts),
    ]
}

fn stream_info() -> impl Strategy<Value = StreamInfo> {
    use StreamState::{Consumed, Destroyed, Sealed, Writing};
    let states = prop::sample::select(vec![Writing, Sealed, Consumed, Destroyed]);
    let lost = vec(any::<[u64; 2]>().prop_map(|[start, end]| start..end), 0..4);
    ("[a-z0-9/ ]{1,40}", lifetime(), states, any::<(u64, u64, u32)>(), lost).prop_map(
        |(name, lifetime, state, (blocks, bytes, readers), lost)| {
            let name = StreamName::new(&name).unwrap();
            let family = name.clone();
            StreamInfo { name, family, lifetime, state, blocks, bytes, readers, lost }
        },
    )
}

fn stream_reply() -> impl Strategy<Value = StreamReply> {
    prop_oneof![
        any::<(u32, u32)>()
            .prop_map(|(handle, block_length)| StreamReply::Created { handle, block_length }),
        Just(StreamReply::Done),
        Just(StreamReply::End),
        stream_info().prop_map(StreamReply::Sealed),
        (any::<u32>(), stream_info())
            .prop_map(|(handle, info)| StreamReply::Opened { handle, info }),
        payload().prop_map(|payload| StreamReply::Block { payload }),
        (vec(stream_info(), 0..4), any::<bool>())
            .prop_map(|(streams, is_last)| StreamReply::List { streams, is_last }),
        (any::<[u64; 4]>(), any::<u32>()).prop_map(
            |([streams, readers, used, budget], block_length)| {
                let (used, budget) = (ByteSize(used), ByteSize(budget));
                let account = AccountFacts { streams, readers, used, budget };
                StreamReply::Facts { account, block_length }
            }
        ),
    ]
}

fn term() -> impl Strategy<Value = Term> {
    (0..1_u64 << 48, "[a-z][a-z0-9]{0,20}", any::<u64>()).prop_map(
        |(number, manager, incarnation)| Term {
            number,
            manager: manager.parse().unwrap(),
            incarnation,
        },
    )
}

fn leader_view() -> impl Strategy<Value = LeaderView> {
    (term(), any::<u32>()).prop_map(|(term, silent)| {
        let silent_for = Duration::from_millis(silent.into());
        LeaderView { term, silent_for }
    })
}

fn allocation() -> impl Strategy<Value = Allocation> {
    prop_oneof![
        Just(Allocation::Nothing),
        Just(Allocation::Halves),
        any::<u32>().prop_map(Allocation::Chunks)
    ]
}

fn demand() -> impl Strategy<Value = (DatasetId, DatasetDemand)> {
    let times = (0.0..9.0, 0.0..9.0, 0.0..9.0).prop_map(|(hit, rotating, miss)| ModeTimes {
        hit,
        rotating,
        miss,
    });
    let job = ("[a-z]{0,20}", any::<u32>(), prop::option::of(times))
        .prop_map(|(name, gpus, times)| JobDemand { name, gpus, times });
    let sizes = (any::<u64>(), any::<u64>(), any::<u64>());
    let (jobs, compute_bound) = (vec(job, 0..4), vec("[a-z]{0,20}", 0..4));
    let idle = (any::<u32>(), any::<u64>().prop_map(Duration::from_millis));
    (dataset(), any::<u32>(), sizes, jobs, compute_bound, allocation(), idle).prop_map(
        |(
            dataset,
            chunks,
            (chunk, half, total),
            jobs,
            compute_bound,
            allocated,
            (chunks_present, idle_for),
        )| {
            let (chunk_size, half_size, total) = (ByteSize(chunk), ByteSize(half), ByteSize(total));
            let allocated = DatasetDemand {
                chunks,
                chunk_size,
                half_size,
                total,
                jobs,
                compute_bound,
                allocated,
                chunks_present,
                idle_for,
            };
            (dataset, allocated)
        },
    )
}

fn cluster_request() -> impl Strategy<Value = replication::Request> {
    let kept = half_chunks()
        .prop_map(|half_chunks| BTreeSet::from_iter(half_chunks).into_iter().collect());
    let keep_set = (term(), any::<u64>(), kept).prop_map(|(term, version, kept)| KeepSet {
        term,
        version,
        kept,
    });
    prop_oneof![
        Just(replication::Request::Ping),
        dataset().prop_map(|dataset| replication::Request::Query { dataset }),
        (dataset(), keep_set)
            .prop_map(|(dataset, keep_set)| replication::Request::Replicate { dataset, keep_set }),
        (prop::option::of(term()), vec(demand(), 0..4))
            .prop_map(|(known, requests)| replication::Request::SpaceRequest { known, requests }),
    ]
}

fn cluster_reply() -> impl Strategy<Value = replication::Reply> {
    let arrived = vec(half_chunk_bytes(), 0..9);
    let share = (dataset(), allocation(), any::<u64>(), 0.0..9.0, "\\PC{0,60}").prop_map(
        |(dataset, allocation, space, gpus_saved, why)| {
            (dataset, Share { allocation, space: ByteSize(space), gpus_saved, why })
        },
    );
    prop_oneof![
        Just(replication::Reply::Alive),
        (dataset(), prop::option::of(leader_view()), half_chunks()).prop_map(
            |(dataset, leader, found)| replication::Reply::Follows { dataset, leader, found }
        ),
        (dataset(), term(), any::<u64>(), arrived).prop_map(|(dataset, term, version, arrived)| {
            replication::Reply::Applied { dataset, term, version, arrived }
        }),
        (dataset(), term(), leader_view()).prop_map(|(dataset, term, leader)| {
            replication::Reply::Stale { dataset, term, leader }
        }),
        (term(), vec(share, 0..4))
            .prop_map(|(term, shares)| replication::Reply::Shares { term, shares }),
    ]
}

fn half_chunks() -> impl Strategy<Value = Vec<HalfChunk>> {
    vec(any::<u32>().prop_map(HalfChunk), 0..20)
}

fn half_chunk_bytes() -> impl Strategy<Value = HalfChunkBytes> {
    (any::<u32>(), any::<u64>()).prop_map(|(half_chunk, bytes)| HalfChunkBytes {
        half_chunk: HalfChunk(half_chunk),
        bytes: ByteSize(bytes),
    })
}

fn report() -> impl Strategy<Value = Report> {
    let modes = prop::sample::select(vec![Mode::Hit, Mode::Rotating, Mode::Miss]);
    let time = || any::<u32>().prop_map(|us| Duration::from_micros(us.into()));
    let batch = (modes, time(), time()).prop_map(|(mode, took, stalled)| MeasuredBatch {
        mode,
        time: BatchTime { took, stalled },
    });
    (
        (any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()),
        vec(half_chunk_bytes(), 0..20),
        (half_chunks(), half_chunks()),
        vec(batch, 0..20),
    )
        .prop_map(|(job, unread, (released, filled), batches)| {
            let (incarnation, gpus, epoch_batches, epoch, pace, is_full) = job;
            let pace = ByteRate(ByteSize(pace));
            Report {
                incarnation,
                gpus,
                epoch_batches,
                epoch,
                pace,
                is_full,
                unread,
                released,
                filled,
                batches,
            }
        })
}

fn answer() -> impl Strategy<Value = ReportAnswer> {
    let draw_set = (half_chunks(), half_chunks(), vec(half_chunks(), 0..5))
        .prop_map(|(pinned, first, then)| DrawSet { pinned, first, then });
    prop_oneof![
        Just(ReportAnswer::FullReportNeeded),
        "[a-z][a-z0-9]{0,20}".prop_map(|node| ReportAnswer::Redirect(node.parse().unwrap())),
        (draw_set, half_chunks(), any::<u32>()).prop_map(|(draw_set, loading, probe_batches)| {
            ReportAnswer::Draw { draw_set, loading, probe_batches }
        }),
    ]
}

fn ring_membership() -> impl Strategy<Value = RingMembership> {
    let member = (1..=1_000_000_000_u32, prop::option::of("[a-z]{1,9}"));
    let members = prop::collection::btree_map("[a-z0-9][a-zA-Z0-9._-]{0,20}", member, 1..8);
    (members, any::<bool>(), any::<prop::sample::Index>()).prop_map(|(members, isolate, own)| {
        let member = |(name, (weight, zone)): (&String, &(u32, Option<String>))| Member {
            name: name.parse().unwrap(),
            endpoint: format!("/run/{name}.sock").parse().unwrap(),
            weight: Weight::from_thousandths(*weight).unwrap(),
            zone: zone.as_ref().map(|zone| zone.parse().unwrap()),
        };
        let isolate_zones = isolate && members.values().all(|(_, zone)| zone.is_some());
        let own = members.keys().nth(own.index(members.len())).unwrap().parse().unwrap();
        let list = NodeList::new(members.iter().map(member).collect(), isolate_zones).unwrap();
        RingMembership::new(own, list).unwrap()
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    use ClaimAnswer::{Granted, Held, Present, TooMany, Uncached};
    let claims = prop::sample::select(vec![Granted, Held, Present, TooMany, Uncached]);
    let renewals = prop::sample::select(vec![RenewAnswer::Renewed, RenewAnswer::Lost]);
    let gets = prop::sample::select(vec![GetAnswer::Hit, GetAnswer::Miss, GetAnswer::Claimed]);
    let puts = prop::sample::select(vec![PutAnswer::More, PutAnswer::Stored]);
    let rechecks = prop::sample::select(vec![
        RecheckAnswer::Dropped,
        RecheckAnswer::Sound,
        RecheckAnswer::Absent,
        RecheckAnswer::Unchecked,
    ]);
    let codes = prop::sample::select(vec![
        ErrorCode::Malformed,
        ErrorCode::Version,
        ErrorCode::Unknown,
        ErrorCode::WrongBytes,
        ErrorCode::NotClaimed,
        ErrorCode::NoSpace,
        ErrorCode::TooMuch,
        ErrorCode::Stopping,
        ErrorCode::Failed,
        ErrorCode::Fenced,
        ErrorCode::Identity,
        ErrorCode::Changed,
        ErrorCode::Lost,
    ]);
    let updates = prop::sample::select(vec![
        PresenceUpdate::Bits,
        PresenceUpdate::Only,
        PresenceUpdate::Changed,
    ]);
    prop_oneof![
        (any::<u16>(), any::<u32>())
            .prop_map(|(version, lease_ms)| Reply::Hello { version, lease_ms }),
        any::<[u8; 32]>().prop_map(|nonce| Reply::OpenAnswer(OpenAnswer::Prove { nonce })),
        Just(Reply::OpenAnswer(OpenAnswer::Upload)),
        any::<u32>().prop_map(|handle| Reply::Open { handle }),
        any::<u64>().prop_map(|next| Reply::Uploaded { next }),
        (any::<u64>(), updates, payload()).prop_map(|(version, update, encoded)| {
            Reply::Presence { version, update: update(encoded.into()) }
        }),
        (any::<u32>(), gets, payload()).prop_map(|(index, answer, payload)| Reply::Get {
            index,
            answer,
            payload
        }),
        vec(claims, 0..20).prop_map(|answers| Reply::Claim { answers }),
        vec(renewals, 0..20).prop_map(|answers| Reply::Renew { answers }),
        Just(Reply::Released),
        Just(Reply::PrefetchNoted),
        Just(Reply::Left),
        Just(Reply::ProbeModeSet),
        payload().prop_map(|json| Reply::Explain { json }),
        any::<u64>().prop_map(|bytes| Reply::Evicted { bytes }),
        vec(rechecks, 0..20).prop_map(|answers| Reply::WrongBytes { answers }),
        any::<u64>().prop_map(|size| Reply::ShmMap { size }),
        vec(any::<[u32; 3]>(), 0..20).prop_map(|ranges| {
            let range = |[index, offset, length]: [u32; 3]| ShmRange { index, offset, length };
            Reply::GetShm { ranges: ranges.into_iter().map(range).collect() }
        }),
        answer().prop_map(Reply::Report),
        stream_reply().prop_map(Reply::Stream),
        prop::option::of(ring_membership()).prop_map(Reply::Ring),
        (any::<u64>(), cluster_reply())
            .prop_map(|(bytes, reply)| Reply::Cluster { capacity: ByteSize(bytes), reply }),
        puts.prop_map(Reply::Put),
        vec(("[a-z_]{1,40}", any::<u64>()), 0..20).prop_map(|counters| Reply::Stats { counters }),
        any::<[u64; 5]>().prop_map(|[bytes, regions, regions_evicted, part_bytes, claims]| {
            Reply::FreeSpace(FreeSpace { bytes, regions, regions_evicted, part_bytes, claims })
        }),
        (codes, "\\PC{0,100}").prop_map(|(code, text)| Reply::Error(Refusal { code, text })),
    ]
}

/// Splits a frame into header and body.
fn split(bytes: &[u8]) -> Option<(Header, Bytes)> {
    let (header, body) = bytes.split_first_chunk::<HEADER_SIZE>()?;
    let header = Header::decode(header).ok()?;
    Some((header, Bytes::copy_from_slice(body.get(..header.body_size)?)))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 2000,
        ..Default::default()
    })]

    #[test]
    fn requests_survive_the_round_trip(request in request(), id in any::<u64>()) {
        let (header, body) = split(&request.encode(id).to_bytes()).unwrap();
        prop_assert_eq!(header.id, id);
        prop_assert_eq!(Request::decode(&header, &body), Ok(request));
        prop_assert!(Reply::decode(&header, &body).is_err(), "a request decodes as a reply");
    }

    #[test]
    fn replies_survive_the_round_trip(reply in reply(), id in any::<u64>()) {
        let (header, body) = split(&reply.encode(id).to_bytes()).unwrap();
        prop_assert_eq!(header.id, id);
        prop_assert_eq!(Reply::decode(&header, &body), Ok(reply));
        prop_assert!(Request::decode(&header, &body).is_err(), "a reply decodes as a request");
    }

    #[test]
    fn a_truncated_or_extended_body_is_an_error(
        request in request(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (header, body) = split(&request.encode(1).to_bytes()).unwrap();
        // The payload of a put or an append is the rest of the body: any length is valid.
        let fixed = !matches!(
            request,
            Request::Put { .. } | Request::Stream(StreamRequest::Append { .. })
        );
        if fixed && !body.is_empty() {
            let cut = cut.index(body.len());
            prop_assert!(Request::decode(&header, &body.slice(..cut)).is_err());
        }
        if fixed {
            let longer = Bytes::from([&body[..], &[0]].concat());
            prop_assert!(Request::decode(&header, &longer).is_err());
        }
    }

    /// Version skew: a client ignores the fields that a newer node has added to a reply, and a code
    /// that it does not know.
    #[test]
    fn a_reply_of_a_newer_version_is_understood(
        reply in reply(),
        more in vec(any::<u8>(), 1..40),
        code in 13..=u8::MAX,
    ) {
        // The payload is the rest of the body.
        let has_rest = matches!(
            reply,
            Reply::Get { .. }
                | Reply::Presence { .. }
                | Reply::Explain { .. }
                | Reply::Stream(StreamReply::Block { .. })
        );
        let (header, body) = split(&reply.encode(1).to_bytes()).unwrap();
        if !has_rest {
            let longer = Bytes::from([&body[..], &more].concat());
            prop_assert_eq!(Reply::decode(&header, &longer), Ok(reply));
        }
        let refusal = Refusal { code: ErrorCode::Failed, text: "why".to_owned() };
        let mut frame = Reply::Error(refusal.clone()).encode(1).to_bytes();
        frame[HEADER_SIZE] = code;
        let (header, body) = split(&frame).unwrap();
        prop_assert_eq!(Reply::decode(&header, &body), Ok(Reply::Error(refusal)));
    }

    #[test]
    fn random_bytes_never_panic(kind in any::<u8>(), body in vec(any::<u8>(), 0..400)) {
        let header = Header { kind, id: 7, body_size: body.len() };
        let body = Bytes::from(body);
        let _ = Request::decode(&header, &body);
        let _ = Reply::decode(&header, &body);
    }

    /// Every message has one encoding: bytes that decode are the bytes that the message encodes to.
    /// A reply may have more, and an unknown code of an error.
    #[test]
    fn a_mutated_frame_is_an_error_or_encodes_to_itself(
        request in request(),
        reply in reply(),
        edits in vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..4),
    ) {
        for mut bytes in [request.encode(1).to_bytes(), reply.encode(1).to_bytes()] {
            for (at, byte, kind) in &edits {
                let at = at.index(bytes.len());
                match kind {
                    0 => bytes[at] = *byte,
                    1 => bytes[at] ^= 1 << (byte % 8),
                    2 => bytes.insert(at, *byte),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            let Some((header, body)) = split(&bytes) else { continue };
            let whole = &bytes[..HEADER_SIZE + body.len()];
            if let Ok(request) = Request::decode(&header, &body) {
                prop_assert_eq!(request.encode(header.id).to_bytes(), whole);
            }
            if let Ok(reply) = Reply::decode(&header, &body) {
                let again = reply.encode(header.id).to_bytes();
                let (_, again) = split(&again).unwrap();
                let from = usize::from(matches!(reply, Reply::Error(_)));
                prop_assert_eq!(&again[from..], &body[from..again.len()]);
            }
        }
    }

    #[test]
    fn any_header_is_bounded(bytes in any::<[u8; HEADER_SIZE]>()) {
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert!(header.body_size <= BODY_SIZE_MAX);
            prop_assert_eq!(header.encode(), bytes);
        }
    }
}

/// Promise 6 (bounded): a count beyond the body's length is an error before memory is allocated.
#[test]
fn a_count_beyond_the_body_is_an_error() {
    let mut frame =
        Request::Claim { handle: 1, blobs: vec![BlobOrdinal::new(5)] }.encode(1).to_bytes();
    frame[HEADER_SIZE + 4..HEADER_SIZE + 8].copy_from_slice(&60_000_u32.to_le_bytes());
    let (header, body) = split(&frame).unwrap();
    assert_eq!(Request::decode(&header, &body), Err(Malformed::Short));
    frame[HEADER_SIZE + 4..HEADER_SIZE + 8].copy_from_slice(&u32::MAX.to_le_bytes());
    let (header, body) = split(&frame).unwrap();
    assert_eq!(Request::decode(&header, &body), Err(Malformed::OverLimit));
}

/// Promise 6: a list of streams is bounded before memory is allocated, and so are its ranges.
#[test]
fn a_page_of_streams_beyond_the_body_is_an_error() {
    let reply = Reply::Stream(StreamReply::List { streams: Vec::new(), is_last: true });
    let mut frame = reply.encode(1).to_bytes();
    for (count, error) in [
        (u32::try_from(STREAM_PAGE_MAX).unwrap(), Malformed::Short),
        (u32::try_from(STREAM_PAGE_MAX).unwrap() + 1, Malformed::OverLimit),
    ] {
        frame[HEADER_SIZE + 2..HEADER_SIZE + 6].copy_from_slice(&count.to_le_bytes());
        let (header, body) = split(&frame).unwrap();
        assert_eq!(Reply::decode(&header, &body), Err(error));
    }
}

/// `docs/reference/wire.md` shows these bytes. A change here is a new version of the protocol.
#[test]
fn version_1_does_not_change() {
    let (job, token) = ("a".to_owned(), SentToken(b"b".to_vec()));
    let hello = Request::Hello { version_min: 1, version_max: 1, job, token }.encode(2);
    assert_eq!(
        hello.to_bytes(),
        [10, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, b'a', 1, 0, b'b']
    );
    let miss = Reply::Get { index: 3, answer: GetAnswer::Miss, payload: Bytes::new() }.encode(9);
    assert_eq!(miss.to_bytes(), [5, 0, 0, 0, 0x86, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1]);
    let ranges = vec![ShmRange { index: 3, offset: 4096, length: 5 }];
    assert_eq!(
        Reply::GetShm { ranges }.encode(9).to_bytes(),
        [
            [16, 0, 0, 0, 0xa1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
            [1, 0, 0, 0, 3, 0, 0, 0, 0, 16, 0, 0, 5, 0, 0, 0]
        ]
        .concat()
    );
}

/// `core` computes the cost of presence from this constant.
#[test]
fn presence_overhead_matches_the_encoding() {
    let request = Request::Presence { handle: 1, first: 2, count: 3, since: 4 };
    let reply = Reply::Presence { version: 5, update: PresenceUpdate::Bits(vec![0; 7]) };
    let both = request.encode(1).to_bytes().len() + reply.encode(1).to_bytes().len();
    assert_eq!(both, PRESENCE_OVERHEAD + 7);
    assert_eq!(
        PRESENCE_OVERHEAD, 65,
        "docs/reference/wire.md and core/tests/it/presence.rs have this number"
    );
}
