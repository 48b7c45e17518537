//! Prefetch window: how many items ahead a loader announces to its agent.
//!
//! A large window hides the origin's latency. Too large a window makes prefetched blobs evict
//! others that are still unread.

/// Largest window, in items.
const ITEMS_MAX: u64 = 4096;
/// Prefetched blobs take at most one part in this many of the node's capacity.
const SHARE: u64 = 4;
/// Items per prefetch hint: one message for many items.
const HINT_ITEMS: usize = 512;

/// The number of items that a loader announces before it reads them.
#[derive(Debug, Clone, Copy)]
pub struct PrefetchWindow {
    items: usize,
}

impl PrefetchWindow {
    /// For blobs of about `blob_bytes`, and a node of `node_bytes` if there is one.
    pub fn new(node_bytes: Option<u64>, blob_bytes: u64) -> Self {
        let room = node_bytes.map_or(ITEMS_MAX, |bytes| bytes / SHARE / blob_bytes.max(1));
        Self { items: usize::try_from(room.clamp(1, ITEMS_MAX)).expect("at most ITEMS_MAX") }
    }

    /// The size of the window.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Number of items to announce now, if `unread` announced items are unread.
    pub fn more(&self, unread: usize) -> usize {
        let more = self.items.saturating_sub(unread);
        if unread == 0 || more >= HINT_ITEMS { more } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_fits_the_node() {
        assert_eq!(PrefetchWindow::new(None, 1000).items(), 4096);
        assert_eq!(PrefetchWindow::new(Some(1 << 40), 1000).items(), 4096);
        assert_eq!(PrefetchWindow::new(Some(4_000_000), 1000).items(), 1000);
        assert_eq!(PrefetchWindow::new(Some(100), 1000).items(), 1, "at least one item");
        assert_eq!(PrefetchWindow::new(Some(100), 0).items(), 25, "empty items");
    }

    /// For any size, the reader always has announced items, and hints are few.
    #[test]
    fn items_are_announced_in_large_hints() {
        for (node, hints_max) in [(None, 20), (Some(4_000_000), 20), (Some(400_000), 100)] {
            let window = PrefetchWindow::new(node, 1000);
            let (mut unread, mut hints) = (0, 0);
            for _ in 0..10_000 {
                let more = window.more(unread);
                unread += more;
                hints += usize::from(more > 0);
                assert!((1..=window.items()).contains(&unread));
                unread -= 1;
            }
            assert!(hints <= hints_max, "{hints} hints");
        }
    }
}
