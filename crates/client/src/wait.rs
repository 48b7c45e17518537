//! What is done while an answer is awaited.
//!
//! Waiting goes in short slices. Between them it is looked whether the user has interrupted the job, and
//! whether one who has been silent for long still lives.

use std::{fmt, sync::Arc, time::Duration};

use forebay_core::{
    Endpoint,
    doubt::{Doubt, greeting_after},
};
use forebay_identity::Credentials;

use crate::{Client, ClientError, Result};

/// How long one slice is.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Says whether the user has interrupted the job; asked while something is awaited.
#[derive(Clone, Default)]
pub struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    /// It is asked after each slice, so it should be quick.
    pub fn new(has_happened: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(has_happened)))
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Interrupt" } else { "no Interrupt" })
    }
}

/// How one connection waits.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    interrupt: Interrupt,
    /// Whom to greet, and as whom.
    doubted: Option<(Endpoint, Credentials, Doubt)>,
    /// How long others were waited for since the other side was asked.
    pub others: Duration,
}

impl Waiting {
    /// Until the answer is there, the patience ends or the user interrupts.
    pub fn patiently(interrupt: &Interrupt) -> Self {
        Self { interrupt: interrupt.clone(), ..Self::default() }
    }

    /// Likewise, but only for one who lives: somebody at this socket answers greetings.
    pub fn for_the_living(
        interrupt: &Interrupt,
        whom: &Endpoint,
        credentials: &Credentials,
    ) -> Self {
        let doubted = Some((whom.clone(), credentials.clone(), Doubt::default()));
        Self { interrupt: interrupt.clone(), doubted, ..Self::default() }
    }

    /// A slice has passed; nothing has arrived for so long.
    pub fn go_on(&mut self, silent: Duration) -> Result<()> {
        if self.interrupt.0.as_ref().is_some_and(|has_happened| has_happened()) {
            return Err(ClientError::Interrupted);
        }
        if let Some((whom, credentials, doubt)) = &mut self.doubted
            && doubt.arises(silent + self.others)
        {
            let (waiting, within) = (Self::patiently(&self.interrupt), greeting_after(self.others));
            match Client::connect_waiting(credentials, whom, "", within, waiting) {
                // Whoever refuses lives.
                Err(error) if !error.is_refusal() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
