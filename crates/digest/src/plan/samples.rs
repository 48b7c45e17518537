//! The layout `tar`: archives of samples. Neighbouring members whose names differ only after the
//! first dot are one item (`000.jpg`, `000.cls`), as in `WebDataset`.
//!
//! An item is the range of the archive from its first member's header to its last member's end.
//! That is a small archive itself, which any tar reader can extract. So nothing has to be copied,
//! and a blob is one range of one object.

use std::ops::Range;

use super::{ItemSpan, PACK_ITEMS_MAX};
use forebay_core::units::ByteSize;

/// A blob of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The blob's byte range in the archive.
    pub range: Range<u64>,
    /// Items in the blob.
    pub items: Vec<ItemSpan>,
}

/// Groups the members of one archive into samples, and samples into blobs.
#[derive(Debug)]
pub struct Samples {
    pack: u64,
    /// The sample of the last member, and its byte range.
    open: Option<(String, Range<u64>)>,
    cut: Option<Cut>,
}

impl Samples {
    /// Samples share blobs of at most `pack` bytes. A longer sample is one blob.
    pub fn new(pack: ByteSize) -> Self {
        Self { pack: pack.0, open: None, cut: None }
    }

    /// Adds the next file of the archive, with its byte range including headers and padding.
    /// Returns the blob that it completes, if any. A file without an extension belongs to no sample
    /// and is skipped.
    pub fn member(&mut self, name: &str, range: Range<u64>) -> Option<Cut> {
        let key = sample_of(name)?;
        if let Some((open, open_range)) = &mut self.open
            && open == key
        {
            open_range.end = range.end;
            return None;
        }
        let before = self.open.replace((key.to_owned(), range));
        before.and_then(|(_, range)| self.add(range))
    }

    /// Ends the archive. Returns the remaining blobs, two at most.
    pub fn finish(mut self) -> impl Iterator<Item = Cut> {
        let last = self.open.take();
        let complete = last.and_then(|(_, range)| self.add(range));
        complete.into_iter().chain(self.cut)
    }

    /// Adds a complete sample. Returns the blob that it completes, if any.
    fn add(&mut self, sample: Range<u64>) -> Option<Cut> {
        let fits = |cut: &Cut| {
            sample.end - cut.range.start <= self.pack && cut.items.len() < PACK_ITEMS_MAX
        };
        let complete = self.cut.take_if(|cut| !fits(cut));
        let start = sample.start;
        let cut = self.cut.get_or_insert(Cut { range: start..start, items: Vec::new() });
        let offset = start - cut.range.start;
        cut.items.push(ItemSpan { offset, length: sample.end - start });
        cut.range.end = sample.end;
        complete
    }
}

/// The sample of a member: its path up to the first dot of the file name. Hidden files, files
/// without an extension and `WebDataset`'s own (`__…__`) belong to none.
fn sample_of(name: &str) -> Option<&str> {
    let step = name.rfind('/').map_or(0, |at| at + 1);
    let dot = name[step..].find('.').filter(|dot| *dot > 0)?;
    (!name[step..].starts_with("__")).then_some(&name[..step + dot])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cuts(pack: u64, members: &[(&str, u64)]) -> Vec<Cut> {
        let (mut samples, mut end, mut cuts) = (Samples::new(ByteSize(pack)), 0, Vec::new());
        for (name, length) in members {
            cuts.extend(samples.member(name, end..end + length));
            end += length;
        }
        cuts.extend(samples.finish());
        cuts
    }

    #[test]
    fn names_determine_samples() {
        assert_eq!(sample_of("a/b.c/000.seg.png"), Some("a/b.c/000"));
        assert_eq!(sample_of("000.jpg"), Some("000"));
        for none in ["readme", "dir.d/readme", ".hidden", "a/.hidden.png", "__key__.txt", ""] {
            assert_eq!(sample_of(none), None, "{none}");
        }
    }

    #[test]
    fn neighbours_with_one_key_are_one_item() {
        let members = [("0.cls", 10), ("0.jpg", 90), ("1.cls", 10), ("readme", 5), ("1.jpg", 50)];
        let cut = Cut {
            range: 0..165,
            items: vec![
                ItemSpan { offset: 0, length: 100 },
                // A file between its members is included: a reader skips it.
                ItemSpan { offset: 100, length: 65 },
            ],
        };
        assert_eq!(cuts(1000, &members), [cut]);
        assert_eq!(cuts(100, &members).len(), 2, "one blob each");
        assert_eq!(cuts(1, &members).len(), 2, "also if longer than a pack");
        assert_eq!(cuts(1000, &[("readme", 9)]), []);
    }

    proptest! {
        /// Promise 2 depends on this: every sample is one item of one blob, in order.
        #[test]
        fn every_sample_is_cut_exactly_once(
            members in proptest::collection::vec((0_u8..4, 1_u64..100), 0..100),
            pack in 0_u64..500,
        ) {
            let names: Vec<String> = members.iter().map(|(key, _)| format!("{key}.x")).collect();
            let members: Vec<(&str, u64)> =
                names.iter().zip(&members).map(|(name, (_, length))| (&**name, *length)).collect();
            let mut expected: Vec<(&str, u64)> = Vec::new();
            for (name, length) in &members {
                match expected.last_mut() {
                    Some((last, sum)) if last == name => *sum += length,
                    _ => expected.push((name, *length)),
                }
            }
            let cuts = cuts(pack, &members);
            let lengths: Vec<u64> =
                cuts.iter().flat_map(|cut| &cut.items).map(|item| item.length).collect();
            let expected: Vec<u64> = expected.iter().map(|(_, length)| *length).collect();
            prop_assert_eq!(lengths, expected);
            let mut next = 0;
            for cut in &cuts {
                prop_assert!(cut.range.start == next && !cut.items.is_empty());
                prop_assert!(cut.items.len() == 1 || cut.range.end - cut.range.start <= pack);
                next = cut.range.end;
            }
        }
    }
}
