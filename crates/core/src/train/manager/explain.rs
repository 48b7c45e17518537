//! The explanation of a dataset's state, for `forebay explain`.

use super::{CacheClass, Manager};
use crate::{dataset::chunking::ChunkOrdinal, train::benefit::Mode};

/// State of a dataset.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Explanation {
    /// Name of the node that manages it.
    pub manager: String,
    /// Number of the manager's term.
    pub term: u64,
    /// Why the dataset has its space, in one line.
    pub why: String,
    /// State of each half-chunk.
    pub half_chunks: Vec<HalfChunkState>,
    /// Jobs that read it.
    pub jobs: Vec<JobExplanation>,
}

/// State of a half-chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HalfChunkState {
    /// Not kept.
    Absent,
    /// Kept, and not complete: it is fetched, or filled as jobs read it.
    Loading,
    /// Kept until its readers are done.
    Rotating,
    /// Kept.
    Pinned,
}

/// State of a job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct JobExplanation {
    /// The job's name.
    pub name: String,
    /// GPUs that wait when the job waits.
    pub gpus: u32,
    /// Whether the job uses the cache: not if it gains nothing.
    pub is_cached: bool,
    /// Bytes that it has yet to draw in this epoch.
    pub unread_bytes: u64,
    /// Bytes per second that it draws, without its stalls.
    pub bytes_per_second: u64,
    /// Seconds of a mini-batch from pinned half-chunks, if measured.
    pub hit_s: Option<f64>,
    /// Seconds of a mini-batch from rotating half-chunks, if measured.
    pub rotating_s: Option<f64>,
    /// Seconds of a mini-batch from the origin, if measured.
    pub miss_s: Option<f64>,
}

impl Manager {
    /// State of each half-chunk.
    pub fn half_chunks(&self) -> impl Iterator<Item = HalfChunkState> {
        let takes_all = self.takes_all();
        self.half_chunks.all().into_iter().map(move |half_chunk| match self.class_of(half_chunk) {
            CacheClass::Uncached if takes_all => HalfChunkState::Loading,
            CacheClass::Uncached => HalfChunkState::Absent,
            _ if self.loads.contains_key(&self.half_chunks.chunk_of(half_chunk)) => {
                HalfChunkState::Loading
            }
            CacheClass::Rotating => HalfChunkState::Rotating,
            CacheClass::Pinned => HalfChunkState::Pinned,
        })
    }

    /// State of the dataset; `why` is placement's reason for its space.
    pub fn explain(&self, why: &str) -> Explanation {
        let jobs = self.readers.values().map(|reader| {
            let time = |mode| reader.benefit.time(mode).map(|time| time.mean_s);
            let chunks = self.half_chunks.rotating();
            let unread =
                chunks.map(|chunk: ChunkOrdinal| reader.unread(&self.half_chunks, chunk).0);
            JobExplanation {
                name: reader.profile.name.clone(),
                gpus: reader.profile.gpus,
                is_cached: reader.benefit.is_cached(),
                unread_bytes: unread.fold(0, u64::saturating_add),
                bytes_per_second: reader.pace.0.0,
                hit_s: time(Mode::Hit),
                rotating_s: time(Mode::Rotating),
                miss_s: time(Mode::Miss),
            }
        });
        Explanation {
            manager: String::new(),
            term: 0,
            why: why.to_owned(),
            half_chunks: self.half_chunks().collect(),
            jobs: jobs.collect(),
        }
    }
}
