//! Item reader: a process that reads items by `forebay_client::Reader`, as a loader does.

use std::{path::Path, sync::Arc};

use forebay_client::{ClientEnvironment, ClientError, PresenceCache, Reader};
use forebay_core::{ItemOrdinal, cluster::ring::Seeds};
use tokio::time::Instant;

use crate::{
    client_environment::WorldEnvironment,
    client_process::{BatchReader, ProcessThread},
    job::{BatchRead, Epoch},
    lockstep::Ended,
};

/// The client of a process.
pub struct ItemReader {
    reader: Reader,
    presence: PresenceCache,
}

impl ItemReader {
    /// Opens no connection yet.
    pub fn new(thread: &ProcessThread) -> Self {
        let ProcessThread { job, environment, .. } = thread;
        let (world, digest) = (&job.world, &job.dataset.digest);
        let environment: Arc<dyn ClientEnvironment> = Arc::<WorldEnvironment>::clone(environment);
        let presence = PresenceCache::in_environment(&environment, digest.summary().blobs);
        let (seeds, agent) = (Seeds::of_list(world.list.clone(), None), Path::new("/agent"));
        let reader = Reader::in_environment(environment, digest.clone(), seeds, agent, &job.name)
            .with_credentials(job.credentials.clone())
            .with_verification(world.plan.verify, Some(job.dataset.namespace.clone()));
        Self { reader, presence }
    }

    /// A call of the client. It is repeated if the machine was paused meanwhile: a client that goes
    /// on a moment before its agent takes that for hung, and its job starts another.
    fn call<T>(
        &mut self,
        thread: &mut ProcessThread,
        what: &str,
        mut act: impl FnMut(&mut Reader) -> Result<T, ClientError>,
    ) -> Result<T, Ended> {
        loop {
            let called = thread.call(what, || act(&mut self.reader))?;
            let (trace, name) = (&thread.job.world.trace, &thread.job.name);
            match called.value {
                Ok(done) => return Ok(done),
                Err(error) if called.was_paused => {
                    trace.event(format_args!("{name}: a {what} after a pause: {error}"));
                }
                Err(error) => {
                    trace.violate(5, format_args!("{name}: a {what} fails: {error}"));
                    return Err(Ended);
                }
            }
        }
    }

    /// Requests items, computes for some time, and takes them.
    fn read_views(
        &mut self,
        thread: &mut ProcessThread,
        items: &[ItemOrdinal],
    ) -> Result<Vec<Vec<u8>>, Ended> {
        let mut asked = Some(self.call(thread, "ask", |reader| reader.ask(items))?);
        if thread.random.u8(..4) == 0 {
            thread.compute(1000)?;
        }
        self.call(thread, "take", move |reader| {
            let views = match asked.take() {
                Some(asked) => reader.take(asked)?,
                None => reader.get_views(items)?,
            };
            Ok(views.iter().map(|view| view.to_vec()).collect())
        })
    }

    /// Asks the nodes which blobs they hold, if that is due.
    fn update_presence(&mut self, thread: &mut ProcessThread, drawn: usize) -> Result<(), Ended> {
        self.presence.drew(drawn);
        let Some(mut asking) = self.presence.asks() else { return Ok(()) };
        let ask = |reader: &mut Reader| Ok(reader.presence(&mut asking.known));
        let bytes = self.call(thread, "presence", ask)?;
        self.presence.answered(asking, bytes);
        Ok(())
    }
}

impl BatchReader for ItemReader {
    fn read(
        &mut self,
        thread: &mut ProcessThread,
        epoch: &Epoch,
        batch: &[usize],
    ) -> Result<(), Ended> {
        let items: Vec<ItemOrdinal> =
            batch.iter().map(|item| ItemOrdinal::new(*item as u64)).collect();
        let (began, before) = (Instant::now(), self.reader.counts());
        let contents = if thread.random.bool() {
            self.call(thread, "get", |reader| reader.get(&items))?
        } else {
            self.read_views(thread, &items)?
        };
        let job = &thread.job;
        for (item, bytes) in batch.iter().zip(&contents) {
            job.deliver(epoch, *item, bytes, "client");
        }
        let (counts, took) = (self.reader.counts(), began.elapsed());
        let wrong = counts.hash_mismatches - before.hash_mismatches;
        if wrong > 0 {
            job.world.trace.event(format_args!("{} rejects {wrong} wrong items", job.name));
        }
        let hits = usize::try_from(counts.hits - before.hits).expect("few items").min(batch.len());
        let misses = batch.len() - hits;
        job.on_read(epoch, BatchRead { process: thread.number, hits, misses, took });
        self.update_presence(thread, batch.len())?;
        if thread.random.u8(..16) == 0 {
            self.call(thread, "stats", |reader| Ok(reader.node_stats()))?;
        }
        Ok(())
    }

    fn batch_max(&self, planned: usize) -> usize {
        planned
    }
}
