//! Objects that are records of one length, one after the other: every record is an item, and a blob is a
//! run of them.

use super::{BlobPlan, ItemSpan, Listed, PACK_ITEMS_MAX, Part};
use crate::units::ByteSize;

/// How records lie in their objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Records {
    pub(super) record: u64,
    pub(super) header: u64,
    pub(super) pack: ByteSize,
}

/// An object that is not made of whole records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{object}` is {length} bytes long, which is no header of {header} and whole records of {record} bytes"
)]
pub struct Uneven {
    object: String,
    length: u64,
    header: u64,
    record: u64,
}

impl Records {
    /// Records of so many bytes, after a header of so many that every object begins with; as many as fit
    /// share a blob of at most `pack`. Records of nothing cannot be.
    pub fn new(record: u64, header: u64, pack: ByteSize) -> Option<Self> {
        (record > 0).then_some(Self { record, header, pack })
    }

    /// How long a record is.
    pub fn record(self) -> ByteSize {
        ByteSize(self.record)
    }

    /// The blobs of one object, made as they are asked for: an object may have any number of them.
    pub fn plan(self, listed: Listed) -> Result<impl Iterator<Item = BlobPlan> + Send, Uneven> {
        let Self { record, header, pack } = self;
        let content = listed.length.checked_sub(header).filter(|content| content % record == 0);
        let Some(content) = content else {
            let Listed { object, length, .. } = listed;
            let object = object.escape_debug().to_string();
            return Err(Uneven { object, length, header, record });
        };
        let run = (pack.0 / record).clamp(1, PACK_ITEMS_MAX as u64);
        let records = content / record;
        Ok((0..records.div_ceil(run)).map(move |at| {
            let first = at * run;
            let count = run.min(records - first);
            let part = Part {
                object: listed.object.clone(),
                version: listed.version.clone(),
                offset: header + first * record,
                length: count * record,
            };
            let span = |item| ItemSpan { offset: item * record, length: record };
            BlobPlan { parts: vec![part], items: (0..count).map(span).collect() }
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn listed(length: u64) -> Listed {
        Listed { object: "x.bin".to_owned(), length, version: "v".to_owned() }
    }

    #[test]
    fn what_is_left_over_is_named() {
        let records = Records::new(100, 16, ByteSize(1000)).unwrap();
        for length in [0, 15, 17, 115, 117] {
            let uneven = records.plan(listed(length)).err().unwrap().to_string();
            assert!(uneven.contains("`x.bin`") && uneven.contains("100 bytes"), "{uneven}");
        }
        assert_eq!(records.plan(listed(16)).unwrap().count(), 0, "a header and no records");
        assert_eq!(Records::new(0, 0, ByteSize(1)), None);
    }

    proptest! {
        /// Promise 2 begins here: every record is one item, every byte but the header's is in one blob.
        #[test]
        fn every_record_is_planned_exactly_once(
            record in 1_u64..200, header in 0_u64..50, records in 0_u64..300, pack in 0_u64..5000,
        ) {
            let layout = Records::new(record, header, ByteSize(pack)).unwrap();
            let mut next = header;
            let mut items = 0;
            for blob in layout.plan(listed(header + record * records)).unwrap() {
                prop_assert_eq!(blob.parts[0].offset, next);
                prop_assert!(blob.length() <= pack.max(record));
                prop_assert_eq!(blob.length(), record * blob.items.len() as u64);
                prop_assert!(blob.items.iter().zip(0..).all(|(item, at)| item.offset == at * record));
                next += blob.length();
                items += blob.items.len() as u64;
            }
            prop_assert_eq!((next, items), (header + record * records, records));
        }
    }
}
