//! Fills: one request to the origin that feeds neighbouring segments.
//!
//! A fill accepts bytes only from an answer that names the expected version and exactly the
//! expected range. It continues where a broken answer ended, and stops at the end of the current
//! segment when no client waits for it any more.
//!
//! Not here: sockets and the memory of the segments, which are the gateway's.

use std::ops::Range;

use super::{
    byte_range::ContentRange,
    etag::StrongEtag,
    read_plan::{SEGMENT_BYTES, SegmentIndex},
};

/// Requests of one fill, the first included.
const ATTEMPTS_MAX: u32 = 4;

/// The head of an origin's answer, as far as a fill depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerHead {
    /// The status code.
    pub status: u16,
    /// The `ETag`, if it is a strong one.
    pub etag: Option<StrongEtag>,
    /// The `Content-Range`, if it is well-formed.
    pub content_range: Option<ContentRange>,
    /// The `Content-Length`.
    pub content_length: Option<u64>,
    /// Whether the body is encoded other than the object, such as by `Content-Encoding: gzip` that
    /// the object's own head does not have.
    pub is_other_encoding: bool,
}

/// Why a fill ended without all of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// The object has another version now, or is gone.
    #[error("the object has changed")]
    Changed,
    /// The origin refuses the principal that fetches.
    #[error("the origin refuses the principal")]
    Refused,
    /// The origin was busy or unreachable, or its answers broke, in all attempts.
    #[error("the origin does not answer")]
    Unavailable,
    /// The origin's answer contradicts itself or the request.
    #[error("the origin's answer is not usable")]
    Unusable,
}

/// What to do after a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOutcome {
    /// The body begins at the fill's position.
    Accepted,
    /// The origin is busy: request again, after a pause.
    Retry,
    /// The fill has failed.
    Failed(FillError),
}

/// What to do after a body has ended or broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOutcome {
    /// All bytes are there.
    Complete,
    /// Request the rest.
    Retry,
    /// The fill has failed.
    Failed(FillError),
}

/// A fill in progress.
#[derive(Debug, Clone)]
pub struct Fill {
    etag: StrongEtag,
    object_length: u64,
    position: u64,
    end: u64,
    attempts: u32,
}

impl Fill {
    /// A fill of these bytes of a version.
    pub fn new(etag: StrongEtag, object_length: u64, bytes: &Range<u64>) -> Self {
        assert!(!bytes.is_empty() && bytes.end <= object_length, "a fill has bytes to fetch");
        Self { etag, object_length, position: bytes.start, end: bytes.end, attempts: 1 }
    }

    /// The bytes that are missing.
    pub fn missing(&self) -> Range<u64> {
        self.position..self.end
    }

    /// Number of the current request, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempts
    }

    /// The origin has answered a request for [`Fill::missing`] with `If-Match`.
    pub fn on_head(&mut self, head: &AnswerHead) -> HeadOutcome {
        let failed = HeadOutcome::Failed;
        match head.status {
            200 | 206 => {}
            401 | 403 => return failed(FillError::Refused),
            404 | 410 | 412 | 416 => return failed(FillError::Changed),
            429 | 500 | 502..=504 => return self.retry().unwrap_or_else(failed),
            _ => return failed(FillError::Unusable),
        }
        match &head.etag {
            Some(etag) if *etag == self.etag => {}
            // An origin that ignores `If-Match`.
            Some(_) => return failed(FillError::Changed),
            None => return failed(FillError::Unusable),
        }
        if head.is_other_encoding {
            return failed(FillError::Unusable);
        }
        let expected = if head.status == 206 {
            let Some(range) = &head.content_range else { return failed(FillError::Unusable) };
            let is_whole = range.length.is_none_or(|length| length == self.object_length);
            if range.bytes != self.missing() || !is_whole {
                return failed(FillError::Unusable);
            }
            self.end - self.position
        } else {
            // An origin that ignores ranges: the body is the object from its beginning.
            if self.position != 0 {
                return failed(FillError::Unusable);
            }
            self.object_length
        };
        if head.content_length.is_some_and(|length| length != expected) {
            return failed(FillError::Unusable);
        }
        HeadOutcome::Accepted
    }

    /// Bytes of the body have arrived. Returns how many of them belong to the fill; the rest is
    /// beyond its end.
    pub fn on_bytes(&mut self, length: usize) -> usize {
        let missing = self.end - self.position;
        let taken = (length as u64).min(missing);
        self.position += taken;
        usize::try_from(taken).expect("at most the given length")
    }

    /// The body has ended, or broken.
    pub fn on_end(&mut self) -> EndOutcome {
        if self.position == self.end {
            return EndOutcome::Complete;
        }
        match self.retry() {
            Ok(_) => EndOutcome::Retry,
            Err(error) => EndOutcome::Failed(error),
        }
    }

    /// No answer came.
    pub fn on_no_answer(&mut self) -> HeadOutcome {
        self.retry().unwrap_or_else(HeadOutcome::Failed)
    }

    /// No client waits for the fill any more. It ends with the segment that has begun; true if that
    /// is now.
    pub fn on_abandoned(&mut self) -> bool {
        let has_begun = !self.position.is_multiple_of(SEGMENT_BYTES);
        let current = SegmentIndex::of(self.position).bytes(self.object_length);
        let stop = if has_begun { current.end } else { self.position };
        self.end = self.end.min(stop);
        self.position == self.end
    }

    /// A body that brings bytes earns new attempts.
    pub fn on_progress(&mut self) {
        self.attempts = 1;
    }

    fn retry(&mut self) -> Result<HeadOutcome, FillError> {
        if self.attempts == ATTEMPTS_MAX {
            return Err(FillError::Unavailable);
        }
        self.attempts += 1;
        Ok(HeadOutcome::Retry)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn etag(text: &str) -> StrongEtag {
        StrongEtag::parse(format!("\"{text}\"").as_bytes()).unwrap()
    }

    fn fill(bytes: Range<u64>) -> Fill {
        Fill::new(etag("a"), 1000, &bytes)
    }

    fn partial(bytes: Range<u64>) -> AnswerHead {
        AnswerHead {
            status: 206,
            etag: Some(etag("a")),
            content_length: Some(bytes.end - bytes.start),
            content_range: Some(ContentRange { bytes, length: Some(1000) }),
            is_other_encoding: false,
        }
    }

    /// Promise 1: never wrong bytes.
    #[test]
    fn only_the_expected_bytes_of_the_expected_version_are_accepted() {
        let good = partial(100..200);
        assert_eq!(fill(100..200).on_head(&good), HeadOutcome::Accepted);
        let unusable = HeadOutcome::Failed(FillError::Unusable);
        let changed = HeadOutcome::Failed(FillError::Changed);
        let range = |bytes, length| Some(ContentRange { bytes, length });
        for (head, expected) in [
            (AnswerHead { etag: Some(etag("b")), ..good.clone() }, changed),
            (AnswerHead { etag: None, ..good.clone() }, unusable),
            (AnswerHead { content_range: None, ..good.clone() }, unusable),
            (AnswerHead { content_range: range(100..199, Some(1000)), ..good.clone() }, unusable),
            (AnswerHead { content_range: range(101..200, Some(1000)), ..good.clone() }, unusable),
            (AnswerHead { content_range: range(100..200, Some(999)), ..good.clone() }, unusable),
            (AnswerHead { content_length: Some(99), ..good.clone() }, unusable),
            (AnswerHead { is_other_encoding: true, ..good.clone() }, unusable),
            (AnswerHead { status: 200, ..good.clone() }, unusable),
            (AnswerHead { status: 307, ..good.clone() }, unusable),
            (AnswerHead { status: 412, ..good.clone() }, changed),
            (AnswerHead { status: 404, ..good.clone() }, changed),
            (AnswerHead { status: 403, ..good }, HeadOutcome::Failed(FillError::Refused)),
        ] {
            assert_eq!(fill(100..200).on_head(&head), expected, "{head:?}");
        }
    }

    #[test]
    fn an_origin_that_ignores_ranges_serves_the_beginning() {
        let whole = AnswerHead {
            status: 200,
            content_range: None,
            content_length: Some(1000),
            ..partial(0..1000)
        };
        let mut fill = fill(0..300);
        assert_eq!(fill.on_head(&whole), HeadOutcome::Accepted);
        assert_eq!((fill.on_bytes(200), fill.on_bytes(200)), (200, 100));
        assert_eq!(fill.on_end(), EndOutcome::Complete);
    }

    #[test]
    fn a_broken_body_is_continued_where_it_ended() {
        let mut fill = fill(100..200);
        assert_eq!(fill.on_head(&partial(100..200)), HeadOutcome::Accepted);
        assert_eq!(fill.on_bytes(30), 30);
        assert_eq!(fill.on_end(), EndOutcome::Retry);
        assert_eq!(fill.missing(), 130..200);
        assert_eq!(fill.on_head(&partial(130..200)), HeadOutcome::Accepted);
        assert_eq!(fill.on_bytes(70), 70);
        assert_eq!(fill.on_end(), EndOutcome::Complete);
    }

    #[test]
    fn an_origin_that_stays_busy_ends_the_fill() {
        let mut fill = fill(100..200);
        let busy = AnswerHead { status: 503, ..partial(100..200) };
        for _ in 1..ATTEMPTS_MAX {
            assert_eq!(fill.on_head(&busy), HeadOutcome::Retry);
        }
        assert_eq!(fill.on_no_answer(), HeadOutcome::Failed(FillError::Unavailable));
    }

    #[test]
    fn an_abandoned_fill_ends_with_its_segment() {
        let length = 3 * SEGMENT_BYTES + 10;
        let new = || Fill::new(etag("a"), length, &(0..length));
        assert!(new().on_abandoned(), "nothing has begun");
        let mut fill = new();
        fill.on_bytes(100);
        assert!(!fill.on_abandoned());
        assert_eq!(fill.missing(), 100..SEGMENT_BYTES);
    }

    proptest! {
        /// Promise 1: whatever the chunks and breaks, a fill takes each byte once and in order.
        #[test]
        fn a_fill_takes_each_byte_once(
            start in 0..500_u64, length in 1..500_u64,
            events in proptest::collection::vec((0..80_usize, any::<bool>()), 0..40),
        ) {
            let mut fill = fill(start..start + length);
            let mut taken = 0;
            for (chunk, breaks) in events {
                prop_assert_eq!(fill.missing(), start + taken..start + length);
                taken += fill.on_bytes(chunk) as u64;
                if breaks {
                    match fill.on_end() {
                        EndOutcome::Complete => prop_assert_eq!(taken, length),
                        EndOutcome::Retry => prop_assert!(taken < length),
                        EndOutcome::Failed(error) => {
                            prop_assert_eq!(error, FillError::Unavailable);
                            break;
                        }
                    }
                }
            }
        }
    }
}
