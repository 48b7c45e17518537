//! Earlier digest: rows of the last build of the same origin, for objects that have not changed.
//!
//! A plan is a function of the listing. If the earlier digest has a blob with the same parts, and
//! the origin's versions of them are the same, then its bytes are the same, and so are its address
//! and hash tree. Such a blob is not read again.

use std::cmp::Ordering;

use forebay_core::{
    BlobOrdinal, Namespace,
    dataset::{
        ListedObject,
        hash_tree::{HashTree, HashTreeView, HashedContent},
    },
};

use crate::{
    format::{BlobView, Digest, DigestError, ItemSpan, Part, PartView},
    journal::JournalHeader,
    plan::BlobPlan,
};

/// The digest of an earlier build.
pub struct EarlierDigest(Digest);

impl EarlierDigest {
    /// The digest, for a build with this header. Returns what differs if it is of another origin,
    /// layout or namespace.
    pub fn new(digest: Digest, header: &JournalHeader) -> Result<Self, String> {
        let summary = digest.summary();
        let pairs = [
            ("the origin", &summary.origin, &header.origin),
            ("the layout", &summary.layout, &header.layout),
            ("the namespace", &summary.namespace, &header.namespace),
        ];
        if let Some((what, earlier, now)) = pairs.into_iter().find(|(_, old, now)| old != now) {
            return Err(format!("{what} is {earlier}, and not {now}"));
        }
        Ok(Self(digest))
    }

    /// Number of its chunks.
    pub fn chunks(&self) -> u64 {
        self.0.chunking().chunks().into()
    }

    /// Address and hash tree of a planned blob, if its parts have not changed.
    pub fn recall(
        &self,
        namespace: &Namespace,
        plan: &BlobPlan,
    ) -> Result<Option<HashedContent>, DigestError> {
        let Some(first) = plan.parts.first() else { return Ok(None) };
        let Some(blob) = self.blob_at(self.first_from(&first.object, first.offset)?)? else {
            return Ok(None);
        };
        if !has_parts(&blob, &plan.parts)? || !has_items(&blob, &plan.items)? {
            return Ok(None);
        }
        let tree = blob.tree()?;
        if tree.as_ref().map(HashTreeView::leaf) != plan.leaf_length() {
            // Built by a version with other trees, or none.
            return Ok(None);
        }
        if tree.is_some_and(|tree| !tree.is_of(namespace, &blob.address)) {
            return Ok(None);
        }
        let tree = tree.map(|tree| HashTree { leaf: tree.leaf(), nodes: tree.nodes().to_vec() });
        Ok(Some(HashedContent { address: blob.address, tree }))
    }

    /// The plans of an archive that has not changed, whose headers need not be read then. Empty if
    /// it has changed or is new.
    pub fn plans_of(&self, archive: &ListedObject) -> Result<Vec<BlobPlan>, DigestError> {
        let mut plans = Vec::new();
        let mut next = self.first_from(&archive.object, 0)?;
        while let Some(blob) = self.blob_at(next)? {
            let parts = blob.parts().collect::<Result<Vec<_>, _>>()?;
            if parts.iter().any(|part| part.object != archive.object) {
                break;
            }
            if archive.version.is_empty()
                || parts.iter().any(|part| part.version != archive.version)
            {
                return Ok(Vec::new());
            }
            let items =
                blob.items().map(|item| item.map(|(offset, length)| ItemSpan { offset, length }));
            plans.push(BlobPlan {
                parts: parts.into_iter().map(owned).collect(),
                items: items.collect::<Result<_, _>>()?,
            });
            next = BlobOrdinal::new(next.0 + 1);
        }
        Ok(plans)
    }

    /// The first blob that begins at this byte of this object, or after it: blobs are in the order
    /// of the listing.
    fn first_from(&self, object: &str, offset: u64) -> Result<BlobOrdinal, DigestError> {
        let (mut low, mut high) = (0, self.0.summary().blobs);
        while low < high {
            let middle = low + (high - low) / 2;
            let begin = self.0.blob(BlobOrdinal::new(middle))?.parts().next().transpose()?;
            let order = begin.map_or(Ordering::Less, |part| {
                part.object.cmp(object).then(part.offset.cmp(&offset))
            });
            if order == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(BlobOrdinal::new(low))
    }

    fn blob_at(&self, blob: BlobOrdinal) -> Result<Option<BlobView<'_>>, DigestError> {
        (blob.0 < self.0.summary().blobs).then(|| self.0.blob(blob)).transpose()
    }
}

/// Whether a blob has these parts, in the same versions. An origin without versions shows no
/// change, so its objects are read again.
fn has_parts(blob: &BlobView<'_>, parts: &[Part]) -> Result<bool, DigestError> {
    let earlier = blob.parts();
    if earlier.len() != parts.len() {
        return Ok(false);
    }
    for (earlier, part) in earlier.zip(parts) {
        if part.version.is_empty() || owned(earlier?) != *part {
            return Ok(false);
        }
    }
    Ok(true)
}

fn has_items(blob: &BlobView<'_>, items: &[ItemSpan]) -> Result<bool, DigestError> {
    let earlier = blob.items();
    if earlier.len() != items.len() {
        return Ok(false);
    }
    for (earlier, item) in earlier.zip(items) {
        if earlier? != (item.offset, item.length) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn owned(part: PartView<'_>) -> Part {
    let PartView { object, version, offset, length } = part;
    Part { object: object.to_owned(), version: version.to_owned(), offset, length }
}
