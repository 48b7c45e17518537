//! Interrupts: the end of a wait that a user asks for, such as by Ctrl-C.

use std::{fmt, sync::Arc};

/// A check whether the user has interrupted the job. Waits for another process call it 20 times
/// per second.
#[derive(Clone, Default)]
pub struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    /// No interrupt.
    pub(crate) const NEVER: Self = Self(None);

    /// `has_happened` is called in the thread that waits.
    pub fn new(has_happened: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(has_happened)))
    }

    /// Whether the user has interrupted the job.
    pub(crate) fn has_happened(&self) -> bool {
        self.0.as_ref().is_some_and(|has_happened| has_happened())
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Interrupt" } else { "no Interrupt" })
    }
}
