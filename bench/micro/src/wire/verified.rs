//! What verification costs a job: the reader with every item verified, against one that verifies
//! none.

use std::path::Path;

use anyhow::ensure;
use forebay_bench_stats::{Row, Target, evaluate};
use forebay_client::Reader;
use forebay_core::{
    Endpoint, ItemOrdinal, cluster::ring::Seeds, dataset::verification::VerifyPolicy,
};
use forebay_digest::Digest;

use super::load::{Fetch, Run};

/// Processor seconds per GB that verification may add for items of 128 KiB from another machine.
const ADDED_MAX: f64 = 0.35;

/// A job's reader. All items are hits, so it needs no agent.
pub struct ReaderClient {
    reader: Reader,
}

impl ReaderClient {
    pub fn new(digest: &Digest, node: &Endpoint, policy: VerifyPolicy) -> anyhow::Result<Self> {
        let seeds: Seeds = node.to_string().parse()?;
        let reader = Reader::new(digest.clone(), Some(seeds), Path::new(""), "bench");
        Ok(Self { reader: reader.with_verification(policy, None) })
    }

    /// Checks that items are verified, or are not.
    pub fn check(&self, policy: VerifyPolicy) -> anyhow::Result<()> {
        let counts = self.reader.counts();
        let expected = if policy == VerifyPolicy::Always { counts.items } else { 0 };
        ensure!(counts.verified == expected, "{} items were verified", counts.verified);
        ensure!(counts.hash_mismatches == 0, "wrong bytes");
        Ok(())
    }
}

impl Fetch for ReaderClient {
    fn fetch(&mut self, items: &[u64]) -> anyhow::Result<u64> {
        let items: Vec<ItemOrdinal> = items.iter().copied().map(ItemOrdinal::new).collect();
        let views = self.reader.get_views(&items)?;
        Ok(views.iter().map(|view| view.len() as u64).sum())
    }
}

/// The processor time that verification adds, from pairs of runs: verified, and not.
pub fn added_cpu(name: &str, has_target: bool, pairs: &[(Run, Run)]) -> Row {
    let per_gb = |run: &Run| run.sample.cpu_seconds / (run.sample.bytes as f64 / 1e9);
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(verified, plain)| (per_gb(verified) - per_gb(plain), ADDED_MAX))
        .collect();
    let target = if has_target { Target::AtMost(1.0) } else { Target::Open };
    evaluate(name, "s/GB added", "0.35 s/GB", target, &pairs)
}
