//! Blobs by their addresses, whatever dataset they are of.

use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};

use bytes::Bytes;
use forebay_client::{Client, ClientError, Handle, Pick, Picks, Right, Settled, Wanted};
use forebay_core::{Address, ByteSize, Namespace, ring::Contacts};
use forebay_wire::{
    BlobLength, BlobRange, ClaimAnswer, ErrorCode, GetAnswer, PICKED, Reply, Request,
};

use crate::harness::{Data, PATIENCE, Raw, TestNode, get, put};

fn named(content: &[u8]) -> BlobLength {
    BlobLength { address: Namespace::public().address(content), length: content.len() as u64 }
}

fn pick(content: &[u8]) -> Pick {
    let BlobLength { address, length } = named(content);
    Pick { address, length, ordinal: 0 }
}

fn public() -> forebay_core::NamespaceId {
    Namespace::public().id()
}

fn read(client: &mut Client, handle: Handle, length: usize) -> Result<Vec<u8>, GetAnswer> {
    let mut bytes = vec![0; length];
    let wanted = Wanted { blob: 0, offset: 0, into: &mut bytes };
    match client.get(handle, Duration::ZERO, &mut [wanted]).unwrap()[0] {
        GetAnswer::Hit => Ok(bytes),
        other => Err(other),
    }
}

fn code(reply: Reply) -> ErrorCode {
    match reply {
        Reply::Error(refusal) => refusal.code,
        other => panic!("{other:?}"),
    }
}

fn picks(node: &TestNode) -> Picks {
    Picks::new(Some(Contacts::from(node.config.socket.clone())), Namespace::public(), None, "job")
}

#[test]
fn a_blob_is_the_same_by_its_address_and_by_its_place_in_a_dataset() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[1000; 40]);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 7);
    let mut other = node.client();
    let picked = other.pick(public(), &[named(&data.blobs[7])]).unwrap();
    assert_eq!(picked, Handle(PICKED));
    assert_eq!(read(&mut other, picked, 1000).unwrap(), data.blobs[7]);
    other.pick(public(), &[named(&data.blobs[8])]).unwrap();
    assert_eq!(read(&mut other, picked, 1000), Err(GetAnswer::Miss));
    put(&mut client, handle, &data, 8);
    assert_eq!(read(&mut other, picked, 1000).unwrap(), data.blobs[8]);

    other.pick(public(), &[named(&data.blobs[9])]).unwrap();
    assert_eq!(client.claim(handle, &[9]).unwrap(), [ClaimAnswer::Granted]);
    assert_eq!(other.claim(picked, &[0]).unwrap(), [ClaimAnswer::Held], "a claim is on an address");
    client.release(handle, &[9]).unwrap();
    assert_eq!(other.claim(picked, &[0]).unwrap(), [ClaimAnswer::Granted]);
    // What is picked next does not cost what was claimed before.
    other.pick(public(), &[named(b"something else")]).unwrap();
    assert_eq!(client.claim(handle, &[9]).unwrap(), [ClaimAnswer::Held]);
    other.pick(public(), &[named(&data.blobs[9])]).unwrap();
    other.put(picked, 0, &data.blobs[9]).unwrap();
    assert_eq!(get(&mut client, handle, &data, 9, PATIENCE).unwrap(), data.blobs[9]);
    assert_eq!(node.service.gauges().claims_held, 0);
}

/// Promise 4: an insert is hashed by the node before it is believed; what is not there and what is not yours look
/// alike.
#[test]
fn whoever_picks_is_believed_no_more_than_others() {
    let node = TestNode::start(ByteSize::mib(8));
    let mut client = node.client();
    let picked = client.pick(public(), &[named(b"right")]).unwrap();
    assert_eq!(client.claim(picked, &[0]).unwrap(), [ClaimAnswer::Granted]);
    let refused = client.put(picked, 0, &Bytes::from_static(b"wrong")).unwrap_err();
    let of = |refused: &ClientError| match refused {
        ClientError::Refused(refusal) => refusal.code,
        other => panic!("{other}"),
    };
    assert_eq!(of(&refused), ErrorCode::WrongBytes);
    assert_eq!(read(&mut client, picked, 5), Err(GetAnswer::Claimed), "and still to be fetched");

    let secret = Namespace::secret([7; 32]).unwrap();
    let refused = client.pick(secret.id(), &[]).unwrap_err();
    let data = Data::of(&secret, &[10; 4]);
    let shown = client.open(&data.digest).unwrap_err();
    assert_eq!(refused.to_string(), shown.to_string());
    let too_long = BlobLength { address: Address::from_bytes([1; 32]), length: 1 << 60 };
    assert_eq!(of(&client.pick(public(), &[too_long]).unwrap_err()), ErrorCode::Malformed);
}

/// What is picked is no dataset: nobody manages it, and nobody evicts in one go what others have put there.
#[test]
fn what_is_picked_is_read_and_written_and_nothing_else() {
    let node = TestNode::start(ByteSize::mib(8));
    let mut raw = Raw::hello(&node);
    let ranges = vec![BlobRange { blob: 0, offset: 0, length: 5 }];
    let get = Request::Get { handle: PICKED, wait_ms: 0, ranges };
    assert_eq!(code(raw.ask(&get)), ErrorCode::Unknown, "nothing was picked");
    let blobs = vec![named(b"right")];
    assert_eq!(
        raw.ask(&Request::Pick { namespace: public(), blobs }),
        Reply::Open { handle: PICKED }
    );
    let handle = PICKED;
    for request in [
        Request::Presence { handle, first: 0, count: 1, since: 0 },
        Request::Report { handle, report: forebay_core::manager::Report::default() },
        Request::Leave { handle },
        Request::Explain { handle },
        Request::Evict { handle },
    ] {
        assert_eq!(code(raw.ask(&request)), ErrorCode::Unknown, "{request:?}");
    }
    let beyond = Request::Claim { handle, blobs: vec![1] };
    assert_eq!(code(raw.ask(&beyond)), ErrorCode::Malformed);
    let right = Request::Claim { handle, blobs: vec![0] };
    assert_eq!(raw.ask(&right), Reply::Claim { answers: vec![ClaimAnswer::Granted] });
}

/// Why blobs are picked, and not shown as small datasets: those have regions of their own.
#[test]
fn what_is_put_one_by_one_shares_regions() {
    let node = TestNode::start(ByteSize::mib(16));
    let mut picks = picks(&node);
    for number in 0..200_u32 {
        let content = Bytes::from(number.to_le_bytes().repeat(1000));
        let wanted = pick(&content);
        assert_eq!(picks.claim(&[wanted]), [Right::Claim]);
        assert!(picks.put(&wanted, &content));
    }
    let flash = &node.service.flash_counters()[0];
    assert_eq!((flash.entries, flash.regions_evicted), (200, 0), "in sixteen regions");
    assert!((0..200_u32).all(|number| {
        let content = number.to_le_bytes().repeat(1000);
        picks.get(&[pick(&content)]) == [Some(content)]
    }));
}

/// Promise 3: a blob that is resident or claimed is not fetched again.
#[test]
fn those_who_pick_read_every_blob_once_between_them() {
    let node = TestNode::start(ByteSize::mib(64));
    let contents: Vec<Bytes> =
        (0..60_u8).map(|number| Bytes::from(vec![number; 20_000 + usize::from(number)])).collect();
    let fetched = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut picks = picks(&node);
                for content in &contents {
                    let wanted = pick(content);
                    if picks.get(&[wanted])[0].is_some() {
                        continue;
                    }
                    let right = match picks.claim(&[wanted])[0] {
                        Right::Others => picks.settle(&wanted),
                        right => Settled::Read(right),
                    };
                    match right {
                        Settled::Bytes(bytes) => assert_eq!(bytes, **content),
                        Settled::Read(right) => {
                            assert_eq!(right, Right::Claim);
                            fetched.fetch_add(1, SeqCst);
                            assert!(picks.put(&wanted, content));
                        }
                    }
                }
            });
        }
    });
    assert_eq!(fetched.into_inner(), 60);
    assert_eq!(node.service.gauges().claims_held, 0);
}

#[test]
fn whoever_waits_has_its_turn_when_the_other_gives_up() {
    let node = TestNode::start(ByteSize::mib(8));
    let (mut one, mut other, wanted) = (picks(&node), picks(&node), pick(b"wanted"));
    assert_eq!(one.claim(&[wanted]), [Right::Claim]);
    assert_eq!(other.claim(&[wanted]), [Right::Others]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| other.settle(&wanted));
        while node.service.counters().waits.get() == 0 {
            thread::yield_now();
        }
        one.release(&[wanted]);
        assert_eq!(waiter.join().unwrap(), Settled::Read(Right::Claim));
    });
    assert!(other.put(&wanted, &Bytes::from_static(b"wanted")));
    assert_eq!(one.settle(&wanted), Settled::Bytes(b"wanted".to_vec()), "it is there");
}

/// With a digest, its manager's word counts; what is not in it is nobody's.
#[test]
fn blobs_of_a_digest_are_picked_by_their_ordinals() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[1000; 10]);
    let contacts = Contacts::from(node.config.socket.clone());
    let digest = Some(data.digest.clone());
    let mut picks = Picks::new(Some(contacts), Namespace::public(), digest, "job");
    let wanted = |blob: usize| Pick { ordinal: blob as u64, ..pick(&data.blobs[blob]) };
    assert_eq!(picks.claim(&[wanted(3), pick(b"elsewhere")]), [Right::Claim, Right::Alone]);
    assert!(picks.put(&wanted(3), &data.blobs[3]));
    let moved = Pick { ordinal: 4, ..wanted(3) };
    assert_eq!(
        picks.get(&[moved, wanted(3), wanted(4)]),
        [None, Some(data.blobs[3].to_vec()), None]
    );
    assert_eq!(node.service.gauges().datasets_open, 1);
}

/// Promise 5: without a node everything is missing, and nothing is waited for.
#[test]
fn without_a_node_all_is_missing() {
    let nowhere = Contacts::from(std::path::PathBuf::from("/nowhere/node.sock"));
    for contacts in [None, Some(nowhere)] {
        let mut picks = Picks::new(contacts, Namespace::public(), None, "job");
        let wanted = pick(b"wanted");
        assert_eq!(picks.get(&[wanted]), [None]);
        assert_eq!(picks.claim(&[wanted]), [Right::Alone]);
        assert_eq!(picks.settle(&wanted), Settled::Read(Right::Alone));
        assert!(!picks.put(&wanted, &Bytes::from_static(b"wanted")));
        picks.release(&[wanted]);
        assert_eq!(picks.node_stats(), None);
    }
}
