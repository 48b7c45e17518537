//! What a node hears from others, and what it says to that.

use std::time::Duration;

use super::{Council, Handling, Places, Post, Reply, Request, Standing, Term, telling::Telling};
use crate::{ByteSize, DatasetId, NodeName, manager::Refusal, placement::Dataset};

impl Council {
    /// What lies here of a dataset that this node was to look for.
    pub fn found(&mut self, now: Duration, dataset: DatasetId, found: &[u32]) {
        let me = self.me.clone();
        self.heard_of(now, dataset, &me, None, found);
    }

    /// What was to be freed is free.
    pub fn freed(&mut self, now: Duration, dataset: DatasetId, places: &Places) {
        let me = self.me.clone();
        self.obeyed(now, dataset, &me, &places.term, places.version, &[]);
    }

    /// Another node asks something of this one.
    pub fn on_request(&mut self, now: Duration, from: &NodeName, request: Request) -> Handling {
        match request {
            Request::Greet => Handling::Reply(Reply::Greeted),
            Request::Ask { dataset } => Handling::Find(dataset),
            Request::Tell { dataset, places } => match self.obeying.told(now, dataset, &places) {
                Ok(free) => {
                    if self.manages(&dataset) {
                        let (term, silent_for) = (places.term.clone(), Duration::ZERO);
                        self.step_down(now, dataset, &Standing { term, silent_for });
                    }
                    Handling::Free(dataset, places, free)
                }
                Err(standing) => {
                    self.counters.orders_refused += u64::from(standing.term > places.term);
                    let term = places.term;
                    Handling::Reply(Reply::Refused { dataset, term, standing })
                }
            },
            Request::Wish { known, wishes } => {
                Handling::Reply(self.wished(now, from, known, wishes))
            }
        }
    }

    /// What is answered to whoever asked, now that it is known what lies here.
    pub fn answer_ask(&self, now: Duration, dataset: DatasetId, found: Vec<u32>) -> Reply {
        Reply::Obeys { dataset, standing: self.obeying.standing(now, &dataset), found }
    }

    /// What is answered to whoever told, now that all is free that has no place.
    pub fn answer_tell(&self, dataset: DatasetId, places: Places) -> Reply {
        let Places { term, version, .. } = places;
        Reply::Obeyed { dataset, term, version, arrived: self.obeying.all_arrived(&dataset) }
    }

    /// Another node has answered; it has so much space.
    pub fn on_reply(
        &mut self,
        now: Duration,
        from: &NodeName,
        capacity: ByteSize,
        reply: Reply,
    ) -> Result<(), Refusal> {
        self.reach.heard(now, from, capacity);
        match reply {
            Reply::Greeted => {}
            Reply::Obeys { dataset, standing, found } => {
                self.heard_of(now, dataset, from, standing, &found);
            }
            Reply::Obeyed { dataset, term, version, arrived } => {
                self.obeyed(now, dataset, from, &term, version, &arrived);
            }
            Reply::Refused { dataset, term, standing } => {
                let is_about_me =
                    |telling: &Telling| *telling.term() == term && standing.term > term;
                if matches!(self.posts.get(&dataset), Some(Post::Managing(telling)) if is_about_me(telling))
                {
                    self.step_down(now, dataset, &standing);
                }
            }
            Reply::Shares { term, shares } => {
                if self.placing.accepts(&term) {
                    let orders = self.managers.place(now, shares)?;
                    self.obey_manager(now, orders);
                } else {
                    self.counters.orders_refused += 1;
                }
            }
        }
        self.follow_placement(now)
    }

    fn wished(
        &mut self,
        now: Duration,
        from: &NodeName,
        known: Option<Term>,
        wishes: Vec<(DatasetId, Dataset)>,
    ) -> Reply {
        if *self.placement_owner(now) != self.me {
            // Whoever is before this node lives, as far as it knows: budgets stay as they are.
            return Reply::Greeted;
        }
        let datasets: Vec<DatasetId> = wishes.iter().map(|(dataset, _)| *dataset).collect();
        let term = self.placing.wished(now, from, known, wishes);
        match self.managers.wished(now, self.placing.others(now)) {
            Ok(orders) => self.obey_manager(now, orders),
            Err(_) => return Reply::Greeted,
        }
        Reply::Shares { term, shares: self.managers.shares_of_others(&datasets) }
    }

    fn heard_of(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        from: &NodeName,
        standing: Option<Standing>,
        found: &[u32],
    ) {
        if let Some(Post::Asking(asking)) = self.posts.get_mut(&dataset)
            && asking.answered(from, standing, found)
        {
            self.take_over(now, dataset);
        }
    }

    fn obeyed(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        from: &NodeName,
        term: &Term,
        version: u64,
        arrived: &[(u32, ByteSize)],
    ) {
        let Some(Post::Managing(telling)) = self.posts.get_mut(&dataset) else { return };
        if telling.term() != term {
            return;
        }
        for (piece, bytes) in telling.obeyed(from, version, arrived) {
            // Another cut since, or nonsense: not a reason to stop.
            let orders = self.managers.arrived(now, dataset, piece, bytes).unwrap_or_default();
            self.obey_manager(now, orders);
        }
        self.check_evictions(now, dataset);
        self.tell(now, dataset);
    }
}
