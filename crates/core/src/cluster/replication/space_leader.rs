//! Who splits the space between all datasets.
//!
//! One node does: the first in the ring's order for the name `placement` that lives. The others send it what
//! the datasets that they manage wish for, whenever that changes and every so often, and are told how much each
//! may have. If nobody answers, budgets stay as they are. Its word has a term, too: whoever becomes the first
//! takes one above all that it hears of, and a share of an older one is refused.

use std::{collections::BTreeMap, time::Duration};

use super::{Request, TELL_EVERY, Term};
use crate::{DatasetId, NodeName, placement::Dataset};

/// Wishes are sent again so often.
const WISH_EVERY: Duration = Duration::from_secs(5);
/// What a node has wished for counts for so long.
const WISHED_FOR: Duration = Duration::from_secs(30);

type Wishes = Vec<(DatasetId, Dataset)>;

#[derive(Debug)]
pub(super) struct Placing {
    me: NodeName,
    life: u64,
    order: Vec<NodeName>,
    /// The newest term that was heard of.
    known: Option<Term>,
    wishes: BTreeMap<NodeName, (Duration, Wishes)>,
    /// Whom this node asked last, for which reasons, and when; and whether it was answered.
    asked: Option<(NodeName, u64, Duration)>,
    is_answered: bool,
}

impl Placing {
    pub fn new(me: NodeName, life: u64, order: Vec<NodeName>) -> Self {
        assert!(order.contains(&me), "a node is in the ring that it belongs to");
        let (known, asked) = (None, None);
        Self { me, life, order, known, wishes: BTreeMap::new(), asked, is_answered: false }
    }

    /// Who splits the space.
    pub fn owner(&self, is_reachable: impl Fn(&NodeName) -> bool) -> &NodeName {
        let lives = |node: &&NodeName| **node == self.me || is_reachable(node);
        self.order.iter().find(lives).expect("this node itself lives")
    }

    /// What is sent to the owner now, if anything.
    pub fn ask(
        &mut self,
        now: Duration,
        owner: &NodeName,
        reasons: u64,
        wishes: impl FnOnce() -> Wishes,
    ) -> Option<Request> {
        let is_due = self.asked.as_ref().is_none_or(|(asked, for_reasons, at)| {
            let pause = if self.is_answered { WISH_EVERY } else { TELL_EVERY };
            let is_news = self.is_answered && *for_reasons != reasons;
            asked != owner || is_news || now >= at.saturating_add(pause)
        });
        if !is_due {
            return None;
        }
        self.asked = Some((owner.clone(), reasons, now));
        self.is_answered = false;
        Some(Request::Wish { known: self.known.clone(), wishes: wishes() })
    }

    /// Whether the word of this term counts.
    pub fn accepts(&mut self, term: &Term) -> bool {
        self.is_answered = true;
        let accepts = self.known.as_ref().is_none_or(|known| term >= known);
        if accepts {
            self.known = Some(term.clone());
        }
        accepts
    }

    /// What another node wishes for, from this one, which splits the space. Returns the term of its answer.
    pub fn wished(
        &mut self,
        now: Duration,
        from: &NodeName,
        known: Option<Term>,
        wishes: Wishes,
    ) -> Term {
        self.wishes.insert(from.clone(), (now, wishes));
        self.known = self.known.take().max(known);
        let is_mine = |term: &Term| (&term.manager, term.life) == (&self.me, self.life);
        if let Some(mine) = self.known.clone().filter(is_mine) {
            return mine;
        }
        let number = self.known.as_ref().map_or(0, |known| known.number) + 1;
        let term = Term { number, manager: self.me.clone(), life: self.life };
        self.known = Some(term.clone());
        term
    }

    /// What all others wish for. Should two have wished for one dataset, the last one manages it.
    pub fn others(&mut self, now: Duration) -> BTreeMap<DatasetId, Dataset> {
        self.wishes.retain(|_, (at, _)| now < at.saturating_add(WISHED_FOR));
        let mut by_time: Vec<_> = self.wishes.values().collect();
        by_time.sort_by_key(|(at, _)| *at);
        by_time.into_iter().flat_map(|(_, wishes)| wishes.iter().cloned()).collect()
    }
}
