//! What a job and an agent read from their sockets: refused, or understood and said in the same bytes.
#![no_main]

use bytes::Bytes;
use forebay_core::presence::{Known, Told};
use forebay_fuzz::seed;
use forebay_wire::{
    ClaimAnswer, ErrorCode, GetAnswer, HEADER_SIZE, Header, Placed, Refusal, Reply, ShowAnswer,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        seed("prove", &Reply::Show(ShowAnswer::Prove { nonce: [7; 32] }).encode(1).to_bytes());
        seed("claim", &Reply::Claim { answers: vec![ClaimAnswer::Held; 3] }.encode(2).to_bytes());
        let payload = Bytes::from_static(b"bytes");
        let answer = GetAnswer::Hit;
        seed("get", &Reply::Get { index: 3, answer, payload }.encode(3).to_bytes());
        let places = vec![Placed { index: 3, offset: 4096, length: 5 }];
        seed("placed", &Reply::Placed { places }.encode(6).to_bytes());
        let told = Told::Changed(vec![3, 1, 0, 0, 0, 5]);
        seed("presence", &Reply::Presence { version: 9, told }.encode(6).to_bytes());
        let counters = vec![("hits".to_owned(), 7), ("misses".to_owned(), 9)];
        seed("stats", &Reply::Stats { counters }.encode(4).to_bytes());
        let refusal = Refusal { code: ErrorCode::NoSpace, text: "full".to_owned() };
        seed("error", &Reply::Error(refusal).encode(5).to_bytes());
    },
    |data: &[u8]| {
        let Some((header, rest)) = data.split_first_chunk::<HEADER_SIZE>() else { return };
        let Ok(header) = Header::decode(header) else { return };
        let Some(body) = rest.get(..header.body_size) else { return };
        if let Ok(reply) = Reply::decode(&header, &Bytes::copy_from_slice(body)) {
            let said = reply.encode(header.id).to_bytes();
            assert_eq!(said, data[..HEADER_SIZE + header.body_size], "{reply:?}");
            if let Reply::Presence { version, told } = reply {
                let _ = Known::new(1000).hear(version, &told);
            }
        }
    }
);
