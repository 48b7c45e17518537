//! The direct loader: reads a random order from the origin, ahead of the computation, as PyTorch's
//! workers do.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context as _;
use bytes::Bytes;
use forebay_core::{
    ItemOrdinal,
    train::{
        benefit::BatchTime,
        sampler::{EpochPlan, HalfChunkMap, Sampler},
    },
};
use forebay_digest::Digest;
use forebay_origin::{Options, Origin};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{Args, Batch, Loader, READ_AHEAD};

/// Requests in flight: the number of an agent.
pub const REQUESTS: usize = 16;

pub struct DirectLoader {
    data: Arc<Data>,
    layout: HalfChunkMap,
    plan: EpochPlan,
    batches: mpsc::Receiver<Batch<Bytes>>,
    reading: Option<JoinHandle<anyhow::Result<()>>>,
    read_bytes: u64,
}

struct Data {
    // Credentials and endpoint come from the environment.
    origin: Origin,
    digest: Digest,
}

impl DirectLoader {
    pub fn new(args: &Args, digest: &Digest) -> anyhow::Result<Self> {
        let summary = digest.summary();
        let origin = Origin::new(&summary.origin, &Options::default())?;
        Ok(Self {
            data: Arc::new(Data { origin, digest: digest.clone() }),
            layout: HalfChunkMap::undivided(summary.dataset, summary.items)?,
            plan: EpochPlan::new(args.seed, 0, args.batch),
            batches: mpsc::channel(1).1,
            reading: None,
            read_bytes: 0,
        })
    }
}

impl Loader for DirectLoader {
    type Content = Bytes;

    fn begin(&mut self, epoch: u64) -> anyhow::Result<()> {
        let mut sampler = Sampler::new(&self.layout, EpochPlan { epoch, ..self.plan })?;
        let mut order = Vec::new();
        while let Some(batch) = sampler.draw(|_| true) {
            order.extend_from_slice(batch.items());
        }
        let (sender, batches) = mpsc::channel(READ_AHEAD);
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

    fn on_computed(&mut self, _time: BatchTime) {}

    fn finish(&mut self) -> anyhow::Result<(u64, BTreeMap<String, u64>)> {
        Ok((self.read_bytes, BTreeMap::new()))
    }
}

impl Data {
    async fn read(self: Arc<Self>, item: ItemOrdinal) -> anyhow::Result<Bytes> {
        let blob = self.digest.blob(self.digest.item(item)?.blob)?;
        let part = blob.parts().next().context("every item has a part")??;
        let range = part.offset..part.offset + part.length;
        Ok(self.origin.read(part.object, part.version, range).await?)
    }
}
