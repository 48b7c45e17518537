//! Replies, which a job and an agent decode: refused, or encoded again as the same bytes, except
//! for fields and codes of newer versions.
#![no_main]

use bytes::Bytes;
use forebay_core::{
    node::presence::{KnownPresence, PresenceUpdate},
    streams::{
        Lifetime, StreamName,
        catalogue::{StreamInfo, StreamState},
    },
};
use forebay_fuzz::seed;
use forebay_wire::{
    ClaimAnswer, ErrorCode, GetAnswer, HEADER_SIZE, Header, OpenAnswer, Refusal, Reply, ShmRange,
    StreamReply,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        let prove = Reply::OpenAnswer(OpenAnswer::Prove { nonce: [7; 32] });
        seed("prove", &prove.encode(1).to_bytes());
        seed("claim", &Reply::Claim { answers: vec![ClaimAnswer::Held; 3] }.encode(2).to_bytes());
        let payload = Bytes::from_static(b"bytes");
        let answer = GetAnswer::Hit;
        seed("get", &Reply::Get { index: 3, answer, payload }.encode(3).to_bytes());
        let ranges = vec![ShmRange { index: 3, offset: 4096, length: 5 }];
        seed("get_shm", &Reply::GetShm { ranges }.encode(6).to_bytes());
        let update = PresenceUpdate::Changed(vec![3, 1, 0, 0, 0, 5]);
        seed("presence", &Reply::Presence { version: 9, update }.encode(6).to_bytes());
        let counters = vec![("hits".to_owned(), 7), ("misses".to_owned(), 9)];
        seed("stats", &Reply::Stats { counters }.encode(4).to_bytes());
        let name = StreamName::new("stream").expect("a name");
        let info = StreamInfo {
            family: name.clone(),
            name,
            lifetime: Lifetime::Kept,
            state: StreamState::Sealed,
            blocks: 2,
            bytes: 5,
            readers: 1,
            lost: vec![0..1],
        };
        let list = StreamReply::List { streams: vec![info; 2], is_last: true };
        seed("stream_list", &Reply::Stream(list).encode(7).to_bytes());
        let refusal = Refusal { code: ErrorCode::NoSpace, text: "full".to_owned() };
        seed("error", &Reply::Error(refusal).encode(5).to_bytes());
    },
    |data: &[u8]| {
        let Some((header, rest)) = data.split_first_chunk::<HEADER_SIZE>() else { return };
        let Ok(header) = Header::decode(header) else { return };
        let Some(body) = rest.get(..header.body_size) else { return };
        if let Ok(reply) = Reply::decode(&header, &Bytes::copy_from_slice(body)) {
            let encoded = reply.encode(header.id).to_bytes();
            let from = HEADER_SIZE + usize::from(matches!(reply, Reply::Error(_)));
            assert_eq!(encoded[from..], data[from..encoded.len()], "{reply:?}");
            if let Reply::Presence { version, update } = reply {
                let _ = KnownPresence::new(1000).apply(version, &update);
            }
        }
    }
);
