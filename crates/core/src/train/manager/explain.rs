//! How a dataset stands, for people: `forebay explain`.

use super::{Manager, Place};
use crate::{benefit::Mode, chunking::ChunkOrdinal};

/// How a dataset stands.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Description {
    /// The node that manages it,
    pub manager: String,
    /// and in which term.
    pub term: u64,
    /// Why it has the space that it has.
    pub why: String,
    /// How each piece stands.
    pub pieces: Vec<Piece>,
    /// Who reads it.
    pub jobs: Vec<JobDescription>,
}

/// How a piece stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// It is not kept.
    Absent,
    /// It is on its way.
    Loading,
    /// It is there for a while.
    Rotating,
    /// It is there for good.
    Held,
}

/// A job, and what it gains.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct JobDescription {
    /// What people call it.
    pub name: String,
    /// How many GPUs it keeps waiting.
    pub gpus: u32,
    /// Whether it is cached: not if it gains nothing.
    pub is_cached: bool,
    /// Bytes that it has yet to draw in this epoch.
    pub unread_bytes: u64,
    /// Bytes a second that it draws, or would draw if nothing held it up.
    pub bytes_per_second: u64,
    /// Seconds that a mini-batch takes from pieces that are held, from those that rotate, and from the
    /// origin; as far as they have been measured.
    pub hit_s: Option<f64>,
    /// See above.
    pub rotating_s: Option<f64>,
    /// See above.
    pub miss_s: Option<f64>,
}

impl Manager {
    /// How each piece stands.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        (0..self.pieces.count()).map(|piece| match self.place_of(piece) {
            Place::None => Piece::Absent,
            _ if self.loads.contains_key(&self.pieces.holder_of(piece)) => Piece::Loading,
            Place::Rotating => Piece::Rotating,
            Place::Held => Piece::Held,
        })
    }

    /// How the dataset stands; `why` it has its space, placement says.
    pub fn describe(&self, why: &str) -> Description {
        let jobs = self.readers.values().map(|reader| {
            let time = |mode| reader.benefit.time(mode).map(|time| time.mean_s);
            let chunks = self.pieces.rotating();
            let unread = chunks.map(|chunk: ChunkOrdinal| reader.unread(&self.pieces, chunk).0);
            JobDescription {
                name: reader.who.name.clone(),
                gpus: reader.who.gpus,
                is_cached: reader.benefit.is_cached(),
                unread_bytes: unread.fold(0, u64::saturating_add),
                bytes_per_second: reader.pace.0.0,
                hit_s: time(Mode::Hit),
                rotating_s: time(Mode::Rotating),
                miss_s: time(Mode::Miss),
            }
        });
        Description {
            manager: String::new(),
            term: 0,
            why: why.to_owned(),
            pieces: self.pieces().collect(),
            jobs: jobs.collect(),
        }
    }
}
