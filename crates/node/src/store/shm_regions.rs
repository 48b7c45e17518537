//! Shm regions: memory that the node shares with clients of its machine, up to `shared_memory` in
//! total.
//!
//! A region counts until both sides have unmapped it. A client that closes its connection and keeps
//! its mapping keeps its share of the limit, and nothing else of the node's.

use std::{io, os::fd::OwnedFd, sync::Arc};

use forebay_core::{ByteSize, node::shm_slots::PAGE};
use forebay_shm::{DetachedRegion, NewRegion, SIZE_MAX, SIZE_MIN, ShmRegion};
use forebay_wire::ErrorCode;
use parking_lot::Mutex;

use crate::{ops::metrics::Counters, requests::service::Refused};

/// Bytes of a region that are allocated at a time.
const ALLOCATED_PER_SLICE: usize = 8 << 20;

/// All shm regions of a node.
pub(crate) struct ShmRegions {
    limit: u64,
    usage: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    /// Bytes of all regions that a client may still map.
    bytes: u64,
    /// Regions that the node has unmapped, with their sizes.
    detached: Vec<(DetachedRegion, u64)>,
}

impl Usage {
    /// Subtracts the regions that their clients have unmapped as well.
    fn update(&mut self) {
        let bytes = &mut self.bytes;
        self.detached.retain(|(region, size)| {
            let is_free = region.is_free();
            *bytes -= if is_free { *size } else { 0 };
            !is_free
        });
    }
}

impl ShmRegions {
    /// Regions of at most `limit` bytes together.
    pub fn new(limit: ByteSize) -> Arc<Self> {
        Arc::new(Self { limit: limit.0, usage: Mutex::default() })
    }

    /// Bytes of all regions that a client may still map.
    pub fn bytes(&self) -> u64 {
        let mut usage = self.usage.lock();
        usage.update();
        usage.bytes
    }

    /// Begins a region of this size, or of the largest size. `None` if the size is too small, or
    /// the limit is reached.
    pub fn begin(self: &Arc<Self>, size: u64) -> Option<RegionInProgress> {
        let size = size.min(SIZE_MAX as u64) / u64::from(PAGE) * u64::from(PAGE);
        {
            let mut usage = self.usage.lock();
            usage.update();
            if size < SIZE_MIN as u64 || usage.bytes + size > self.limit {
                return None;
            }
            usage.bytes += size;
        }
        let (regions, region) = (Arc::clone(self), None);
        Some(RegionInProgress { regions, size, region, is_complete: false })
    }
}

/// A region whose memory is being allocated, some at a time.
pub(crate) struct RegionInProgress {
    regions: Arc<ShmRegions>,
    size: u64,
    region: Option<NewRegion>,
    is_complete: bool,
}

/// The state of a region after some of its memory was allocated.
pub(crate) enum Progress {
    More(RegionInProgress),
    /// `None` if the memory could not be allocated.
    Done(Option<(Arc<ShmRegion>, OwnedFd)>),
}

impl RegionInProgress {
    /// Allocates some more memory: 2 ms.
    pub fn advance(mut self) -> Progress {
        match self.allocate() {
            Ok(None) => Progress::More(self),
            Ok(created) => Progress::Done(created),
            Err(error) => {
                tracing::warn!(%error, "shm region not created; its client uses the socket");
                Progress::Done(None)
            }
        }
    }

    fn allocate(&mut self) -> io::Result<Option<(Arc<ShmRegion>, OwnedFd)>> {
        let mut region = match self.region.take() {
            Some(region) => region,
            None => NewRegion::new(usize::try_from(self.size).expect("at most SIZE_MAX"))?,
        };
        if !region.allocate(ALLOCATED_PER_SLICE)? {
            self.region = Some(region);
            return Ok(None);
        }
        let (regions, size) = (Arc::clone(&self.regions), self.size);
        let created = region.finish(move |region| {
            let mut usage = regions.usage.lock();
            usage.detached.push((region, size));
            usage.update();
        })?;
        self.is_complete = true;
        Ok(Some(created))
    }
}

impl Drop for RegionInProgress {
    fn drop(&mut self) {
        if !self.is_complete {
            self.regions.usage.lock().bytes -= self.size;
        }
    }
}

/// The shm region of a connection.
#[derive(Default)]
pub(crate) enum ShmGrant {
    /// Not requested yet.
    #[default]
    NotRequested,
    /// Granted.
    Granted(Arc<ShmRegion>),
    /// Refused, or revoked after a violation.
    Denied,
}

impl ShmGrant {
    /// The client requests a region, which it may do once.
    pub fn on_request(&mut self) -> Result<(), Refused> {
        if !matches!(self, Self::NotRequested) {
            let text = "a connection may request one shm region".to_owned();
            return Err((ErrorCode::Malformed, text));
        }
        *self = Self::Denied;
        Ok(())
    }

    /// The client releases slots. Returns the region, if it has one. A client that releases a slot
    /// that it does not hold loses its region.
    pub fn release(
        &mut self,
        released: &[u32],
        counters: &Counters,
    ) -> Result<Option<Arc<ShmRegion>>, Refused> {
        let Self::Granted(region) = self else {
            if released.is_empty() {
                return Ok(None);
            }
            let text = "slots released without a shm region".to_owned();
            return Err((ErrorCode::Malformed, text));
        };
        match region.release(released) {
            Ok(()) => Ok(Some(Arc::clone(region))),
            Err(problem) => {
                *self = Self::Denied;
                counters.shm_regions_revoked.one();
                Err((ErrorCode::Malformed, problem.to_string()))
            }
        }
    }
}
