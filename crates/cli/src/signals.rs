//! Signals and process exits: SIGINT, SIGTERM, SIGXFSZ, and the end of a watched process.

use std::{future::Future, os::fd::OwnedFd, thread};

use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open},
};
use tokio::signal::unix::{SignalKind, signal};

/// A command that stopped early because of a signal. Its text is the message for the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Interrupted(pub &'static str);

/// Installs handlers for SIGINT and SIGTERM; the future completes at the first of them.
pub fn stop_requested() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Turns SIGXFSZ into an error of the write that exceeds the limit on the size of files. Without a
/// handler the signal ends the process without a message.
pub fn survive_file_size_limit() -> anyhow::Result<()> {
    // The handler remains when its receiver is dropped.
    drop(signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?);
    Ok(())
}

/// Opens a running process.
pub fn open_process(pid: i32) -> anyhow::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).with_context(|| format!("{pid} is not a process id"))?;
    pidfd_open(pid, PidfdFlags::empty())
        .with_context(|| format!("process {} does not run", pid.as_raw_nonzero()))
}

/// Completes when the process has ended.
pub async fn process_ended(process: OwnedFd) {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // A thread, not a task: a blocking task would delay the end of the runtime.
    thread::spawn(move || {
        let mut watched = [PollFd::new(&process, PollFlags::IN)];
        while matches!(poll(&mut watched, None), Ok(0) | Err(rustix::io::Errno::INTR)) {}
        let _ = sender.send(());
    });
    let _ = receiver.await;
}
