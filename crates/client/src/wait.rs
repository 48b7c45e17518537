//! Waiting for replies in short slices, with a check for interrupts and for hung peers between
//! them.

use std::{fmt, mem, sync::Arc, time::Duration};

use forebay_auth::Credentials;
use forebay_core::{
    Endpoint,
    cluster::{backoff::Failure, liveness::PingSchedule},
};

use crate::{ClientEnvironment, ClientError, Result, greeting::ping_all};

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

impl Interrupt {
    /// Fails if the user has interrupted the job.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.0 {
            Some(has_happened) if has_happened() => Err(ClientError::Interrupted),
            _ => Ok(()),
        }
    }
}

/// What a connection checks between slices.
#[derive(Debug, Default)]
pub(crate) struct WaitPolicy {
    interrupt: Interrupt,
    ping: Option<Ping>,
}

/// Pings of a silent peer, and of all others at the same time.
#[derive(Debug)]
struct Ping {
    environment: Arc<dyn ClientEnvironment>,
    /// The peer itself.
    endpoint: Endpoint,
    /// All peers.
    peers: Arc<[Endpoint]>,
    credentials: Credentials,
    schedule: PingSchedule,
    /// Other peers that did not answer.
    failed: Vec<(Endpoint, Failure)>,
}

impl WaitPolicy {
    /// Waits until the reply, the timeout or an interrupt.
    pub fn interruptible(interrupt: &Interrupt) -> Self {
        Self { interrupt: interrupt.clone(), ping: None }
    }

    /// Waits until the reply, the timeout or an interrupt. All `peers` are pinged over other
    /// connections while `endpoint`, one of them, is silent. The wait ends when `endpoint` does not
    /// answer: it is hung.
    pub fn with_pings(
        environment: &Arc<dyn ClientEnvironment>,
        interrupt: &Interrupt,
        endpoint: &Endpoint,
        peers: Arc<[Endpoint]>,
        credentials: &Credentials,
    ) -> Self {
        let (endpoint, credentials) = (endpoint.clone(), credentials.clone());
        let (schedule, failed) = (PingSchedule::default(), Vec::new());
        let environment = Arc::clone(environment);
        let ping = Some(Ping { environment, endpoint, peers, credentials, schedule, failed });
        Self { interrupt: interrupt.clone(), ping }
    }

    /// A slice has passed, and nothing has arrived for `silence`.
    pub fn on_slice(&mut self, silence: Duration) -> Result<()> {
        self.interrupt.check()?;
        let Some(ping) = &mut self.ping else { return Ok(()) };
        let Ping { environment, endpoint, peers, credentials, schedule, failed } = ping;
        if !schedule.take_due(silence) {
            return Ok(());
        }
        let mut outcome = Ok(());
        for (at, error) in ping_all(environment, peers, credentials, &self.interrupt)? {
            if peers[at] == *endpoint {
                outcome = Err(error);
            } else {
                failed.push((peers[at].clone(), error.failure()));
            }
        }
        outcome
    }

    /// Other peers that did not answer a ping since the last call.
    pub fn take_failed(&mut self) -> Vec<(Endpoint, Failure)> {
        self.ping.as_mut().map(|ping| mem::take(&mut ping.failed)).unwrap_or_default()
    }
}
