//! Fetching ahead: first what the job said it will want, in that order; then, as long as the node has
//! room, everything else, in a random order of the agent's own, so that the agents of several jobs meet
//! as little as possible.

use std::{sync::Arc, time::Duration};

use forebay_core::BlobOrdinal;
use tokio::task::JoinSet;

use crate::service::AgentService;

/// Blobs fetched ahead at once; those that the job waits for come on top.
const AT_ONCE: usize = 16;
/// How often it is looked whether the node has room again.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs until the agent stops.
pub(crate) async fn run(service: Arc<AgentService>) {
    let mut rest: Vec<u64> = (0..service.digest.summary().blobs).collect();
    fastrand::shuffle(&mut rest);
    let mut fetches = JoinSet::new();
    loop {
        while fetches.len() < AT_ONCE {
            let wanted = service.next_wanted();
            let blob = match wanted {
                Some(blob) => blob,
                None => match rest.last().copied() {
                    Some(blob) if service.node_has_room_for(blob).await => {
                        rest.pop();
                        blob
                    }
                    _ => break,
                },
            };
            let (service, is_wanted) = (Arc::clone(&service), wanted.is_some());
            fetches.spawn(async move {
                if let Err(error) = service.obtain_ahead(blob, is_wanted).await {
                    // Whoever asks for it will be told why.
                    tracing::debug!(%error, blob, "cannot fetch ahead");
                }
            });
        }
        tokio::select! {
            Some(_) = fetches.join_next() => {}
            () = service.something_wanted() => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

impl AgentService {
    /// Whether the node would keep this blob without dropping another, and takes any.
    async fn node_has_room_for(&self, blob: u64) -> bool {
        if !self.puts_ahead.lock().is_due(self.link.now()) {
            return false;
        }
        let Ok(row) = self.digest.blob(BlobOrdinal::new(blob)) else { return true };
        let Ok(node) = self.link.connection().await else { return false };
        // What is under way elsewhere, and the store's own overhead, need some, too.
        let margin = (AT_ONCE as u64 + 1) * (row.length + (64 << 10));
        node.room().await.is_ok_and(|room| room >= margin)
    }
}
