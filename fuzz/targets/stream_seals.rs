//! Lists of sealed streams, which come from a file: an entry is refused, or encoded again to the
//! same bytes. What a list reports lost can be adopted.
#![no_main]

use forebay_core::streams::{
    StreamName, StreamNumber,
    seal_list::{ListedStream, SealEntry, SealList, StreamKey},
};
use forebay_fuzz::seed;
use libfuzzer_sys::fuzz_target;

fn sealed() -> SealEntry {
    let name = StreamName::new("a stream").expect("a name");
    let listed = ListedStream {
        family: name.clone(),
        name,
        sealed_at_ms: 5,
        expires_at_ms: Some(9),
        blocks: 300,
        bytes: 1 << 30,
    };
    SealEntry::Sealed(StreamKey { family: 7, stream: StreamNumber(1) }, listed)
}

fuzz_target!(
    init: {
        let destroyed = SealEntry::Destroyed(StreamKey { family: 8, stream: StreamNumber(2) });
        seed("sealed", &sealed().encode());
        seed("both", &[sealed().encode(), destroyed.encode()].concat());
    },
    |data: &[u8]| {
        if let Some((entry, rest)) = SealEntry::decode(data) {
            assert_eq!(entry.encode(), data[..data.len() - rest.len()]);
        }
        let mut list = SealList::decode(data);
        assert_eq!(SealList::decode(&list.encode()), list);
        list.retain(6, |family| family % 2 == 0);
        for (key, listed) in list.lost(|_, _| false) {
            if listed.blocks < 1 << 20 {
                let lost = listed.into_lost(key.stream);
                let all = 0..lost.record.runs.blocks();
                assert_eq!(lost.lost, std::slice::from_ref(&all));
            }
        }
    }
);
