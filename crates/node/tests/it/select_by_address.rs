//! Select by address: blobs that are named by address instead of by dataset.

use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
    time::Duration,
};

use bytes::Bytes;
use forebay_client::{
    BlobRef, BlobsByAddress, Client, ClientError, Handle, ReadInto, ReadReason, Resolution,
};
use forebay_core::{Address, BlobOrdinal, ByteSize, Namespace, cluster::ring::Seeds};
use forebay_wire::{
    BlobLength, BlobRange, ClaimAnswer, ErrorCode, GetAnswer, Reply, Request, SELECTED_HANDLE,
};

use crate::harness::{Data, Raw, TIMEOUT, TestNode, get, put};

fn named(content: &[u8]) -> BlobLength {
    BlobLength { address: Namespace::public().address(content), length: content.len() as u64 }
}

fn pick(content: &[u8]) -> BlobRef {
    let BlobLength { address, length } = named(content);
    BlobRef { address, length, ordinal: BlobOrdinal::new(0) }
}

fn public() -> forebay_core::NamespaceId {
    Namespace::public().id()
}

fn read(client: &mut Client, handle: Handle, length: usize) -> Result<Vec<u8>, GetAnswer> {
    let mut bytes = vec![0; length];
    let wanted = ReadInto { blob: BlobOrdinal::new(0), offset: 0, into: &mut bytes };
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

fn picks(node: &TestNode) -> BlobsByAddress {
    BlobsByAddress::new(
        Some(Seeds::from(node.config.socket.clone())),
        Namespace::public(),
        None,
        "job",
    )
}

#[test]
fn a_blob_is_the_same_by_address_and_by_ordinal() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[1000; 40]);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 7);
    let mut other = node.client();
    let picked = other.select_by_address(public(), &[named(&data.blobs[7])]).unwrap();
    assert_eq!(picked, Handle(SELECTED_HANDLE));
    assert_eq!(read(&mut other, picked, 1000).unwrap(), data.blobs[7]);
    other.select_by_address(public(), &[named(&data.blobs[8])]).unwrap();
    assert_eq!(read(&mut other, picked, 1000), Err(GetAnswer::Miss));
    put(&mut client, handle, &data, 8);
    assert_eq!(read(&mut other, picked, 1000).unwrap(), data.blobs[8]);

    other.select_by_address(public(), &[named(&data.blobs[9])]).unwrap();
    assert_eq!(client.claim(handle, &[BlobOrdinal::new(9)]).unwrap(), [ClaimAnswer::Granted]);
    assert_eq!(
        other.claim(picked, &[BlobOrdinal::new(0)]).unwrap(),
        [ClaimAnswer::Held],
        "a claim is on an address"
    );
    client.release(handle, &[BlobOrdinal::new(9)]).unwrap();
    assert_eq!(other.claim(picked, &[BlobOrdinal::new(0)]).unwrap(), [ClaimAnswer::Granted]);
    // A new selection does not end claims of the previous one.
    other.select_by_address(public(), &[named(b"something else")]).unwrap();
    assert_eq!(client.claim(handle, &[BlobOrdinal::new(9)]).unwrap(), [ClaimAnswer::Held]);
    other.select_by_address(public(), &[named(&data.blobs[9])]).unwrap();
    other.put(picked, BlobOrdinal::new(0), &data.blobs[9]).unwrap();
    assert_eq!(get(&mut client, handle, &data, 9, TIMEOUT).unwrap(), data.blobs[9]);
    assert_eq!(node.service.gauges().claims_held, 0);
}

/// Promise 4: a put is hashed by the node before it is stored. An unknown namespace and a forbidden
/// one are refused alike.
#[test]
fn selected_blobs_are_verified_and_authorised() {
    let node = TestNode::start(ByteSize::mib(8));
    let mut client = node.client();
    let picked = client.select_by_address(public(), &[named(b"right")]).unwrap();
    assert_eq!(client.claim(picked, &[BlobOrdinal::new(0)]).unwrap(), [ClaimAnswer::Granted]);
    let refused =
        client.put(picked, BlobOrdinal::new(0), &Bytes::from_static(b"wrong")).unwrap_err();
    let of = |refused: &ClientError| match refused {
        ClientError::Refused(refusal) => refusal.code,
        other => panic!("{other}"),
    };
    assert_eq!(of(&refused), ErrorCode::WrongBytes);
    assert_eq!(read(&mut client, picked, 5), Err(GetAnswer::Claimed), "the claim is still held");

    let secret = Namespace::secret([7; 32]).unwrap();
    let refused = client.select_by_address(secret.id(), &[]).unwrap_err();
    let data = Data::of(&secret, &[10; 4]);
    let shown = client.open(&data.digest).unwrap_err();
    assert_eq!(refused.to_string(), shown.to_string());
    let too_long = BlobLength { address: Address::from_bytes([1; 32]), length: 1 << 60 };
    assert_eq!(
        of(&client.select_by_address(public(), &[too_long]).unwrap_err()),
        ErrorCode::Malformed
    );
}

/// A selection is not a dataset: it has no manager and cannot be evicted.
#[test]
fn a_selection_can_only_be_read_and_written() {
    let node = TestNode::start(ByteSize::mib(8));
    let mut raw = Raw::hello(&node);
    let ranges = vec![BlobRange { blob: BlobOrdinal::new(0), offset: 0, length: 5 }];
    let get = Request::Get { handle: SELECTED_HANDLE, wait_ms: 0, ranges };
    assert_eq!(code(raw.call(&get)), ErrorCode::Unknown, "nothing is selected");
    let blobs = vec![named(b"right")];
    assert_eq!(
        raw.call(&Request::SelectByAddress { namespace: public(), blobs }),
        Reply::Open { handle: SELECTED_HANDLE }
    );
    let handle = SELECTED_HANDLE;
    for request in [
        Request::Presence { handle, first: 0, count: 1, since: 0 },
        Request::Report { handle, report: forebay_core::train::manager::Report::default() },
        Request::Leave { handle },
        Request::Explain { handle },
        Request::Evict { handle },
    ] {
        assert_eq!(code(raw.call(&request)), ErrorCode::Unknown, "{request:?}");
    }
    let beyond = Request::Claim { handle, blobs: vec![BlobOrdinal::new(1)] };
    assert_eq!(code(raw.call(&beyond)), ErrorCode::Malformed);
    let right = Request::Claim { handle, blobs: vec![BlobOrdinal::new(0)] };
    assert_eq!(raw.call(&right), Reply::Claim { answers: vec![ClaimAnswer::Granted] });
}

/// The reason for selections: small datasets would each have regions of their own.
#[test]
fn selected_blobs_share_regions() {
    let node = TestNode::start(ByteSize::mib(16));
    let mut picks = picks(&node);
    for number in 0..200_u32 {
        let content = Bytes::from(number.to_le_bytes().repeat(1000));
        let wanted = pick(&content);
        assert_eq!(picks.claim(&[wanted]), [ReadReason::Claim]);
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
fn several_clients_fetch_every_selected_blob_once() {
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
                        ReadReason::OtherJob => picks.resolve(&wanted),
                        right => Resolution::Read(right),
                    };
                    match right {
                        Resolution::Bytes(bytes) => assert_eq!(bytes, **content),
                        Resolution::Read(right) => {
                            assert_eq!(right, ReadReason::Claim);
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
fn a_waiter_gets_the_claim_that_its_holder_releases() {
    let node = TestNode::start(ByteSize::mib(8));
    let (mut one, mut other, wanted) = (picks(&node), picks(&node), pick(b"wanted"));
    assert_eq!(one.claim(&[wanted]), [ReadReason::Claim]);
    assert_eq!(other.claim(&[wanted]), [ReadReason::OtherJob]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| other.resolve(&wanted));
        while node.service.counters().waits.get() == 0 {
            thread::yield_now();
        }
        one.release(&[wanted]);
        assert_eq!(waiter.join().unwrap(), Resolution::Read(ReadReason::Claim));
    });
    assert!(other.put(&wanted, &Bytes::from_static(b"wanted")));
    assert_eq!(one.resolve(&wanted), Resolution::Bytes(b"wanted".to_vec()), "it is resident");
}

/// With a digest, blobs are read through the dataset. A blob that is not in it is not claimed.
#[test]
fn blobs_of_a_digest_are_read_through_the_dataset() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[1000; 10]);
    let contacts = Seeds::from(node.config.socket.clone());
    let digest = Some(data.digest.clone());
    let mut picks = BlobsByAddress::new(Some(contacts), Namespace::public(), digest, "job");
    let wanted =
        |blob: usize| BlobRef { ordinal: BlobOrdinal::new(blob as u64), ..pick(&data.blobs[blob]) };
    assert_eq!(
        picks.claim(&[wanted(3), pick(b"elsewhere")]),
        [ReadReason::Claim, ReadReason::NoNode]
    );
    assert!(picks.put(&wanted(3), &data.blobs[3]));
    let moved = BlobRef { ordinal: BlobOrdinal::new(4), ..wanted(3) };
    assert_eq!(
        picks.get(&[moved, wanted(3), wanted(4)]),
        [None, Some(data.blobs[3].to_vec()), None]
    );
    assert_eq!(node.service.gauges().datasets_open, 1);
}

/// Promise 5: without a node every blob is a miss, at once.
#[test]
fn without_a_node_every_blob_is_a_miss() {
    let nowhere = Seeds::from(std::path::PathBuf::from("/nowhere/node.sock"));
    for contacts in [None, Some(nowhere)] {
        let mut picks = BlobsByAddress::new(contacts, Namespace::public(), None, "job");
        let wanted = pick(b"wanted");
        assert_eq!(picks.get(&[wanted]), [None]);
        assert_eq!(picks.claim(&[wanted]), [ReadReason::NoNode]);
        assert_eq!(picks.resolve(&wanted), Resolution::Read(ReadReason::NoNode));
        assert!(!picks.put(&wanted, &Bytes::from_static(b"wanted")));
        picks.release(&[wanted]);
        assert_eq!(picks.node_stats(), None);
    }
}
