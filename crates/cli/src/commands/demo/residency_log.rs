//! The residency log: the resident share of each chunk over time, sampled while the jobs run.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use forebay_client::{Client, Handle};
use forebay_core::node::presence::KnownPresence;
use forebay_digest::Digest;
use serde::Serialize;

/// First sampling interval.
const INTERVAL: Duration = Duration::from_millis(100);
/// Largest number of samples. Beyond it, every other sample is dropped and the interval doubles.
const SAMPLES_MAX: usize = 1200;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Samples the residency of a dataset on one node.
pub struct ResidencyLog {
    client: Client,
    handle: Handle,
    known: KnownPresence,
    /// The chunk and the length of every blob.
    blobs: Vec<(u32, u64)>,
    /// Bytes of each chunk.
    sizes: Vec<u64>,
    next_sample: Duration,
    residency: Residency,
}

/// The samples.
#[derive(Debug, Default)]
pub struct Residency {
    pub chunks: u32,
    interval: Duration,
    samples: Vec<Sample>,
    /// Peak of the resident bytes.
    pub bytes_max: u64,
    end: f64,
    /// Counters of the node at the end.
    pub node: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Sample {
    seconds: f64,
    /// Resident share of each chunk.
    shares: Vec<f64>,
}

/// A time in which more than half of a chunk was resident.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Stay {
    pub chunk: u32,
    pub from_seconds: f64,
    pub to_seconds: f64,
}

impl ResidencyLog {
    pub fn new(node: &Path, digest: &Digest) -> anyhow::Result<Self> {
        let mut client = Client::connect(node, "demo", TIMEOUT)?;
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
        let known = KnownPresence::new(
            u32::try_from(summary.blobs).context("cannot count the blobs of the dataset")?,
        );
        let residency = Residency { chunks, interval: INTERVAL, ..Residency::default() };
        Ok(Self { client, handle, known, blobs, sizes, next_sample: Duration::ZERO, residency })
    }

    /// Takes a sample, if it is due. A failed sample is skipped.
    pub fn sample(&mut self, began: Instant) {
        if began.elapsed() < self.next_sample {
            return;
        }
        self.next_sample = began.elapsed() + self.residency.interval;
        if self.client.presence_since(self.handle, &mut self.known).is_err() {
            return;
        }
        let mut resident = vec![0_u64; self.sizes.len()];
        for ((chunk, length), blob) in self.blobs.iter().zip(0..) {
            if self.known.bits()[blob / 8] >> (blob % 8) & 1 == 1 {
                resident[*chunk as usize] += length;
            }
        }
        let shares = resident.iter().zip(&self.sizes);
        let shares = shares.map(|(bytes, size)| *bytes as f64 / (*size).max(1) as f64).collect();
        let seconds = began.elapsed().as_secs_f64();
        self.residency.add(Sample { seconds, shares }, resident.iter().sum());
    }

    /// Ends the log with the counters of the node.
    pub fn finish(mut self) -> Residency {
        let counters = self.client.stats().unwrap_or_default();
        Residency { node: BTreeMap::from_iter(counters), ..self.residency }
    }
}

impl Residency {
    fn add(&mut self, sample: Sample, bytes: u64) {
        self.bytes_max = self.bytes_max.max(bytes);
        self.end = sample.seconds;
        self.samples.push(sample);
        if self.samples.len() > SAMPLES_MAX {
            let mut is_kept = false;
            self.samples.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.interval *= 2;
        }
    }

    /// Times and resident shares of a chunk, without times in which nothing was resident.
    pub fn spans(&self, chunk: u32, steps: f64) -> Vec<(f64, f64, f64)> {
        let mut spans: Vec<(f64, f64, f64)> = Vec::new();
        let ends = self.samples.iter().skip(1).map(|sample| sample.seconds).chain([self.end]);
        for (sample, end) in self.samples.iter().zip(ends) {
            let share = (sample.shares[chunk as usize] * steps).round() / steps;
            match spans.last_mut() {
                Some((_, to, same)) if (*same - share).abs() < 1e-9 => *to = end,
                _ => spans.push((sample.seconds, end, share)),
            }
        }
        spans.retain(|(from, to, share)| *share > 0.0 && to > from);
        spans
    }

    /// Times in which more than half of a chunk was resident.
    pub fn stays(&self) -> Vec<Stay> {
        // With one step, a share above a half rounds to 1, any other to 0.
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

    fn residency(shares: &[f64]) -> Residency {
        let mut residency = Residency { chunks: 1, interval: INTERVAL, ..Residency::default() };
        for (at, share) in shares.iter().enumerate() {
            residency.add(Sample { seconds: at as f64, shares: vec![*share] }, 7);
        }
        residency
    }

    #[test]
    fn a_chunk_stays_while_more_than_half_of_it_is_resident() {
        let residency = residency(&[0.0, 0.3, 0.6, 1.0, 0.9, 0.2, 0.0, 1.0, 1.0]);
        let stays = residency.stays();
        let times: Vec<_> = stays.iter().map(|stay| (stay.from_seconds, stay.to_seconds)).collect();
        assert_eq!(times, [(2.0, 5.0), (7.0, 8.0)]);
        let spans = residency.spans(0, 10.0);
        assert_eq!(spans[0], (1.0, 2.0, 0.3));
        assert_eq!(spans.len(), 6, "{spans:?}");
    }

    #[test]
    fn a_long_run_is_sampled_at_longer_intervals() {
        let residency = residency(&vec![1.0; 5000]);
        assert!(residency.samples.len() <= SAMPLES_MAX && residency.interval > INTERVAL);
        assert_eq!(residency.stays().len(), 1);
        assert_eq!(residency.bytes_max, 7);
    }
}
