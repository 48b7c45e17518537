//! Who a node is, and which others there are: in the order of their names, each checked as if a person had
//! written it.

use forebay_core::ring::{ListError, Member, Membership, NODES_MAX, NodeList, Weight};

use crate::codec::{Malformed, Reader, Writer};

/// Three texts without a letter, and a weight.
const MEMBER_SIZE_MIN: usize = 2 + 2 + 2 + 4;

pub(crate) fn write(membership: Option<&Membership>, to: &mut Writer<'_>) {
    let Some(membership) = membership else { return to.u8(0) };
    let list = membership.list();
    to.u8(1);
    to.text(membership.name().as_str());
    to.u8(list.zones_apart().into());
    to.list(NODES_MAX, list.members(), |to, member| {
        to.text(member.name.as_str());
        to.text(&member.endpoint);
        to.text(member.zone.as_ref().map_or("", |zone| zone.as_str()));
        to.u32(member.weight.thousandths());
    });
}

pub(crate) fn read(from: &mut Reader<'_>) -> Result<Option<Membership>, Malformed> {
    if !from.flag()? {
        return Ok(None);
    }
    let name = from.text()?.parse().map_err(|_| Malformed::Value)?;
    let zones_apart = from.flag()?;
    let members = from.list(NODES_MAX, MEMBER_SIZE_MIN, |from| {
        let (name, endpoint, zone) = (from.text()?, from.text()?, from.text()?);
        member(&name, endpoint, &zone, from.u32()?).map_err(|_| Malformed::Value)
    })?;
    if !members.is_sorted_by(|a, b| a.name < b.name) {
        return Err(Malformed::Value);
    }
    let list = NodeList::new(members, zones_apart).and_then(|list| Membership::new(name, list));
    list.map(Some).map_err(|_| Malformed::Value)
}

fn member(name: &str, endpoint: String, zone: &str, thousandths: u32) -> Result<Member, ListError> {
    let zone = if zone.is_empty() { None } else { Some(zone.parse()?) };
    let weight = Weight::from_thousandths(thousandths)?;
    Ok(Member { name: name.parse()?, endpoint, weight, zone })
}
