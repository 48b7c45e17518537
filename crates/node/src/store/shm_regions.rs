//! Segments: memory that the node shares with clients of its machine, within a limit for all of them.
//!
//! What a segment takes counts until both sides have let go: a client that hangs up and keeps its mapping
//! keeps its share of the limit, and nothing else of the node's.

use std::{os::fd::OwnedFd, sync::Arc};

use forebay_core::{ByteSize, slots::PAGE};
use forebay_segment::{Remains, SIZE_MAX, SIZE_MIN, Segment};
use forebay_wire::ErrorCode;
use parking_lot::Mutex;

use crate::{counters::Counters, node::Refused};

/// All segments of a node.
pub(crate) struct Segments {
    limit: u64,
    lent: Mutex<Lent>,
}

#[derive(Default)]
struct Lent {
    /// Bytes of all segments that somebody may still hold.
    bytes: u64,
    /// Those that the node has left, with their sizes.
    left: Vec<(Remains, u64)>,
}

impl Lent {
    /// Takes note of those whom their clients have left, too.
    fn look(&mut self) {
        let bytes = &mut self.bytes;
        self.left.retain(|(remains, size)| {
            let is_gone = remains.is_gone();
            *bytes -= if is_gone { *size } else { 0 };
            !is_gone
        });
    }
}

impl Segments {
    /// So much for all of them together.
    pub fn new(limit: ByteSize) -> Arc<Self> {
        Arc::new(Self { limit: limit.0, lent: Mutex::default() })
    }

    /// Bytes of all segments that somebody may still hold.
    pub fn bytes(&self) -> u64 {
        let mut lent = self.lent.lock();
        lent.look();
        lent.bytes
    }

    /// Makes a segment of this size, or of the largest that there is; nothing, if that is too little, or there is
    /// no memory left for it. Takes as long as it takes to touch that memory.
    pub fn make(self: &Arc<Self>, size: u64) -> Option<(Arc<Segment>, OwnedFd)> {
        let size = size.min(SIZE_MAX as u64) / u64::from(PAGE) * u64::from(PAGE);
        {
            let mut lent = self.lent.lock();
            lent.look();
            if size < SIZE_MIN as u64 || lent.bytes + size > self.limit {
                return None;
            }
            lent.bytes += size;
        }
        let all = Arc::clone(self);
        let on_leaving = move |remains| {
            let mut lent = all.lent.lock();
            lent.left.push((remains, size));
            lent.look();
        };
        let made = Segment::new(usize::try_from(size).expect("at most SIZE_MAX"), on_leaving);
        match made {
            Ok(made) => Some(made),
            Err(error) => {
                tracing::warn!(%error, "cannot make a segment; its client goes on over the socket");
                self.lent.lock().bytes -= size;
                None
            }
        }
    }
}

/// What a connection has of them.
#[derive(Default)]
pub(crate) enum Own {
    /// It has not asked yet.
    #[default]
    Unasked,
    /// One.
    Lent(Arc<Segment>),
    /// None: it was told no, or has misbehaved.
    Without,
}

impl Own {
    /// It asks, which it may do once.
    pub fn ask(&mut self) -> Result<(), Refused> {
        match self {
            Self::Unasked => {
                *self = Self::Without;
                Ok(())
            }
            _ => Err((ErrorCode::Malformed, "a connection asks for a segment once".to_owned())),
        }
    }

    /// Lets go of slots; what is left is where bytes may be placed. Whoever lets go of what it does not hold
    /// loses its segment.
    pub fn release(
        &mut self,
        released: &[u32],
        counters: &Counters,
    ) -> Result<Option<Arc<Segment>>, Refused> {
        let Self::Lent(segment) = self else {
            if released.is_empty() {
                return Ok(None);
            }
            return Err((ErrorCode::Malformed, "you have no segment to let go of".to_owned()));
        };
        match segment.release(released) {
            Ok(()) => Ok(Some(Arc::clone(segment))),
            Err(problem) => {
                *self = Self::Without;
                counters.segments_lost.one();
                Err((ErrorCode::Malformed, problem.to_string()))
            }
        }
    }
}
