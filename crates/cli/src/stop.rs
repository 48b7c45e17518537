//! Being asked to stop: Ctrl-C, or a polite kill.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};

/// Work was cut short because somebody asked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Interrupted(pub &'static str);

/// From now on, being asked to stop is heard; the result completes when it happens.
pub fn asked() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
