//! Blob reader: a process that reads blobs by `forebay_client::BlobsByAddress`, as `forebay.wrap`
//! does. It reads missing blobs itself, under a claim, and puts them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_client::{BlobRef, BlobsByAddress, ClientEnvironment, ReadReason, Resolution};
use forebay_core::{BlobOrdinal, cluster::ring::Seeds};
use tokio::time::Instant;

use crate::{
    client_environment::WorldEnvironment,
    client_process::{BatchReader, ProcessThread},
    job::{BatchRead, Epoch},
    lockstep::Ended,
};

/// Longest time that a process waits for a blob that another one reads.
const RESOLVE_MAX: Duration = Duration::from_secs(12);
/// Most items of a batch: a blob that another job reads is waited for by itself.
const BATCH_MAX: usize = 2;
/// Longest time of a read of the origin, in milliseconds.
const ORIGIN_MS: u64 = 20;

/// The client of a process.
pub struct BlobReader {
    blobs: BlobsByAddress,
}

impl BlobReader {
    /// Opens no connection yet. Half of these processes select blobs by their addresses alone.
    pub fn new(thread: &mut ProcessThread) -> Self {
        let digest = thread.random.bool().then(|| thread.job.dataset.digest.clone());
        let ProcessThread { job, environment, .. } = thread;
        let environment: Arc<dyn ClientEnvironment> = Arc::<WorldEnvironment>::clone(environment);
        let seeds = Seeds::of_list(job.world.list.clone(), None);
        let namespace = job.dataset.namespace.clone();
        let blobs =
            BlobsByAddress::in_environment(environment, seeds, namespace, digest, &job.name);
        Self { blobs: blobs.with_credentials(job.credentials.clone()) }
    }

    /// The bytes of one blob, and whether a node had them.
    fn read_blob(
        &mut self,
        thread: &mut ProcessThread,
        ordinal: BlobOrdinal,
    ) -> Result<(Vec<u8>, bool), Ended> {
        let row = thread.job.dataset.digest.blob(ordinal).expect("a blob of the dataset");
        let blob = BlobRef { address: row.address, length: row.length, ordinal };
        let blobs = &mut self.blobs;
        let mut found = thread.call("get by address", || blobs.get(&[blob]))?.value;
        if let Some(Some(bytes)) = found.pop() {
            return Ok((bytes, true));
        }
        let mut reason = thread.call("claim", || blobs.claim(&[blob]))?.value[0];
        if reason == ReadReason::OtherJob {
            let resolve = || blobs.resolve(&blob);
            match thread.call_within("resolve", RESOLVE_MAX, resolve)?.value {
                Resolution::Bytes(bytes) => return Ok((bytes, true)),
                Resolution::Read(other) => reason = other,
            }
        }
        thread.compute(ORIGIN_MS)?;
        let at = usize::try_from(ordinal.0).expect("blobs are few");
        let content: Bytes = thread.job.dataset.blobs[at].clone();
        if reason == ReadReason::Claim {
            thread.call("put", || blobs.put(&blob, &content))?;
        }
        Ok((content.to_vec(), false))
    }
}

impl BatchReader for BlobReader {
    fn read(
        &mut self,
        thread: &mut ProcessThread,
        epoch: &Epoch,
        batch: &[usize],
    ) -> Result<(), Ended> {
        let (began, mut hits) = (Instant::now(), 0);
        let mut by_blob: BTreeMap<BlobOrdinal, Vec<usize>> = BTreeMap::new();
        for item in batch {
            let blob = thread.job.dataset.items[*item].blob;
            by_blob.entry(blob).or_default().push(*item);
        }
        for (blob, items) in by_blob {
            let (bytes, is_hit) = self.read_blob(thread, blob)?;
            hits += if is_hit { items.len() } else { 0 };
            for item in items {
                let range = thread.job.dataset.items[item];
                let start = usize::try_from(range.offset).expect("blobs are short");
                let content = &bytes[start..start + range.length as usize];
                thread.job.deliver(epoch, item, content, "client by address");
            }
        }
        let (misses, took) = (batch.len() - hits, began.elapsed());
        let read = BatchRead { process: thread.number, hits, misses, took };
        thread.job.on_read(epoch, read);
        Ok(())
    }

    fn batch_max(&self, planned: usize) -> usize {
        planned.min(BATCH_MAX)
    }
}
