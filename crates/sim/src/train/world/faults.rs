//! What goes wrong in the simulated cluster, when it does.

use forebay_core::units::ByteRate;

use super::{Event, World};
use crate::train::{
    job::{State, Wanted},
    manager::Waiting,
    scenario::FaultKind,
    time::Nanos,
};

impl World<'_> {
    pub(super) fn plan_faults(&mut self) {
        for fault in &self.setup.faults {
            let at = Nanos::from(fault.at);
            match &fault.kind {
                FaultKind::JobDies { job, back_after } => {
                    let job = self.setup.jobs.iter().position(|known| known.name == *job);
                    let job = job.expect("scenarios are checked");
                    let back_after = back_after.map(Nanos::from);
                    self.events.plan(at, Event::Dies { job, back_after });
                }
                FaultKind::NodeLost(node) => {
                    self.events.plan(at, Event::NodeLost { node: *node });
                }
                FaultKind::OriginSlow { bandwidth, lasting } => {
                    let end = at + Nanos::from(*lasting);
                    self.events.plan(at, Event::OriginSlows { to: *bandwidth });
                    self.events.plan(end, Event::OriginRecovers { from: *bandwidth });
                }
            }
        }
    }

    /// A node loses all that it held.
    pub(super) fn lose_node(&mut self, node: u32) {
        self.recorder.note(self.now, format!("node {node} lost all that it held"));
        self.store.lose_node(node - 1, self.setup.cache.nodes);
    }

    pub(super) fn slow_down(&mut self, to: ByteRate) {
        self.slowed.push(to);
        self.set_origin_bandwidth();
    }

    pub(super) fn recover(&mut self, from: ByteRate) {
        let place = self.slowed.iter().position(|rate| *rate == from);
        self.slowed.remove(place.expect("it slowed down before"));
        self.set_origin_bandwidth();
    }

    /// As slow as the worst of all that slows it down.
    fn set_origin_bandwidth(&mut self) {
        let slowest = self.slowed.iter().min().copied();
        let rate = slowest.unwrap_or(self.setup.origin.bandwidth);
        self.recorder.note(self.now, format!("the origin gives {rate} from now on"));
        self.origin.set_capacity(self.now, rate.0.0);
    }

    /// A job is killed without a word; the manager will miss it.
    pub(super) fn die(&mut self, job: usize, back_after: Option<Nanos>) {
        let name = &self.setup.jobs[job].name;
        if self.jobs[job].state != State::Training {
            self.recorder.note(self.now, format!("{name} was to be killed, but was not there"));
            return;
        }
        let back = match back_after {
            Some(span) => format!(", and comes back {} s later", span.seconds()),
            None => String::new(),
        };
        self.recorder.note(self.now, format!("{name} was killed{back}"));
        self.origin.clear(self.now, job);
        self.flash.clear(self.now, job);
        let fetching = self.jobs[job].fetching.take();
        self.jobs[job].die();
        if let Some(manager) = self.store.manager() {
            manager.killed(job);
            let cached = &mut manager.shelves[self.jobs[job].dataset];
            cached.take_waiting(|waiting| waiting.job == job);
            // What it was fetching, others have to fetch now.
            let lost = fetching.map_or(Vec::new(), |fetching| fetching.items);
            for item in &lost {
                cached.abandon(*item);
            }
            for waiting in cached.take_waiting(|waiting| lost.contains(&waiting.item)) {
                let Waiting { item, job, batch } = waiting;
                let wanted = Wanted { batch, items: vec![item], asked: 0, is_probe: false };
                self.jobs[job].wanted.push_front(wanted);
            }
        }
        match back_after {
            Some(span) => self.events.plan(self.now + span, Event::Starts { job }),
            None => self.end(job),
        }
        (0..self.jobs.len()).for_each(|job| self.fetch(job));
    }
}
