//! Every frame survives the round trip, and no bytes from outside do any harm.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use forebay_core::{
    Address, ByteSize, DatasetId, NamespaceId,
    benefit::Mode,
    chunking::ChunkOrdinal,
    council::{self, Places, Standing, Term},
    manager::{Answer, Open, Report},
    placement::{Choice, Dataset, Job, Share, Times},
    presence::Told,
    ring::{Member, Membership, NodeList, Weight},
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

fn request() -> impl Strategy<Value = Request> {
    let row =
        || (address(), any::<u64>()).prop_map(|(address, length)| BlobLength { address, length });
    let range = || {
        (any::<u64>(), any::<u64>(), 0..=16_u32 << 20)
            .prop_map(|(blob, offset, length)| BlobRange { blob, offset, length })
    };
    let progress =
        (any::<u64>(), any::<u64>()).prop_map(|(blob, bytes)| BlobProgress { blob, bytes });
    let blobs = || (any::<u32>(), vec(any::<u64>(), 0..20));
    prop_oneof![
        (any::<u16>(), any::<u16>(), "\\PC{0,64}", vec(any::<u8>(), 0..=256)).prop_map(
            |(version_min, version_max, job, token)| {
                let token = SentToken(token);
                Request::Hello { version_min, version_max, job, token }
            }
        ),
        (namespace(), dataset())
            .prop_map(|(namespace, dataset)| Request::Show { namespace, dataset }),
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
            .prop_map(|(namespace, blobs)| Request::Pick { namespace, blobs }),
        (any::<u32>(), any::<u64>(), 0..=PRESENCE_MAX, any::<u64>()).prop_map(
            |(handle, first, count, since)| Request::Presence { handle, first, count, since }
        ),
        (any::<u32>(), any::<u32>(), vec(range(), 0..20))
            .prop_map(|(handle, wait_ms, ranges)| Request::Get { handle, wait_ms, ranges }),
        any::<u64>().prop_map(|size| Request::Segment { size }),
        (any::<u32>(), any::<u32>(), pieces(), vec(range(), 0..20)).prop_map(
            |(handle, wait_ms, released, ranges)| Request::Place {
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
        (any::<u32>(), any::<u64>(), any::<u64>(), payload()).prop_map(
            |(handle, blob, offset, payload)| Request::Put { handle, blob, offset, payload }
        ),
        Just(Request::Stats),
        blobs().prop_map(|(handle, blobs)| Request::Want { handle, blobs }),
        (any::<u32>(), report()).prop_map(|(handle, report)| Request::Report { handle, report }),
        any::<u32>().prop_map(|handle| Request::Leave { handle }),
        any::<u32>().prop_map(|handle| Request::Explain { handle }),
        any::<u32>().prop_map(|handle| Request::Evict { handle }),
        Just(Request::Ring),
        said().prop_map(Request::Council),
        any::<(u32, bool)>().prop_map(|(handle, is_forced)| Request::Mode { handle, is_forced }),
    ]
}

fn term() -> impl Strategy<Value = Term> {
    (0..1_u64 << 48, "[a-z][a-z0-9]{0,20}", any::<u64>()).prop_map(|(number, manager, life)| Term {
        number,
        manager: manager.parse().unwrap(),
        life,
    })
}

fn standing() -> impl Strategy<Value = Standing> {
    (term(), any::<u32>()).prop_map(|(term, silent)| {
        let silent_for = Duration::from_millis(silent.into());
        Standing { term, silent_for }
    })
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![Just(Choice::Nothing), Just(Choice::Halves), any::<u32>().prop_map(Choice::Chunks)]
}

fn wish() -> impl Strategy<Value = (DatasetId, Dataset)> {
    let times = (0.0..9.0, 0.0..9.0, 0.0..9.0).prop_map(|(hit, rotating, miss)| Times {
        hit,
        rotating,
        miss,
    });
    let job = ("[a-z]{0,20}", any::<u32>(), prop::option::of(times))
        .prop_map(|(name, gpus, times)| Job { name, gpus, times });
    let sizes = (any::<u64>(), any::<u64>(), any::<u64>());
    let (jobs, others) = (vec(job, 0..4), vec("[a-z]{0,20}", 0..4));
    let idle = (any::<u32>(), any::<u64>().prop_map(Duration::from_millis));
    (dataset(), any::<u32>(), sizes, jobs, others, choice(), idle).prop_map(
        |(dataset, chunks, (chunk, half, total), jobs, others, placed, (here, idle_for))| {
            let (chunk_size, half_size, total) = (ByteSize(chunk), ByteSize(half), ByteSize(total));
            let placed = Dataset {
                chunks,
                chunk_size,
                half_size,
                total,
                jobs,
                others,
                placed,
                here,
                idle_for,
            };
            (dataset, placed)
        },
    )
}

fn said() -> impl Strategy<Value = council::Request> {
    let kept = pieces().prop_map(|pieces| BTreeSet::from_iter(pieces).into_iter().collect());
    let places = (term(), any::<u64>(), kept).prop_map(|(term, version, kept)| Places {
        term,
        version,
        kept,
    });
    prop_oneof![
        Just(council::Request::Greet),
        dataset().prop_map(|dataset| council::Request::Ask { dataset }),
        (dataset(), places)
            .prop_map(|(dataset, places)| council::Request::Tell { dataset, places }),
        (prop::option::of(term()), vec(wish(), 0..4))
            .prop_map(|(known, wishes)| council::Request::Wish { known, wishes }),
    ]
}

fn answered() -> impl Strategy<Value = council::Reply> {
    let arrived = vec((any::<u32>(), any::<u64>().prop_map(ByteSize)), 0..9);
    let share = (dataset(), choice(), any::<u64>(), 0.0..9.0, "\\PC{0,60}").prop_map(
        |(dataset, choice, space, gpus_saved, why)| {
            (dataset, Share { choice, space: ByteSize(space), gpus_saved, why })
        },
    );
    prop_oneof![
        Just(council::Reply::Greeted),
        (dataset(), prop::option::of(standing()), pieces()).prop_map(
            |(dataset, standing, found)| council::Reply::Obeys { dataset, standing, found }
        ),
        (dataset(), term(), any::<u64>(), arrived).prop_map(|(dataset, term, version, arrived)| {
            council::Reply::Obeyed { dataset, term, version, arrived }
        }),
        (dataset(), term(), standing()).prop_map(|(dataset, term, standing)| {
            council::Reply::Refused { dataset, term, standing }
        }),
        (term(), vec(share, 0..4))
            .prop_map(|(term, shares)| council::Reply::Shares { term, shares }),
    ]
}

fn pieces() -> impl Strategy<Value = Vec<u32>> {
    vec(any::<u32>(), 0..20)
}

fn report() -> impl Strategy<Value = Report> {
    let modes = prop::sample::select(vec![Mode::Hit, Mode::Rotating, Mode::Miss]);
    let time = || any::<u32>().prop_map(|us| Duration::from_micros(us.into()));
    (
        (any::<u64>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()),
        vec((any::<u32>(), any::<u64>().prop_map(ByteSize)), 0..20),
        (pieces(), pieces()),
        vec((modes, time(), time()), 0..20),
    )
        .prop_map(|(job, unread, (released, filled), batches)| {
            let (life, gpus, epoch_batches, epoch, pace, is_all) = job;
            let pace = ByteRate(ByteSize(pace));
            Report {
                life,
                gpus,
                epoch_batches,
                epoch,
                pace,
                is_all,
                unread,
                released,
                filled,
                batches,
            }
        })
}

fn answer() -> impl Strategy<Value = Answer> {
    let named = || pieces().prop_map(|pieces| pieces.into_iter().map(ChunkOrdinal).collect());
    let open = (named(), named(), vec(named(), 0..5)).prop_map(|(held, first, then)| Open {
        held,
        first,
        then,
    });
    prop_oneof![
        Just(Answer::TellAll),
        "[a-z][a-z0-9]{0,20}".prop_map(|node| Answer::Elsewhere(node.parse().unwrap())),
        (open, pieces(), any::<u32>()).prop_map(|(open, loading, forced)| Answer::Draw {
            open,
            loading,
            forced
        }),
    ]
}

fn membership() -> impl Strategy<Value = Membership> {
    let member = (1..=1_000_000_000_u32, prop::option::of("[a-z]{1,9}"));
    let members = prop::collection::btree_map("[a-z0-9][a-zA-Z0-9._-]{0,20}", member, 1..8);
    (members, any::<bool>(), any::<prop::sample::Index>()).prop_map(|(members, apart, own)| {
        let member = |(name, (weight, zone)): (&String, &(u32, Option<String>))| Member {
            name: name.parse().unwrap(),
            endpoint: format!("/run/{name}.sock").parse().unwrap(),
            weight: Weight::from_thousandths(*weight).unwrap(),
            zone: zone.as_ref().map(|zone| zone.parse().unwrap()),
        };
        let apart = apart && members.values().all(|(_, zone)| zone.is_some());
        let own = members.keys().nth(own.index(members.len())).unwrap().parse().unwrap();
        let list = NodeList::new(members.iter().map(member).collect(), apart).unwrap();
        Membership::new(own, list).unwrap()
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    use ClaimAnswer::{Granted, Held, Outside, Present, TooMany};
    let claims = prop::sample::select(vec![Granted, Held, Present, TooMany, Outside]);
    let renewals = prop::sample::select(vec![RenewAnswer::Renewed, RenewAnswer::Lost]);
    let gets = prop::sample::select(vec![GetAnswer::Hit, GetAnswer::Miss, GetAnswer::Claimed]);
    let puts = prop::sample::select(vec![PutAnswer::More, PutAnswer::Stored]);
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
    ]);
    let told = prop::sample::select(vec![Told::Bits, Told::Only, Told::Changed]);
    prop_oneof![
        (any::<u16>(), any::<u32>())
            .prop_map(|(version, lease_ms)| Reply::Hello { version, lease_ms }),
        any::<[u8; 32]>().prop_map(|nonce| Reply::Show(ShowAnswer::Prove { nonce })),
        Just(Reply::Show(ShowAnswer::Upload)),
        any::<u32>().prop_map(|handle| Reply::Open { handle }),
        any::<u64>().prop_map(|next| Reply::Uploaded { next }),
        (any::<u64>(), told, payload())
            .prop_map(|(version, told, said)| Reply::Presence { version, told: told(said.into()) }),
        (any::<u32>(), gets, payload()).prop_map(|(index, answer, payload)| Reply::Get {
            index,
            answer,
            payload
        }),
        vec(claims, 0..20).prop_map(|answers| Reply::Claim { answers }),
        vec(renewals, 0..20).prop_map(|answers| Reply::Renew { answers }),
        Just(Reply::Released),
        Just(Reply::Wanted),
        Just(Reply::Left),
        Just(Reply::ModeSet),
        payload().prop_map(|json| Reply::Explain { json }),
        any::<u64>().prop_map(|bytes| Reply::Evicted { bytes }),
        any::<u64>().prop_map(|size| Reply::Segment { size }),
        vec(any::<[u32; 3]>(), 0..20).prop_map(|places| {
            let placed = |[index, offset, length]: [u32; 3]| Placed { index, offset, length };
            Reply::Placed { places: places.into_iter().map(placed).collect() }
        }),
        answer().prop_map(Reply::Report),
        prop::option::of(membership()).prop_map(Reply::Ring),
        (any::<u64>(), answered())
            .prop_map(|(bytes, reply)| Reply::Council { capacity: ByteSize(bytes), reply }),
        puts.prop_map(Reply::Put),
        vec(("[a-z_]{1,40}", any::<u64>()), 0..20).prop_map(|counters| Reply::Stats { counters }),
        (codes, "\\PC{0,100}").prop_map(|(code, text)| Reply::Error(Refusal { code, text })),
    ]
}

/// Takes a frame apart as a reader of a socket would.
fn split(bytes: &[u8]) -> Option<(Header, Bytes)> {
    let (header, body) = bytes.split_first_chunk::<HEADER_SIZE>()?;
    let header = Header::decode(header).ok()?;
    Some((header, Bytes::copy_from_slice(body.get(..header.body_size)?)))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..Default::default() })]

    #[test]
    fn requests_survive_the_round_trip(request in request(), id in any::<u64>()) {
        let (header, body) = split(&request.encode(id).to_bytes()).unwrap();
        prop_assert_eq!(header.id, id);
        prop_assert_eq!(Request::decode(&header, &body), Ok(request));
        prop_assert!(Reply::decode(&header, &body).is_err(), "a request is no reply");
    }

    #[test]
    fn replies_survive_the_round_trip(reply in reply(), id in any::<u64>()) {
        let (header, body) = split(&reply.encode(id).to_bytes()).unwrap();
        prop_assert_eq!(header.id, id);
        prop_assert_eq!(Reply::decode(&header, &body), Ok(reply));
        prop_assert!(Request::decode(&header, &body).is_err(), "a reply is no request");
    }

    /// What is too short or too long for its kind is refused, wherever it is cut.
    #[test]
    fn no_cut_or_stretched_body_is_accepted_by_mistake(
        request in request(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (header, body) = split(&request.encode(1).to_bytes()).unwrap();
        // A put's payload is whatever is left, so any length of it is a put.
        let fixed = !matches!(request, Request::Put { .. });
        if fixed && !body.is_empty() {
            let cut = cut.index(body.len());
            prop_assert!(Request::decode(&header, &body.slice(..cut)).is_err());
        }
        if fixed {
            let longer = Bytes::from([&body[..], &[0]].concat());
            prop_assert!(Request::decode(&header, &longer).is_err());
        }
    }

    #[test]
    fn garbage_is_refused_and_never_panics(kind in any::<u8>(), body in vec(any::<u8>(), 0..400)) {
        let header = Header { kind, id: 7, body_size: body.len() };
        let body = Bytes::from(body);
        let _ = Request::decode(&header, &body);
        let _ = Reply::decode(&header, &body);
    }

    /// A frame that was tampered with is refused, or means exactly what its bytes say: nothing that is
    /// understood could have been said in another way.
    #[test]
    fn a_mutated_frame_is_refused_or_means_what_it_says(
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
                prop_assert_eq!(reply.encode(header.id).to_bytes(), whole);
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

/// Promise 6 (bounded): a count from outside asks for no more memory than there are bytes behind it.
#[test]
fn a_lying_count_allocates_nothing() {
    let mut frame = Request::Claim { handle: 1, blobs: vec![5] }.encode(1).to_bytes();
    frame[HEADER_SIZE + 4..HEADER_SIZE + 8].copy_from_slice(&60_000_u32.to_le_bytes());
    let (header, body) = split(&frame).unwrap();
    assert_eq!(Request::decode(&header, &body), Err(Malformed::Short));
    frame[HEADER_SIZE + 4..HEADER_SIZE + 8].copy_from_slice(&u32::MAX.to_le_bytes());
    let (header, body) = split(&frame).unwrap();
    assert_eq!(Request::decode(&header, &body), Err(Malformed::OverLimit));
}

/// `docs/wire.md` shows these bytes: a change here is a new version of the protocol.
#[test]
fn the_first_version_stays_as_it_is() {
    let (job, token) = ("a".to_owned(), SentToken(b"b".to_vec()));
    let hello = Request::Hello { version_min: 1, version_max: 1, job, token }.encode(2);
    assert_eq!(
        hello.to_bytes(),
        [10, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, b'a', 1, 0, b'b']
    );
    let miss = Reply::Get { index: 3, answer: GetAnswer::Miss, payload: Bytes::new() }.encode(9);
    assert_eq!(miss.to_bytes(), [5, 0, 0, 0, 0x86, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1]);
    let places = vec![Placed { index: 3, offset: 4096, length: 5 }];
    assert_eq!(
        Reply::Placed { places }.encode(9).to_bytes(),
        [
            [16, 0, 0, 0, 0xa1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
            [1, 0, 0, 0, 3, 0, 0, 0, 0, 16, 0, 0, 5, 0, 0, 0]
        ]
        .concat()
    );
}

/// What `core`'s count of bytes rests on.
#[test]
fn presence_costs_what_it_says() {
    let request = Request::Presence { handle: 1, first: 2, count: 3, since: 4 };
    let reply = Reply::Presence { version: 5, told: Told::Bits(vec![0; 7]) };
    let both = request.encode(1).to_bytes().len() + reply.encode(1).to_bytes().len();
    assert_eq!(both, PRESENCE_OVERHEAD + 7);
    assert_eq!(PRESENCE_OVERHEAD, 65, "docs/wire.md and core/tests/it/presence.rs say so");
}
