//! Dispatch: passes each request to its handler.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use forebay_core::dataset::blob_table::{BlobTable, Upload};
use forebay_shm::ShmRegion;
use forebay_transport::session::Replies;
use forebay_wire::{BlobRange, CLUSTER_KIND, ErrorCode, Malformed, Reply, Request};

use crate::{
    ops::{
        metrics,
        work_queue::{Lane, Slice},
    },
    requests::{
        get::GetContext,
        put::PutOwner,
        service::{NodeService, Refused},
        session::NodeSession,
    },
    store::shm_regions::{Progress, ShmGrant},
};

impl NodeService {
    /// The reply to a request, or `None` if its handler sends the replies itself.
    pub(crate) async fn dispatch(
        self: &Arc<Self>,
        session: &mut NodeSession,
        request: Request,
        replies: &Replies,
    ) -> Result<Option<Reply>, Refused> {
        let (holder, lane) = (session.holder, session.lane());
        Ok(Some(match request {
            Request::Hello { .. } | Request::Stream(_) => unreachable!("handled before"),
            Request::Open { namespace, dataset } => {
                let pending = &mut session.pending_opens;
                Reply::OpenAnswer(pending.open(self, &session.identity, namespace, dataset)?)
            }
            Request::Prove { dataset, proof } => {
                let table = session.pending_opens.prove(self, lane, dataset, proof).await?;
                session.on_opened(table)?
            }
            Request::Upload { namespace, dataset, chunks, partitions, blobs, first, page } => {
                let new = || Upload::checked(namespace, dataset, (chunks, partitions), blobs);
                let pending = &mut session.pending_opens;
                let uploaded =
                    pending.upload(self, &session.identity, dataset, new, first, page).await?;
                match uploaded {
                    Ok(table) => session.on_opened(table)?,
                    Err(next) => Reply::Uploaded { next },
                }
            }
            Request::SelectByAddress { namespace, blobs } => {
                session.select_by_address(self, namespace, blobs).await?
            }
            Request::Presence { handle, first, count, since } => {
                let presence = session.presence(self, handle)?;
                self.presence_since(lane, &presence, first, count, since).await?
            }
            Request::Get { handle, wait_ms, ranges } => {
                let context = GetContext { replies: replies.clone(), holder, shm: None };
                return self.start_get(session.table(handle)?, wait_ms, &ranges, context).await;
            }
            Request::GetShm { handle, wait_ms, released, ranges } => {
                let shm = session.shm.release(&released, &self.counters)?;
                let context = GetContext { replies: replies.clone(), holder, shm };
                return self.start_get(session.table(handle)?, wait_ms, &ranges, context).await;
            }
            Request::ShmMap { size } => return self.map_shm(session, size, replies).await,
            Request::Claim { handle, blobs } => {
                self.claim(session.table(handle)?, holder, &blobs).await?
            }
            Request::Renew { handle, blobs } => {
                self.renew(session.table(handle)?, holder, &blobs).await?
            }
            Request::Release { handle, blobs } => {
                self.release(session.table(handle)?, holder, &blobs).await?
            }
            Request::Put { handle, blob, offset, payload } => {
                let owner = PutOwner { holder, tenant: session.identity.tenant() };
                Reply::Put(self.put(owner, session.table(handle)?, blob, offset, payload).await?)
            }
            Request::WrongBytes { handle, blobs } => {
                self.start_recheck(session, handle, &blobs, replies).await?;
                return Ok(None);
            }
            Request::FreeSpace => Reply::FreeSpace(self.free_space()),
            Request::Stats => {
                let gauges = self.gauges_in_queue(lane).await;
                let flash = self.blobs.counters();
                let counters = metrics::pairs(&gauges, &self.counters, &flash, self.extra_rows());
                Reply::Stats { counters }
            }
            Request::PrefetchHint { handle, .. } => {
                session.table(handle)?;
                Reply::PrefetchNoted
            }
            Request::ProbeMode { .. } => {
                return Err((ErrorCode::Malformed, "probe_mode is for agents only".to_owned()));
            }
            Request::Report { handle, report } => {
                self.report(lane, session.dataset(handle)?, &session.job, report).await?
            }
            Request::Leave { handle } => {
                self.leave(lane, session.dataset(handle)?, &session.job).await?
            }
            Request::Explain { handle } => {
                self.explain(session.identity, session.dataset(handle)?).await
            }
            Request::Cluster(request) => {
                // To a client that is not a peer, the kind is unknown.
                let unknown = || (ErrorCode::Malformed, Malformed::Kind(CLUSTER_KIND).to_string());
                let peer = session.peer.clone().ok_or_else(unknown)?;
                let (node, permit) = (Arc::clone(self), replies.begin_get(1).await);
                tokio::spawn(node.on_cluster_request(peer, request, replies.clone(), permit));
                return Ok(None);
            }
            Request::Evict { handle } => self.evict(session, handle).await?,
            Request::Ring => Reply::Ring(self.membership.clone()),
        }))
    }

    /// Evicts a dataset that no other tenant uses.
    async fn evict(self: &Arc<Self>, session: &NodeSession, handle: u32) -> Result<Reply, Refused> {
        let table = session.dataset(handle)?;
        if self.access.is_shared(&session.identity, table.namespace()) {
            return Err(shared());
        }
        self.evict_all(session.lane(), table).await
    }

    /// Grants a client shared memory. The reply carries the descriptor.
    async fn map_shm(
        &self,
        session: &mut NodeSession,
        size: u64,
        replies: &Replies,
    ) -> Result<Option<Reply>, Refused> {
        session.shm.on_request()?;
        let size = if session.is_local { size } else { 0 };
        let Some((region, descriptor)) = self.grant_shm_region(session.lane(), size).await else {
            return Ok(Some(Reply::ShmMap { size: 0 }));
        };
        let reply = Reply::ShmMap { size: region.size() as u64 };
        session.shm = ShmGrant::Granted(region);
        replies.send_with(&reply, descriptor).await;
        Ok(None)
    }

    /// A shm region for a client of this machine, if there is memory for it.
    async fn grant_shm_region(&self, lane: Lane, size: u64) -> Option<(Arc<ShmRegion>, OwnedFd)> {
        let (regions, mut begun) = (Arc::clone(&self.shm_regions), None);
        let slice = move || {
            let Some(region) = begun.take().or_else(|| regions.begin(size)) else {
                return Slice::Done(None);
            };
            match region.advance() {
                Progress::More(region) => {
                    begun = Some(region);
                    Slice::More
                }
                Progress::Done(created) => Slice::Done(created),
            }
        };
        let created = self.work.run(lane, slice).await;
        match created {
            Some(_) => self.counters.shm_regions_granted.one(),
            None => self.counters.shm_regions_refused.one(),
        }
        created
    }

    /// Starts a get when the limit of ranges in flight allows it.
    async fn start_get(
        self: &Arc<Self>,
        table: &BlobTable,
        wait_ms: u32,
        ranges: &[BlobRange],
        context: GetContext,
    ) -> Result<Option<Reply>, Refused> {
        let permit = context.replies.begin_get(ranges.len()).await;
        self.get(table, Duration::from_millis(wait_ms.into()), ranges, context, permit).await?;
        Ok(None)
    }
}

fn shared() -> Refused {
    let text = "other tenants use this namespace; ask the node's owner to evict the dataset";
    (ErrorCode::Identity, text.to_owned())
}
