//! Counters of an agent. `stats` and the loader's `stats()` show them with the prefix `agent_`.

forebay_transport::counters! {
    /// Counters of an agent.
    AgentCounters;
    /// Ranges sent to the job.
    gets,
    /// Items sent to the job. The ranges of an item over 16 MiB count as one.
    items,
    /// Blobs read from the origin, for any reason.
    origin_fetches,
    /// Bytes read from the origin.
    origin_bytes,
    /// Transfers from the origin whose bytes did not hash to the blob's address. The first of a
    /// blob is repeated, the second is an error.
    transfers_damaged,
    /// Blobs of nodes whose bytes did not hash to their address. They are fetched again.
    hash_mismatches,
    /// Blobs of which a process of the job has received wrong bytes. They are read again.
    wrong_bytes_reported,
    /// Blobs read without a claim because the node failed or a wait timed out.
    fallbacks,
    /// Bytes of those.
    fallback_bytes,
    /// Those of them that were due to a node of a cluster.
    fallbacks_ring,
    /// Blobs read without a claim because the node would not keep them.
    uncached,
    /// Bytes of those.
    uncached_bytes,
    /// Blobs read from the origin as probes, which measure the benefit of the cache.
    probes,
    /// Bytes of those.
    probe_bytes,
    /// Connections to nodes whose list differs from the one in use.
    ring_differs,
    /// Connections that reached another node than expected.
    ring_wrong,
    /// Changes of the list of nodes.
    ring_changes,
    /// Blobs that the node did not store.
    puts_refused,
    /// Bytes of those.
    puts_refused_bytes,
}

impl AgentCounters {
    /// Names and values, as they are sent.
    pub fn pairs(&self) -> Vec<(String, u64)> {
        self.all().into_iter().map(|(name, _, value)| (format!("agent_{name}"), value)).collect()
    }
}

/// Name, meaning and initial value of every counter of an agent, for the reference page.
pub fn metric_rows() -> Vec<forebay_transport::counters::Row> {
    AgentCounters::default().all()
}
