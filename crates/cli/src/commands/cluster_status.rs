//! All nodes of a list, as `forebay status` shows them: who is well, who is not, and who has another list.

use std::{collections::BTreeMap, thread, time::Duration};

use forebay_client::{Client, ClientError};
use forebay_core::{
    ByteSize,
    ring::{Heard, KnownRing, Member, Membership},
};
use forebay_identity::Credentials;
use serde::Serialize;

use crate::output;

/// A node that does not answer within this is not well.
const PATIENCE: Duration = Duration::from_secs(2);
/// Nodes that are asked at once.
const AT_ONCE: usize = 32;

/// How one node stands.
#[derive(Debug, Serialize)]
pub struct Standing {
    name: String,
    endpoint: String,
    weight: f64,
    zone: Option<String>,
    /// `well`, `down`, `silent`, `refused`, `wrong` or `other list`.
    state: &'static str,
    /// More about that, in words.
    detail: String,
    /// What it has counted, if it could be asked.
    counters: BTreeMap<String, u64>,
}

impl Standing {
    /// What is wrong with it, if anything is.
    pub fn complaint(&self) -> Option<String> {
        (self.state != "well")
            .then(|| format!("`{}` is {} ({})", self.name, self.state, self.detail))
    }
}

/// Asks every node of the list that this one has.
pub fn look(own: &Membership, credentials: &Credentials) -> Vec<Standing> {
    let known = &KnownRing::new(own.list().clone(), None);
    let mut all = Vec::new();
    for some in own.list().members().chunks(AT_ONCE) {
        all.extend(thread::scope(|scope| {
            let asked: Vec<_> = some
                .iter()
                .map(|member| scope.spawn(move || ask(member, known, credentials)))
                .collect();
            let standings = asked.into_iter().map(|one| one.join().expect("asking does not panic"));
            standings.collect::<Vec<_>>()
        }));
    }
    all
}

fn ask(member: &Member, known: &KnownRing, credentials: &Credentials) -> Standing {
    let asked = || -> Result<_, ClientError> {
        let mut client = Client::connect_as(credentials, &member.endpoint, "forebay", PATIENCE)?;
        Ok((client.ring()?, client.stats()?))
    };
    let (state, detail, counters) = match asked() {
        Ok((says, counters)) => {
            let (state, detail) = judge(member, known, says.as_ref());
            (state, detail, counters.into_iter().collect())
        }
        Err(error) => (failure(&error), error.to_string(), BTreeMap::new()),
    };
    Standing {
        name: member.name.to_string(),
        endpoint: member.endpoint.to_string(),
        weight: f64::from(member.weight.thousandths()) / 1000.0,
        zone: member.zone.as_ref().map(ToString::to_string),
        state,
        detail,
        counters,
    }
}

fn judge(member: &Member, known: &KnownRing, says: Option<&Membership>) -> (&'static str, String) {
    match known.clone().heard(&member.name, says) {
        Heard::Same | Heard::Changed => ("well", String::new()),
        Heard::Differs(theirs) => {
            let ours = known.fingerprint();
            ("other list", format!("its list is {theirs}, not {ours}; give all nodes the same"))
        }
        Heard::Wrong => {
            let found = says.map_or("a node without a list", |says| says.name().as_str());
            ("wrong", format!("it is {found}; correct its endpoint, or its name"))
        }
    }
}

fn failure(error: &ClientError) -> &'static str {
    match error {
        ClientError::Refused(_) => "refused",
        ClientError::Broken(error) if error.kind() == std::io::ErrorKind::TimedOut => "silent",
        _ => "down",
    }
}

/// One line for each.
pub fn for_people(standings: &[Standing]) -> String {
    let row = |node: &Standing| {
        let value = |name: &str| node.counters.get(name).copied().unwrap_or(0);
        let hits = value("hits");
        let asked = hits + value("misses") + value("waits_in_vain");
        let there = |text: String| if node.counters.is_empty() { "-".to_owned() } else { text };
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
            there(ByteSize(value("resident_bytes")).to_string()),
            there(format!("{hits} of {asked}")),
            state,
        ]
    };
    let rows: Vec<Vec<String>> = standings.iter().map(row).collect();
    let header = ["NODE", "ENDPOINT", "WEIGHT", "ZONE", "RESIDENT", "HITS", "STATE"];
    output::table(&header, &rows)
}
