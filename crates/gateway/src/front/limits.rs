//! `EndpointLimits` of the endpoint: connections, requests and bytes in flight.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::metrics::GatewayGauges;

/// Memory that a request may hold in buffers: those of both sockets, and one frame in each
/// direction.
const REQUEST_BYTES: u64 = 512 << 10;

/// What is in use, and the most that may be.
#[derive(Debug)]
pub struct EndpointLimits {
    connections_max: u64,
    requests_max: u64,
    bytes_max: u64,
    connections: AtomicU64,
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// A connection within the limit.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<EndpointLimits>);

/// A request within the limits, with the bytes that it reserved.
#[derive(Debug)]
pub struct RequestPermit {
    limits: Arc<EndpointLimits>,
    bytes: u64,
}

fn take(counter: &AtomicU64, amount: u64, max: u64) -> bool {
    let add = |current: u64| current.checked_add(amount).filter(|sum| *sum <= max);
    counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
}

impl EndpointLimits {
    /// `EndpointLimits` of the endpoint.
    pub fn new(connections_max: usize, requests_max: usize, bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            connections_max: connections_max as u64,
            requests_max: requests_max as u64,
            bytes_max,
            connections: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// A connection, or `None` if all are in use.
    pub fn connection(self: &Arc<Self>) -> Option<ConnectionPermit> {
        take(&self.connections, 1, self.connections_max).then(|| ConnectionPermit(Arc::clone(self)))
    }

    /// A request with its buffers, or `None` if a limit is reached.
    pub fn request(self: &Arc<Self>) -> Option<RequestPermit> {
        if !take(&self.requests, 1, self.requests_max) {
            return None;
        }
        let mut permit = RequestPermit { limits: Arc::clone(self), bytes: 0 };
        permit.reserve(REQUEST_BYTES).then_some(permit)
    }

    /// What is in use.
    pub fn gauges(&self) -> GatewayGauges {
        GatewayGauges {
            connections_open: self.connections.load(Ordering::Relaxed),
            requests_open: self.requests.load(Ordering::Relaxed),
            reserved_bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

impl RequestPermit {
    /// Reserves more bytes. `false` if the limit is reached.
    pub fn reserve(&mut self, bytes: u64) -> bool {
        let reserved = take(&self.limits.bytes, bytes, self.limits.bytes_max);
        if reserved {
            self.bytes += bytes;
        }
        reserved
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.limits.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.limits.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let limits = EndpointLimits::new(1, 2, 2 * REQUEST_BYTES + 10);
        let connection = limits.connection().unwrap();
        assert!(limits.connection().is_none());
        let (mut first, second) = (limits.request().unwrap(), limits.request().unwrap());
        assert!(limits.request().is_none(), "the third request");
        assert!(!first.reserve(11) && first.reserve(10) && !first.reserve(1));
        drop((connection, first, second));
        let GatewayGauges { connections_open, requests_open, reserved_bytes } = limits.gauges();
        assert_eq!((connections_open, requests_open, reserved_bytes), (0, 0, 0));
    }

    #[test]
    fn bytes_limit_requests_too() {
        let limits = EndpointLimits::new(1, 100, REQUEST_BYTES);
        let first = limits.request().unwrap();
        assert!(limits.request().is_none());
        assert_eq!(limits.gauges().requests_open, 1, "a request that failed counts no longer");
        drop(first);
        assert!(limits.request().is_some());
    }
}
