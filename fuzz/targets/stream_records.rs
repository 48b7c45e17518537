//! Records of streams, which come from a device: refused, or encoded again to an equal value. What
//! collection decides with them releases no block of a stream that it keeps.
#![no_main]

use forebay_core::streams::{
    StreamName, StreamNumber,
    collection::{FoundEntry, FoundFamily, collect},
    record::{Record, SealedRecord, family_group_name, parse_family_group_name},
    runs::OrdinalRuns,
};
use forebay_fuzz::seed;
use libfuzzer_sys::fuzz_target;

/// Entries that the family has.
const ENTRIES: u64 = 64;

fn sealed() -> Record {
    let mut runs = OrdinalRuns::default();
    runs.push_range(&(3..9));
    runs.push_range(&(20..300));
    Record::Sealed(SealedRecord {
        stream: StreamNumber(1),
        name: StreamName::new("a stream").expect("a name"),
        sealed_at_ms: 5,
        expires_at_ms: Some(9),
        bytes: 1 << 30,
        runs,
    })
}

fuzz_target!(
    init: {
        seed("sealed", &sealed().encode());
        seed("destroyed", &Record::Destroyed(StreamNumber(1)).encode());
        let name = StreamName::new("family").expect("a name");
        seed("family", &family_group_name(7, &name));
    },
    |data: &[u8]| {
        if let Some((unique, name)) = parse_family_group_name(data) {
            assert_eq!(family_group_name(unique, &name), data);
        }
        let Some(record) = Record::decode(data) else { return };
        assert_eq!(Record::decode(&record.encode()), Some(record.clone()));
        // Blocks of a device are counted one by one; a record may claim more than any device has.
        if matches!(&record, Record::Sealed(sealed) if sealed.runs.blocks() > 1 << 20) {
            return;
        }
        let tag = |ordinal: u64| u32::from(ordinal % 2 == 1);
        let entries = (0..ENTRIES).map(|ordinal| FoundEntry { ordinal, tag: tag(ordinal) });
        let records = vec![(2, record)];
        let found = FoundFamily { entries: entries.collect(), records, ..FoundFamily::default() };
        let end = found.ordinals_end();
        let collected = collect(&[found], 6).remove(0);
        for stream in &collected.streams {
            for (block, ordinal) in (0..).zip(stream.record.runs.ranges().flatten()) {
                let is_lost = stream.lost.iter().any(|lost| lost.contains(&block));
                let is_released = collected.release.iter().any(|range| range.contains(&ordinal));
                assert!(ordinal < end && (is_lost || !is_released), "block {block}");
            }
        }
    }
);
