//! Device health, for reads, writes and syncs. After three failures in a row, a direction is
//! unhealthy: the shard rejects requests and sends only probes, with exponential backoff, until one
//! succeeds (promise 5).
//!
//! Syncs count by themselves. Writes that succeed between failing syncs prove nothing: they reach
//! the device's cache, and the failing sync loses them.

use std::time::Duration;

use super::{Purpose, Shard};
use crate::{
    format::{BLOCK_SIZE, SUPERBLOCK_OFFSETS},
    io::{IoCommand, IoFault},
};

/// Failures in a row that make a direction unhealthy.
const FAILURES_MAX: u32 = 3;
/// Delay before the first probe; each failed probe doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Direction of I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making writes durable.
    Sync,
}

impl Direction {
    /// All directions.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Sync];
}

/// Health of a device.
#[derive(Debug, Default)]
pub struct Health {
    read: DirectionHealth,
    write: DirectionHealth,
    sync: DirectionHealth,
}

#[derive(Debug, Default)]
struct DirectionHealth {
    failures: u32,
    /// Time of the next probe and the delay before it; `None` if healthy.
    probe: Option<(Duration, Duration)>,
    probing: bool,
}

impl Health {
    /// Whether the direction is healthy.
    pub fn is_healthy(&self, direction: Direction) -> bool {
        self.side(direction).probe.is_none()
    }

    /// Whether all directions are healthy. Only such a device accepts entries: one that cannot sync
    /// loses them, and one that cannot be read does not serve them.
    pub fn is_all_healthy(&self) -> bool {
        Direction::ALL.into_iter().all(|direction| self.is_healthy(direction))
    }

    /// Records a success or a failure. Returns whether the health changed.
    pub fn record(&mut self, direction: Direction, healthy: bool, now: Duration) -> bool {
        let side = self.side_mut(direction);
        side.probing = false;
        if healthy {
            side.failures = 0;
            return side.probe.take().is_some();
        }
        side.failures = side.failures.saturating_add(1);
        match side.probe {
            Some((_, pause)) => {
                let pause = (pause * 2).min(PAUSE_MAX);
                side.probe = Some((now + pause, pause));
                false
            }
            None if side.failures >= FAILURES_MAX => {
                side.probe = Some((now + PAUSE_MIN, PAUSE_MIN));
                true
            }
            None => false,
        }
    }

    /// Time of the next probe.
    pub fn probe_at(&self) -> Option<Duration> {
        let sides = Direction::ALL.into_iter().map(|direction| self.side(direction));
        let waiting = sides.filter(|side| !side.probing);
        waiting.filter_map(|side| side.probe.map(|(at, _)| at)).min()
    }

    fn take_due_probe(&mut self, now: Duration) -> Option<Direction> {
        Direction::ALL.into_iter().find(|direction| {
            let side = self.side_mut(*direction);
            let due = !side.probing && side.probe.is_some_and(|(at, _)| at <= now);
            side.probing |= due;
            due
        })
    }

    fn side(&self, direction: Direction) -> &DirectionHealth {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
            Direction::Sync => &self.sync,
        }
    }

    fn side_mut(&mut self, direction: Direction) -> &mut DirectionHealth {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
            Direction::Sync => &mut self.sync,
        }
    }
}

impl<T> Shard<T> {
    /// Records a success or a failure, and logs a change of health.
    pub(super) fn record(&mut self, direction: Direction, healthy: bool) {
        if self.health.record(direction, healthy, self.now) {
            let device = &self.settings.name;
            tracing::warn!(device, ?direction, healthy, "device health changed");
            self.index.write().set_readable(self.health.is_healthy(Direction::Read));
        }
    }

    /// Probes unhealthy directions. A write probe rewrites the superblock with its current
    /// contents. A sync probe does the same first, so that there is something to sync.
    pub(super) fn probe(&mut self) {
        while let Some(direction) = self.health.take_due_probe(self.now) {
            let memory = match direction {
                Direction::Read => &self.pools.read,
                Direction::Write | Direction::Sync => &self.pools.staging,
            };
            let Some(mut buffer) = memory.take(BLOCK_SIZE) else {
                self.record(direction, false);
                continue;
            };
            // The copy that this opening wrote.
            let offset = SUPERBLOCK_OFFSETS[self.superblock.epoch as usize % 2];
            match direction {
                Direction::Read => {
                    let id = self.begin(Purpose::Probe(direction));
                    self.commands.push(IoCommand::Read { id, offset, buffer, length: BLOCK_SIZE });
                }
                Direction::Write => {
                    self.superblock.encode(&mut buffer);
                    self.write(Purpose::Probe(direction), offset, buffer.freeze());
                }
                Direction::Sync => {
                    self.superblock.encode(&mut buffer);
                    self.write(Purpose::SyncProbeWrite, offset, buffer.freeze());
                }
            }
        }
    }

    /// The write of a sync probe has completed or failed.
    pub(super) fn on_sync_probe_written(&mut self, result: Result<(), IoFault>) {
        if result.is_ok() {
            let id = self.begin(Purpose::Probe(Direction::Sync));
            self.commands.push(IoCommand::Sync { id });
        } else {
            self.record(Direction::Sync, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_in_a_row_are_unhealthy_and_one_success_is_healthy() {
        let mut health = Health::default();
        let at = Duration::from_secs;
        assert!(!health.record(Direction::Read, false, at(1)));
        assert!(!health.record(Direction::Read, false, at(1)));
        assert!(!health.record(Direction::Read, true, at(1)));
        for _ in 0..2 {
            assert!(!health.record(Direction::Read, false, at(2)));
        }
        assert!(health.record(Direction::Read, false, at(2)));
        assert!(!health.is_healthy(Direction::Read) && health.is_healthy(Direction::Write));
        assert_eq!(
            (health.take_due_probe(at(2)), health.probe_at()),
            (None, Some(at(2) + PAUSE_MIN))
        );
        assert_eq!(
            (health.take_due_probe(at(3)), health.probe_at()),
            (Some(Direction::Read), None)
        );
        assert!(!health.record(Direction::Read, false, at(3)));
        assert_eq!(health.probe_at(), Some(at(3) + 2 * PAUSE_MIN), "the delay doubles");
        assert!(health.record(Direction::Read, true, at(9)) && health.is_healthy(Direction::Read));
    }

    #[test]
    fn writes_that_succeed_do_not_excuse_failing_syncs() {
        let mut health = Health::default();
        let at = Duration::from_secs;
        for failure in 1..=3 {
            health.record(Direction::Write, true, at(failure));
            let changed = health.record(Direction::Sync, false, at(failure));
            assert_eq!(changed, failure == 3, "failure {failure}");
        }
        assert!(health.is_healthy(Direction::Write) && !health.is_all_healthy());
        assert!(!health.record(Direction::Write, true, at(4)) && !health.is_all_healthy());
        assert!(health.record(Direction::Sync, true, at(5)) && health.is_all_healthy());
    }
}
