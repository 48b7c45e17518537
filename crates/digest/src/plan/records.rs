//! The layout `records`: objects are sequences of records of one length. Every record is an item,
//! and a blob is a run of records.

use super::{BlobPlan, ItemSpan, PACK_ITEMS_MAX, Part};
use forebay_core::dataset::ListedObject;
use forebay_core::units::ByteSize;

/// Lengths of records and headers, and the size of packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Records {
    pub(crate) record: u64,
    pub(crate) header: u64,
    pub(crate) pack: ByteSize,
}

/// An object whose length is not that of a header and whole records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{object}` is {length} bytes long, which is not a header of {header} bytes \
     and whole records of {record} bytes"
)]
pub struct UnevenRecords {
    object: String,
    length: u64,
    header: u64,
    record: u64,
}

impl Records {
    /// Records of `record` bytes, after a header of `header` bytes at the start of every object, in
    /// blobs of at most `pack`. `None` if `record` is 0.
    pub fn new(record: u64, header: u64, pack: ByteSize) -> Option<Self> {
        (record > 0).then_some(Self { record, header, pack })
    }

    /// Length of a record.
    pub fn record(self) -> ByteSize {
        ByteSize(self.record)
    }

    /// The blobs of one object, made lazily, because an object may have any number of them.
    pub fn plan(
        self,
        listed: ListedObject,
    ) -> Result<impl Iterator<Item = BlobPlan> + Send, UnevenRecords> {
        let Self { record, header, pack } = self;
        let content = listed.length.checked_sub(header).filter(|content| content % record == 0);
        let Some(content) = content else {
            let ListedObject { object, length, .. } = listed;
            let object = object.escape_debug().to_string();
            return Err(UnevenRecords { object, length, header, record });
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

    fn listed(length: u64) -> ListedObject {
        ListedObject { object: "x.bin".to_owned(), length, version: "v".to_owned() }
    }

    #[test]
    fn objects_with_partial_records_are_refused() {
        let records = Records::new(100, 16, ByteSize(1000)).unwrap();
        for length in [0, 15, 17, 115, 117] {
            let uneven = records.plan(listed(length)).err().unwrap().to_string();
            assert!(uneven.contains("`x.bin`") && uneven.contains("100 bytes"), "{uneven}");
        }
        assert_eq!(records.plan(listed(16)).unwrap().count(), 0, "a header and no records");
        assert_eq!(Records::new(0, 0, ByteSize(1)), None);
    }

    proptest! {
        /// Promise 2 depends on this: every record is one item, and every byte except the header's
        /// is in one blob.
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
                let mut items_at = blob.items.iter().zip(0..);
                prop_assert!(items_at.all(|(item, at)| item.offset == at * record));
                next += blob.length();
                items += blob.items.len() as u64;
            }
            prop_assert_eq!((next, items), (header + record * records, records));
        }
    }
}
