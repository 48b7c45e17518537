//! The nodes that share the work, as a job sees them: one connection to each, opened when it is first needed.
//!
//! The list is asked of whichever node is found first; a node that has none is alone. Of several, each blob
//! has one owner, and is asked for there and nowhere else. All owners are asked at once, and then heard one
//! after the other: they work at the same time, and no thread is needed for that.
//!
//! **Invariant:** a node's failure is never an error here. What one that is down, hung or not the one it
//! should be would have had is missing, and the agent reads it; together they cost a job a tenth of its time at
//! most (`core::patience`).

use std::{mem, time::Duration};

use forebay_core::{
    Address, BlobOrdinal, Endpoint, NamespaceId, NodeName,
    digest::Digest,
    doubt::GREETING,
    patience::{NODE_PATIENCE, left_of},
    presence::Known,
    ring::{Contacts, Heard, Key, KnownRing, Membership, Ring},
};
use forebay_identity::Credentials;
use forebay_wire::{BATCH_MAX, BlobRange, GetAnswer};

use crate::{
    Client, ClientError, Experience, Handle, Interrupt, Result, View, Wanted, getting::Sent,
    waiting::Waiting,
};

/// Who asks, and for what.
#[derive(Debug)]
pub(crate) struct Caller<'a> {
    pub subject: Subject<'a>,
    pub job: &'a str,
    pub credentials: &'a Credentials,
    pub interrupt: &'a Interrupt,
    /// When, by the clock of what is known of nodes.
    pub began: Duration,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// Blobs of a dataset.
    Dataset(&'a Digest),
    /// Blobs of a namespace, picked by their addresses.
    Picks(NamespaceId),
}

impl<'a> Caller<'a> {
    fn digest(&self) -> &'a Digest {
        match self.subject {
            Subject::Dataset(digest) => digest,
            Subject::Picks(_) => unreachable!("what is picked has no ordinals"),
        }
    }
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    contacts: Contacts,
    known: Option<Who>,
    experience: Experience,
    fell: bool,
}

/// Those that are known.
#[derive(Debug)]
enum Who {
    /// One that is alone, and where it is.
    One(Open, Endpoint),
    Several(Several),
}

#[derive(Debug)]
struct Several {
    known: KnownRing,
    ring: Ring,
    /// In the order of the ring.
    open: Vec<Option<Open>>,
    /// Of every blob, once all of them have been needed.
    owners: Vec<u16>,
    /// What each said last of its blobs.
    presence: Vec<Known>,
}

/// A connection with the dataset open.
#[derive(Debug)]
struct Open {
    client: Client,
    handle: Handle,
    opened_at: Duration,
}

impl Open {
    fn ask_views(&mut self, ranges: &[BlobRange], batch: &[usize]) -> Result<Sent> {
        let batch = batch.iter().map(|at| ranges[*at]).collect();
        self.client.ask_ranges(self.handle, Duration::ZERO, batch)
    }
}

/// What is wanted of each owner: left to ask for, asked for, or asked for in vain.
#[derive(Debug)]
pub(crate) struct Shares<T> {
    left: Vec<Vec<T>>,
    asked: Vec<(usize, Sent, Vec<T>)>,
    unanswered: Vec<T>,
}

impl<T> Default for Shares<T> {
    fn default() -> Self {
        Self { left: Vec::new(), asked: Vec::new(), unanswered: Vec::new() }
    }
}

impl<T> Shares<T> {
    fn are_done(&self) -> bool {
        self.left.iter().all(Vec::is_empty) && self.asked.is_empty() && self.unanswered.is_empty()
    }
}

impl Nodes {
    pub fn new(contacts: Contacts) -> Self {
        Self { contacts, known: None, experience: Experience::default(), fell: false }
    }

    /// What is known of them: others of this process may know more.
    pub fn experience(&mut self) -> &mut Experience {
        &mut self.experience
    }

    /// Forgets all connections: they are another process's. What is known of nodes is no less true.
    pub fn forget(&mut self) {
        (self.known, self.fell) = (None, false);
    }

    /// Whether a node that is alone has failed since this was last asked, and is worth starting anew.
    pub fn fell(&mut self) -> bool {
        mem::take(&mut self.fell)
    }

    /// What no node could give.
    pub fn get<'a>(&mut self, caller: &Caller<'_>, wanted: Vec<Wanted<'a>>) -> Vec<Wanted<'a>> {
        if !self.learn(caller) {
            return wanted;
        }
        let mut missing = Vec::new();
        let shares = self.shares(caller.digest(), wanted, |wanted| wanted.blob);
        self.in_shares(
            caller,
            shares,
            |open, batch| open.client.ask_get(open.handle, Duration::ZERO, batch),
            |open, sent, first, batch| {
                open.client.take_get(sent, Duration::ZERO, Some(first), batch)
            },
            |batch, answers| match answers {
                Some(answers) => {
                    let missed = batch.into_iter().zip(answers);
                    let missed = missed.filter(|(_, answer)| *answer != GetAnswer::Hit);
                    missing.extend(missed.map(|(wanted, _)| wanted));
                }
                None => missing.extend(batch),
            },
        );
        missing
    }

    /// Asks the owners of these ranges for views, and does not wait for any of them.
    pub fn ask_views(&mut self, caller: &Caller<'_>, ranges: &[BlobRange]) -> Shares<usize> {
        if !self.learn(caller) {
            return Shares::default();
        }
        let wanted = (0..ranges.len()).collect();
        let mut shares = self.shares(caller.digest(), wanted, |at| ranges[*at].blob);
        self.ask_owners(caller, &mut shares, &|open, batch| open.ask_views(ranges, batch));
        shares
    }

    /// The views that were asked for, as far as their owners have them.
    pub fn take_views(
        &mut self,
        caller: &Caller<'_>,
        ranges: &[BlobRange],
        shares: Shares<usize>,
    ) -> Vec<Option<View>> {
        let mut views: Vec<Option<View>> = ranges.iter().map(|_| None).collect();
        self.in_shares(
            caller,
            shares,
            |open, batch| open.ask_views(ranges, batch),
            |open, sent, first, _| open.client.take_views(sent, Duration::ZERO, Some(first)),
            |batch, answers| {
                for (at, answer) in batch.into_iter().zip(answers.into_iter().flatten()) {
                    views[at] = answer.ok();
                }
            },
        );
        views
    }

    /// Asks each owner for its share, batch by batch: all of them first, then hears one after the other. What
    /// becomes of a batch is told, with no answers if its owner gave none.
    fn in_shares<T, A>(
        &mut self,
        caller: &Caller<'_>,
        mut shares: Shares<T>,
        ask: impl Fn(&mut Open, &[T]) -> Result<Sent>,
        take: impl Fn(&mut Open, Sent, Duration, &mut [T]) -> Result<Vec<A>>,
        mut done: impl FnMut(Vec<T>, Option<Vec<A>>),
    ) {
        while !shares.are_done() {
            self.ask_owners(caller, &mut shares, &ask);
            done(mem::take(&mut shares.unanswered), None);
            let asked_at = self.experience.now();
            for (node, sent, mut batch) in mem::take(&mut shares.asked) {
                let first = left_of(NODE_PATIENCE, asked_at, self.experience.now());
                let answers =
                    self.with_open(node, asked_at, |open| take(open, sent, first, &mut batch));
                done(batch, answers);
            }
        }
    }

    /// Asks each owner for a batch of its share, unless one is on its way.
    fn ask_owners<T>(
        &mut self,
        caller: &Caller<'_>,
        shares: &mut Shares<T>,
        ask: &impl Fn(&mut Open, &[T]) -> Result<Sent>,
    ) {
        if !shares.asked.is_empty() {
            return;
        }
        for (node, left) in shares.left.iter_mut().enumerate().filter(|(_, left)| !left.is_empty())
        {
            let rest = left.split_off(left.len().min(BATCH_MAX));
            let batch = mem::replace(left, rest);
            let began = self.experience.now();
            match self.with(caller, node, began, |open| ask(open, &batch)) {
                Some(sent) => shares.asked.push((node, sent, batch)),
                None => shares.unanswered.extend(batch),
            }
        }
    }

    /// Brings up to date what is known of the blobs that owners have; without a node there are none. Returns
    /// how many bytes that took.
    pub fn presence(&mut self, caller: &Caller<'_>, known: &mut Known) -> u64 {
        if !self.learn(caller) {
            known.forget();
            return 0;
        }
        if let Some(Who::One(..)) = &self.known {
            let began = self.experience.now();
            let told =
                self.with(caller, 0, began, |open| open.client.presence_since(open.handle, known));
            return told.unwrap_or_else(|| {
                known.forget();
                0
            });
        }
        self.find_owners(caller.digest());
        let mut each = self.take_known(known.blobs());
        let mut asked = Vec::new();
        for (node, known) in each.iter_mut().enumerate() {
            let began = self.experience.now();
            let sent =
                self.with(caller, node, began, |open| open.client.ask_presence(open.handle, known));
            match sent {
                Some(id) => asked.push((node, id)),
                None => known.forget(),
            }
        }
        let asked_at = self.experience.now();
        let mut bytes = 0;
        for (node, id) in asked {
            let within = left_of(NODE_PATIENCE, asked_at, self.experience.now());
            let told = self.with_open(node, asked_at, |open| {
                open.client.take_presence(id, &mut each[node], Some(within))
            });
            match told {
                Some(told) => bytes += told,
                None => each[node].forget(),
            }
        }
        self.put_known(each, known);
        bytes
    }

    /// Does something with the owner of each of these blobs, one owner after the other; it is told which of them are
    /// its own. What it does not get to do, because the node is not there or fails, is not done.
    pub fn with_owners(
        &mut self,
        caller: &Caller<'_>,
        addresses: &[Address],
        mut act: impl FnMut(&mut Client, Handle, &[usize]) -> Result<()>,
    ) {
        if !self.learn(caller) {
            return;
        }
        let mut shares = vec![Vec::new(); self.count()];
        for (at, address) in addresses.iter().enumerate() {
            let owner = match &self.known {
                Some(Who::Several(several)) => several.ring.owner(address),
                _ => 0,
            };
            shares[owner].push(at);
        }
        for (node, share) in shares.iter().enumerate().filter(|(_, share)| !share.is_empty()) {
            let began = self.experience.now();
            self.with(caller, node, began, |open| act(&mut open.client, open.handle, share));
        }
    }

    /// What all nodes that answer have counted, together.
    pub fn stats(&mut self, caller: &Caller<'_>) -> Option<Vec<(String, u64)>> {
        if !self.learn(caller) {
            return None;
        }
        let mut sums: Option<Vec<(String, u64)>> = None;
        for node in 0..self.count() {
            let began = self.experience.now();
            let Some(counters) = self.with(caller, node, began, |open| open.client.stats()) else {
                continue;
            };
            let Some(sums) = &mut sums else {
                sums = Some(counters);
                continue;
            };
            for (name, value) in counters {
                match sums.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => *sum = sum.saturating_add(value),
                    None => sums.push((name, value)),
                }
            }
        }
        sums
    }

    /// Does something with the first node in the order of this key that answers. A refusal is an answer.
    pub fn with_first<T>(
        &mut self,
        caller: &Caller<'_>,
        key: Key,
        mut act: impl FnMut(&mut Client, Handle) -> Result<T>,
    ) -> Result<Option<T>> {
        if !self.learn(caller) {
            return Ok(None);
        }
        let order = match &self.known {
            Some(Who::Several(several)) => several.ring.order(key),
            _ => vec![0],
        };
        self.with_first_of(caller, order, &mut act)
    }

    /// Does something with the node of this name, if it answers.
    pub fn with_named<T>(
        &mut self,
        caller: &Caller<'_>,
        name: &NodeName,
        mut act: impl FnMut(&mut Client, Handle) -> Result<T>,
    ) -> Result<Option<T>> {
        let place = match &self.known {
            Some(Who::Several(several)) => several.ring.place_of(name),
            _ => None,
        };
        self.with_first_of(caller, place.into_iter().collect(), &mut act)
    }

    fn with_first_of<T>(
        &mut self,
        caller: &Caller<'_>,
        order: Vec<usize>,
        act: &mut impl FnMut(&mut Client, Handle) -> Result<T>,
    ) -> Result<Option<T>> {
        for node in order {
            let mut refused = None;
            let began = self.experience.now();
            let done =
                self.with(caller, node, began, |open| match act(&mut open.client, open.handle) {
                    Err(error) if error.is_refusal() => {
                        refused = Some(error);
                        Ok(None)
                    }
                    outcome => outcome.map(Some),
                });
            match (refused, done) {
                (Some(refused), _) => return Err(refused),
                (None, Some(done)) => return Ok(done),
                (None, None) => {}
            }
        }
        Ok(None)
    }

    fn count(&self) -> usize {
        match &self.known {
            None => 0,
            Some(Who::One(..)) => 1,
            Some(Who::Several(several)) => several.open.len(),
        }
    }

    /// Finds out who there is, unless that is known. Says whether it is.
    fn learn(&mut self, caller: &Caller<'_>) -> bool {
        if self.known.is_none()
            && let Some((list, zone)) = self.contacts.list()
        {
            let ring = list.ring(zone).expect("checked");
            let several = Several::new(KnownRing::new(list.clone(), None), ring);
            self.known = Some(Who::Several(several));
        }
        for endpoint in self.contacts.endpoints() {
            if self.known.is_some() {
                break;
            }
            if !self.experience.is_due(endpoint, caller.began) {
                continue;
            }
            let began = self.experience.now();
            match open(caller, endpoint, began) {
                Ok((node, None)) => {
                    self.experience.succeeded(endpoint);
                    self.known = Some(Who::One(node, endpoint.clone()));
                }
                Ok((node, Some(membership))) => {
                    self.experience.succeeded(endpoint);
                    let ring = membership.ring();
                    let place = ring.place_of(membership.name()).expect("it is in its own ring");
                    let (list, name) = (membership.list().clone(), membership.name().clone());
                    let mut several = Several::new(KnownRing::new(list, Some(name)), ring);
                    several.open[place] = Some(node);
                    self.known = Some(Who::Several(several));
                }
                Err(ClientError::Interrupted) => {}
                Err(error) => {
                    self.fell |= self.experience.failed(endpoint, error.failure(), began, began);
                }
            }
        }
        self.known.is_some()
    }

    /// Does something with a node, and connects first if that is due. Whatever goes wrong is no error: there
    /// is no answer then.
    fn with<T>(
        &mut self,
        caller: &Caller<'_>,
        node: usize,
        began: Duration,
        act: impl FnOnce(&mut Open) -> Result<T>,
    ) -> Option<T> {
        self.connect(caller, node);
        self.with_open(node, began, act)
    }

    /// The same with the connection that there is: what was asked over one is answered over no other.
    fn with_open<T>(
        &mut self,
        node: usize,
        began: Duration,
        act: impl FnOnce(&mut Open) -> Result<T>,
    ) -> Option<T> {
        let (endpoint, is_alone) = match self.known.as_ref()? {
            Who::One(_, endpoint) => (endpoint.clone(), true),
            // A list that has just changed may be shorter.
            Who::Several(several) => (several.ring.members().get(node)?.endpoint.clone(), false),
        };
        // Another connection has found out that there is nobody to wait for.
        if self.experience.has_failed(&endpoint) {
            self.hang_up(node);
            return None;
        }
        let open = match self.known.as_mut()? {
            Who::One(open, _) => open,
            Who::Several(several) => several.open[node].as_mut()?,
        };
        let opened_at = open.opened_at;
        match act(open) {
            Ok(done) => Some(done),
            Err(error) if error.is_refusal() => None,
            Err(error) => {
                self.hang_up(node);
                if !matches!(error, ClientError::Interrupted) {
                    let how = error.failure();
                    let fell = self.experience.failed(&endpoint, how, opened_at, began);
                    self.fell |= fell && is_alone;
                }
                None
            }
        }
    }

    /// Connects to one of several, if that is due. Over what there was, nothing that is under way is waited for
    /// any more.
    fn connect(&mut self, caller: &Caller<'_>, node: usize) {
        let Some(Who::Several(several)) = &mut self.known else { return };
        let Some(member) = several.ring.members().get(node) else { return };
        let (endpoint, experience) = (member.endpoint.clone(), &mut self.experience);
        if experience.has_failed(&endpoint) {
            several.open[node] = None;
        }
        if several.open[node].is_some() || !experience.is_due(&endpoint, caller.began) {
            return;
        }
        let now = experience.now();
        match several.connect(caller, node, now) {
            Ok(()) => experience.succeeded(&endpoint),
            Err(ClientError::Interrupted) => {}
            Err(error) => {
                experience.failed(&endpoint, error.failure(), now, now);
            }
        }
    }

    fn hang_up(&mut self, node: usize) {
        match &mut self.known {
            Some(Who::Several(several)) => several.open[node] = None,
            _ => self.known = None,
        }
    }

    /// What is wanted of each node.
    fn shares<T>(&self, digest: &Digest, wanted: Vec<T>, blob: impl Fn(&T) -> u64) -> Shares<T> {
        let left = match &self.known {
            Some(Who::Several(several)) => {
                let mut shares: Vec<Vec<T>> = several.open.iter().map(|_| Vec::new()).collect();
                for wanted in wanted {
                    shares[several.owner(digest, blob(&wanted))].push(wanted);
                }
                shares
            }
            _ => vec![wanted],
        };
        Shares { left, ..Shares::default() }
    }

    fn find_owners(&mut self, digest: &Digest) {
        if let Some(Who::Several(several)) = &mut self.known
            && several.owners.is_empty()
        {
            let owner = |blob| {
                let owner = several.owner(digest, blob);
                u16::try_from(owner).expect("there are at most NODES_MAX")
            };
            several.owners = (0..digest.summary().blobs).map(owner).collect();
        }
    }

    /// What each node said last.
    fn take_known(&mut self, blobs: u32) -> Vec<Known> {
        let Some(Who::Several(several)) = &mut self.known else { return Vec::new() };
        let mut each = mem::take(&mut several.presence);
        each.resize_with(several.open.len(), || Known::new(blobs));
        each
    }

    /// What a node has counts if it owns it: nobody asks it for anything else.
    fn put_known(&mut self, each: Vec<Known>, all: &mut Known) {
        let Some(Who::Several(several)) = &mut self.known else { return };
        let mut bits = vec![0; all.bits().len()];
        for (blob, owner) in several.owners.iter().enumerate() {
            let (at, bit) = (blob / 8, 1 << (blob % 8));
            let is_there = |known: &Known| known.bits().get(at).is_some_and(|bits| bits & bit > 0);
            if each.get(usize::from(*owner)).is_some_and(is_there) {
                bits[at] |= bit;
            }
        }
        all.put_together(&bits);
        several.presence = each;
    }
}

impl Several {
    fn new(known: KnownRing, ring: Ring) -> Self {
        let open = ring.members().iter().map(|_| None).collect();
        Self { known, ring, open, owners: Vec::new(), presence: Vec::new() }
    }

    /// A row that cannot be read is nobody's: whoever reads it is told by the agent.
    fn owner(&self, digest: &Digest, blob: u64) -> usize {
        if let Some(owner) = usize::try_from(blob).ok().and_then(|at| self.owners.get(at)) {
            return usize::from(*owner);
        }
        digest.blob(BlobOrdinal::new(blob)).map_or(0, |row| self.ring.owner(&row.address))
    }

    fn connect(&mut self, caller: &Caller<'_>, node: usize, now: Duration) -> Result<()> {
        let member = &self.ring.members()[node];
        let (opened, says) = open(caller, &member.endpoint, now)?;
        match self.known.heard(&member.name, says.as_ref()) {
            Heard::Same | Heard::Differs(_) => self.open[node] = Some(opened),
            Heard::Wrong => return Err(ClientError::Unexpected),
            Heard::Changed => {
                let (name, says) = (member.name.clone(), says.expect("it has said something"));
                self.change(says.ring());
                if let Some(place) = self.ring.place_of(&name) {
                    self.open[place] = Some(opened);
                }
            }
        }
        Ok(())
    }

    /// Takes over the connections to those who stay where they are.
    fn change(&mut self, ring: Ring) {
        let mut changed = Self::new(self.known.clone(), ring);
        for (member, open) in self.ring.members().iter().zip(&mut self.open) {
            if let Some(place) = changed.ring.place_of(&member.name)
                && changed.ring.members()[place].endpoint == member.endpoint
            {
                changed.open[place] = open.take();
            }
        }
        *self = changed;
    }
}

/// Connects, asks who it is, and opens what is asked for. Whoever does not answer the first word is hung; later
/// ones may take longer, if it lives.
fn open(
    caller: &Caller<'_>,
    endpoint: &Endpoint,
    now: Duration,
) -> Result<(Open, Option<Membership>)> {
    let Caller { credentials, job, interrupt, .. } = caller;
    let waiting = Waiting::patiently(interrupt);
    let mut client = Client::connect_waiting(credentials, endpoint, job, GREETING, waiting)?;
    let waiting = Waiting::for_the_living(interrupt, endpoint, credentials);
    client.stream.wait(NODE_PATIENCE, waiting);
    let membership = client.ring()?;
    let handle = match caller.subject {
        Subject::Dataset(digest) => client.open(digest)?,
        Subject::Picks(namespace) => client.pick(namespace, &[])?,
    };
    Ok((Open { client, handle, opened_at: now }, membership))
}
