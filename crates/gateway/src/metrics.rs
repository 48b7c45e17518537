//! Metrics of the gateway, `forebay_gateway_*`.

use forebay_transport::counters::Row;

use crate::objects::ObjectCounters;

forebay_transport::counters! {
    /// The counters of a gateway.
    GatewayCounters;
    /// Connections to the S3 endpoint that were accepted.
    gateway_connections,
    /// Connections beyond the limit, whose requests are answered with 503 SlowDown.
    gateway_connections_over_limit,
    /// Requests to the S3 endpoint.
    gateway_requests,
    /// GET and HEAD requests that the object path answered.
    gateway_requests_served,
    /// Requests that were passed to the origin because the object path does not answer them.
    gateway_requests_passed,
    /// Requests refused by the checks before the signature: unsigned, other mechanisms, skew.
    gateway_requests_refused,
    /// Requests whose signature or access key was wrong.
    gateway_signatures_refused,
    /// Requests answered with 503 SlowDown because a limit was reached.
    gateway_slow_downs,
    /// Objects forgotten because a client wrote or deleted them.
    gateway_invalidations,
    /// Requests sent to the origin, with repeated ones.
    gateway_origin_requests,
    /// Reads that were sent to the origin a second time.
    gateway_origin_retries,
    /// Requests without an answer of the origin, and bodies that broke.
    gateway_origin_failures,
    /// Bytes of bodies received from the origin.
    gateway_origin_received_bytes,
    /// Bytes of bodies sent to the origin.
    gateway_origin_sent_bytes,
}

/// Values of a gateway at one time.
#[derive(Debug, Clone, Copy, Default)]
pub struct GatewayGauges {
    /// Open connections.
    pub connections_open: u64,
    /// Requests in progress.
    pub requests_open: u64,
    /// Bytes reserved for bodies in flight.
    pub reserved_bytes: u64,
}

impl GatewayGauges {
    /// Name, meaning and value of each gauge.
    pub fn rows(&self) -> Vec<Row> {
        vec![
            (
                "gateway_connections_open",
                "Open connections to the S3 endpoint.",
                self.connections_open,
            ),
            (
                "gateway_requests_open",
                "Requests to the S3 endpoint in progress.",
                self.requests_open,
            ),
            (
                "gateway_memory_reserved_bytes",
                "Memory reserved for bodies in flight.",
                self.reserved_bytes,
            ),
        ]
    }
}

/// Gauges and counters, as a node shows them.
#[derive(Debug, Clone, Default)]
pub struct GatewayRows {
    /// The gauges.
    pub gauges: Vec<Row>,
    /// The counters.
    pub counters: Vec<Row>,
}

/// The counters of the front and of the object path.
pub(crate) fn counter_rows(front: &GatewayCounters, objects: &ObjectCounters) -> Vec<Row> {
    front.all().into_iter().chain(objects.rows()).collect()
}

/// All rows with the value 0, for the reference page.
pub fn empty_rows() -> GatewayRows {
    GatewayRows {
        gauges: GatewayGauges::default().rows(),
        counters: counter_rows(&GatewayCounters::default(), &ObjectCounters::default()),
    }
}
