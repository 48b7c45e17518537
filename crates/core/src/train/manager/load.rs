//! How much of a chunk has arrived.
//!
//! The last part is not told, and neither is a load of hardly anything: what is learnt from the rest is
//! that loads take a little longer than they do, and so they begin a little early. Told exactly, the next
//! chunk would come just when the last item was drawn, and any delay would be a miss (of the scenario
//! `uneven-jobs` one read in a hundred).

use crate::ByteSize;

/// The rotation is told of every so manyth of a chunk.
const NEWS_PER_CHUNK: u64 = 16;

/// A chunk on its way.
#[derive(Debug, Default)]
pub(super) struct Load {
    arrived: u64,
    told: u64,
}

impl Load {
    /// So many bytes more of a chunk of this size. Returns how many there are, if that is worth telling.
    pub fn arrived(&mut self, bytes: ByteSize, size: ByteSize) -> Option<ByteSize> {
        self.arrived = self.arrived.saturating_add(bytes.0).min(size.0);
        let is_news = self.arrived - self.told > size.0 / NEWS_PER_CHUNK;
        is_news.then(|| {
            self.told = self.arrived;
            ByteSize(self.arrived)
        })
    }

    /// Whether all of a chunk of this size has arrived, so that nobody has to say that it needs no more of it: a slow
    /// job would say so late.
    pub fn is_whole(&self, size: ByteSize) -> bool {
        self.arrived >= size.0
    }
}
