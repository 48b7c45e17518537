//! Does one table's key determine another's? A few keys of each table are followed to find out.
//!
//! A witness is a key, with the other keys of the request in which it was first seen. When it returns, every
//! table either shows the same key again or it does not. How often keys agree when another key comes is
//! what guessing would achieve. A witness answers a few times and makes way for the next one, so that no
//! favourite decides alone, and answers fade: what stops to hold is soon forgotten.

use super::super::key::Key;

/// Witnesses of each table.
const WITNESSES: usize = 32;
/// A witness that does not return while so many others come to its place makes way.
const PATIENCE: u8 = 4;
/// And so does one that has answered so often.
const ANSWERS_MAX: u8 = 8;
/// Answers that are remembered; then all count half.
const ASKED_MAX: u16 = 256;
/// Answers without which nothing is said.
const ASKED_MIN: u16 = 48;
/// A dependency holds if the key is right so often,
const CONFIDENCE_MIN: f64 = 0.9;
/// and wrong so much less often than guessing.
const BETTER_THAN_GUESSING: f64 = 4.0;

/// What stands for a key: nought for none, or for several.
pub(super) type Print = u32;

/// How often something was so.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    agreed: u16,
    asked: u16,
}

impl Share {
    fn note(&mut self, agreed: bool) {
        if self.asked == ASKED_MAX {
            self.asked /= 2;
            self.agreed /= 2;
        }
        self.asked += 1;
        self.agreed += u16::from(agreed);
    }

    fn rate(self) -> Option<f64> {
        (self.asked >= ASKED_MIN).then(|| f64::from(self.agreed) / f64::from(self.asked))
    }
}

/// One table and another: how often the other's key was the same, when the first one's was and when it was not.
#[derive(Debug, Clone, Copy, Default)]
struct Pair {
    together: Share,
    apart: Share,
}

#[derive(Debug, Clone, Copy)]
struct Witness {
    key: Key,
    answers: u8,
    patience: u8,
}

/// The witnesses of all tables.
#[derive(Debug)]
pub(super) struct Witnesses {
    tables: usize,
    followed: Vec<Option<Witness>>,
    /// For each witness, what stood beside it in every table.
    beside: Vec<Print>,
    pairs: Vec<Pair>,
}

impl Witnesses {
    pub fn new(tables: usize) -> Self {
        let count = tables * WITNESSES;
        Self {
            tables,
            followed: vec![None; count],
            beside: vec![0; count * tables],
            pairs: vec![Pair::default(); tables * tables],
        }
    }

    /// A request asked table `from` for this key, and all tables for these.
    pub fn hear(&mut self, from: usize, key: Key, prints: &[Print]) {
        let slot = from * WITNESSES + (key.mixed() >> 40) as usize % WITNESSES;
        let beside = &mut self.beside[slot * self.tables..][..self.tables];
        let pairs = &mut self.pairs[from * self.tables..][..self.tables];
        let witness = &mut self.followed[slot];
        if let Some(seen) = witness {
            let returned = seen.key == key;
            for ((pair, before), now) in pairs.iter_mut().zip(&*beside).zip(prints) {
                if *before != 0 && *now != 0 {
                    let share = if returned { &mut pair.together } else { &mut pair.apart };
                    share.note(before == now);
                }
            }
            if returned {
                seen.answers += 1;
                seen.patience = PATIENCE;
            } else {
                seen.patience -= 1;
            }
            if seen.patience > 0 && seen.answers < ANSWERS_MAX {
                return;
            }
        }
        *witness = Some(Witness { key, answers: 0, patience: PATIENCE });
        beside.copy_from_slice(prints);
    }

    /// How sure one can be of the key of `to`, given that of `from`; `None` if that says too little.
    pub fn confidence(&self, from: usize, to: usize) -> Option<f64> {
        let pair = &self.pairs[from * self.tables + to];
        let (known, guessed) = (pair.together.rate()?, pair.apart.rate()?);
        let holds =
            known >= CONFIDENCE_MIN && (1.0 - known) * BETTER_THAN_GUESSING <= 1.0 - guessed;
        (holds && guessed < 1.0 && from != to).then_some(known)
    }
}
