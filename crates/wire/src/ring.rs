//! Codec of the ring: the name of a node, and the members of its cluster in the order of their
//! names. A decoded list passes the same checks as one from a configuration file.

use forebay_core::cluster::ring::{ListError, Member, NODES_MAX, NodeList, RingMembership, Weight};

use crate::codec::{Malformed, Reader, Writer};

/// Three empty texts and a weight.
const MEMBER_SIZE_MIN: usize = 2 + 2 + 2 + 4;

pub(crate) fn write(membership: Option<&RingMembership>, to: &mut Writer<'_>) {
    let Some(membership) = membership else { return to.u8(0) };
    let list = membership.list();
    to.u8(1);
    to.text(membership.name().as_str());
    to.u8(list.isolate_zones().into());
    to.list(NODES_MAX, list.members(), |to, member| {
        to.text(member.name.as_str());
        to.text(&member.endpoint.to_string());
        to.text(member.zone.as_ref().map_or("", |zone| zone.as_str()));
        to.u32(member.weight.thousandths());
    });
}

pub(crate) fn read(from: &mut Reader<'_>) -> Result<Option<RingMembership>, Malformed> {
    if !from.flag()? {
        return Ok(None);
    }
    let name = from.text()?.parse().map_err(|_| Malformed::Value)?;
    let isolate_zones = from.flag()?;
    let members = from.list(NODES_MAX, MEMBER_SIZE_MIN, |from| {
        let (name, endpoint, zone) = (from.text()?, from.text()?, from.text()?);
        member(&name, &endpoint, &zone, from.u32()?)
    })?;
    if !members.is_sorted_by(|a, b| a.name < b.name) {
        return Err(Malformed::Value);
    }
    let list =
        NodeList::new(members, isolate_zones).and_then(|list| RingMembership::new(name, list));
    list.map(Some).map_err(|_| Malformed::Value)
}

fn member(name: &str, endpoint: &str, zone: &str, weight: u32) -> Result<Member, Malformed> {
    let parse = || -> Result<Member, ListError> {
        Ok(Member {
            name: name.parse()?,
            endpoint: endpoint.parse()?,
            weight: Weight::from_thousandths(weight)?,
            zone: if zone.is_empty() { None } else { Some(zone.parse()?) },
        })
    };
    // One encoding per value: an endpoint in any other notation is malformed.
    let is_canonical = |member: &Member| member.endpoint.to_string() == endpoint;
    parse().ok().filter(is_canonical).ok_or(Malformed::Value)
}
