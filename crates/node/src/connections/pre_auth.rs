//! The connections of strangers: who has to go is decided in `core::strangers`, and ended here.

use std::{collections::BTreeMap, sync::Arc};

use forebay_core::strangers::{self, Source};
use parking_lot::Mutex;
use tokio::task::AbortHandle;

/// All of them.
#[derive(Clone, Default)]
pub(crate) struct Strangers(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    all: strangers::Strangers,
    /// Who serves each; nobody for a moment when it has just come.
    tasks: BTreeMap<strangers::Stranger, Option<AbortHandle>>,
}

/// One of them; dropped when it is known, or gone.
pub(crate) struct Stranger {
    strangers: Strangers,
    who: strangers::Stranger,
}

impl Strangers {
    pub fn enter(&self, source: Source) -> Stranger {
        let mut waiting = self.0.lock();
        let who = waiting.all.enter(source);
        waiting.tasks.insert(who, None);
        Stranger { strangers: self.clone(), who }
    }

    /// The task that serves one, unless it is known or gone by now.
    pub fn served_by(&self, who: strangers::Stranger, task: AbortHandle) {
        if let Some(place) = self.0.lock().tasks.get_mut(&who) {
            *place = Some(task);
        }
    }

    pub fn count(&self) -> usize {
        self.0.lock().all.count()
    }

    /// Ends one, to make room. Whether there was one.
    pub fn dismiss_one(&self) -> bool {
        let mut waiting = self.0.lock();
        let task = waiting.all.dismiss().and_then(|who| waiting.tasks.remove(&who)).flatten();
        drop(waiting);
        task.map(|task| task.abort()).is_some()
    }
}

impl Stranger {
    /// By what it is known.
    pub fn who(&self) -> strangers::Stranger {
        self.who
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut waiting = self.strangers.0.lock();
        waiting.all.leave(self.who);
        waiting.tasks.remove(&self.who);
    }
}
