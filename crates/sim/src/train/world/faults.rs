//! Faults of the simulated cluster.

use forebay_core::units::ByteRate;

use super::{Event, World};
use crate::train::{
    job::{State, Wanted},
    manager::Waiter,
    scenario::FaultKind,
    time::Nanos,
};

impl World<'_> {
    pub(super) fn schedule_faults(&mut self) {
        for fault in &self.setup.faults {
            let at = Nanos::from(fault.at);
            match &fault.kind {
                FaultKind::JobDies { job, back_after } => {
                    let job = self.setup.jobs.iter().position(|known| known.name == *job);
                    let job = job.expect("scenarios are checked");
                    let restart_after = back_after.map(Nanos::from);
                    self.events.schedule(at, Event::Killed { job, restart_after });
                }
                FaultKind::NodeLost(node) => {
                    self.events.schedule(at, Event::NodeLost { node: *node });
                }
                FaultKind::OriginSlow { bandwidth, lasting } => {
                    let end = at + Nanos::from(*lasting);
                    self.events.schedule(at, Event::OriginSlows { to: *bandwidth });
                    self.events.schedule(end, Event::OriginRecovers { from: *bandwidth });
                }
            }
        }
    }

    /// A node loses its items.
    pub(super) fn lose_node(&mut self, node: u32) {
        self.recorder.on_fault(self.now, format!("node {node} lost its data"));
        self.store.lose_node(node - 1, self.setup.cache.nodes);
    }

    pub(super) fn slow_down(&mut self, to: ByteRate) {
        self.slow_downs.push(to);
        self.set_origin_bandwidth();
    }

    pub(super) fn recover(&mut self, from: ByteRate) {
        let index = self.slow_downs.iter().position(|rate| *rate == from);
        self.slow_downs.remove(index.expect("the slow-down has begun"));
        self.set_origin_bandwidth();
    }

    /// Sets the lowest bandwidth of all current slow-downs.
    fn set_origin_bandwidth(&mut self) {
        let slowest = self.slow_downs.iter().min().copied();
        let rate = slowest.unwrap_or(self.setup.origin.bandwidth);
        self.recorder.on_fault(self.now, format!("the origin's bandwidth is now {rate}"));
        self.origin.set_capacity(self.now, rate.0.0);
    }

    /// Kills a job. The manager notices when its lease ends.
    pub(super) fn kill(&mut self, job: usize, restart_after: Option<Nanos>) {
        let name = &self.setup.jobs[job].name;
        if self.jobs[job].state != State::Training {
            self.recorder
                .on_fault(self.now, format!("{name} was not running, so it was not killed"));
            return;
        }
        let restart = match restart_after {
            Some(span) => format!("; it restarts {} s later", span.seconds()),
            None => String::new(),
        };
        self.recorder.on_fault(self.now, format!("{name} was killed{restart}"));
        self.origin.clear(self.now, job);
        self.flash.clear(self.now, job);
        let fetching = self.jobs[job].fetching.take();
        self.jobs[job].kill();
        if let Some(manager) = self.store.manager() {
            manager.on_killed(job);
            let cached = &mut manager.datasets[self.jobs[job].dataset];
            cached.take_waiters(|waiting| waiting.job == job);
            // Other jobs must now fetch what it was fetching.
            let lost = fetching.map_or(Vec::new(), |fetching| fetching.items);
            for item in &lost {
                cached.on_abandoned(*item);
            }
            for waiting in cached.take_waiters(|waiting| lost.contains(&waiting.item)) {
                let Waiter { item, job, batch } = waiting;
                let wanted = Wanted { batch, items: vec![item], requested: 0, is_probe: false };
                self.jobs[job].wanted.push_front(wanted);
            }
        }
        match restart_after {
            Some(span) => self.events.schedule(self.now + span, Event::Starts { job }),
            None => self.end(job),
        }
        (0..self.jobs.len()).for_each(|job| self.fetch(job));
    }
}
