//! Straight from the origin: a random order, read ahead while the job computes, as PyTorch's workers do.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use forebay_core::{
    ItemOrdinal,
    digest::Digest,
    sampler::{Layout, Plan, Sampler},
};
use forebay_origin::{Options, Origin};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{AHEAD, Args, Batch, Loader};

/// Requests under way: as many as an agent has.
pub const REQUESTS: usize = 16;

pub struct Straight {
    data: Arc<Data>,
    layout: Layout,
    plan: Plan,
    batches: mpsc::Receiver<Batch<Bytes>>,
    reading: Option<JoinHandle<anyhow::Result<()>>>,
    read_bytes: u64,
}

struct Data {
    // Credentials and endpoint come from the environment, as they would for any job.
    origin: Origin,
    digest: Digest,
}

impl Straight {
    pub fn new(args: &Args, digest: &Digest) -> anyhow::Result<Self> {
        let summary = digest.summary();
        let origin = Origin::new(&summary.origin, &Options::default())?;
        Ok(Self {
            data: Arc::new(Data { origin, digest: digest.clone() }),
            layout: Layout::in_one_chunk(summary.dataset, summary.items)?,
            plan: Plan::new(args.seed, 0, args.batch),
            batches: mpsc::channel(1).1,
            reading: None,
            read_bytes: 0,
        })
    }
}

impl Loader for Straight {
    type Content = Bytes;

    fn begin(&mut self, epoch: u64) -> anyhow::Result<()> {
        let mut sampler = Sampler::new(&self.layout, Plan { epoch, ..self.plan })?;
        let mut order = Vec::new();
        while let Some(batch) = sampler.draw(|_| true) {
            order.extend_from_slice(batch.items());
        }
        let (sender, batches) = mpsc::channel(AHEAD);
        let (data, batch) = (Arc::clone(&self.data), self.plan.batch as usize);
        self.batches = batches;
        self.reading = Some(tokio::spawn(async move {
            let reads = order.clone().into_iter().map(|item| Arc::clone(&data).read(item));
            let reads = stream::iter(reads).buffered(REQUESTS).try_chunks(batch);
            let mut reads = std::pin::pin!(reads.map_err(|error| error.1));
            let mut at = 0;
            while let Some(contents) = reads.try_next().await? {
                let items = order[at..at + contents.len()].to_vec();
                at += contents.len();
                sender
                    .send(Batch { items, contents, hits: 0 })
                    .await
                    .context("the job has ended")?;
            }
            Ok(())
        }));
        Ok(())
    }

    fn next(&mut self) -> anyhow::Result<Option<Batch<Bytes>>> {
        if let Some(batch) = self.batches.blocking_recv() {
            self.read_bytes += batch.contents.iter().map(|item| item.len() as u64).sum::<u64>();
            return Ok(Some(batch));
        }
        if let Some(reading) = self.reading.take() {
            tokio::runtime::Handle::current().block_on(reading)??;
        }
        Ok(None)
    }

    fn computed(&mut self, _took: Duration, _stalled: Duration) {}

    fn end(&mut self) -> anyhow::Result<(u64, BTreeMap<String, u64>)> {
        Ok((self.read_bytes, BTreeMap::new()))
    }
}

impl Data {
    async fn read(self: Arc<Self>, item: ItemOrdinal) -> anyhow::Result<Bytes> {
        let blob = self.digest.blob(self.digest.item(item)?.blob)?;
        let part = blob.parts().next().context("every item is an object")??;
        let range = part.offset..part.offset + part.length;
        Ok(self.origin.read(part.object, part.version, range).await?)
    }
}
