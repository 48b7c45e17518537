//! Listings: tables of datasets whose content has not been read yet.
//!
//! A listing is a file in the format of a digest, made from the origin's list of objects alone. The
//! address of each blob is unknown, and the *key* of its object stands in its place: a keyed hash
//! of the origin's URL, the object's name, version and length. A job that reads the dataset records
//! addresses by these keys in a catalogue ([`crate::Catalogue`]). When all are known,
//! [`complete`] writes the digest.
//!
//! Only whole objects can be listed so (the layout `files`), and only objects with a version: the
//! key must change whenever the content may have changed.
//!
//! Not here: reading the objects, and the claims of jobs that do so together.

use std::path::Path;

use forebay_core::{
    Address, ByteSize, Namespace,
    dataset::{DatasetIdHasher, ListedObject, chunking::Chunking},
};

use crate::{
    Catalogue, CatalogueEntry, CatalogueError, DigestFileError, PendingDigest,
    format::{Blob, BlobView, Digest, DigestError, Header, ItemSpan, Part, PartView, Summary},
};

/// The layout of a listing, as text. It is none of [`crate::Layout`]: nothing else can use a
/// listing as a digest.
pub(crate) const LAYOUT: &str = "listing";
/// The layout of the digest that a listing becomes.
const COMPLETE_LAYOUT: &str = "files";
/// Most objects of a listing. They are in memory together, at about 150 bytes each.
pub const LISTED_OBJECTS_MAX: usize = 4 << 20;
/// Entries that are appended to a catalogue at a time.
const ENTRIES_PER_APPEND: usize = 4096;

/// Why a listing cannot be made or completed.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] DigestFileError),
    /// A row of the listing or digest is damaged.
    #[error("this is {0}; build the digest again")]
    Digest(#[from] DigestError),
    /// The catalogue cannot be used.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}

/// The key of an object: an address that no content has.
fn key_of(namespace: &Namespace, origin: &str, part: &PartView<'_>) -> Address {
    let mut hasher = namespace.hasher();
    hasher.update(b"forebay 2026 listed object v1");
    for text in [origin, part.object, part.version] {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.update(&part.length.to_le_bytes());
    hasher.finish()
}

/// Publishes the listing of these objects, which are in the order of the origin. `chunks` is that
/// of an earlier listing, so that chunks stay the same when few objects change.
pub fn publish_listing(
    path: &Path,
    namespace: &Namespace,
    origin: &str,
    objects: &[ListedObject],
    chunks: Option<u64>,
) -> Result<Summary, ListingError> {
    let blobs = objects.len() as u64;
    let bytes = objects.iter().map(|object| object.length).fold(0, u64::saturating_add);
    let chunking = chunks
        .and_then(|chunks| Chunking::into_chunks(chunks.min(blobs).max(1), blobs).ok())
        .unwrap_or_else(|| Chunking::for_dataset(ByteSize(bytes), blobs));
    let rows = || {
        objects.iter().map(|ListedObject { object, version, length }| {
            let (offset, length) = (0, *length);
            let view = PartView { object, version, offset, length };
            let address = key_of(namespace, origin, &view);
            let part = Part { object: object.clone(), version: version.clone(), offset, length };
            let items = vec![ItemSpan { offset, length }];
            Blob { address, parts: vec![part], items, tree: None }
        })
    };
    let mut id = DatasetIdHasher::new();
    rows().for_each(|row| id.push(&row.address, row.length()));
    let public = namespace.is_public();
    let summary = Summary {
        dataset: id.finish(chunking),
        namespace: if public { "public".to_owned() } else { namespace.id().to_string() },
        origin: origin.to_owned(),
        layout: LAYOUT.to_owned(),
        chunking,
        items: blobs,
        blobs,
        bytes,
    };
    publish(path, summary.clone(), rows().map(Ok))?;
    Ok(summary)
}

/// Writes the digest of a listing whose addresses are all in the catalogue. Returns the number of
/// those that are not; with any, nothing is written.
pub fn complete(path: &Path, listing: &Digest, catalogue: &Catalogue) -> Result<u64, ListingError> {
    let mut id = DatasetIdHasher::new();
    let (mut rows, mut unknown) = (Vec::new(), 0);
    for row in listing.blobs() {
        let row = row?;
        match known(&row, catalogue) {
            Some(address) => {
                id.push(&address, row.length);
                rows.push(address);
            }
            None => unknown += 1,
        }
    }
    if unknown > 0 {
        return Ok(unknown);
    }
    let summary = Summary {
        dataset: id.finish(listing.chunking()),
        layout: COMPLETE_LAYOUT.to_owned(),
        ..listing.summary().clone()
    };
    let rows = listing.blobs().zip(rows).map(|(row, address)| {
        let parts = row?.parts().map(|part| part.map(owned)).collect::<Result<Vec<_>, _>>()?;
        let items = parts.iter().map(|part| ItemSpan { offset: 0, length: part.length }).collect();
        Ok(Blob { address, parts, items, tree: None })
    });
    publish(path, summary, rows)?;
    Ok(0)
}

/// The address of a listed blob, if a catalogue has it.
fn known(row: &BlobView<'_>, catalogue: &Catalogue) -> Option<Address> {
    let entry = catalogue.find(row.address.as_bytes())?;
    (entry.length == row.length).then_some(entry.address)
}

/// The id that the listing of a digest's objects has, if each of its blobs is one object. So a
/// digest is recognised as that of a listing, however it was built.
pub fn listing_id(
    digest: &Digest,
    namespace: &Namespace,
) -> Result<Option<forebay_core::DatasetId>, DigestError> {
    let mut id = DatasetIdHasher::new();
    for row in digest.blobs() {
        let row = row?;
        let Some(key) = key_of_row(digest, namespace, &row)? else { return Ok(None) };
        id.push(&key, row.length);
    }
    Ok(Some(id.finish(digest.chunking())))
}

/// Appends the addresses of a digest's objects to a catalogue that does not have them. Objects that
/// have not changed since the digest was built are not read again.
pub fn adopt(
    catalogue: &mut Catalogue,
    digest: &Digest,
    namespace: &Namespace,
) -> Result<(), ListingError> {
    let mut entries = Vec::new();
    for (index, row) in (0_u64..).zip(digest.blobs()) {
        let row = row?;
        let Some(key) = key_of_row(digest, namespace, &row)? else { return Ok(()) };
        let entry = CatalogueEntry { address: row.address, length: row.length, index, form: 0 };
        if catalogue.find(key.as_bytes()).is_none() {
            entries.push((*key.as_bytes(), entry));
        }
        if entries.len() == ENTRIES_PER_APPEND {
            catalogue.append(&std::mem::take(&mut entries))?;
        }
    }
    catalogue.append(&entries)?;
    catalogue.refresh()?;
    Ok(())
}

/// The key of the object that a blob is; `None` if it is not one whole object with a version.
fn key_of_row(
    digest: &Digest,
    namespace: &Namespace,
    row: &BlobView<'_>,
) -> Result<Option<Address>, DigestError> {
    let is_files = digest.summary().layout == COMPLETE_LAYOUT;
    let part = row.parts().next().transpose()?;
    let part = part.filter(|part| is_files && !part.version.is_empty() && row.parts().len() == 1);
    Ok(part.map(|part| key_of(namespace, &digest.summary().origin, &part)))
}

fn publish(
    path: &Path,
    summary: Summary,
    rows: impl Iterator<Item = Result<Blob, DigestError>>,
) -> Result<(), ListingError> {
    let header = Header { summary, columns: Vec::new(), has_trees: false };
    let mut pending = PendingDigest::create(path, header)?;
    for row in rows {
        pending.push(&row?, &[vec![]])?;
    }
    Ok(pending.publish()?)
}

fn owned(part: PartView<'_>) -> Part {
    let PartView { object, version, offset, length } = part;
    Part { object: object.to_owned(), version: version.to_owned(), offset, length }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{open, open_with_listings};

    fn objects(count: u64, changed: Option<u64>) -> Vec<ListedObject> {
        let version = |at| if changed == Some(at) { "new".to_owned() } else { format!("v{at}") };
        let object = |at: u64| ListedObject {
            object: format!("{at:03}"),
            version: version(at),
            length: 10 + at,
        };
        (0..count).map(object).collect()
    }

    fn entry(listing: &Digest, at: u64) -> ([u8; 32], CatalogueEntry) {
        let row = listing.blob(forebay_core::BlobOrdinal::new(at)).unwrap();
        let address = Namespace::public().address(&at.to_le_bytes());
        let entry = CatalogueEntry { address, length: row.length, index: at, form: 0 };
        (*row.address.as_bytes(), entry)
    }

    #[test]
    fn a_listing_becomes_a_digest_when_all_addresses_are_known() {
        let directory = tempfile::tempdir().unwrap();
        let (path, done) = (directory.path().join("x.listing"), directory.path().join("x.digest"));
        let namespace = Namespace::public();
        publish_listing(&path, &namespace, "s3://b/x", &objects(50, None), None).unwrap();
        let refused = open(&path).unwrap_err().to_string();
        assert!(refused.contains("is a listing"), "{refused}");
        let listing = open_with_listings(&path).unwrap().digest;
        assert!(listing.is_listing());

        let names = directory.path().join("x.catalogue");
        let mut catalogue = Catalogue::open(&names, namespace.id()).unwrap();
        let entries: Vec<_> = (0..50).map(|at| entry(&listing, at)).collect();
        catalogue.append(&entries[..49]).unwrap();
        catalogue.refresh().unwrap();
        assert_eq!(complete(&done, &listing, &catalogue).unwrap(), 1);
        assert!(!done.exists());
        catalogue.append(&entries[49..]).unwrap();
        catalogue.refresh().unwrap();
        assert_eq!(complete(&done, &listing, &catalogue).unwrap(), 0);
        let digest = open(&done).unwrap().digest;
        assert_eq!(digest.chunking(), listing.chunking());
        let found = digest.blob(forebay_core::BlobOrdinal::new(7)).unwrap();
        assert_eq!((found.address, found.start), (entries[7].1.address, 70 + 21));
        let id = listing_id(&digest, &namespace).unwrap();
        assert_eq!(id, Some(listing.summary().dataset));
    }

    /// Only what has changed is unknown after the origin has changed, and chunks stay the same.
    #[test]
    fn a_digest_tells_the_addresses_of_unchanged_objects() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let namespace = Namespace::public();
        let before = objects(500, None);
        publish_listing(&at("x.listing"), &namespace, "s3://b/x", &before, None).unwrap();
        let listing = open_with_listings(&at("x.listing")).unwrap().digest;
        let mut first = Catalogue::open(&at("1.catalogue"), namespace.id()).unwrap();
        let entries: Vec<_> = (0..500).map(|at| entry(&listing, at)).collect();
        first.append(&entries).unwrap();
        first.refresh().unwrap();
        complete(&at("x.digest"), &listing, &first).unwrap();

        let mut other = Catalogue::open(&at("2.catalogue"), namespace.id()).unwrap();
        let digest = open(&at("x.digest")).unwrap().digest;
        adopt(&mut other, &digest, &namespace).unwrap();
        let mut after = objects(503, Some(3));
        after.remove(10);
        let chunks = Some(u64::from(listing.chunking().chunks()));
        publish_listing(&at("y.listing"), &namespace, "s3://b/x", &after, chunks).unwrap();
        let changed = open_with_listings(&at("y.listing")).unwrap().digest;
        assert_eq!(changed.chunking().chunks(), listing.chunking().chunks());
        assert_eq!(complete(&at("y.digest"), &changed, &other).unwrap(), 1 + 3);
    }
}
