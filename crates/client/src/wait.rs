//! Waiting for replies in short slices, with a check for interrupts and for hung peers between
//! them.

use std::{fmt, sync::Arc, time::Duration};

use forebay_auth::Credentials;
use forebay_core::{
    Endpoint,
    cluster::liveness::{PingSchedule, ping_timeout},
};

use crate::{Client, ClientError, Result};

/// The length of one slice.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// A check whether the user has interrupted the job. It runs while a reply is awaited.
#[derive(Clone, Default)]
pub struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    /// `has_happened` is called after each slice of 100 ms, so it should be quick.
    pub fn new(has_happened: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(has_happened)))
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Interrupt" } else { "no Interrupt" })
    }
}

/// What a connection checks between slices.
#[derive(Debug, Default)]
pub(crate) struct WaitPolicy {
    interrupt: Interrupt,
    ping: Option<Ping>,
    /// Time spent on other nodes since this one was asked.
    pub waited_for_others: Duration,
}

/// Pings of a silent peer.
#[derive(Debug)]
struct Ping {
    endpoint: Endpoint,
    credentials: Credentials,
    schedule: PingSchedule,
}

impl WaitPolicy {
    /// Waits until the reply, the timeout or an interrupt.
    pub fn new(interrupt: &Interrupt) -> Self {
        Self { interrupt: interrupt.clone(), ..Self::default() }
    }

    /// The same, but a silent peer is pinged over a second connection. The wait ends when it does
    /// not answer: it is hung.
    pub fn with_pings(
        interrupt: &Interrupt,
        endpoint: &Endpoint,
        credentials: &Credentials,
    ) -> Self {
        let (endpoint, credentials) = (endpoint.clone(), credentials.clone());
        let ping = Some(Ping { endpoint, credentials, schedule: PingSchedule::default() });
        Self { interrupt: interrupt.clone(), ping, ..Self::default() }
    }

    /// A slice has passed, and nothing has arrived for `silence`.
    pub fn on_slice(&mut self, silence: Duration) -> Result<()> {
        if self.interrupt.0.as_ref().is_some_and(|has_happened| has_happened()) {
            return Err(ClientError::Interrupted);
        }
        if let Some(Ping { endpoint, credentials, schedule }) = &mut self.ping
            && schedule.take_due(silence + self.waited_for_others)
        {
            let timeout = ping_timeout(self.waited_for_others);
            let policy = Self::new(&self.interrupt);
            match Client::connect_with(credentials, endpoint, "", timeout, policy) {
                // A refusal is an answer.
                Err(error) if !error.is_refusal() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
