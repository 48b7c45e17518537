//! Limits on requests and bytes in flight (promise 6).
//!
//! Small objects need many requests to hide latency, large ones few to bound memory. One semaphore
//! for each gives both.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::PIECE;

/// Most bytes in flight: sixteen reads of full size.
const BYTES_MAX: u64 = 16 * PIECE;
/// Bytes per permit, because a semaphore counts in 32 bits.
const UNIT: u64 = 4096;

#[derive(Debug, Clone)]
pub struct Limits {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Limits {
    pub fn new(requests_max: usize) -> Self {
        let units = usize::try_from(BYTES_MAX / UNIT).expect("fits");
        Self {
            requests: Arc::new(Semaphore::new(requests_max.max(1))),
            bytes: Arc::new(Semaphore::new(units)),
        }
    }

    /// Waits until a request for `bytes` bytes may start. The caller drops the permits when it
    /// ends.
    pub async fn admit(&self, bytes: u64) -> (SemaphorePermit<'_>, SemaphorePermit<'_>) {
        let units = bytes.min(BYTES_MAX).div_ceil(UNIT);
        let units = u32::try_from(units).expect("BYTES_MAX is small");
        // Always in this order, to avoid deadlock.
        let bytes = self.bytes.acquire_many(units).await.expect("never closed");
        let request = self.requests.acquire().await.expect("never closed");
        (request, bytes)
    }
}
