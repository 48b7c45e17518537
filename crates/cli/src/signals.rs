//! Being asked to stop: Ctrl-C, or a polite kill; or the end of the process that one is there for.

use std::{future::Future, os::fd::OwnedFd, thread};

use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
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

/// A process that lives.
pub fn process(pid: i32) -> anyhow::Result<OwnedFd> {
    let known = Pid::from_raw(pid).context("a process id is above nought")?;
    pidfd_open(known, PidfdFlags::empty()).with_context(|| format!("process {pid} is gone"))
}

/// Completes when a process has ended.
pub async fn ended(process: OwnedFd) {
    let (tell, told) = tokio::sync::oneshot::channel();
    // It waits for as long as this process lives, so it is no task of the runtime's.
    thread::spawn(move || {
        let mut watched = [PollFd::new(&process, PollFlags::IN)];
        while matches!(poll(&mut watched, None), Ok(0) | Err(rustix::io::Errno::INTR)) {}
        let _ = tell.send(());
    });
    let _ = told.await;
}
