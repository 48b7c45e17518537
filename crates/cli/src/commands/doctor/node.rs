//! Checks of the node: whether it answers, its devices, its faults and its peers.

use std::collections::BTreeMap;

use forebay_auth::Credentials;
use forebay_auth::TrustError;
use forebay_client::{Client, ClientError};
use forebay_core::cluster::ring::{RingMembership, Seeds};
use forebay_wire::ErrorCode;

use super::{Finding, failed, ok, warning};
use crate::{args::node, commands::cluster_status, output::count};

/// Checks the first endpoint that answers. Also returns whether one does. A node that was not
/// `named` may be missing, because a job starts it.
pub fn check(contacts: &Seeds, named: bool) -> (Vec<Finding>, bool) {
    let mut findings = Vec::new();
    for endpoint in contacts.endpoints() {
        match node::connect(endpoint) {
            Ok(Ok(mut client)) => match query(&mut client) {
                Ok(found) => return (found, true),
                Err(error) => findings.push(unreachable_node(&error)),
            },
            Ok(Err(error)) if !named && error.is_not_running() => {
                let remedy = "a job with cache=\"auto\" starts one, or start one with \
                              `forebay serve`";
                findings.push(warning("node", "no node runs", remedy));
            }
            Ok(Err(error)) => findings.push(unreachable_node(&error)),
            Err(error) => {
                let remedy = "correct the environment variable";
                findings.push(failed("node", format!("{error:#}"), remedy));
            }
        }
    }
    (findings, false)
}

fn unreachable_node(error: &ClientError) -> Finding {
    let remedy = node::remedy(error).unwrap_or(match error {
        ClientError::Refused(refusal) => match refusal.code {
            ErrorCode::TooMuch => "close some connections, or raise `max_connections`",
            ErrorCode::Identity => "set FOREBAY_TOKEN_FILE or FOREBAY_TLS_CERTIFICATE",
            _ => "install the same version of forebay on both sides",
        },
        ClientError::Untrusted { cause: TrustError::ForeignSocket { .. }, .. } => {
            "set FOREBAY_NODE_UID if you trust that user, or name your own node with --node"
        }
        ClientError::Untrusted { cause: TrustError::NoCa, .. } | ClientError::Tls(_) => {
            "docs/guide/security.md lists what is needed"
        }
        _ => "name another node with --node",
    });
    failed("node", error.to_string(), remedy)
}

fn query(client: &mut Client) -> Result<Vec<Finding>, ClientError> {
    let counters: BTreeMap<String, u64> = client.stats()?.into_iter().collect();
    let ring = client.ring()?;
    let mut found = findings(&counters);
    found.extend(ring.map(|own| peers(&own, &counters)));
    Ok(found)
}

/// Whether the node and the other nodes of its cluster reach each other.
fn peers(own: &RingMembership, counters: &BTreeMap<String, u64>) -> Finding {
    let value = |name: &str| counters.get(name).copied().unwrap_or(0);
    let others = own.ring().members().len() as u64 - 1;
    let (configured, reachable) = (value("peers_configured"), value("peers_reachable"));
    if configured < others {
        let found =
            format!("it does not connect to the {} of its list", count(others, "other node"));
        return warning("peers", found, "give all nodes the same `cluster_token`");
    }
    let mut found = format!("{reachable} of {} answer this node", count(configured, "other node"));
    let nodes = Credentials::from_environment().map(|keys| cluster_status::query(own, &keys));
    let problems: Vec<String> =
        nodes.iter().flatten().filter_map(cluster_status::NodeStatus::problem).collect();
    if reachable == configured && problems.is_empty() {
        return ok("peers", found);
    }
    if !problems.is_empty() {
        found = format!("{found}; from this machine, {}", problems.join("; "));
    }
    let remedy = "check that they run with the same `nodes`, `cluster_token` and `cluster_ca`; \
                  the log of the node has the reason";
    match reachable {
        0 if configured > 0 => failed("peers", found, remedy),
        _ => warning("peers", found, remedy),
    }
}

fn findings(counters: &BTreeMap<String, u64>) -> Vec<Finding> {
    let value = |name: &str| counters.get(name).copied().unwrap_or(0);
    let up = value("uptime_seconds");
    let mut findings = vec![ok("node", format!("answers, up {up} s"))];
    let (healthy, configured) = (value("devices_healthy"), value("devices_configured"));
    let found = format!("{healthy} of {} healthy", count(configured, "device"));
    findings.push(match healthy {
        0 => failed("devices", found, "see the log of the node; replace the devices, and restart"),
        healthy if healthy < configured => {
            warning("devices", found, "see the log of the node; replace the device, and restart")
        }
        _ => ok("devices", found),
    });
    let faults = [
        ("flash_entries_damaged", "damaged entries"),
        ("reads_failed", "failed reads"),
        ("puts_failed", "failed writes"),
        ("flash_reads_timed_out", "slow reads"),
    ];
    let faults: Vec<String> = faults
        .iter()
        .filter(|(name, _)| value(name) > 0)
        .map(|(name, what)| format!("{} {what}", value(name)))
        .collect();
    if !faults.is_empty() {
        let remedy = "check the drive (smartctl, dmesg); damaged entries are never served";
        findings.push(warning("faults", faults.join(", "), remedy));
    }
    if value("connections_refused") > 0 {
        let found = format!("{} refused", count(value("connections_refused"), "connection"));
        findings.push(warning("connections", found, "raise `max_connections`; SIGHUP applies it"));
    }
    if value("reloads_refused") > 0 {
        let found = format!("rejected {}", count(value("reloads_refused"), "time"));
        let remedy = "correct the configuration; the log of the node has the error";
        findings.push(warning("reload", found, remedy));
    }
    if value("put_hash_mismatches") > 0 {
        let found = format!("{} with a wrong hash", value("put_hash_mismatches"));
        let remedy = "find the faulty client; the log of the node names its connection";
        findings.push(warning("puts", found, remedy));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::State;

    #[test]
    fn counters_decide_the_state() {
        let worst = |pairs: &[(&str, u64)]| {
            let counters = pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            findings(&counters).iter().map(|finding| finding.state).max().unwrap()
        };
        let healthy = [("devices_configured", 2), ("devices_healthy", 2)];
        assert_eq!(worst(&healthy), State::Ok);
        assert_eq!(worst(&[healthy[0], ("devices_healthy", 1)]), State::Warning);
        assert_eq!(worst(&[healthy[0], ("devices_healthy", 0)]), State::Failed);
        assert_eq!(worst(&[healthy[0], healthy[1], ("reloads_refused", 1)]), State::Warning);
    }
}
