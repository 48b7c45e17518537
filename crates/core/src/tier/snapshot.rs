//! Snapshots: what a policy knows, kept across a restart.
//!
//! History, jobs and the threshold go into one block of bytes; the regions come from flash
//! ([`Policy::on_recovered`](super::Policy::on_recovered)). Times count from the same start before
//! and after the restart. Layout: magic with the version, fields in little-endian order, BLAKE3 of
//! everything before it. A snapshot is refused whole if it is damaged, of another version, or of a
//! history of another size; then the policy starts without knowledge, as after the first start.
//!
//! To stay small, a snapshot has a million segments of the history at most: beyond that a sample of
//! them, which the history counts from then on. What each job has read is not kept segment by
//! segment: a job is assumed to have read its buckets up to its position.

use std::time::Duration;

use super::{admission_threshold::AdmissionThreshold, history::History, jobs::Jobs};

const MAGIC: &[u8; 8] = b"FBTIER\x00\x01";
const HASH: usize = blake3::OUT_LEN;

/// A snapshot that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It is no snapshot, or of another version.
    #[error("these bytes are no snapshot of this version; delete the file")]
    OtherVersion,
    /// Bytes were changed or are missing.
    #[error("the snapshot is damaged; delete the file")]
    Damaged,
    /// The history had another size or window.
    #[error("the snapshot is of a history of another size; delete the file")]
    OtherSettings,
}

/// Appends fields.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }

    pub fn time(&mut self, time: Duration) {
        self.u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// A value that may be missing.
    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.u32(u32::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// A number of elements, which follow.
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("fewer than 2^32 elements"));
    }
}

/// Takes fields. Every failure means damage: the hash has been checked, so our own bytes are right.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    pub fn u32(&mut self) -> Result<u32, SnapshotError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(SnapshotError::Damaged)?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*field))
    }

    pub fn u64(&mut self) -> Result<u64, SnapshotError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(SnapshotError::Damaged)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*field))
    }

    /// A count, which later reads may increase.
    pub fn counter(&mut self) -> Result<u64, SnapshotError> {
        let value = self.u64()?;
        if value >> 62 == 0 { Ok(value) } else { Err(SnapshotError::Damaged) }
    }

    /// A number from 0 to 1e18.
    pub fn positive(&mut self) -> Result<f64, SnapshotError> {
        let value = f64::from_bits(self.u64()?);
        if (0.0..=1e18).contains(&value) { Ok(value) } else { Err(SnapshotError::Damaged) }
    }

    /// A number of this magnitude at most.
    pub fn within(&mut self, bound: f64) -> Result<f64, SnapshotError> {
        let value = f64::from_bits(self.u64()?);
        if value.abs() <= bound { Ok(value) } else { Err(SnapshotError::Damaged) }
    }

    pub fn time(&mut self) -> Result<Duration, SnapshotError> {
        self.u64().map(Duration::from_nanos)
    }

    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, SnapshotError>,
    ) -> Result<Option<T>, SnapshotError> {
        match self.u32()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(SnapshotError::Damaged),
        }
    }

    /// A number of elements of this many bytes at least, which follow, and at most `max` of them.
    pub fn count(&mut self, bytes_each: usize, max: usize) -> Result<usize, SnapshotError> {
        let count = usize::try_from(self.u32()?).expect("at least 32 bits");
        let fits = count <= max && count.saturating_mul(bytes_each) <= self.0.len();
        if fits { Ok(count) } else { Err(SnapshotError::Damaged) }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Writes a snapshot.
pub(super) fn save(history: &History, jobs: &Jobs, threshold: &AdmissionThreshold) -> Vec<u8> {
    let mut writer = Writer(MAGIC.to_vec());
    history.save(&mut writer);
    jobs.save(&mut writer);
    threshold.save(&mut writer);
    seal(writer.0)
}

/// Adds the hash.
fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let hash = blake3::hash(&bytes);
    bytes.extend(hash.as_bytes());
    bytes
}

/// Replaces history, jobs and threshold by those of a snapshot. On an error nothing changes.
pub(super) fn restore(
    snapshot: &[u8],
    history: &mut History,
    jobs: &mut Jobs,
    threshold: &mut AdmissionThreshold,
) -> Result<(), SnapshotError> {
    if !snapshot.starts_with(MAGIC) {
        return Err(SnapshotError::OtherVersion);
    }
    let (bytes, hash) = snapshot.split_last_chunk::<HASH>().ok_or(SnapshotError::Damaged)?;
    if *blake3::hash(bytes).as_bytes() != *hash {
        return Err(SnapshotError::Damaged);
    }
    let mut reader = Reader(bytes.get(MAGIC.len()..).ok_or(SnapshotError::Damaged)?);
    let new_history = history.restored(&mut reader)?;
    let new_jobs = jobs.restored(&mut reader)?;
    let tuning = AdmissionThreshold::read_tuning(&mut reader)?;
    if !reader.is_empty() {
        return Err(SnapshotError::Damaged);
    }
    (*history, *jobs) = (new_history, new_jobs);
    threshold.tune_to(tuning);
    Ok(())
}

/// A snapshot with any content and the right hash, for the fuzz target.
#[doc(hidden)]
pub fn sealed_for_tests(content: &[u8]) -> Vec<u8> {
    seal([MAGIC, content].concat())
}
