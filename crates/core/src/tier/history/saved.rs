//! The history in a snapshot.

use super::{Bucket, History, Log, SHIFT_MAX, rings_at};
use crate::tier::snapshot::{Reader, SnapshotError, Writer};

/// Most segments in a snapshot: 14 MB.
const SEGMENTS_MAX: usize = 1 << 20;

impl History {
    /// Writes buckets and segments. Looks at all of them.
    pub(in crate::tier) fn save(&self, writer: &mut Writer) {
        let mut valid = self.validity();
        while valid.shift < SHIFT_MAX && self.table.len(valid) > SEGMENTS_MAX {
            valid.shift += 1;
        }
        writer.time(self.interval);
        writer.u32(self.intervals);
        writer.u64(self.table.slots() as u64);
        writer.u32(valid.shift);
        writer.u32(self.now);
        let logs = || self.logs.iter().enumerate().filter(|(_, log)| self.is_recent(log));
        writer.count(logs().count());
        for (index, log) in logs() {
            writer.u32(log.bucket.0);
            writer.u32(log.at);
            writer.u32(log.shift);
            writer.u32(log.next_position);
            let each = self.intervals as usize;
            let (reads, fresh) = self.rings[index * 2 * each..][..2 * each].split_at(each);
            let counts = || {
                reads
                    .iter()
                    .zip(fresh)
                    .enumerate()
                    .filter(|(_, (reads, fresh))| **reads > 0 || **fresh > 0)
            };
            writer.count(counts().count());
            for (slot, (reads, fresh)) in counts() {
                writer.count(slot);
                writer.u32(*reads);
                writer.u32(*fresh);
            }
        }
        self.table.save(valid, writer);
    }

    /// A history of the same size with the content of a snapshot.
    pub(in crate::tier) fn restored(&self, reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let same = reader.time()? == self.interval
            && reader.u32()? == self.intervals
            && reader.u64()? == self.table.slots() as u64;
        if !same {
            return Err(SnapshotError::OtherSettings);
        }
        let mut restored = Self::new(&self.settings);
        restored.shift = reader.u32()?;
        restored.now = reader.u32()?;
        if restored.shift > SHIFT_MAX {
            return Err(SnapshotError::Damaged);
        }
        for index in 0..reader.count(20, self.logs_max)? {
            let (bucket, at) = (Bucket(reader.u32()?), reader.u32()?);
            let (shift, next_position) = (reader.u32()?, reader.u32()?);
            let mut log = Log { bucket, read_sum: 0, fresh_sum: 0, at, shift, next_position };
            let (reads, fresh) = rings_at(&mut restored.rings, index, self.intervals);
            for _ in 0..reader.count(12, reads.len())? {
                let slot = usize::try_from(reader.u32()?).expect("at least 32 bits");
                let (Some(reads), Some(fresh)) = (reads.get_mut(slot), fresh.get_mut(slot)) else {
                    return Err(SnapshotError::Damaged);
                };
                (*reads, *fresh) = (reader.u32()?, reader.u32()?);
                if *reads >> 30 > 0 || *fresh >> 30 > 0 {
                    return Err(SnapshotError::Damaged);
                }
            }
            log.read_sum = reads.iter().map(|count| u64::from(*count)).sum();
            log.fresh_sum = fresh.iter().map(|count| u64::from(*count)).sum();
            let is_valid = at <= restored.now && shift <= restored.shift;
            let index = u32::try_from(index).expect("fewer than 2^32 buckets");
            if !is_valid || restored.by_bucket.insert(bucket, index).is_some() {
                return Err(SnapshotError::Damaged);
            }
            restored.logs.push(log);
        }
        restored.table.read(reader)?;
        Ok(restored)
    }
}
