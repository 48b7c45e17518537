//! Blobs on flash: a piece of a dataset is a group of the engine, a blob one of its entries.
//!
//! A blob that is too long for an entry is cut into parts, which are written under names of their own that
//! nobody can guess, before it is known whether they are right. What makes them a blob is an entry under
//! the blob's address that names them, written last: without it they are never found, and go with their
//! regions.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    io::Write as _,
    ops::Range,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use forebay_core::{
    Address, BlobOrdinal, ByteSize, DatasetId,
    recency::Recency,
    table::{Row, Table},
};
use forebay_flash::{
    Config as FlashConfig, DeviceConfig, Flash, Group, Key, Proved, Refusal,
    io::Backend,
    layout::RegionId,
    shard::{Candidate, Counters, Eviction},
    size_of,
};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{config::Config, gathered::Gathered, hot::Hot, session::fresh_nonce};

/// A longer blob is cut into pieces of this length.
pub(crate) const PIECE: u64 = 8 << 20;
/// Memory for blobs and pieces that are on their way in.
pub(crate) const INCOMING: usize = 512 << 20;
/// Groups whose numbers are remembered.
const GROUPS_KNOWN: usize = 4096;
/// A device has to have so many regions for each piece that is to have a group of its own.
const REGIONS_PER_PIECE: u64 = 2;
/// The lifetime class of datasets' pieces.
const CLASS: u8 = 1;
/// The file with the number by which a node's devices know it.
const OWNER: &str = "node.id";
/// How long those who read a piece are waited for before it is freed.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the word of an entry says: it is a whole blob.
const WHOLE: u32 = 0;
/// It names the pieces of one.
const HEAD: u32 = 1;
/// It is a piece.
const PART: u32 = 2;

/// All blobs of a node.
pub(crate) struct Blobs {
    flash: Flash,
    /// The longest entry.
    piece: u64,
    region: u64,
    groups: Mutex<HashMap<GroupName, Group>>,
    hot: Hot,
    incoming: Arc<Semaphore>,
    uses: Uses,
}

/// When datasets were used.
#[derive(Clone)]
struct Uses {
    started: Instant,
    recency: Arc<Mutex<Recency>>,
}

type GroupName = [u8; 36];

/// What came of a read.
pub(crate) enum Read {
    Hit(Bytes),
    /// It went, or it was damaged.
    Gone,
    /// It is there, but not as long as the caller believes: the caller's table is wrong.
    OtherLength,
    /// The device is not well.
    Failed,
}

/// A blob on its way in.
pub(crate) struct Incoming {
    group: GroupName,
    row: Row,
    /// What is here and not written, with the memory for it.
    held: Gathered,
    memory: OwnedSemaphorePermit,
    /// The name of its pieces, and how many have been written, if it has to be cut.
    cut: Option<([u8; 32], u64)>,
}

impl Blobs {
    /// Opens the devices that a configuration names, and takes up what lies there.
    pub fn open(config: &Config) -> anyhow::Result<Self> {
        let directory = &config.directory;
        let shown = directory.display();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("make the directory `{shown}`"))?;
        let is_known = directory.join(OWNER).exists();
        let owner = owner(directory).with_context(|| format!("use the directory `{shown}`"))?;
        let devices = match config.devices.as_slice() {
            [] => vec![directory.join("cache.flash")],
            named => named.to_vec(),
        };
        // A new node has lost nothing.
        let is_lost = |path: &&PathBuf| is_known && !path.exists();
        let lost: Vec<PathBuf> = devices.iter().filter(is_lost).cloned().collect();
        let free = free_space(directory)?;
        let share = ByteSize(config.capacity_of(free).0 / devices.len() as u64);
        let device = |path: PathBuf| {
            // Without a word, what is there stays as long as it is, and a drive is used whole.
            let there = if config.capacity.is_none() { size_of(&path) } else { None };
            let capacity = there.unwrap_or(share);
            DeviceConfig { path, capacity, region_size: config.region_size, owner }
        };
        let mut flash = FlashConfig::new(devices.into_iter().map(device).collect());
        flash.backend = config.io;
        let uses = Uses { started: Instant::now(), recency: Arc::default() };
        flash.eviction = Arc::new({
            let uses = uses.clone();
            move || Box::new(uses.clone())
        });
        let flash = Flash::open(&flash)?;
        for lost in lost {
            tracing::warn!(
                device = %lost.display(),
                "a device was not there, and was made anew: what this node had there is lost; is its disk mounted?"
            );
        }
        Ok(Self {
            piece: PIECE.min(flash.entry_length_max()),
            region: flash.region_size(),
            flash,
            groups: Mutex::default(),
            hot: Hot::new(config.memory),
            incoming: Arc::new(Semaphore::new(INCOMING)),
            uses,
        })
    }

    /// Somebody reads a dataset, or puts something of it.
    pub fn used(&self, dataset: DatasetId) {
        self.uses.recency.lock().used(self.uses.started.elapsed(), dataset);
    }

    /// One who did has ended.
    pub fn left(&self, dataset: &DatasetId) {
        self.uses.recency.lock().left(dataset);
    }

    /// What is in memory.
    pub fn hot(&self) -> &Hot {
        &self.hot
    }

    /// How many devices there were to be.
    pub fn devices_named(&self) -> u64 {
        self.flash.devices_named() as u64
    }

    /// How much fits.
    pub fn capacity(&self) -> ByteSize {
        self.flash.capacity()
    }

    /// What has been counted, on all devices.
    pub fn counters(&self) -> Vec<Counters> {
        self.flash.counters()
    }

    /// Whether a blob can be read, as far as anybody knows. Asks nobody, and never waits.
    pub fn contains(&self, address: &Address) -> bool {
        self.flash.contains(&key(address))
    }

    /// Everything that is here will be there again after a restart.
    pub async fn flush(&self) -> Result<(), Refusal> {
        self.flash.flush().await
    }

    /// Some bytes of a blob, if they are in memory.
    pub fn in_memory(&self, row: &Row, range: &Range<u64>) -> Option<Bytes> {
        let inside = |at: u64| usize::try_from(at).expect("a blob in memory");
        let bytes = self.hot.get(row).filter(|_| range.end <= row.length)?;
        Some(bytes.slice(inside(range.start)..inside(range.end)))
    }

    /// Some bytes of a blob.
    pub async fn read(&self, row: Row, range: Range<u64>) -> Read {
        if let Some(bytes) = self.in_memory(&row, &range) {
            return Read::Hit(bytes);
        }
        let is_whole = range == (0..row.length);
        let read = if row.length <= self.piece {
            self.read_whole(row, range).await
        } else {
            self.read_pieces(row, range).await
        };
        if let Err(Refusal::Failed) = read {
            // It would be asked for again and again.
            self.flash.forget(key(&row.address));
        }
        if let Ok(Read::Hit(bytes)) = &read
            && is_whole
        {
            self.hot.read(row.address, bytes);
        }
        read.unwrap_or_else(|refusal| match refusal {
            Refusal::Range => Read::OtherLength,
            _ => Read::Failed,
        })
    }

    async fn read_whole(&self, row: Row, range: Range<u64>) -> Result<Read, Refusal> {
        let key = key(&row.address);
        Ok(match self.flash.read(key, Some(range)).await? {
            Some(proved) if proved.tag == WHOLE && u64::from(proved.length) == row.length => {
                Read::Hit(Bytes::from_owner(proved.bytes))
            }
            Some(_) => Read::OtherLength,
            None => self.gone(key),
        })
    }

    async fn read_pieces(&self, row: Row, range: Range<u64>) -> Result<Read, Refusal> {
        let key = key(&row.address);
        let Some(head) = self.flash.read(key, None).await? else { return Ok(self.gone(key)) };
        let Some((name, piece, length)) = decode_head(&head) else { return Ok(Read::OtherLength) };
        if length != row.length {
            return Ok(Read::OtherLength);
        }
        let wanted = usize::try_from(range.end - range.start).expect("what is asked for is short");
        let mut bytes = Gathered::new(wanted);
        let mut next = range.start;
        while next < range.end {
            let (number, start) = (next / piece, next % piece);
            let end = (range.end - number * piece).min(piece);
            let Some(proved) = self.flash.read(part(&name, number), Some(start..end)).await? else {
                // Without all its pieces it is nothing.
                return Ok(self.gone(key));
            };
            next = number * piece + end;
            bytes.add(Bytes::from_owner(proved.bytes));
        }
        Ok(Read::Hit(bytes.take()))
    }

    /// What was looked for is not there: whoever asks next must not be told that it is.
    fn gone(&self, key: Key) -> Read {
        self.flash.forget(key);
        Read::Gone
    }

    /// Begins to take a blob in. `None` if there is too much on its way already.
    pub fn begin(
        &self,
        table: &Table,
        blob: BlobOrdinal,
        row: Row,
    ) -> Result<Option<Incoming>, Refusal> {
        let cut = row.length > self.piece;
        let held = u32::try_from(row.length.min(self.piece).max(1)).expect("a piece is short");
        let Ok(memory) = Arc::clone(&self.incoming).try_acquire_many_owned(held) else {
            return Ok(None);
        };
        self.used(table.dataset());
        let group = self.group_of(table, blob);
        let name = if cut { Some((fresh_nonce().ok_or(Refusal::Failed)?, 0)) } else { None };
        Ok(Some(Incoming { group, row, held: Gathered::new(held as usize), memory, cut: name }))
    }

    /// The group for a blob: its piece's, or its dataset's.
    fn group_of(&self, table: &Table, blob: BlobOrdinal) -> GroupName {
        if self.has_groups(table) {
            group_name(table.dataset(), table.piece_of(blob).expect("a blob of this table"))
        } else {
            group_name(table.dataset(), u32::MAX)
        }
    }

    /// Whether each piece has a group of its own: not if it would not fill a region, or if there are so few
    /// regions that those being filled would drive each other out.
    fn has_groups(&self, table: &Table) -> bool {
        let pieces = u64::from(table.chunking().pieces());
        let regions = self.capacity().0 / self.region;
        table.total().0 / pieces >= self.region && regions >= REGIONS_PER_PIECE * pieces
    }

    /// The pieces of a dataset of which something is here. Without its table those are known that have groups
    /// of their own.
    pub async fn pieces_of(&self, dataset: DatasetId, table: Option<&Table>) -> Vec<u32> {
        if let Some(table) = table.filter(|table| !self.has_groups(table)) {
            let here = table.rows_by_piece().filter(|(_, row)| self.contains(&row.address));
            let pieces: BTreeSet<u32> = here.map(|(piece, _)| piece).collect();
            return pieces.into_iter().collect();
        }
        let groups = self.flash.groups().await.unwrap_or_default();
        let named = groups.iter().filter(|group| group.entries > 0);
        let pieces = table.map_or(u32::MAX, |table| table.chunking().pieces());
        let pieces: BTreeSet<u32> = named
            .filter_map(|group| piece_of_name(&group.name, dataset))
            .filter(|piece| *piece < pieces)
            .collect();
        pieces.into_iter().collect()
    }

    /// Frees what is here of a piece. When this returns, nothing of it is found any more; but without the table
    /// of its dataset, what shares its regions with other pieces stays until they are the oldest.
    pub async fn free(
        &self,
        dataset: DatasetId,
        table: Option<&Table>,
        piece: u32,
    ) -> Result<(), Refusal> {
        if let Some(table) = table {
            let is_shared = !self.has_groups(table);
            for (_, row) in table.rows_by_piece().filter(|(of, _)| *of == piece) {
                self.hot.remove(&row.address);
                if is_shared {
                    self.forget(&row).await;
                }
            }
            if is_shared {
                // Its regions are shared with other pieces, and come back when nothing is in them any more, or
                // when they are the oldest.
                return Ok(());
            }
        }
        let name = group_name(dataset, piece);
        self.groups.lock().remove(&name);
        self.flash.group(&name, CLASS, false).await?.free(PATIENCE).await
    }

    /// Forgets a blob, with all its parts.
    async fn forget(&self, row: &Row) {
        let key = key(&row.address);
        let head = if row.length > self.piece && self.flash.contains(&key) {
            self.flash.read(key, None).await.ok().flatten()
        } else {
            None
        };
        let parts =
            head.as_ref().and_then(decode_head).filter(|(.., length)| *length == row.length);
        if let Some((name, piece, length)) = parts {
            (0..length.div_ceil(piece)).for_each(|number| self.flash.forget(part(&name, number)));
        }
        self.flash.forget(key);
    }

    /// Frees all that was put for a dataset: when this returns, it is gone for good. What was put for another that
    /// has the same blobs is the other's, and stays. Returns how many bytes of the dataset went.
    pub async fn free_all(&self, table: &Table) -> Result<u64, Refusal> {
        let here = || table.rows().iter().filter(|row| self.contains(&row.address));
        let bytes = || here().map(|row| row.length).sum::<u64>();
        let before = bytes();
        for row in table.rows() {
            self.hot.remove(&row.address);
        }
        // Also those that were written when the capacity was another.
        let groups = self.flash.groups().await?;
        let names: BTreeSet<&[u8]> = groups.iter().map(|group| group.name.as_slice()).collect();
        for name in names.into_iter().filter(|name| name.starts_with(table.dataset().as_bytes())) {
            if let Ok(name) = GroupName::try_from(name) {
                self.groups.lock().remove(&name);
            }
            self.flash.group(name, CLASS, false).await?.free(PATIENCE).await?;
        }
        Ok(before.saturating_sub(bytes()))
    }

    async fn append(
        &self,
        group: &GroupName,
        key: Key,
        tag: u32,
        bytes: Bytes,
    ) -> Result<(), Refusal> {
        let known = self.groups.lock().get(group).cloned();
        if let Some(known) = known {
            match known.append(key, tag, bytes.clone()).await {
                // It had lost all it had, and was forgotten.
                Err(Refusal::Gone) => {}
                outcome => return outcome,
            }
        }
        let opened = self.flash.group(group, CLASS, false).await?;
        {
            let mut groups = self.groups.lock();
            if groups.len() >= GROUPS_KNOWN {
                groups.clear();
            }
            groups.insert(*group, opened.clone());
        }
        opened.append(key, tag, bytes).await
    }
}

/// Of the dataset that was used longest ago, the region that was begun first.
impl Eviction for Uses {
    fn victim(&mut self, candidates: &mut dyn Iterator<Item = Candidate<'_>>) -> Option<RegionId> {
        let (now, recency) = (self.started.elapsed(), self.recency.lock());
        let last_use = |group: &[u8]| {
            let dataset = DatasetId::from_bytes(*group.first_chunk()?);
            recency.last_use(now, &dataset)
        };
        let first = candidates.min_by_key(|region| (last_use(region.group), region.generation));
        first.map(|first| first.region)
    }
}

impl Incoming {
    /// Takes the next bytes.
    pub async fn take(&mut self, blobs: &Blobs, bytes: Bytes) -> Result<(), Refusal> {
        let Some((name, mut written)) = self.cut else {
            self.held.add(bytes);
            return Ok(());
        };
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let room = blobs.piece - self.held.length() as u64;
            let some = bytes.split_to(bytes.len().min(usize::try_from(room).expect("a piece")));
            self.held.add(some);
            if self.held.length() as u64 == blobs.piece {
                blobs.append(&self.group, part(&name, written), PART, self.held.take()).await?;
                written += 1;
            }
        }
        self.cut = Some((name, written));
        Ok(())
    }

    /// How much memory it takes meanwhile.
    pub fn memory(&self) -> usize {
        self.memory.num_permits()
    }

    /// All of it is here, and it is right: from now on it is found.
    pub async fn finish(mut self, blobs: &Blobs) -> Result<(), Refusal> {
        let key = key(&self.row.address);
        let Some((name, written)) = self.cut else {
            let bytes = self.held.take();
            blobs.append(&self.group, key, WHOLE, bytes.clone()).await?;
            blobs.hot.put(self.row.address, &bytes);
            return Ok(());
        };
        if self.held.length() > 0 {
            blobs.append(&self.group, part(&name, written), PART, self.held.take()).await?;
        }
        let head = encode_head(&name, blobs.piece, self.row.length);
        blobs.append(&self.group, key, HEAD, head).await
    }
}

fn key(address: &Address) -> Key {
    Key(*address.as_bytes())
}

/// The name of one piece.
fn part(name: &[u8; 32], number: u64) -> Key {
    let mut hasher = blake3::Hasher::new_keyed(name);
    hasher.update(&number.to_le_bytes());
    Key(*hasher.finalize().as_bytes())
}

fn group_name(dataset: DatasetId, piece: u32) -> GroupName {
    let mut name = [0; 36];
    name[..32].copy_from_slice(dataset.as_bytes());
    name[32..].copy_from_slice(&piece.to_le_bytes());
    name
}

/// The piece of a dataset that a group is for; nothing, if several share it.
fn piece_of_name(name: &[u8], dataset: DatasetId) -> Option<u32> {
    let (of, piece) = name.split_first_chunk::<32>()?;
    let piece = u32::from_le_bytes(piece.try_into().ok()?);
    (of == dataset.as_bytes() && piece != u32::MAX).then_some(piece)
}

fn encode_head(name: &[u8; 32], piece: u64, length: u64) -> Bytes {
    [&name[..], &piece.to_le_bytes(), &length.to_le_bytes()].concat().into()
}

fn decode_head(head: &Proved) -> Option<([u8; 32], u64, u64)> {
    let (name, rest) = head.bytes.split_first_chunk::<32>()?;
    let (piece, length) = rest.split_first_chunk::<8>()?;
    let length = u64::from_le_bytes(length.try_into().ok()?);
    let piece = u64::from_le_bytes(*piece);
    (head.tag == HEAD && piece > 0).then_some((*name, piece, length))
}

/// The number by which this node's devices know it; made when there is none.
fn owner(directory: &Path) -> anyhow::Result<[u8; 16]> {
    let path = directory.join(OWNER);
    let shown = path.display();
    if let Ok(bytes) = fs::read(&path) {
        let owner = bytes.try_into().ok();
        let owner: Option<[u8; 16]> = owner;
        return owner.with_context(|| {
            format!("`{shown}` is not what forebay wrote there; remove it, and the devices with it")
        });
    }
    let nonce = fresh_nonce().context("the system has no randomness")?;
    let owner = *nonce.first_chunk::<16>().expect("longer");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("make `{shown}`"))?;
    file.write_all(&owner)?;
    file.sync_all()?;
    ensure!(fs::read(&path)? == owner, "`{shown}` was made by somebody else at the same time");
    Ok(owner)
}

fn free_space(directory: &Path) -> anyhow::Result<ByteSize> {
    let space = rustix::fs::statvfs(directory).context("ask how much space is free")?;
    Ok(ByteSize(space.f_bavail.saturating_mul(space.f_frsize)))
}

/// How I/O is done, as a configuration says it.
pub(crate) fn backend(text: &str) -> anyhow::Result<Backend> {
    match text {
        "auto" => Ok(Backend::Auto),
        "io_uring" => Ok(Backend::Uring),
        "threads" => Ok(Backend::Threads),
        _ => anyhow::bail!("should be \"auto\", \"io_uring\" or \"threads\""),
    }
}
