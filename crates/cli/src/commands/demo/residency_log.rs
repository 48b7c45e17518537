//! What the node keeps, looked at while the jobs run: how much of each chunk is there, at every moment.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use forebay_client::{Client, Handle};
use forebay_core::{digest::Digest, presence::Known};
use serde::Serialize;

/// How often it is looked, at first.
const EVERY: Duration = Duration::from_millis(100);
/// More looks than this are not kept: then every other is forgotten, and it is looked half as often.
const LOOKS_MAX: usize = 1200;
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks at one node.
pub struct Watch {
    client: Client,
    handle: Handle,
    known: Known,
    /// The chunk and the length of every blob.
    blobs: Vec<(u32, u64)>,
    /// Bytes of each chunk.
    sizes: Vec<u64>,
    next: Duration,
    residency: Residency,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Residency {
    pub chunks: u32,
    every: Duration,
    looks: Vec<Look>,
    /// The most that was there at once.
    pub bytes_max: u64,
    end: f64,
    /// What the node has counted in the end.
    pub node: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Look {
    seconds: f64,
    /// How much of each chunk was there.
    shares: Vec<f64>,
}

/// A chunk was there for a while, more than half of it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Stay {
    pub chunk: u32,
    pub from_seconds: f64,
    pub to_seconds: f64,
}

impl Watch {
    pub fn new(node: &Path, digest: &Digest) -> anyhow::Result<Self> {
        let mut client = Client::connect(node, "demo", PATIENCE)?;
        let handle = client.open(digest)?;
        let summary = digest.summary();
        let chunks = summary.chunking.chunks();
        let mut sizes = vec![0; chunks as usize];
        let mut blobs = Vec::new();
        for row in digest.blobs() {
            let row = row?;
            let chunk = row.chunk().0;
            sizes[chunk as usize] += row.length;
            blobs.push((chunk, row.length));
        }
        let known = Known::new(u32::try_from(summary.blobs).context("so many blobs")?);
        let residency = Residency { chunks, every: EVERY, ..Residency::default() };
        Ok(Self { client, handle, known, blobs, sizes, next: Duration::ZERO, residency })
    }

    /// Looks, if it is time to. A look that fails is none.
    pub fn look(&mut self, began: Instant) {
        if began.elapsed() < self.next {
            return;
        }
        self.next = began.elapsed() + self.residency.every;
        if self.client.presence_since(self.handle, &mut self.known).is_err() {
            return;
        }
        let mut there = vec![0_u64; self.sizes.len()];
        for ((chunk, length), blob) in self.blobs.iter().zip(0..) {
            if self.known.bits()[blob / 8] >> (blob % 8) & 1 == 1 {
                there[*chunk as usize] += length;
            }
        }
        let shares = there.iter().zip(&self.sizes);
        let shares = shares.map(|(there, size)| *there as f64 / (*size).max(1) as f64).collect();
        let seconds = began.elapsed().as_secs_f64();
        self.residency.add(Look { seconds, shares }, there.iter().sum());
    }
}

impl Watch {
    /// The end: what was seen, and what the node has counted.
    pub fn end(mut self) -> Residency {
        let counted = self.client.stats().unwrap_or_default();
        Residency { node: BTreeMap::from_iter(counted), ..self.residency }
    }
}

impl Residency {
    fn add(&mut self, look: Look, bytes: u64) {
        self.bytes_max = self.bytes_max.max(bytes);
        self.end = look.seconds;
        self.looks.push(look);
        if self.looks.len() > LOOKS_MAX {
            let mut keeps = false;
            self.looks.retain(|_| {
                keeps = !keeps;
                keeps
            });
            self.every *= 2;
        }
    }

    /// How much of a chunk was there, from when to when; times in which nothing was are left out.
    pub fn spans(&self, chunk: u32, steps: f64) -> Vec<(f64, f64, f64)> {
        let mut spans: Vec<(f64, f64, f64)> = Vec::new();
        let ends = self.looks.iter().skip(1).map(|look| look.seconds).chain([self.end]);
        for (look, end) in self.looks.iter().zip(ends) {
            let share = (look.shares[chunk as usize] * steps).round() / steps;
            match spans.last_mut() {
                Some((_, to, same)) if (*same - share).abs() < 1e-9 => *to = end,
                _ => spans.push((look.seconds, end, share)),
            }
        }
        spans.retain(|(from, to, share)| *share > 0.0 && to > from);
        spans
    }

    /// When which chunk was there.
    pub fn stays(&self) -> Vec<Stay> {
        // Above one half is one, the rest is nought.
        let of_chunk = |chunk| {
            let spans = self.spans(chunk, 1.0);
            spans.into_iter().map(move |(from_seconds, to_seconds, _)| Stay {
                chunk,
                from_seconds,
                to_seconds,
            })
        };
        (0..self.chunks).flat_map(of_chunk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(shares: &[f64]) -> Residency {
        let mut residency = Residency { chunks: 1, every: EVERY, ..Residency::default() };
        for (at, share) in shares.iter().enumerate() {
            residency.add(Look { seconds: at as f64, shares: vec![*share] }, 7);
        }
        residency
    }

    #[test]
    fn a_chunk_stays_while_most_of_it_is_there() {
        let residency = seen(&[0.0, 0.3, 0.6, 1.0, 0.9, 0.2, 0.0, 1.0, 1.0]);
        let stays = residency.stays();
        let times: Vec<_> = stays.iter().map(|stay| (stay.from_seconds, stay.to_seconds)).collect();
        assert_eq!(times, [(2.0, 5.0), (7.0, 8.0)]);
        let spans = residency.spans(0, 10.0);
        assert_eq!(spans[0], (1.0, 2.0, 0.3));
        assert_eq!(spans.len(), 6, "{spans:?}");
    }

    #[test]
    fn a_long_run_is_looked_at_less_often() {
        let residency = seen(&vec![1.0; 5000]);
        assert!(residency.looks.len() <= LOOKS_MAX && residency.every > EVERY);
        assert_eq!(residency.stays().len(), 1);
        assert_eq!(residency.bytes_max, 7);
    }
}
