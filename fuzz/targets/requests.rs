//! What a node and an agent read from their sockets: refused, or understood and said in the same bytes.
#![no_main]

use bytes::Bytes;
use forebay_fuzz::seed;
use forebay_core::Namespace;
use forebay_wire::{BlobLength, BlobRange, HEADER_SIZE, Header, Request, SentToken};
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        let job = "job".to_owned();
        seed("hello", &Request::Hello { version_min: 1, version_max: 1, job, token: SentToken(b"secret".to_vec()) }.encode(1).to_bytes());
        seed("claim", &Request::Claim { handle: 0, blobs: vec![1, 2] }.encode(2).to_bytes());
        let ranges = vec![BlobRange { blob: 1, offset: 2, length: 3 }];
        seed("get", &Request::Get { handle: 0, wait_ms: 9, ranges }.encode(3).to_bytes());
        let payload = Bytes::from_static(b"bytes");
        let ranges = vec![BlobRange { blob: 1, offset: 2, length: 3 }];
        let released = vec![4096];
        let place = Request::Place { handle: 0, wait_ms: 9, released, ranges };
        seed("place", &place.encode(5).to_bytes());
        let blob = BlobLength { address: Namespace::public().address(b"x"), length: 1 };
        let pick = Request::Pick { namespace: Namespace::public().id(), blobs: vec![blob; 3] };
        seed("pick", &pick.encode(6).to_bytes());
        seed("put", &Request::Put { handle: 0, blob: 1, offset: 0, payload }.encode(4).to_bytes());
    },
    |data: &[u8]| {
        let Some((header, rest)) = data.split_first_chunk::<HEADER_SIZE>() else { return };
        let Ok(header) = Header::decode(header) else { return };
        let Some(body) = rest.get(..header.body_size) else { return };
        if let Ok(request) = Request::decode(&header, &Bytes::copy_from_slice(body)) {
            let said = request.encode(header.id).to_bytes();
            assert_eq!(said, data[..HEADER_SIZE + header.body_size], "{request:?}");
        }
    }
);
