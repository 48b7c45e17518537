//! Build plans: how a listing of objects is cut into blobs.
//!
//! A plan is a function of the listing alone. Two builds of the same objects get the same blobs,
//! and an interrupted build resumes where it stopped.

mod records;
mod samples;

use std::{fmt, str::FromStr};

use super::format::{ItemSpan, Part};
use forebay_core::dataset::{ListedObject, hash_tree::LeafLength};
use forebay_core::units::ByteSize;

pub use records::{Records, UnevenRecords};
pub use samples::{Cut, Samples};

/// How objects are cut into items, and items packed into blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One object is one item and one blob.
    Files,
    /// Small neighbouring objects share a blob of at most this size. A larger object is one blob.
    Pack(ByteSize),
    /// Objects are sequences of records of one length.
    Records(Records),
    /// Objects are tar archives of samples (`WebDataset` shards). Samples share blobs of at most
    /// this size.
    Tar(ByteSize),
}

impl Layout {
    /// Whether a blob's parts are always whole objects.
    pub fn takes_whole_objects(self) -> bool {
        matches!(self, Self::Files | Self::Pack(_))
    }
}

/// Most items of a pack. Bounds packs of empty objects, and a row of the digest.
const PACK_ITEMS_MAX: usize = 8192;

/// A blob whose content has not been read yet, so that its address is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlobPlan {
    /// Where its bytes are stored.
    pub parts: Vec<Part>,
    /// The items in it.
    pub items: Vec<ItemSpan>,
}

impl BlobPlan {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.parts.iter().map(|part| part.length).sum()
    }

    /// Length of the leaves of its hash tree. `None` if the blob needs none: its only item is the
    /// whole blob, which its address verifies.
    pub fn leaf_length(&self) -> Option<LeafLength> {
        let length = self.length();
        let is_whole = |item: &ItemSpan| (item.offset, item.length) == (0, length);
        if self.items.iter().all(is_whole) {
            return None;
        }
        LeafLength::for_pack(length, self.items.len() as u64)
    }
}

/// Plans blobs of whole objects, from the entries of a listing.
#[derive(Debug)]
pub struct Planner {
    /// Size of a pack; `None` if every object is one blob.
    pack: Option<ByteSize>,
    open: BlobPlan,
    open_length: u64,
}

impl Planner {
    /// A planner with packs of at most this size, or with one blob per object.
    pub fn new(pack: Option<ByteSize>) -> Self {
        Self { pack, open: BlobPlan::default(), open_length: 0 }
    }

    /// Adds the next entry. Returns the blobs that it completes, in order.
    pub fn push(&mut self, listed: ListedObject) -> Vec<BlobPlan> {
        let mut complete = Vec::new();
        let pack_size = self.pack.map_or(0, |size| size.0);
        let alone = self.pack.is_none() || listed.length > pack_size;
        let full = self.open_length.saturating_add(listed.length) > pack_size
            || self.open.items.len() == PACK_ITEMS_MAX;
        if alone || full {
            complete.extend(self.finish());
        }
        let ListedObject { object, length, version } = listed;
        self.open.items.push(ItemSpan { offset: self.open_length, length });
        self.open.parts.push(Part { object, version, offset: 0, length });
        self.open_length += length;
        if alone {
            complete.extend(self.finish());
        }
        complete
    }

    /// The last blob, if it is incomplete.
    pub fn finish(&mut self) -> Option<BlobPlan> {
        self.open_length = 0;
        let open = std::mem::take(&mut self.open);
        (!open.items.is_empty()).then_some(open)
    }
}

/// Checks that an object's name works with every kind of origin and prints on one line.
pub fn check_name(object: &str) -> Result<(), String> {
    let problem = if object.chars().any(char::is_control) {
        "has a control character in its name"
    } else if object.split('/').any(|step| matches!(step, "" | "." | "..")) {
        "has an empty, `.` or `..` step in its path"
    } else {
        return Ok(());
    };
    Err(format!("`{}`, which {problem}", object.escape_debug()))
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files => f.write_str("files"),
            Self::Pack(size) => write!(f, "pack:{}", size.0),
            Self::Records(Records { record, header, pack }) => {
                write!(f, "records:{record}:{header}:{}", pack.0)
            }
            Self::Tar(size) => write!(f, "tar:{}", size.0),
        }
    }
}

/// The inverse of `Display`. Digests and journals store a layout as text.
impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = text.split(':');
        let name = fields.next().unwrap_or_default();
        let numbers: Option<Vec<u64>> = fields.map(|field| field.parse().ok()).collect();
        let layout = match (name, numbers.as_deref()) {
            ("files", Some([])) => Some(Self::Files),
            ("pack", Some([size])) => Some(Self::Pack(ByteSize(*size))),
            ("records", Some([record, header, pack])) => {
                Records::new(*record, *header, ByteSize(*pack)).map(Self::Records)
            }
            ("tar", Some([size])) => Some(Self::Tar(ByteSize(*size))),
            _ => None,
        };
        layout.ok_or_else(|| format!("`{}` is not a known layout", text.escape_debug()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn listed(index: usize, length: u64) -> ListedObject {
        ListedObject { object: format!("{index:06}"), length, version: format!("v{index}") }
    }

    fn plan(pack: Option<u64>, lengths: &[u64]) -> Vec<BlobPlan> {
        let mut planner = Planner::new(pack.map(ByteSize));
        let mut blobs: Vec<_> =
            lengths.iter().enumerate().flat_map(|(i, l)| planner.push(listed(i, *l))).collect();
        blobs.extend(planner.finish());
        blobs
    }

    #[test]
    fn files_are_blobs_of_their_own() {
        let blobs = plan(None, &[3, 0, 5]);
        assert_eq!(blobs.iter().map(|blob| blob.items.len()).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[test]
    fn packs_take_neighbours_up_to_their_size() {
        let blobs = plan(Some(10), &[4, 6, 1, 11, 2, 2, 10]);
        assert_eq!(blobs.iter().map(BlobPlan::length).collect::<Vec<_>>(), [10, 1, 11, 4, 10]);
        assert_eq!(blobs[0].items[1], ItemSpan { offset: 4, length: 6 });
    }

    #[test]
    fn packs_of_empty_objects_are_bounded() {
        let blobs = plan(Some(10), &vec![0; 8193]);
        assert_eq!(blobs.iter().map(|blob| blob.items.len()).collect::<Vec<_>>(), [8192, 1]);
    }

    proptest! {
        /// Promise 2 (exactly once) depends on this: every object is one item of one blob, in
        /// order.
        #[test]
        fn every_object_is_planned_exactly_once(
            lengths in proptest::collection::vec(prop_oneof![Just(0), 0_u64..300], 0..200),
            size in 0_u64..1000,
        ) {
            for pack in [None, Some(size)] {
                let blobs = plan(pack, &lengths);
                let objects: Vec<_> =
                    blobs.iter().flat_map(|blob| &blob.parts).map(|part| part.length).collect();
                prop_assert_eq!(&objects, &lengths);
                for blob in &blobs {
                    prop_assert!(blob.items.len() == 1 || blob.length() <= size);
                    prop_assert_eq!(blob.items.len(), blob.parts.len());
                }
            }
        }
    }

    #[test]
    fn layouts_survive_a_round_trip_through_text() {
        let records = Records::new(3073, 16, ByteSize(1 << 20)).unwrap();
        let tar = Layout::Tar(ByteSize(7));
        for layout in [Layout::Files, Layout::Pack(ByteSize(9)), Layout::Records(records), tar] {
            assert_eq!(layout.to_string().parse(), Ok(layout));
        }
        for nonsense in ["", "file", "files:1", "pack", "pack:x", "records:0:0:1", "tar:1:2"] {
            assert!(nonsense.parse::<Layout>().is_err(), "{nonsense}");
        }
    }
}
