//! Node session: the state of one connection.

use std::{collections::HashMap, sync::Arc};

use forebay_core::{NamespaceId, NodeName, dataset::blob_table::BlobTable, node::claims::Holder};
use forebay_wire::{BlobLength, ErrorCode, Reply, SELECTED_HANDLE};

use crate::{
    ops::work_queue::Lane,
    requests::{
        access::Identity,
        open::{PendingOpens, Selection},
        presence::DatasetPresence,
        service::{NodeService, Refused},
        streams::SessionStreams,
    },
    store::shm_regions::ShmGrant,
};

/// Datasets that one connection may have open.
const HANDLES_MAX: usize = 64;

/// The state of one connection.
pub struct NodeSession {
    pub(crate) holder: Holder,
    pub(crate) identity: Identity,
    pub(crate) job: String,
    /// The name of the peer, if the client is another node of the cluster.
    pub(crate) peer: Option<NodeName>,
    /// Tables of the open datasets, by handle.
    pub(crate) handles: Vec<Arc<BlobTable>>,
    /// The blobs of the last `select_by_address`.
    pub(crate) selection: Option<Selection>,
    /// Presence of the datasets that the client has asked about, by handle.
    pub(crate) presence: HashMap<u32, Arc<DatasetPresence>>,
    pub(crate) pending_opens: PendingOpens,
    /// Whether the connection is a Unix socket, over which a file descriptor can be passed.
    pub(crate) is_local: bool,
    pub(crate) shm: ShmGrant,
    pub(crate) streams: SessionStreams,
}

impl NodeSession {
    /// Selects blobs by address. Replaces the previous selection.
    pub(crate) async fn select_by_address(
        &mut self,
        node: &NodeService,
        namespace: NamespaceId,
        blobs: Vec<BlobLength>,
    ) -> Result<Reply, Refused> {
        let lane = self.lane();
        self.selection = Some(Selection::new(node, &self.identity, lane, namespace, blobs).await?);
        Ok(Reply::Open { handle: SELECTED_HANDLE })
    }

    /// Whose time the work for this connection uses.
    pub(crate) fn lane(&self) -> Lane {
        Lane::Tenant(self.identity.tenant())
    }

    /// The table of an open dataset, or of the selection.
    pub(crate) fn table(&self, handle: u32) -> Result<&Arc<BlobTable>, Refused> {
        match &self.selection {
            Some(selection) if handle == SELECTED_HANDLE => Ok(&selection.table),
            _ => self.dataset(handle),
        }
    }

    /// The table of an open dataset.
    pub(crate) fn dataset(&self, handle: u32) -> Result<&Arc<BlobTable>, Refused> {
        self.handles
            .get(handle as usize)
            .ok_or_else(|| (ErrorCode::Unknown, format!("no dataset is open as handle {handle}")))
    }

    /// The presence of an open dataset.
    pub(crate) fn presence(
        &mut self,
        node: &NodeService,
        handle: u32,
    ) -> Result<Arc<DatasetPresence>, Refused> {
        if let Some(presence) = self.presence.get(&handle) {
            return Ok(Arc::clone(presence));
        }
        let presence = node.presence.of(self.dataset(handle)?, &node.entropy)?;
        self.presence.insert(handle, Arc::clone(&presence));
        Ok(presence)
    }

    /// A dataset has been proved or uploaded. A dataset that is open already keeps its handle.
    pub(crate) fn on_opened(&mut self, table: Arc<BlobTable>) -> Result<Reply, Refused> {
        let known = self.handles.iter().position(|open| open.dataset() == table.dataset());
        if known.is_none() {
            if self.handles.len() == HANDLES_MAX {
                return Err((
                    ErrorCode::TooMuch,
                    format!("{HANDLES_MAX} datasets are open on this connection; use another"),
                ));
            }
            self.handles.push(table);
        }
        let handle = known.unwrap_or(self.handles.len() - 1);
        Ok(Reply::Open { handle: u32::try_from(handle).expect("at most HANDLES_MAX") })
    }
}
