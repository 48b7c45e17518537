//! Liveness of a connection: how long the node has been silent, and pings over a second connection.
//!
//! A node that waits for another agent's fetch is silent on the waiting connection, but answers a
//! ping. A hung node does not; then all pending requests fail.

use std::{sync::Arc, time::Duration};

use forebay_client::hello;
use forebay_core::{
    Endpoint,
    cluster::liveness::{PING_TIMEOUT, PingSchedule},
};
use forebay_wire::{Reply, Request};
use tokio::{io::AsyncWriteExt as _, sync::Notify, time::timeout};

use crate::{cluster::Login, connection::read_reply};

/// Where to ping a node, and how.
pub(crate) struct PingTarget {
    pub endpoint: Endpoint,
    pub login: Login,
    /// Notified when a ping is due: the other nodes are pinged as well.
    pub silence: Arc<Notify>,
}

impl PingTarget {
    /// Whether the node answers a hello and a request for its list within [`PING_TIMEOUT`]. A
    /// refusal is an answer.
    pub async fn answers(&self) -> bool {
        let Self { endpoint, login: Login { credentials, connector, .. }, .. } = self;
        let ping = async {
            let (mut reader, mut writer) =
                connector.connect(endpoint, credentials, PING_TIMEOUT).await.ok()?;
            let mut reply = None;
            for (id, request) in (1..).zip([hello("", credentials), Request::Ring]) {
                writer.write_all(&request.encode(id).to_bytes()).await.ok()?;
                writer.flush().await.ok()?;
                reply = Some(read_reply(&mut reader).await?);
                if matches!(reply, Some((_, Reply::Error(_)))) {
                    break;
                }
            }
            reply
        };
        timeout(PING_TIMEOUT, ping).await.is_ok_and(|reply| reply.is_some())
    }
}

/// The silence of a node while requests are pending. Times are since the connection was opened.
#[derive(Default)]
pub(crate) struct Silence {
    /// When a frame last arrived.
    heard_at: Duration,
    /// Since when a request is pending and nothing has arrived.
    since: Duration,
    pings: PingSchedule,
    /// How long the node had been silent when it was found hung.
    hung_for: Option<Duration>,
}

impl Silence {
    /// The first pending request was sent.
    pub fn on_first_request(&mut self, now: Duration) {
        self.since = now;
    }

    /// A frame has arrived.
    pub fn on_frame(&mut self, now: Duration) {
        (self.heard_at, self.since) = (now, now);
    }

    /// The node has not answered since `since`: it is hung.
    pub fn on_hung(&mut self, since: Duration, now: Duration) {
        self.hung_for = Some(now.saturating_sub(since));
    }

    pub fn heard_at(&self) -> Duration {
        self.heard_at
    }

    pub fn hung_for(&self) -> Option<Duration> {
        self.hung_for
    }

    /// If a ping is due, since when the node is silent. Of all pending requests one pings.
    pub fn take_due_ping(&mut self, now: Duration) -> Option<Duration> {
        self.pings.take_due(now.saturating_sub(self.since)).then_some(self.since)
    }
}
