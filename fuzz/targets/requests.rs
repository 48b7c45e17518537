//! Requests, which a node and an agent decode: refused, or encoded again as the same bytes.
#![no_main]

use bytes::Bytes;
use forebay_core::{
    BlobOrdinal, Namespace,
    streams::{BlockNumber, Lifetime},
};
use forebay_fuzz::seed;
use forebay_wire::{
    BlobLength, BlobRange, HEADER_SIZE, Header, Request, SentToken, StreamRequest,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        let (job, token) = ("job".to_owned(), SentToken(b"secret".to_vec()));
        let hello = Request::Hello { version_min: 1, version_max: 1, job, token };
        seed("hello", &hello.encode(1).to_bytes());
        let blob = BlobOrdinal::new(1);
        let claim = Request::Claim { handle: 0, blobs: vec![blob; 2] };
        seed("claim", &claim.encode(2).to_bytes());
        let ranges = vec![BlobRange { blob, offset: 2, length: 3 }];
        seed("get", &Request::Get { handle: 0, wait_ms: 9, ranges }.encode(3).to_bytes());
        let payload = Bytes::from_static(b"bytes");
        let ranges = vec![BlobRange { blob, offset: 2, length: 3 }];
        let released = vec![4096];
        let get_shm = Request::GetShm { handle: 0, wait_ms: 9, released, ranges };
        seed("get_shm", &get_shm.encode(5).to_bytes());
        let namespace = Namespace::public();
        let named = BlobLength { address: namespace.address(b"x"), length: 1 };
        let select = Request::SelectByAddress { namespace: namespace.id(), blobs: vec![named; 3] };
        seed("select_by_address", &select.encode(6).to_bytes());
        let (name, lifetime) = ("stream".to_owned(), Lifetime::Kept);
        let create = Request::Stream(StreamRequest::Create { name, lifetime });
        seed("stream_create", &create.encode(7).to_bytes());
        let (block, bytes) = (BlockNumber(3), payload.clone());
        let append = StreamRequest::Append { handle: 0, block, payload: bytes };
        seed("stream_append", &Request::Stream(append).encode(8).to_bytes());
        seed("put", &Request::Put { handle: 0, blob, offset: 0, payload }.encode(4).to_bytes());
    },
    |data: &[u8]| {
        let Some((header, rest)) = data.split_first_chunk::<HEADER_SIZE>() else { return };
        let Ok(header) = Header::decode(header) else { return };
        let Some(body) = rest.get(..header.body_size) else { return };
        if let Ok(request) = Request::decode(&header, &Bytes::copy_from_slice(body)) {
            let encoded = request.encode(header.id).to_bytes();
            assert_eq!(encoded, data[..HEADER_SIZE + header.body_size], "{request:?}");
        }
    }
);
