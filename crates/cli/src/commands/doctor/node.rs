//! The node: whether it answers, and how it is.

use std::collections::BTreeMap;

use forebay_client::{Client, ClientError};
use forebay_core::ring::{Contacts, Membership};
use forebay_identity::Credentials;
use forebay_wire::ErrorCode;

use super::{Finding, failed, ok, warning};
use crate::{contact, members, output::count};

/// What a node says of itself, and whether there is one. Of several that are named, the first that answers.
pub fn look(contacts: &Contacts) -> (Vec<Finding>, bool) {
    let mut findings = Vec::new();
    for endpoint in contacts.endpoints() {
        match contact::connect(endpoint) {
            Ok(Ok(mut client)) => match ask(&mut client) {
                Ok(found) => return (found, true),
                Err(error) => findings.push(not_well(&error)),
            },
            Ok(Err(error)) => findings.push(not_well(&error)),
            Err(error) => {
                let remedy = "mend what the environment names";
                findings.push(failed("node", format!("{error:#}"), remedy));
            }
        }
    }
    (findings, false)
}

fn not_well(error: &ClientError) -> Finding {
    let remedy = contact::remedy(error).unwrap_or(match error {
        ClientError::Refused(refusal) => match refusal.code {
            ErrorCode::TooMuch => "close some connections, or raise `connections`",
            ErrorCode::Identity => "set FOREBAY_TOKEN_FILE or FOREBAY_TLS_CERTIFICATE",
            _ => "install the same forebay on both sides",
        },
        ClientError::Stranger { .. } => {
            "set FOREBAY_NODE_UID if you trust that user, or name your own with --node"
        }
        ClientError::NoAuthority | ClientError::Tls(_) => "docs/security.md says what is needed",
        _ => "name another one with --node",
    });
    failed("node", error.to_string(), remedy)
}

fn ask(client: &mut Client) -> Result<Vec<Finding>, ClientError> {
    let counters: BTreeMap<String, u64> = client.stats()?.into_iter().collect();
    let ring = client.ring()?;
    let mut found = findings(&counters);
    found.extend(ring.map(|own| peers(&own, &counters)));
    Ok(found)
}

/// How the node stands with the others that share its work.
fn peers(own: &Membership, counters: &BTreeMap<String, u64>) -> Finding {
    let value = |name: &str| counters.get(name).copied().unwrap_or(0);
    let others = own.ring().members().len() as u64 - 1;
    let (named, reachable) = (value("peers_named"), value("peers_reachable"));
    if named < others {
        let found = format!("it does not speak to the {} of its list", count(others, "other node"));
        return warning("peers", found, "give all of them the same `cluster_token`");
    }
    let mut found = format!("{reachable} of {} answer this node", count(named, "other node"));
    let standings = Credentials::from_environment().map(|who| members::look(own, &who));
    let away: Vec<String> =
        standings.iter().flatten().filter_map(members::Standing::complaint).collect();
    if reachable == named && away.is_empty() {
        return ok("peers", found);
    }
    if !away.is_empty() {
        found = format!("{found}; from here, {}", away.join("; "));
    }
    let remedy = "see that they run, and have the same `nodes`, `cluster_token` and `cluster_authority`; this node's \
                  log says why one cannot be reached";
    match reachable {
        0 if named > 0 => failed("peers", found, remedy),
        _ => warning("peers", found, remedy),
    }
}

fn findings(counters: &BTreeMap<String, u64>) -> Vec<Finding> {
    let value = |name: &str| counters.get(name).copied().unwrap_or(0);
    let up = value("uptime_seconds");
    let mut findings = vec![ok("node", format!("answers in our protocol, up {up} s"))];
    let (well, named) = (value("devices_well"), value("devices_named"));
    let of_all = format!("{well} of {} well", count(named, "device"));
    findings.push(match well {
        0 => failed("devices", of_all, "the node's log says what failed; replace it, and restart"),
        well if well < named => {
            warning("devices", of_all, "the node's log says which; replace it, and restart")
        }
        _ => ok("devices", of_all),
    });
    let faults = [
        ("flash_entries_damaged", "damaged entries"),
        ("reads_failed", "failed reads"),
        ("puts_failed", "failed writes"),
        ("flash_reads_timed_out", "slow reads"),
    ];
    let seen: Vec<String> = faults
        .iter()
        .filter(|(name, _)| value(name) > 0)
        .map(|(name, what)| format!("{} {what}", value(name)))
        .collect();
    if !seen.is_empty() {
        let remedy = "nothing wrong was handed out; look at the drive (smartctl, dmesg)";
        findings.push(warning("faults", seen.join(", "), remedy));
    }
    if value("connections_refused") > 0 {
        let found = format!("{} refused", count(value("connections_refused"), "connection"));
        findings.push(warning("connections", found, "raise `connections`; SIGHUP takes it up"));
    }
    if value("reloads_refused") > 0 {
        let found = format!("refused {}", count(value("reloads_refused"), "time"));
        let remedy = "the node runs on with the last good one; its log says what is wrong";
        findings.push(warning("reload", found, remedy));
    }
    if value("puts_poisoned") > 0 {
        let found = format!("{} did not hash to their address", value("puts_poisoned"));
        let remedy = "a client is broken or hostile; the node's log says which connection";
        findings.push(warning("puts", found, remedy));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn what_is_counted_is_judged() {
        let judged = |pairs: &[(&str, u64)]| {
            let counters = pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            findings(&counters).iter().map(|finding| finding.state).max().unwrap()
        };
        let well = [("devices_named", 2), ("devices_well", 2)];
        assert_eq!(judged(&well), State::Ok);
        assert_eq!(judged(&[well[0], ("devices_well", 1)]), State::Warning);
        assert_eq!(judged(&[well[0], ("devices_well", 0)]), State::Failed);
        assert_eq!(judged(&[well[0], well[1], ("reloads_refused", 1)]), State::Warning);
    }
}
