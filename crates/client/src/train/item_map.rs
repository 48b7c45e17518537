//! What a job knows of its dataset's pieces, made once for all epochs: the blob and the piece of every item.

use std::sync::Arc;

use forebay_core::{
    ByteSize, ItemOrdinal,
    chunking::ChunkOrdinal,
    digest::{Digest, DigestError},
    sampler,
};

/// The pieces of a dataset, and what is in them.
#[derive(Debug)]
pub struct Layout {
    pieces: sampler::Layout,
    digest: Digest,
    /// The blob and the piece of every item.
    places: Arc<[(u32, u32)]>,
    /// Bytes and items of each piece.
    sizes: Vec<(ByteSize, u64)>,
}

/// Why nothing can be drawn from a dataset.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// Its digest is damaged.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// It is too large.
    #[error(transparent)]
    Layout(#[from] sampler::LayoutError),
}

impl Layout {
    /// Looks at every row of a digest.
    pub fn new(digest: &Digest) -> Result<Self, LayoutError> {
        let (places, sizes) = places(digest)?;
        let pieces = u32::try_from(sizes.len()).expect("few pieces");
        let of_items = places.iter().map(|(_, piece)| ChunkOrdinal(*piece));
        let pieces = sampler::Layout::new(digest.summary().dataset, pieces, of_items)?;
        Ok(Self { pieces, digest: digest.clone(), places: places.into(), sizes })
    }

    /// The same, with the length of each item: what batches of like length are made by.
    pub fn with_lengths(&self, lengths: &[f64]) -> Result<Self, sampler::LayoutError> {
        let pieces = self.pieces.clone().with_lengths(lengths)?;
        let (digest, places) = (self.digest.clone(), Arc::clone(&self.places));
        Ok(Self { pieces, digest, places, sizes: self.sizes.clone() })
    }

    /// As samplers know it.
    pub fn pieces(&self) -> &sampler::Layout {
        &self.pieces
    }

    /// Bytes and items of each piece.
    pub fn sizes(&self) -> &[(ByteSize, u64)] {
        &self.sizes
    }

    /// How large a part of the dataset's bytes these pieces are.
    pub fn share(&self, pieces: &[usize]) -> f64 {
        let bytes = |size: &(ByteSize, u64)| size.0.0 as f64;
        let total: f64 = self.sizes.iter().map(bytes).sum();
        let those = pieces.iter().filter_map(|piece| self.sizes.get(*piece)).map(bytes);
        if total > 0.0 { those.sum::<f64>() / total } else { 0.0 }
    }

    /// Whether an item's blob was resident when the nodes said this: a bit for each blob, lowest first, or nothing
    /// at all.
    pub fn residents(&self, presence: &[u8]) -> impl Fn(ItemOrdinal) -> bool {
        move |item| {
            let (blob, _) = self.place(item);
            presence.get(blob as usize / 8).is_some_and(|byte| byte >> (blob % 8) & 1 == 1)
        }
    }

    /// The piece of an item.
    pub fn piece_of(&self, item: ItemOrdinal) -> u32 {
        self.place(item).1
    }

    /// How long these items are together.
    pub fn bytes_of(&self, items: &[ItemOrdinal]) -> u64 {
        let length = |item: &ItemOrdinal| self.digest.item(*item).map_or(0, |place| place.length);
        items.iter().map(length).sum()
    }

    fn place(&self, item: ItemOrdinal) -> (u32, u32) {
        self.places[usize::try_from(item.0).expect("an item of the layout")]
    }
}

type Places = (Vec<(u32, u32)>, Vec<(ByteSize, u64)>);

fn places(digest: &Digest) -> Result<Places, DigestError> {
    let summary = digest.summary();
    let mut places = Vec::with_capacity(usize::try_from(summary.items).unwrap_or(0));
    let mut sizes = vec![(ByteSize(0), 0); summary.chunking.pieces() as usize];
    for (blob, row) in (0_u32..).zip(digest.blobs()) {
        let row = row?;
        let piece = summary.chunking.piece_of(row.start, ByteSize(summary.bytes));
        let (bytes, items) = &mut sizes[piece as usize];
        bytes.0 = bytes.0.saturating_add(row.length);
        *items += row.item_count();
        places.extend((0..row.item_count()).map(|_| (blob, piece)));
    }
    Ok((places, sizes))
}
