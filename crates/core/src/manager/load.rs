//! How much of a chunk has arrived.

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
            self.total()
        })
    }

    /// How many bytes there are.
    pub fn total(&self) -> ByteSize {
        ByteSize(self.arrived)
    }
}
