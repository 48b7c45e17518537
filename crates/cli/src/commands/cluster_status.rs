//! The nodes of a cluster as `forebay status` and `forebay doctor` show them: the state of each.

use std::{collections::BTreeMap, thread, time::Duration};

use forebay_auth::Credentials;
use forebay_client::{Client, ClientError};
use forebay_core::{
    ByteSize,
    cluster::ring::{Member, RingChange, RingMembership, RingView},
};
use serde::Serialize;

use crate::output;

/// A node that does not answer within this time counts as hung.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Nodes that are queried in parallel.
const PARALLEL_QUERIES: usize = 32;

/// The state of a node without problems.
const HEALTHY: &str = "healthy";

/// The state of one node.
#[derive(Debug, Serialize)]
pub struct NodeStatus {
    name: String,
    endpoint: String,
    weight: f64,
    zone: Option<String>,
    /// `healthy`, `down`, `hung`, `refused`, `wrong node` or `other list`.
    state: &'static str,
    /// The reason, and the remedy.
    detail: String,
    /// Its counters, if it answered.
    counters: BTreeMap<String, u64>,
}

impl NodeStatus {
    /// A description of the problem, unless the node is healthy.
    pub fn problem(&self) -> Option<String> {
        (self.state != HEALTHY)
            .then(|| format!("`{}` is {} ({})", self.name, self.state, self.detail))
    }
}

/// Queries every node of the list of `own`.
pub fn query(own: &RingMembership, credentials: &Credentials) -> Vec<NodeStatus> {
    let known = &RingView::new(own.list().clone(), None);
    let mut all = Vec::new();
    for members in own.list().members().chunks(PARALLEL_QUERIES) {
        all.extend(thread::scope(|scope| {
            let threads: Vec<_> = members
                .iter()
                .map(|member| scope.spawn(move || query_node(member, known, credentials)))
                .collect();
            let nodes = threads.into_iter().map(|one| one.join().expect("queries do not panic"));
            nodes.collect::<Vec<_>>()
        }));
    }
    all
}

fn query_node(member: &Member, known: &RingView, credentials: &Credentials) -> NodeStatus {
    let query = || -> Result<_, ClientError> {
        let mut client = Client::connect_as(credentials, &member.endpoint, "forebay", TIMEOUT)?;
        Ok((client.ring()?, client.stats()?))
    };
    let (state, detail, counters) = match query() {
        Ok((ring, counters)) => {
            let (state, detail) = compare_lists(member, known, ring.as_ref());
            (state, detail, counters.into_iter().collect())
        }
        Err(error) => (error_state(&error), error.to_string(), BTreeMap::new()),
    };
    NodeStatus {
        name: member.name.to_string(),
        endpoint: member.endpoint.to_string(),
        weight: f64::from(member.weight.thousandths()) / 1000.0,
        zone: member.zone.as_ref().map(ToString::to_string),
        state,
        detail,
        counters,
    }
}

/// Compares the list that a node reports with the list of the first node.
fn compare_lists(
    member: &Member,
    known: &RingView,
    reported: Option<&RingMembership>,
) -> (&'static str, String) {
    match known.clone().on_membership(&member.name, reported) {
        RingChange::Unchanged | RingChange::Updated => (HEALTHY, String::new()),
        RingChange::Conflict(theirs) => {
            let ours = known.fingerprint();
            ("other list", format!("its list is {theirs}, not {ours}; give all nodes the same"))
        }
        RingChange::WrongNode => {
            let found = reported.map_or("a node without a list", |own| own.name().as_str());
            ("wrong node", format!("it is {found}; correct its endpoint, or its name"))
        }
    }
}

fn error_state(error: &ClientError) -> &'static str {
    match error {
        ClientError::Refused(_) => "refused",
        ClientError::Broken(error) if error.kind() == std::io::ErrorKind::TimedOut => "hung",
        _ => "down",
    }
}

/// A table with one row per node.
pub fn to_text(nodes: &[NodeStatus]) -> String {
    let row = |node: &NodeStatus| {
        let value = |name: &str| node.counters.get(name).copied().unwrap_or(0);
        let hits = value("hits");
        let reads = hits + value("misses") + value("wait_timeouts");
        let if_answered =
            |text: String| if node.counters.is_empty() { "-".to_owned() } else { text };
        let state = if node.detail.is_empty() {
            node.state.to_owned()
        } else {
            format!("{}: {}", node.state, node.detail)
        };
        vec![
            node.name.clone(),
            node.endpoint.clone(),
            node.weight.to_string(),
            node.zone.clone().unwrap_or_else(|| "-".to_owned()),
            if_answered(ByteSize(value("resident_bytes")).rounded()),
            if_answered(format!("{hits} of {reads}")),
            state,
        ]
    };
    let rows: Vec<Vec<String>> = nodes.iter().map(row).collect();
    let header = ["NODE", "ENDPOINT", "WEIGHT", "ZONE", "RESIDENT", "HITS", "STATE"];
    output::table(&header, &rows)
}
