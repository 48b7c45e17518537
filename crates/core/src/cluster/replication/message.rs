//! What nodes say to each other.

use super::{Free, Places, Standing, Term};
use crate::{
    ByteSize, DatasetId,
    placement::{Dataset, Share},
};

/// What a node asks of another. All of it may be said again.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Do you live?
    Greet,
    /// Whom do you obey, and what do you have?
    Ask {
        /// About what.
        dataset: DatasetId,
    },
    /// I manage this dataset, and this is what is kept.
    Tell {
        /// Which.
        dataset: DatasetId,
        /// What is kept.
        places: Places,
    },
    /// This is what the datasets that I manage want: how much may they have?
    Wish {
        /// The newest term of whoever splits the space that the asker knows.
        known: Option<Term>,
        /// All that it manages.
        wishes: Vec<(DatasetId, Dataset)>,
    },
}

/// What it is answered.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// I live.
    Greeted,
    /// Whom I obey, and what I have.
    Obeys {
        /// About what.
        dataset: DatasetId,
        /// Whom, if anybody.
        standing: Option<Standing>,
        /// Pieces of which something is here.
        found: Vec<u32>,
    },
    /// I keep what you said, and nothing else.
    Obeyed {
        /// Of what.
        dataset: DatasetId,
        /// Whose word that was,
        term: Term,
        /// and which.
        version: u64,
        /// How much has arrived of pieces in this term, in all.
        arrived: Vec<(u32, ByteSize)>,
    },
    /// I know better.
    Refused {
        /// Of what.
        dataset: DatasetId,
        /// Whose word is refused,
        term: Term,
        /// and whose counts.
        standing: Standing,
    },
    /// How much each may have; nothing for those whose budgets stay as they are.
    Shares {
        /// Whose word that is.
        term: Term,
        /// What each gets, and why.
        shares: Vec<(DatasetId, Share)>,
    },
}

/// What becomes of a request.
#[derive(Debug, PartialEq)]
pub enum Handling {
    /// It is answered at once.
    Reply(Reply),
    /// It is answered when it is known what lies here: [`super::Council::answer_ask`].
    Find(DatasetId),
    /// It is answered when all is free that has no place: [`super::Council::answer_tell`].
    Free(DatasetId, Places, Free),
}
