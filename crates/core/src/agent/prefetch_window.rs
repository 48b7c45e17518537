//! How far ahead a loader tells its agent what it will read.
//!
//! Far enough that the origin's latency is hidden, but not so far that what is fetched pushes out what
//! was fetched before and is still unread.

/// Items that are told of before they are read, if the node is large enough.
const ITEMS_MAX: u64 = 4096;
/// What is fetched ahead takes at most one part in so many of the node.
const SHARE: u64 = 4;
/// An agent is told of so many at once, rather than of each.
const AT_ONCE: usize = 512;

/// How far ahead one epoch looks.
#[derive(Debug, Clone, Copy)]
pub struct LookAhead {
    items: usize,
}

impl LookAhead {
    /// For blobs that are about so long, and a node of that capacity, if there is one.
    pub fn new(node_bytes: Option<u64>, blob_bytes: u64) -> Self {
        let room = node_bytes.map_or(ITEMS_MAX, |bytes| bytes / SHARE / blob_bytes.max(1));
        Self { items: usize::try_from(room.clamp(1, ITEMS_MAX)).expect("it is small") }
    }

    /// Items that may have been told of and not been read yet.
    pub fn items(&self) -> usize {
        self.items
    }

    /// How many more to tell of now, if so many of those told of are unread.
    pub fn more(&self, unread: usize) -> usize {
        let more = self.items.saturating_sub(unread);
        if unread == 0 || more >= AT_ONCE { more } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_node_is_not_overrun() {
        assert_eq!(LookAhead::new(None, 1000).items(), 4096);
        assert_eq!(LookAhead::new(Some(1 << 40), 1000).items(), 4096);
        assert_eq!(LookAhead::new(Some(4_000_000), 1000).items(), 1000);
        assert_eq!(LookAhead::new(Some(100), 1000).items(), 1, "it has to go on");
        assert_eq!(LookAhead::new(Some(100), 0).items(), 25, "all items are empty");
    }

    /// Whatever the size, a reader is never without, and the agent never told of more than it may be.
    #[test]
    fn whoever_reads_is_told_of_many_at_once() {
        for (node, tellings) in [(None, 20), (Some(4_000_000), 20), (Some(400_000), 100)] {
            let ahead = LookAhead::new(node, 1000);
            let (mut unread, mut told) = (0, 0);
            for _ in 0..10_000 {
                let more = ahead.more(unread);
                unread += more;
                told += usize::from(more > 0);
                assert!((1..=ahead.items()).contains(&unread));
                unread -= 1;
            }
            assert!(told <= tellings, "told {told} times");
        }
    }
}
