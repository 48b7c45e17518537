//! The node: whether it answers, and how it is.

use std::{collections::BTreeMap, time::Duration};

use forebay_client::{Client, ClientError};
use forebay_server::Config;

use super::{Finding, failed, ok, warning};
use crate::output::count;

/// A node that does not answer within this is not well.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a node says of itself, and whether there is one.
pub fn look(config: &Config) -> (Vec<Finding>, bool) {
    let counters =
        Client::connect(&config.socket, "doctor", PATIENCE).and_then(|mut client| client.stats());
    match counters {
        Ok(counters) => (findings(&counters.into_iter().collect()), true),
        Err(error) => {
            let remedy = match &error {
                ClientError::Connect { .. } => "start one with `forebay serve`",
                ClientError::Stranger { .. } => "name your own socket with --socket",
                ClientError::Refused(_) | ClientError::Nonsense(_) | ClientError::Unexpected => {
                    "install the same forebay on both sides, or see what the node says"
                }
                _ => "its log says why; stop it and start it again",
            };
            (vec![failed("node", error.to_string(), remedy)], false)
        }
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
