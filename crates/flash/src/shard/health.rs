//! Is the device well? Some failures in a row say no, for reading or for writing; then nothing more is
//! asked of it than a probe now and then, until one succeeds (promise 5).

use std::time::Duration;

use super::{Purpose, Shard};
use crate::{
    io::Command,
    layout::{BLOCK_SIZE, SUPERBLOCK_OFFSETS},
};

/// Failures in a row that are too many.
const FAILURES_MAX: u32 = 3;
/// The first probe comes after this, the next after twice as much, and so on.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What a device is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To give.
    Read,
    /// To take.
    Write,
}

/// What is known of a device.
#[derive(Debug, Default)]
pub struct Health {
    read: Side,
    write: Side,
}

#[derive(Debug, Default)]
struct Side {
    failures: u32,
    /// When it is tried again, if it is not well.
    probe: Option<(Duration, Duration)>,
    probing: bool,
}

impl Health {
    /// Whether it may be used.
    pub fn is_well(&self, direction: Direction) -> bool {
        self.side(direction).probe.is_none()
    }

    /// Something went well, or wrong. True if that changed the verdict.
    pub fn observe(&mut self, direction: Direction, well: bool, now: Duration) -> bool {
        let side = self.side_mut(direction);
        side.probing = false;
        if well {
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

    /// When to try again.
    pub fn probe_at(&self) -> Option<Duration> {
        let waiting = [&self.read, &self.write].into_iter().filter(|side| !side.probing);
        waiting.filter_map(|side| side.probe.map(|(at, _)| at)).min()
    }

    fn due(&mut self, now: Duration) -> Option<Direction> {
        [Direction::Read, Direction::Write].into_iter().find(|direction| {
            let side = self.side_mut(*direction);
            let due = !side.probing && side.probe.is_some_and(|(at, _)| at <= now);
            side.probing |= due;
            due
        })
    }

    fn side(&self, direction: Direction) -> &Side {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }

    fn side_mut(&mut self, direction: Direction) -> &mut Side {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
        }
    }
}

impl<T> Shard<T> {
    /// Something went well, or wrong.
    pub(super) fn observe(&mut self, direction: Direction, well: bool) {
        if self.health.observe(direction, well, self.now) {
            let device = &self.settings.name;
            tracing::warn!(device, ?direction, well, "the state of a device changed");
            self.index.write().set_readable(self.health.is_well(Direction::Read));
        }
    }

    /// Tries a device that is not well. What is written is what stands there already.
    pub(super) fn probe(&mut self) {
        while let Some(direction) = self.health.due(self.now) {
            let memory = match direction {
                Direction::Read => &self.memory.reading,
                Direction::Write => &self.memory.staging,
            };
            let Some(mut buffer) = memory.take(BLOCK_SIZE) else {
                self.observe(direction, false);
                continue;
            };
            // The copy that this opening wrote.
            let offset = SUPERBLOCK_OFFSETS[self.superblock.epoch as usize % 2];
            match direction {
                Direction::Read => {
                    let id = self.begin(Purpose::Probe(direction));
                    self.commands.push(Command::Read { id, offset, buffer, length: BLOCK_SIZE });
                }
                Direction::Write => {
                    self.superblock.encode(&mut buffer);
                    self.write(Purpose::Probe(direction), offset, buffer.freeze());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_failures_in_a_row_are_too_many_and_one_success_is_enough() {
        let mut health = Health::default();
        let at = Duration::from_secs;
        assert!(!health.observe(Direction::Read, false, at(1)));
        assert!(!health.observe(Direction::Read, false, at(1)));
        assert!(!health.observe(Direction::Read, true, at(1)));
        for _ in 0..2 {
            assert!(!health.observe(Direction::Read, false, at(2)));
        }
        assert!(health.observe(Direction::Read, false, at(2)));
        assert!(!health.is_well(Direction::Read) && health.is_well(Direction::Write));
        assert_eq!((health.due(at(2)), health.probe_at()), (None, Some(at(2) + PAUSE_MIN)));
        assert_eq!((health.due(at(3)), health.probe_at()), (Some(Direction::Read), None));
        assert!(!health.observe(Direction::Read, false, at(3)));
        assert_eq!(health.probe_at(), Some(at(3) + 2 * PAUSE_MIN), "later and later");
        assert!(health.observe(Direction::Read, true, at(9)) && health.is_well(Direction::Read));
    }
}
