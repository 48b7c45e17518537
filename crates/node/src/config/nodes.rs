//! The configuration of the cluster: the key `nodes`, and the node list of a client.
//!
//! ```toml
//! name = "a"
//!
//! [[nodes]]
//! name = "a"
//! endpoint = "tls://a.example:7070"
//!
//! [[nodes]]
//! name = "b"
//! endpoint = "tls://b.example:7070"
//! weight = 2.5
//! ```
//!
//! All nodes have the same list, and each has its own `name`. A client's list may have a `zone`,
//! and needs no `name`.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use forebay_core::{
    NodeName, Zone,
    cluster::ring::{Member, NODES_MAX, NodeList, RingMembership, Weight},
};

use crate::config::unknown_key;

const KEYS: [&str; 4] = ["name", "endpoint", "weight", "zone"];

/// Parses the value of `nodes`.
pub(crate) fn members(value: &toml::Value) -> anyhow::Result<Vec<Member>> {
    let list = value.as_array().context("should be a list of tables, each under [[nodes]]")?;
    ensure!(list.len() <= NODES_MAX, "{} nodes; at most {NODES_MAX} are allowed", list.len());
    let parse = |(at, value): (usize, &toml::Value)| {
        member(value).with_context(|| format!("the {} node", ordinal(at + 1)))
    };
    list.iter().enumerate().map(parse).collect()
}

/// The node's place in the cluster, or `None` without a list.
pub(crate) fn membership(
    name: Option<&NodeName>,
    nodes: &[Member],
    isolate_zones: bool,
) -> anyhow::Result<Option<RingMembership>> {
    if nodes.is_empty() {
        ensure!(!isolate_zones, "`isolate_zones` needs `nodes`, each with a `zone`");
        return Ok(None);
    }
    let name = name.context("there are `nodes`, but no name of this one; say it with `name`")?;
    let list = NodeList::new(nodes.to_vec(), isolate_zones).context("`nodes`")?;
    Ok(Some(RingMembership::new(name.clone(), list).context("`name`")?))
}

/// Reads a client's node list: the configuration file of a node, or one with the list only. Also
/// returns the client's zone, if the file has one.
pub fn read_node_list(path: &Path) -> anyhow::Result<(NodeList, Option<Zone>)> {
    let shown = path.display();
    let text = super::read_text(path).with_context(|| format!("cannot read `{shown}`"))?;
    parse_node_list(&text).with_context(|| format!("in the list of nodes `{shown}`"))
}

fn parse_node_list(text: &str) -> anyhow::Result<(NodeList, Option<Zone>)> {
    let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        anyhow::anyhow!("{}", error.message().lines().next().unwrap_or("not valid TOML"))
    })?;
    let zone = match table.remove("zone") {
        Some(zone) => Some(zone.as_str().context("`zone` should be a text in quotes")?.parse()?),
        None => None,
    };
    let config = crate::Config::from_table(&table)?;
    ensure!(!config.nodes.is_empty(), "there are no nodes; add some under [[nodes]]");
    let list = NodeList::new(config.nodes, config.isolate_zones).context("`nodes`")?;
    let own = config.name.as_ref().and_then(|name| list.member(name));
    let zone = zone.or_else(|| own.and_then(|member| member.zone.clone()));
    ensure!(
        list.ring(zone.as_ref()).is_some(),
        "zones are isolated, and no node is in this client's zone; set it with `zone = \"...\"`"
    );
    Ok((list, zone))
}

fn member(value: &toml::Value) -> anyhow::Result<Member> {
    let table = value.as_table().context("should be a table with name and endpoint")?;
    if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        bail!("`{unknown}`: {}", unknown_key(unknown, &KEYS));
    }
    let text = |key: &str| match table.get(key) {
        Some(value) => {
            value.as_str().map(Some).with_context(|| format!("`{key}` should be a text in quotes"))
        }
        None => Ok(None),
    };
    let name: NodeName = text("name")?.context("has no `name`")?.parse()?;
    let endpoint = text("endpoint")?.with_context(|| format!("`{name}` has no `endpoint`"))?;
    let endpoint = endpoint.parse().with_context(|| format!("the `endpoint` of `{name}`"))?;
    let weight = match table.get("weight") {
        None => Weight::default(),
        Some(toml::Value::Integer(weight)) => Weight::new(*weight as f64)?,
        Some(toml::Value::Float(weight)) => Weight::new(*weight)?,
        Some(_) => bail!("the `weight` of `{name}` should be a number, such as 1"),
    };
    let zone = text("zone")?.map(str::parse).transpose()?;
    Ok(Member { name, endpoint, weight, zone })
}

/// 1st, 2nd, 3rd, 4th.
fn ordinal(number: usize) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    const TWO: &str = "
        [[nodes]]
        name = \"a\"
        endpoint = \"/run/a.sock\"
        zone = \"east\"
        [[nodes]]
        name = \"b\"
        endpoint = \"/run/b.sock\"
        weight = 2.5
        zone = \"west\"";

    #[test]
    fn a_list_with_a_name_is_a_membership() {
        let config = Config::parse(&format!("name = \"b\"\n{TWO}")).unwrap();
        let membership = config.membership().unwrap().unwrap();
        assert_eq!(membership.name().as_str(), "b");
        assert_eq!(membership.list().members()[1].weight.to_string(), "2.5");
        assert_eq!(membership.ring().members().len(), 2);
        let isolated =
            Config::parse(&format!("name = \"b\"\nisolate_zones = true\n{TWO}")).unwrap();
        assert_eq!(isolated.membership().unwrap().unwrap().ring().members().len(), 1);
        assert!(Config::parse("name = \"alone\"").unwrap().membership().unwrap().is_none());
    }

    #[test]
    fn mistakes_are_named_with_the_remedy() {
        let error = |text: &str| {
            let checked = Config::parse(text).and_then(|config| config.check());
            format!("{:#}", checked.unwrap_err())
        };
        let node = |rest: &str| format!("name = \"a\"\n[[nodes]]\nname = \"a\"\n{rest}");
        let with = |rest: &str| error(&node(&format!("endpoint = \"/run/a.sock\"\n{rest}")));
        assert!(error(TWO).contains("say it with `name`"));
        assert!(error(&format!("name = \"c\"\n{TWO}")).contains("the list has a, b"));
        assert!(error(&node("")).contains("`a` has no `endpoint`"));
        for weight in ["0", "-1", "nan", "inf", "1e9"] {
            let text = with(&format!("weight = {weight}"));
            assert!(text.contains("use a number from 0.001"), "{text}");
        }
        assert!(with("weight = \"much\"").contains("should be a number"));
        assert!(with("colour = 1").contains("the keys are name, endpoint, weight, zone"));
        assert!(with("zome = \"x\"").contains("did you mean `zone`?"));
        assert!(with("zone = \"a b\"").contains("cannot name a zone"));
        assert!(with("[[nodes]]\nendpoint = \"x\"").contains("the 2nd node: has no `name`"));
        assert!(
            with("[[nodes]]\nname = \"a\"\nendpoint = \"x\"")
                .contains("give each a name of its own")
        );
        let same = with("[[nodes]]\nname = \"b\"\nendpoint = \"/run/a.sock\"");
        assert!(same.contains("`a` and `b` have the same endpoint"), "{same}");
        assert!(error("isolate_zones = true").contains("needs `nodes`"));
        assert!(error("nodes = 5").contains("[[nodes]]"));
        assert!(error("nodes = [5]").contains("the 1st node: should be a table"));
        let many = "{ name = \"x\", endpoint = \"y\" },".repeat(NODES_MAX + 1);
        assert!(error(&format!("nodes = [{many}]")).contains("at most 1024 are allowed"));
        let unzoned =
            node("endpoint = \"/run/a.sock\"").replacen('\n', "\nisolate_zones = true\n", 1);
        assert!(error(&unzoned).contains("give every node a `zone`"));
    }

    #[test]
    fn a_client_may_have_the_list() {
        let (list, zone) = parse_node_list(TWO).unwrap();
        assert_eq!((list.members().len(), zone), (2, None));
        let isolated = format!("isolate_zones = true\n{TWO}");
        assert!(parse_node_list(&isolated).unwrap_err().to_string().contains("set it with `zone"));
        let (list, zone) = parse_node_list(&format!("zone = \"west\"\n{isolated}")).unwrap();
        assert_eq!(list.ring(zone.as_ref()).unwrap().members()[0].name.as_str(), "b");
        let (_, zone) = parse_node_list(&format!("name = \"a\"\n{isolated}")).unwrap();
        assert_eq!(zone.unwrap().as_str(), "east");
        assert!(parse_node_list("").unwrap_err().to_string().contains("[[nodes]]"));
        assert!(parse_node_list("nodes = [").is_err());
    }
}
