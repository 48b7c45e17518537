//! Bucket queue: entries ordered by a small integer score, with the lowest found in constant time.
//!
//! There is one list per score and a two-level bitmap of non-empty lists. Finding the next
//! non-empty score reads one word per 4,096 scores at worst, whatever the number of entries. A
//! search passes over a spared entry once, not each time that the search is repeated.

use super::slab_list::{Links, List, Slot};

/// Entries by score; within one score from newest to oldest.
#[derive(Debug, Clone, Default)]
pub(super) struct BucketQueue {
    lists: Vec<List>,
    filled: Vec<u64>,
    /// Bit `i` is set if `filled[i]` has any bit: 64 x 64 = 4,096 scores per word.
    filled_words: Vec<u64>,
    /// Scores whose lists have entries that were passed over. A list whose entries were all passed
    /// over counts as empty until [`BucketQueue::reset_passed`].
    passed: Vec<u32>,
}

impl BucketQueue {
    /// Higher scores share the list of this one, which bounds the number of lists.
    pub const SCORE_MAX: u32 = (1 << 20) - 1;

    pub fn push_newest(&mut self, links: &mut Links, score: u32, slot: Slot) {
        self.list_mut(score).push_newest(links, slot);
    }

    pub fn push_oldest(&mut self, links: &mut Links, score: u32, slot: Slot) {
        self.list_mut(score).push_oldest(links, slot);
    }

    pub fn remove(&mut self, links: &mut Links, score: u32, slot: Slot) {
        let index = score.min(Self::SCORE_MAX) as usize;
        self.lists[index].remove(links, slot);
        if self.lists[index].len() == 0 {
            self.clear(index);
        }
    }

    fn clear(&mut self, index: usize) {
        self.filled[index / 64] &= !(1 << (index % 64));
        if self.filled[index / 64] == 0 {
            self.filled_words[index / 4096] &= !(1 << (index / 64 % 64));
        }
    }

    fn fill(&mut self, index: usize) {
        self.filled[index / 64] |= 1 << (index % 64);
        self.filled_words[index / 4096] |= 1 << (index / 64 % 64);
    }

    /// The list of one score.
    pub fn list(&self, score: u32) -> List {
        self.lists.get(score.min(Self::SCORE_MAX) as usize).copied().unwrap_or_default()
    }

    /// The lowest score that has entries.
    #[inline]
    pub fn lowest(&self) -> Option<u32> {
        let index = self.filled_words.iter().position(|words| *words != 0)?;
        let word = index * 64 + self.filled_words[index].trailing_zeros() as usize;
        Some(index_u32(word * 64 + self.filled[word].trailing_zeros() as usize))
    }

    /// The first entry that is not spared, from the lowest score up, in each score from the oldest.
    /// A spared entry must stay spared until [`BucketQueue::reset_passed`].
    #[inline]
    pub fn first_not(&mut self, links: &Links, spared: impl Fn(Slot) -> bool) -> Option<Slot> {
        loop {
            let score = self.lowest()?;
            let found = self.oldest_not(links, score, &spared);
            if found.is_some() {
                return found;
            }
            self.clear(score as usize);
        }
    }

    /// The oldest entry of one score that is not spared, under the same condition.
    #[inline]
    pub fn oldest_not(
        &mut self,
        links: &Links,
        score: u32,
        spared: impl Fn(Slot) -> bool,
    ) -> Option<Slot> {
        let list = self.lists.get_mut(score as usize)?;
        let passed_before = list.has_passed();
        let found = list.oldest_not(links, spared);
        if list.has_passed() && !passed_before {
            self.passed.push(score);
        }
        found
    }

    /// Forgets which entries were passed over, because other entries are spared from now on.
    #[inline]
    pub fn reset_passed(&mut self) {
        while let Some(score) = self.passed.pop() {
            let list = &mut self.lists[score as usize];
            list.reset_passed();
            if list.len() > 0 {
                self.fill(score as usize);
            }
        }
    }

    fn list_mut(&mut self, score: u32) -> &mut List {
        let index = score.min(Self::SCORE_MAX) as usize;
        if index >= self.lists.len() {
            self.lists.resize(index + 1, List::default());
            self.filled.resize(index / 64 + 1, 0);
            self.filled_words.resize(index / 4096 + 1, 0);
        }
        self.fill(index);
        &mut self.lists[index]
    }
}

fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("scores stay below SCORE_MAX")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_score_is_found_like_in_a_sorted_list() {
        let mut random = fastrand::Rng::with_seed(2);
        let (mut queue, mut links) = (BucketQueue::default(), Links::default());
        let mut model: Vec<(u32, u32)> = Vec::new(); // (score, slot), oldest first within a score
        let mut spared_rest = 0;
        for slot in 0..2000 {
            if random.bool() || model.is_empty() {
                // Scores near each other, far apart, and beyond the last list.
                let score =
                    [random.u32(0..70), random.u32(0..20_000), random.u32(..)][random.usize(0..3)];
                links.prepare(Slot(slot), 1);
                queue.push_newest(&mut links, score, Slot(slot));
                model.push((score.min(BucketQueue::SCORE_MAX), slot));
                model.sort_by_key(|entry| entry.0);
            } else {
                let (score, slot) = model.remove(random.usize(0..model.len()));
                queue.remove(&mut links, score, Slot(slot));
            }
            // Searches are repeated while entries, spared or not, come and go.
            let spared = |slot: u32| slot % 3 == spared_rest;
            let expected = |model: &[(u32, u32)]| {
                model.iter().find(|entry| !spared(entry.1)).map(|entry| Slot(entry.1))
            };
            for _ in 0..2 {
                let found = queue.first_not(&links, |slot| spared(slot.0));
                assert_eq!(found, expected(&model));
            }
            if let Some(Slot(first)) = expected(&model) {
                let at = model.iter().position(|entry| entry.1 == first).unwrap();
                let (score, _) = model.remove(at);
                queue.remove(&mut links, score, Slot(first));
                assert_eq!(queue.first_not(&links, |slot| spared(slot.0)), expected(&model));
            }
            if let Some(at) = model.iter().position(|entry| spared(entry.1)) {
                let (score, spared_slot) = model.remove(at);
                queue.remove(&mut links, score, Slot(spared_slot));
                let new = 3 * (10_000 + slot) + (spared_rest + 1) % 3;
                links.prepare(Slot(new), 1);
                queue.push_newest(&mut links, score, Slot(new));
                model.push((score, new));
                model.sort_by_key(|entry| entry.0);
                assert_eq!(queue.first_not(&links, |slot| spared(slot.0)), expected(&model));
            }
            queue.reset_passed();
            spared_rest = random.u32(0..4);
            assert_eq!(queue.lowest(), model.first().map(|entry| entry.0));
        }
    }
}
