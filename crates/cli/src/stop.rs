//! Being asked to stop: Ctrl-C, or a polite kill.

use tokio::signal::unix::{SignalKind, signal};

/// Work was cut short because somebody asked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Interrupted(pub &'static str);

/// Completes when this process is asked to stop.
pub async fn asked() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminate.recv() => {}
    }
    Ok(())
}
