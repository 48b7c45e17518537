//! Opening datasets: upload, proof and namespaces (promise 4).

use forebay_client::ClientError;
use forebay_core::{ByteSize, Namespace};
use forebay_wire::{ErrorCode, GetAnswer};

use crate::harness::{Data, TIMEOUT, TestNode, get, put};

/// Promise 4: a client that receives bytes has proved that it holds the digest.
#[test]
fn the_first_client_uploads_and_the_others_prove() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&[1000; 40]);
    let (mut first, first_handle) = node.open(&data);
    put(&mut first, first_handle, &data, 7);
    let (mut second, handle) = node.open(&data);
    assert_eq!(get(&mut second, handle, &data, 7, TIMEOUT).unwrap(), data.blobs[7]);
    assert_eq!(second.open(&data.digest).unwrap(), handle, "opened twice, one handle");
    assert_eq!(node.service.gauges().datasets_open, 1);
    drop((first, second));
    // The table is dropped with its last client.
    while node.service.gauges().datasets_open > 0 {
        std::thread::yield_now();
    }
    let (mut third, handle) = node.open(&data);
    assert_eq!(get(&mut third, handle, &data, 7, TIMEOUT).unwrap(), data.blobs[7]);
}

#[test]
fn a_namespace_without_a_key_is_unknown() {
    let node = TestNode::start(ByteSize::mib(8));
    let secret = Namespace::secret([7; 32]).unwrap();
    let data = Data::of(&secret, &[100; 10]);
    let refused = node.client().open(&data.digest).unwrap_err();
    assert!(
        matches!(&refused, ClientError::Refused(refusal) if refusal.code == ErrorCode::Unknown),
        "{refused}"
    );
    assert!(refused.to_string().contains("give the node its key"), "{refused}");

    let node = TestNode::start_with(|_| {}, vec![secret]);
    let (mut client, handle) = node.open(&data);
    put(&mut client, handle, &data, 3);
    assert_eq!(get(&mut client, handle, &data, 3, TIMEOUT).unwrap(), data.blobs[3]);
    let public = Data::new(&[100; 10]);
    let (mut client, handle) = node.open(&public);
    let same_bytes_elsewhere = get(&mut client, handle, &public, 3, std::time::Duration::ZERO);
    assert_eq!(same_bytes_elsewhere, Err(GetAnswer::Miss), "another namespace, another address");
}

/// A table that is larger than a frame is uploaded in pages. A challenge covers all of it.
#[test]
fn a_large_table_is_uploaded_in_pages() {
    let node = TestNode::start(ByteSize::mib(8));
    let data = Data::new(&vec![1; 70_000]);
    let (mut first, first_handle) = node.open(&data);
    put(&mut first, first_handle, &data, 69_999);
    let (mut second, handle) = node.open(&data);
    assert_eq!(get(&mut second, handle, &data, 69_999, TIMEOUT).unwrap(), data.blobs[69_999]);
    assert_eq!(node.service.counters().proofs_refused.get(), 0);
}
