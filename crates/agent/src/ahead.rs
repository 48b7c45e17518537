//! Fetching ahead: first what the job said it will want, in that order; then, as long as the node has
//! room, everything else, in a random order of the agent's own, so that the agents of several jobs meet
//! as little as possible.

use std::{sync::Arc, time::Duration};

use forebay_core::BlobOrdinal;
use tokio::task::JoinSet;

use crate::{
    connection::{Result, Room},
    service::AgentService,
};

/// Blobs fetched ahead at once; those that the job waits for come on top.
const AT_ONCE: usize = 16;
/// How often it is looked whether the node has room again.
const PAUSE: Duration = Duration::from_millis(200);
/// What the node said of its room is believed for so long.
const ROOM_AGE: Duration = Duration::from_millis(50);
/// What a blob may take on the node beside its bytes.
const OVERHEAD: u64 = 64 << 10;

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
            let service = Arc::clone(&service);
            fetches.spawn(async move {
                if let Err(error) = service.obtain_ahead(blob).await {
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
        self.room_for(blob, AT_ONCE).await.is_ok_and(|(has_room, _)| has_room)
    }

    /// Whether the node would keep this blob without dropping another, and how much it has dropped so far. It is
    /// taken as said that the blob will be put.
    pub(crate) async fn room_for(&self, blob: u64, at_once: usize) -> Result<(bool, u64)> {
        let node = self.link.connection().await?;
        let length = self.digest.blob(BlobOrdinal::new(blob)).map_or(0, |row| row.length);
        let taken = length + OVERHEAD;
        // What is under way elsewhere needs some, too.
        let margin = (at_once as u64 + 1) * taken;
        let now = self.link.now();
        let is_fresh = |(at, room): &(Duration, Room)| now < *at + ROOM_AGE && room.bytes >= margin;
        let known = self.room.lock().filter(is_fresh);
        let (asked_at, mut room) = match known {
            Some(known) => known,
            None => (now, node.room().await?),
        };
        let has_room = room.bytes >= margin;
        if has_room {
            room.bytes -= taken;
        }
        *self.room.lock() = Some((asked_at, room));
        Ok((has_room, room.evicted))
    }
}
