//! Routing: each blob is read from its owner.
//!
//! A request for many blobs is a [`Fanout`]: the requests go to all owners first, and the replies
//! are received one after the other. So the nodes work at the same time, and the client needs no
//! threads.

use std::{mem, time::Duration};

use forebay_core::{
    Address, BlobOrdinal, NodeName,
    cluster::{backoff::remaining_timeout, ring::Key},
};
use forebay_digest::Digest;
use forebay_wire::{BATCH_MAX, BlobRange, GetAnswer};

use super::{
    discovery::address_in,
    nodes::{Nodes, OpenNode, RequestContext},
};
use crate::{
    Client, Handle, ReadInto, Result, View,
    get::{GetTimes, PendingGet},
};

/// The reads of one request, by owner.
#[derive(Debug)]
pub(crate) struct Fanout<T> {
    /// By the index of the owner.
    queued: Vec<Vec<T>>,
    in_flight: Vec<InFlight<T>>,
    /// Reads that could not be sent.
    unanswered: Vec<T>,
}

/// A batch that was sent to a node.
#[derive(Debug)]
struct InFlight<T> {
    node: usize,
    pending: PendingGet,
    batch: Vec<T>,
}

impl<T> Default for Fanout<T> {
    fn default() -> Self {
        Self { queued: Vec::new(), in_flight: Vec::new(), unanswered: Vec::new() }
    }
}

impl<T> Fanout<T> {
    fn is_done(&self) -> bool {
        let is_queued = self.queued.iter().any(|reads| !reads.is_empty());
        !is_queued && self.in_flight.is_empty() && self.unanswered.is_empty()
    }
}

impl OpenNode {
    fn send_views(&mut self, ranges: &[BlobRange], batch: &[usize]) -> Result<PendingGet> {
        let batch = batch.iter().map(|at| ranges[*at]).collect();
        self.client.send_ranges(self.handle, Duration::ZERO, batch)
    }
}

/// No wait for claimed blobs: the agent waits for those.
fn within(timeout: Duration) -> GetTimes {
    GetTimes { wait: Duration::ZERO, timeout: Some(timeout) }
}

impl Nodes {
    /// Reads from the owners. Returns the reads that no node could answer.
    pub fn get<'a>(
        &mut self,
        context: &RequestContext<'_>,
        reads: Vec<ReadInto<'a>>,
    ) -> Vec<ReadInto<'a>> {
        if !self.discover(context) {
            return reads;
        }
        let mut missing = Vec::new();
        let fanout = self.fanout(context.digest(), reads, |read| read.blob);
        self.run(
            context,
            fanout,
            |open, batch| open.client.send_get(open.handle, Duration::ZERO, batch),
            |open, pending, timeout, batch| {
                open.client.receive_get(pending, within(timeout), batch)
            },
            |batch, answers| match answers {
                Some(answers) => {
                    let missed = batch.into_iter().zip(answers);
                    let missed = missed.filter(|(_, answer)| *answer != GetAnswer::Hit);
                    missing.extend(missed.map(|(read, _)| read));
                }
                None => missing.extend(batch),
            },
        );
        missing
    }

    /// Asks the owners of these ranges for views, without waiting.
    pub fn send_views(
        &mut self,
        context: &RequestContext<'_>,
        ranges: &[BlobRange],
    ) -> Fanout<usize> {
        if !self.discover(context) {
            return Fanout::default();
        }
        let indices = (0..ranges.len()).collect();
        let mut fanout = self.fanout(context.digest(), indices, |at| ranges[*at].blob);
        self.send_batches(context, &mut fanout, &|open, batch| open.send_views(ranges, batch));
        fanout
    }

    /// Receives the views; `None` for each range that its owner does not have.
    pub fn receive_views(
        &mut self,
        context: &RequestContext<'_>,
        ranges: &[BlobRange],
        fanout: Fanout<usize>,
    ) -> Vec<Option<View>> {
        let mut views: Vec<Option<View>> = ranges.iter().map(|_| None).collect();
        self.run(
            context,
            fanout,
            |open, batch| open.send_views(ranges, batch),
            |open, pending, timeout, _| open.client.receive_views(pending, within(timeout)),
            |batch, answers| {
                for (at, answer) in batch.into_iter().zip(answers.into_iter().flatten()) {
                    views[at] = answer.ok();
                }
            },
        );
        views
    }

    /// Assigns reads to the owners of their blobs.
    fn fanout<T>(
        &self,
        digest: &Digest,
        reads: Vec<T>,
        blob: impl Fn(&T) -> BlobOrdinal,
    ) -> Fanout<T> {
        let mut queued: Vec<Vec<T>> = (0..self.count()).map(|_| Vec::new()).collect();
        if let Some(topology) = &self.topology {
            let owners = topology.owners();
            for read in reads {
                queued[owners.owner(blob(&read), address_in(digest))].push(read);
            }
        }
        Fanout { queued, ..Fanout::default() }
    }

    /// Sends all reads in batches and receives the replies. `done` gets each batch with its
    /// answers, or with `None` if the owner failed.
    fn run<T, A>(
        &mut self,
        context: &RequestContext<'_>,
        mut fanout: Fanout<T>,
        send: impl Fn(&mut OpenNode, &[T]) -> Result<PendingGet>,
        receive: impl Fn(&mut OpenNode, PendingGet, Duration, &mut [T]) -> Result<Vec<A>>,
        mut done: impl FnMut(Vec<T>, Option<Vec<A>>),
    ) {
        while !fanout.is_done() {
            self.send_batches(context, &mut fanout, &send);
            done(mem::take(&mut fanout.unanswered), None);
            let (sent_at, allowance) = (self.health.now(), self.health.allowance());
            for InFlight { node, pending, mut batch } in mem::take(&mut fanout.in_flight) {
                let timeout = remaining_timeout(allowance, self.health.since(sent_at));
                let answers = self
                    .with_open(node, sent_at, |open| receive(open, pending, timeout, &mut batch));
                done(batch, answers);
            }
        }
    }

    /// Sends one batch to each owner, unless batches are in flight.
    fn send_batches<T>(
        &mut self,
        context: &RequestContext<'_>,
        fanout: &mut Fanout<T>,
        send: &impl Fn(&mut OpenNode, &[T]) -> Result<PendingGet>,
    ) {
        if !fanout.in_flight.is_empty() {
            return;
        }
        let queued = fanout.queued.iter_mut().enumerate();
        for (node, reads) in queued.filter(|(_, reads)| !reads.is_empty()) {
            let rest = reads.split_off(reads.len().min(BATCH_MAX));
            let batch = mem::replace(reads, rest);
            let began = self.health.now();
            match self.with(context, node, began, |open| send(open, &batch)) {
                Some(pending) => fanout.in_flight.push(InFlight { node, pending, batch }),
                None => fanout.unanswered.extend(batch),
            }
        }
    }

    /// Calls `act` for each owner of these addresses, with the indices of those that it owns.
    /// Owners that fail are skipped.
    pub fn with_owners(
        &mut self,
        context: &RequestContext<'_>,
        addresses: &[Address],
        mut act: impl FnMut(&mut Client, Handle, &[usize]) -> Result<()>,
    ) {
        if !self.discover(context) {
            return;
        }
        let mut owned = vec![Vec::new(); self.count()];
        if let Some(topology) = &self.topology {
            for (at, address) in addresses.iter().enumerate() {
                owned[topology.owners().owner_of(address)].push(at);
            }
        }
        let allowance = self.health.allowance();
        for (node, owned) in owned.iter().enumerate().filter(|(_, owned)| !owned.is_empty()) {
            // Hung nodes have used up what this call may wait. The others are asked by later calls.
            if self.health.allowance() < allowance / 2 {
                break;
            }
            let began = self.health.now();
            self.with(context, node, began, |open| act(&mut open.client, open.handle, owned));
        }
    }

    /// Asks all nodes at once, and then receives their replies, which share one timeout. `receive`
    /// gets the index of the node.
    pub(super) fn ask_all<T>(
        &mut self,
        context: &RequestContext<'_>,
        mut send: impl FnMut(usize, &mut OpenNode) -> Result<u64>,
        mut receive: impl FnMut(usize, &mut OpenNode, u64, Duration) -> Result<T>,
    ) -> Vec<Option<T>> {
        let mut asked = Vec::with_capacity(self.count());
        for node in 0..self.count() {
            let began = self.health.now();
            asked.push(self.with(context, node, began, |open| send(node, open)));
        }
        let (asked_at, allowance) = (self.health.now(), self.health.allowance());
        let mut received = Vec::with_capacity(asked.len());
        for (node, id) in asked.into_iter().enumerate() {
            let timeout = remaining_timeout(allowance, self.health.since(asked_at));
            received.push(id.and_then(|id| {
                self.with_open(node, asked_at, |open| receive(node, open, id, timeout))
            }));
        }
        received
    }

    /// The sums of the counters of all nodes that answer; `None` if none does.
    pub fn stats(&mut self, context: &RequestContext<'_>) -> Option<Vec<(String, u64)>> {
        if !self.discover(context) {
            return None;
        }
        let all = self.ask_all(
            context,
            |_, open| open.client.ask_stats(),
            |_, open, id, timeout| open.client.take_stats(id, Some(timeout)),
        );
        let mut all = all.into_iter().flatten();
        let mut sums = all.next()?;
        for (name, value) in all.flatten() {
            match sums.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum = sum.saturating_add(value),
                None => sums.push((name, value)),
            }
        }
        Some(sums)
    }

    /// Calls `act` with the first node in the order of this key that answers. A refusal is an
    /// answer.
    pub fn with_first<T>(
        &mut self,
        context: &RequestContext<'_>,
        key: Key,
        mut act: impl FnMut(&mut Client, Handle) -> Result<T>,
    ) -> Result<Option<T>> {
        if !self.discover(context) {
            return Ok(None);
        }
        let order = self.topology.as_ref().map(|topology| topology.owners().order(key));
        self.with_first_of(context, order.unwrap_or_default(), &mut act)
    }

    /// Calls `act` with the node of this name, if it answers.
    pub fn with_named<T>(
        &mut self,
        context: &RequestContext<'_>,
        name: &NodeName,
        mut act: impl FnMut(&mut Client, Handle) -> Result<T>,
    ) -> Result<Option<T>> {
        let node = self.topology.as_ref().and_then(|topology| topology.owners().index_of(name));
        self.with_first_of(context, node.into_iter().collect(), &mut act)
    }

    fn with_first_of<T>(
        &mut self,
        context: &RequestContext<'_>,
        order: Vec<usize>,
        act: &mut impl FnMut(&mut Client, Handle) -> Result<T>,
    ) -> Result<Option<T>> {
        for node in order {
            let mut refused = None;
            let began = self.health.now();
            let done =
                self.with(context, node, began, |open| match act(&mut open.client, open.handle) {
                    Err(error) if error.is_refusal() => {
                        refused = Some(error);
                        Ok(None)
                    }
                    outcome => outcome.map(Some),
                });
            match (refused, done) {
                (Some(refused), _) => return Err(refused),
                (None, Some(done)) => return Ok(done),
                (None, None) => {}
            }
        }
        Ok(None)
    }
}
