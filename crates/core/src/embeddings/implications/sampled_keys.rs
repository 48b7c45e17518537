//! Sampled keys: a few keys of each table, from which implications between tables are estimated.
//!
//! A sampled key is stored with its companions: the keys of the other tables in the request in
//! which it was first seen. When it returns, each companion is either the same again or not. The
//! rate of agreement when *another* key comes is the baseline, which a guess would achieve. A
//! sampled key is replaced after [`RETURNS_MAX`] returns, so that no frequent key dominates.
//! Observations decay, so that an implication that no longer holds is dropped.

use crate::embeddings::key::Key;

/// Sampled keys of each table.
const SAMPLES_PER_TABLE: usize = 32;
/// Other keys with the same slot in sequence after which a sampled key is replaced.
const MISSES_MAX: u8 = 4;
/// Returns after which a sampled key is replaced.
const RETURNS_MAX: u8 = 8;
/// Observations after which all are halved.
const OBSERVATIONS_MAX: u16 = 256;
/// Observations below which there is no estimate.
const OBSERVATIONS_MIN: u16 = 48;
/// Rate of agreement from which an implication holds.
const CONFIDENCE_MIN: f64 = 0.9;
/// Factor by which its error rate must be below the baseline's.
const ERROR_REDUCTION_MIN: f64 = 4.0;

/// A hash of a key; 0 for no key or several.
pub(super) type Fingerprint = u32;

/// Rate at which a companion was the same.
#[derive(Debug, Clone, Copy, Default)]
struct AgreementRate {
    agreed: u16,
    observed: u16,
}

impl AgreementRate {
    fn record(&mut self, agreed: bool) {
        if self.observed == OBSERVATIONS_MAX {
            self.observed /= 2;
            self.agreed /= 2;
        }
        self.observed += 1;
        self.agreed += u16::from(agreed);
    }

    fn rate(self) -> Option<f64> {
        (self.observed >= OBSERVATIONS_MIN)
            .then(|| f64::from(self.agreed) / f64::from(self.observed))
    }
}

/// Two tables: agreement of the second table's key if the first one's is the same, and if not.
#[derive(Debug, Clone, Copy, Default)]
struct PairStats {
    same_key: AgreementRate,
    other_key: AgreementRate,
}

#[derive(Debug, Clone, Copy)]
struct SampledKey {
    key: Key,
    returns: u8,
    misses_left: u8,
}

/// The sampled keys of all tables.
#[derive(Debug)]
pub(super) struct SampledKeys {
    tables: usize,
    samples: Vec<Option<SampledKey>>,
    /// For each sampled key, its companion in each table.
    companions: Vec<Fingerprint>,
    pairs: Vec<PairStats>,
}

impl SampledKeys {
    pub fn new(tables: usize) -> Self {
        let count = tables * SAMPLES_PER_TABLE;
        Self {
            tables,
            samples: vec![None; count],
            companions: vec![0; count * tables],
            pairs: vec![PairStats::default(); tables * tables],
        }
    }

    /// Bytes of the samples of this number of tables.
    pub fn bytes_for(tables: usize) -> u64 {
        let sample = size_of::<Option<SampledKey>>() + tables * size_of::<Fingerprint>();
        (tables * (SAMPLES_PER_TABLE * sample + tables * size_of::<PairStats>())) as u64
    }

    /// Bytes of the samples.
    pub fn bytes(&self) -> u64 {
        (size_of_val(&self.samples[..])
            + size_of_val(&self.companions[..])
            + size_of_val(&self.pairs[..])) as u64
    }

    /// Records a request with `key` in table `from` and these keys in all tables.
    pub fn observe(&mut self, from: usize, key: Key, fingerprints: &[Fingerprint]) {
        let slot = from * SAMPLES_PER_TABLE + (key.mixed() >> 40) as usize % SAMPLES_PER_TABLE;
        let companions = &mut self.companions[slot * self.tables..][..self.tables];
        let pairs = &mut self.pairs[from * self.tables..][..self.tables];
        let sample = &mut self.samples[slot];
        if let Some(sampled) = sample {
            let returned = sampled.key == key;
            for ((pair, before), now) in pairs.iter_mut().zip(&*companions).zip(fingerprints) {
                if *before != 0 && *now != 0 {
                    let rate = if returned { &mut pair.same_key } else { &mut pair.other_key };
                    rate.record(before == now);
                }
            }
            if returned {
                sampled.returns += 1;
                sampled.misses_left = MISSES_MAX;
            } else {
                sampled.misses_left -= 1;
            }
            if sampled.misses_left > 0 && sampled.returns < RETURNS_MAX {
                return;
            }
        }
        *sample = Some(SampledKey { key, returns: 0, misses_left: MISSES_MAX });
        companions.copy_from_slice(fingerprints);
    }

    /// Confidence that the key of `from` determines that of `to`; `None` if it does not.
    pub fn confidence(&self, from: usize, to: usize) -> Option<f64> {
        let pair = &self.pairs[from * self.tables + to];
        let (rate, baseline) = (pair.same_key.rate()?, pair.other_key.rate()?);
        let holds = rate >= CONFIDENCE_MIN && (1.0 - rate) * ERROR_REDUCTION_MIN <= 1.0 - baseline;
        (holds && baseline < 1.0 && from != to).then_some(rate)
    }
}
