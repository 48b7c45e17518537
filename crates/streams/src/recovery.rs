//! Recovery of a store: what a previous owner sealed is found, the rest is freed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use forebay_core::streams::{
    FamilyId, StreamName,
    catalogue::StreamCatalogue,
    collection::{FoundEntry, FoundFamily, collect, is_record},
    record::{Record, parse_family_group_name},
    seal_list::{SealEntry, SealList, StreamKey},
};
use forebay_flash::{
    RequestError, VerifiedRead,
    device_thread::Engine,
    index::GroupId,
    shard::{EntryName, GuardKind, RequestResult, ShardAnswer, ShardRequest},
};

/// The catalogue of a store, and the engine's groups of its families.
pub(crate) struct Recovered {
    pub(crate) catalogue: StreamCatalogue,
    pub(crate) groups: BTreeMap<FamilyId, GroupId>,
    /// What the store has sealed, without what is no longer needed.
    pub(crate) seals: SealList,
}

/// A group of the engine that is a family.
struct FoundGroup {
    id: GroupId,
    number: u64,
    name: StreamName,
}

/// Reads the records of all families, and frees what no sealed stream needs.
pub(crate) async fn recover(
    engine: &Arc<dyn Engine>,
    now_ms: u64,
    mut seals: SealList,
) -> Result<Recovered, RequestError> {
    let ShardAnswer::Groups(infos) = ask(engine, ShardRequest::Groups).await? else {
        unreachable!("Groups is answered with a list")
    };
    let families = infos.into_iter().filter_map(|info| {
        let (number, name) = parse_family_group_name(&info.name).filter(|_| info.dense)?;
        Some(FoundGroup { id: info.id, number, name })
    });
    let groups: Vec<FoundGroup> = families.collect();
    let mut found = Vec::with_capacity(groups.len());
    for group in &groups {
        let mut family = read_family(engine, group.id).await?;
        family.destroyed = seals.destroyed_in(group.number);
        found.push(family);
    }
    let ends: Vec<u64> = found.iter().map(FoundFamily::ordinals_end).collect();
    let (mut catalogue, mut kept) = (StreamCatalogue::default(), BTreeMap::new());
    let mut numbers = BTreeSet::new();
    for ((group, collected), end) in groups.into_iter().zip(collect(&found, now_ms)).zip(ends) {
        let FoundGroup { id, number, name } = group;
        let Some(first) = collected.streams.first() else {
            let free = ShardRequest::Free { group: id, lease_timeout: Duration::ZERO };
            ask(engine, free).await?;
            continue;
        };
        let lifetime = first.record.lifetime();
        let family = catalogue.add_family(name.clone(), number, lifetime, true);
        kept.insert(family, id);
        ask(engine, ShardRequest::Acquire { group: id, guard: GuardKind::Pin }).await?;
        let release = ShardRequest::ReleaseOrdinals { group: id, ordinals: collected.release };
        ask(engine, release).await?;
        catalogue.skip_ordinals(family, end);
        for stream in collected.streams {
            if !stream.lost.is_empty() {
                let (stream, blocks) = (&stream.record.name, &stream.lost);
                tracing::warn!(%stream, ?blocks, "stream has lost blocks");
            }
            let key = StreamKey { family: number, stream: stream.record.stream };
            seals.add(SealEntry::Sealed(key, stream.record.listed(name.clone())));
            catalogue.adopt(family, stream);
        }
        numbers.insert(number);
    }
    seals.retain(now_ms, |number| numbers.contains(&number));
    for (key, listed) in seals.lost(|_, name| catalogue.find(name).is_some()) {
        let (family, blocks) = (listed.family.clone(), listed.blocks);
        tracing::warn!(stream = %listed.name, blocks, "stream is lost: its record is gone");
        let lost = listed.into_lost(key.stream);
        // A family without a group has no entries.
        let family = catalogue.add_family(family, key.family, lost.record.lifetime(), true);
        catalogue.adopt(family, lost);
    }
    Ok(Recovered { catalogue, groups: kept, seals })
}

/// The entries and records of a family.
async fn read_family(
    engine: &Arc<dyn Engine>,
    group: GroupId,
) -> Result<FoundFamily, RequestError> {
    let mut family =
        FoundFamily { entries: entries(engine, group).await?, ..FoundFamily::default() };
    for entry in family.entries.iter().filter(|entry| is_record(entry.tag)) {
        let found = read(engine, EntryName::Ordinal(group, entry.ordinal), false).await?;
        if let Some(record) = found.and_then(|found| Record::decode(&found.bytes)) {
            family.records.push((entry.ordinal, record));
        }
    }
    Ok(family)
}

/// Ordinals and tags of the entries that the index has. The tags are in the footers; where one
/// cannot be read, in the headers of the entries.
async fn entries(
    engine: &Arc<dyn Engine>,
    group: GroupId,
) -> Result<Vec<FoundEntry>, RequestError> {
    let ordinals: Vec<u64> = engine.index().read().ordinals(group).collect();
    let mut tags = BTreeMap::new();
    match ask(engine, ShardRequest::Entries { group }).await {
        Ok(ShardAnswer::Entries(listed)) => {
            for entry in listed {
                let (_, ordinal) = entry.key.split_last_chunk::<8>().expect("a key has 32 bytes");
                tags.insert(u64::from_le_bytes(*ordinal), entry.tag);
            }
        }
        Ok(_) => unreachable!("Entries is answered with a list"),
        Err(RequestError::Failed) => {}
        Err(error) => return Err(error),
    }
    let mut found = Vec::with_capacity(ordinals.len());
    for ordinal in ordinals {
        let mut tag = tags.get(&ordinal).copied();
        if tag.is_none() {
            let head = read(engine, EntryName::Ordinal(group, ordinal), true).await?;
            tag = head.map(|head| head.tag);
        }
        found.extend(tag.map(|tag| FoundEntry { ordinal, tag }));
    }
    Ok(found)
}

/// Reads an entry, or its header alone. `None` if it is lost.
async fn read(
    engine: &Arc<dyn Engine>,
    name: EntryName,
    header_only: bool,
) -> Result<Option<VerifiedRead>, RequestError> {
    let range = header_only.then_some(0..0);
    let request = ShardRequest::Read { name, range, leased: false, into: None };
    match ask(engine, request).await {
        Ok(ShardAnswer::Read(unverified)) => {
            Ok(unverified.and_then(|unverified| unverified.verify().ok()))
        }
        Ok(_) => unreachable!("Read is answered with bytes"),
        // The blocks of a failed read are lost; a device that cannot be read at all is an error.
        Err(RequestError::Failed | RequestError::TimedOut) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn ask(engine: &Arc<dyn Engine>, request: ShardRequest) -> RequestResult {
    engine.request(request).await.unwrap_or(Err(RequestError::Gone))
}
