//! Jobs in a snapshot.

use super::{
    progress::{JobState, Reading},
    registry::{JobIndex, Jobs, READERS_MAX, READINGS_MAX, ReadingIndex},
    spec::Plan,
};
use crate::tier::{
    follower_lag::FollowerLag,
    invalid_event::{JOBS_MAX, STAGES_MAX},
    snapshot::{Reader, SnapshotError, Writer},
    types::{Bucket, Job},
};

impl Jobs {
    /// Writes jobs and readings, without the positions read.
    pub(in crate::tier) fn save(&self, writer: &mut Writer) {
        writer.f64(self.segment_bytes);
        writer.count(self.ids.len());
        for state in self.states.iter().flatten() {
            state.save(writer);
            writer.count(state.readings.len());
            for index in &state.readings {
                self.reading(*index).save(writer);
            }
        }
    }

    /// Jobs with the same settings and the content of a snapshot.
    pub(in crate::tier) fn restored(&self, reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let mut restored = self.empty();
        restored.segment_bytes = reader.positive()?;
        for index in 0..reader.count(100, JOBS_MAX)? {
            let index = JobIndex::try_from(index).expect("at most JOBS_MAX jobs");
            let mut state = JobState::read(reader)?;
            for _ in 0..reader.count(40, READINGS_MAX - restored.readings.len())? {
                let reading = Reading::read(reader, index)?;
                let stages = state.plan.as_ref().map_or(0, |plan| plan.before.len() - 1);
                let has_stage = reading.stage.is_none_or(|stage| (stage as usize) < stages);
                let readers = restored.readers.entry(reading.bucket).or_default();
                let readings = &restored.readings;
                let is_first = readers.iter().all(|other: &ReadingIndex| {
                    readings[*other as usize].as_ref().is_some_and(|it: &Reading| it.job != index)
                });
                if !has_stage || !is_first || readers.len() >= READERS_MAX {
                    return Err(SnapshotError::Damaged);
                }
                let at = ReadingIndex::try_from(restored.readings.len()).expect("bounded above");
                readers.push(at);
                state.readings.push(at);
                restored.readings.push(Some(reading));
            }
            if restored.ids.insert(state.id, index).is_some() {
                return Err(SnapshotError::Damaged);
            }
            restored.states.push(Some(state));
        }
        Ok(restored)
    }
}

impl JobState {
    fn save(&self, writer: &mut Writer) {
        writer.u64(self.id.0);
        writer.option(self.plan.as_ref(), |writer, plan| {
            writer.count(plan.before.len());
            plan.before.iter().for_each(|bytes| writer.u64(*bytes));
            writer.option(plan.starts, Writer::time);
            writer.option(plan.rate, Writer::f64);
            writer.option(plan.lease, Writer::time);
        });
        writer.time(self.last_seen);
        writer.u32(u32::from(self.started));
        writer.u32(self.stage);
        for count in [self.stage_bytes, self.bytes, self.reads, self.unannounced_reads] {
            writer.u64(count);
        }
        writer.f64(self.measured_rate);
        writer.time(self.measured_at);
        writer.f64(self.scatter);
        self.follower_lag.save(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, SnapshotError> {
        let id = Job(reader.u64()?);
        let plan = reader.option(|reader| {
            let count = reader.count(8, STAGES_MAX + 1)?;
            let before = (0..count).map(|_| reader.u64()).collect::<Result<Vec<_>, _>>()?;
            if before.first() != Some(&0) || !before.is_sorted() {
                return Err(SnapshotError::Damaged);
            }
            let starts = reader.option(Reader::time)?;
            let rate = reader.option(Reader::positive)?;
            Ok(Plan { before, starts, rate, lease: reader.option(Reader::time)? })
        })?;
        let mut state = Self::new(id, reader.time()?);
        let stages = plan.as_ref().map_or(0, |plan| plan.before.len() - 1);
        state.started = reader.u32()? != 0;
        state.stage = reader.u32()?;
        if plan.is_some() && state.stage as usize >= stages.max(1) {
            return Err(SnapshotError::Damaged);
        }
        state.plan = plan;
        (state.stage_bytes, state.bytes) = (reader.counter()?, reader.counter()?);
        (state.reads, state.unannounced_reads) = (reader.counter()?, reader.counter()?);
        state.measured_rate = reader.positive()?;
        state.measured_at = reader.time()?;
        state.scatter = reader.within(1.0)?.abs();
        state.follower_lag = FollowerLag::read(reader)?;
        Ok(state)
    }
}

impl Reading {
    fn save(&self, writer: &mut Writer) {
        writer.u32(self.bucket.0);
        writer.option(self.stage, Writer::u32);
        for count in [self.size, self.segments, self.bytes] {
            writer.u64(count);
        }
        writer.f64(self.head.max(0.0));
        writer.time(self.last_read);
    }

    fn read(reader: &mut Reader<'_>, job: JobIndex) -> Result<Self, SnapshotError> {
        let bucket = Bucket(reader.u32()?);
        let stage = reader.option(Reader::u32)?;
        let [size, segments, bytes] = [reader.u64()?, reader.counter()?, reader.counter()?];
        let head = reader.positive()?;
        let mut reading = Self::new(job, bucket, reader.time()?);
        (reading.stage, reading.size, reading.head) = (stage, size, head);
        (reading.segments, reading.bytes) = (segments, bytes);
        reading.read.forget();
        Ok(reading)
    }
}
