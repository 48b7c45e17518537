//! Read plans: from a byte range of one version to the segments that answer it.
//!
//! Each segment of the range is in one of four states. Neighbours that have to be fetched and are
//! admitted become one request to the origin for whole segments. Neighbours that are not admitted
//! become one request for exactly the bytes asked for.

use std::ops::Range;

/// Length of a segment, except for the last one of an object.
pub const SEGMENT_BYTES: u64 = 256 << 10;

/// Position of a segment in its object, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentIndex(pub u64);

/// State of one segment when a request arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentState {
    /// In memory or on flash.
    Resident,
    /// Another request is fetching it.
    Fetching,
    /// Absent, and to be stored.
    Admitted,
    /// Absent, and not to be stored.
    Passed,
}

/// One part of a plan. The bytes of all parts, in order, are those of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanStep {
    /// From memory or flash.
    Send(SegmentPart),
    /// From a fetch in progress.
    Join(SegmentPart),
    /// From the origin, by one new request.
    Fetch(FetchStep),
}

/// A part of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentPart {
    /// The segment.
    pub segment: SegmentIndex,
    /// The bytes of the object to send; inside the segment.
    pub bytes: Range<u64>,
}

/// A request to the origin for neighbouring segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchStep {
    /// The bytes of the object to send; inside `fetched`.
    pub sent: Range<u64>,
    /// The bytes of the object to fetch.
    pub fetched: Range<u64>,
    /// The first segment.
    pub first: SegmentIndex,
    /// Number of segments.
    pub count: usize,
    /// Whether the segments are stored.
    pub is_admitted: bool,
}

impl SegmentIndex {
    /// The segment that holds this byte.
    pub fn of(offset: u64) -> Self {
        Self(offset / SEGMENT_BYTES)
    }

    /// The bytes of the segment in an object of this length.
    pub fn bytes(self, object_length: u64) -> Range<u64> {
        let start = self.0.saturating_mul(SEGMENT_BYTES).min(object_length);
        start..start.saturating_add(SEGMENT_BYTES).min(object_length)
    }

    /// The segments that overlap these bytes, which are not empty.
    pub fn overlapping(bytes: &Range<u64>) -> impl Iterator<Item = Self> + use<> {
        (bytes.start / SEGMENT_BYTES..bytes.end.div_ceil(SEGMENT_BYTES)).map(Self)
    }
}

/// Plans the bytes `wanted` of an object. One fetch has at most `fetch_segments_max` segments.
pub fn plan(
    wanted: &Range<u64>,
    object_length: u64,
    fetch_segments_max: usize,
    mut state: impl FnMut(SegmentIndex) -> SegmentState,
) -> Vec<PlanStep> {
    assert!(wanted.end <= object_length, "the range was resolved against the object");
    let mut steps = Vec::new();
    if wanted.is_empty() {
        return steps;
    }
    for segment in SegmentIndex::overlapping(wanted) {
        let whole = segment.bytes(object_length);
        let sent = whole.start.max(wanted.start)..whole.end.min(wanted.end);
        let is_admitted = match state(segment) {
            SegmentState::Resident => {
                steps.push(PlanStep::Send(SegmentPart { segment, bytes: sent }));
                continue;
            }
            SegmentState::Fetching => {
                steps.push(PlanStep::Join(SegmentPart { segment, bytes: sent }));
                continue;
            }
            SegmentState::Admitted => true,
            SegmentState::Passed => false,
        };
        let fetched = if is_admitted { whole } else { sent.clone() };
        match steps.last_mut() {
            Some(PlanStep::Fetch(fetch))
                if fetch.is_admitted == is_admitted && fetch.count < fetch_segments_max =>
            {
                fetch.sent.end = sent.end;
                fetch.fetched.end = fetched.end;
                fetch.count += 1;
            }
            _ => steps.push(PlanStep::Fetch(FetchStep {
                sent,
                fetched,
                first: segment,
                count: 1,
                is_admitted,
            })),
        }
    }
    steps
}

impl PlanStep {
    /// The bytes that the step sends.
    pub fn sent(&self) -> &Range<u64> {
        match self {
            Self::Send(part) | Self::Join(part) => &part.bytes,
            Self::Fetch(fetch) => &fetch.sent,
        }
    }
}

impl FetchStep {
    /// The parts of segments that are fetched.
    pub fn parts(&self, object_length: u64) -> impl Iterator<Item = SegmentPart> + use<> {
        let Range { start, end } = self.fetched;
        (self.first.0..).take(self.count).map(move |segment| {
            let segment = SegmentIndex(segment);
            let whole = segment.bytes(object_length);
            SegmentPart { segment, bytes: whole.start.max(start)..whole.end.min(end) }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = SEGMENT_BYTES;

    fn states(text: &str) -> impl FnMut(SegmentIndex) -> SegmentState {
        move |SegmentIndex(at)| match text.as_bytes()[usize::try_from(at).unwrap()] {
            b'r' => SegmentState::Resident,
            b'f' => SegmentState::Fetching,
            b'a' => SegmentState::Admitted,
            _ => SegmentState::Passed,
        }
    }

    #[test]
    fn neighbours_to_fetch_are_one_request() {
        let steps = plan(&(100..4 * S), 4 * S, 32, states("aapr"));
        let [PlanStep::Fetch(kept), PlanStep::Fetch(passed), PlanStep::Send(last)] = &steps[..]
        else {
            panic!("{steps:?}")
        };
        assert_eq!((kept.fetched.clone(), kept.sent.clone()), (0..2 * S, 100..2 * S));
        assert!(kept.is_admitted && !passed.is_admitted);
        assert_eq!(passed.fetched, 2 * S..3 * S);
        assert_eq!(*last, SegmentPart { segment: SegmentIndex(3), bytes: 3 * S..4 * S });
    }

    #[test]
    fn a_range_that_is_not_admitted_costs_the_bytes_asked_for() {
        let wanted = 100..S + 7;
        let steps = plan(&wanted, 4 * S, 32, states("pppp"));
        let [PlanStep::Fetch(fetch)] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!(fetch.fetched, wanted);
    }

    #[test]
    fn nothing_is_planned_for_nothing() {
        assert_eq!(plan(&(0..0), 0, 32, states("")), []);
    }

    proptest! {
        #[test]
        fn a_plan_sends_the_range_once_and_fetches_no_more_than_needed(
            kinds in proptest::collection::vec(0..4_u8, 1..12),
            tail in 1..=S,
            (start, length) in (0..12 * S, 1..12 * S),
            fetch_segments_max in 1..6_usize,
        ) {
            let object_length = (kinds.len() as u64 - 1) * S + tail;
            let start = start % object_length;
            let wanted = start..(start + length).min(object_length);
            let state = |SegmentIndex(at)| match kinds[usize::try_from(at).unwrap()] {
                0 => SegmentState::Resident,
                1 => SegmentState::Fetching,
                2 => SegmentState::Admitted,
                _ => SegmentState::Passed,
            };
            let steps = plan(&wanted, object_length, fetch_segments_max, state);
            let mut at = wanted.start;
            for step in &steps {
                prop_assert_eq!(step.sent().start, at);
                prop_assert!(step.sent().end > at);
                at = step.sent().end;
                match step {
                    PlanStep::Send(part) => {
                        prop_assert_eq!(state(part.segment), SegmentState::Resident);
                    }
                    PlanStep::Join(part) => {
                        prop_assert_eq!(state(part.segment), SegmentState::Fetching);
                    }
                    PlanStep::Fetch(fetch) => {
                        prop_assert!(fetch.count <= fetch_segments_max);
                        let mut covered = fetch.fetched.start;
                        for part in fetch.parts(object_length) {
                            prop_assert_eq!(part.bytes.start, covered);
                            prop_assert!(!part.bytes.is_empty());
                            covered = part.bytes.end;
                            if fetch.is_admitted {
                                prop_assert_eq!(state(part.segment), SegmentState::Admitted);
                                prop_assert_eq!(part.bytes, part.segment.bytes(object_length));
                            } else {
                                prop_assert_eq!(state(part.segment), SegmentState::Passed);
                            }
                        }
                        if !fetch.is_admitted {
                            prop_assert_eq!(&fetch.fetched, &fetch.sent);
                        }
                        prop_assert_eq!(covered, fetch.fetched.end);
                        prop_assert!(fetch.sent.start >= fetch.fetched.start);
                        prop_assert!(fetch.sent.end <= fetch.fetched.end);
                    }
                }
            }
            prop_assert_eq!(at, wanted.end);
        }
    }
}
