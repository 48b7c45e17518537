//! Connection slots: which connections a node accepts, so that no client locks out the others.
//!
//! A node has `max` slots. Clients share most of them, and no tenant has more than half. Some are
//! reserved: for the owner of the node, who repairs it, and for the other nodes of its cluster.
//! A connection that has not authenticated may use any free slot, because it can be evicted
//! ([`super::pre_auth`]).
//!
//! A slot is held until both directions of its connection have ended.

use std::collections::BTreeMap;

use super::tenants::TenantId;

/// One slot in this many is reserved for the owner, up to `RESERVED_MAX`.
const OWNER_SHARE: usize = 8;
/// Nodes reserve at most one slot in this many.
const NODES_SHARE: usize = 8;
/// Slots that are reserved for the owner at most.
const RESERVED_MAX: usize = 8;
/// Connections of another node: the current one, and one that has not been noticed to be dead.
const CONNECTIONS_PER_NODE: usize = 2;
/// A tenant may hold one part in this many of all slots.
const TENANT_SHARE: usize = 2;
/// Connections that have not authenticated may hold one part in this many of all slots.
const PRE_AUTH_SHARE: usize = 8;
/// Connections that have not authenticated and are always allowed.
const PRE_AUTH_MIN: usize = 8;

/// The class of a connection, by its authenticated identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotClass {
    /// It has not authenticated.
    PreAuth,
    /// A client: of a tenant, or any client of a node without tenants.
    Client(Option<TenantId>),
    /// The owner of the node, on the Unix socket, or an operator with the cluster token.
    Owner,
    /// Another node of the cluster.
    Node,
}

/// Why a connection gets no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SlotRefusal {
    /// All slots that its class may use are held.
    #[error("too many connections; close some, or raise `max_connections`")]
    Full,
    /// The tenant holds half of all slots.
    #[error("this tenant has too many connections; close some, or raise `max_connections`")]
    Tenant,
}

/// The slots of a node.
#[derive(Debug)]
pub struct ConnectionSlots {
    max: usize,
    /// Other nodes of the cluster.
    peers: usize,
    pre_auth: usize,
    clients: usize,
    owner: usize,
    nodes: usize,
    tenants: BTreeMap<TenantId, usize>,
}

impl ConnectionSlots {
    /// `max` free slots of a node with this number of peers.
    pub fn new(max: usize, peers: usize) -> Self {
        let (pre_auth, clients, owner, nodes) = (0, 0, 0, 0);
        Self { max, peers, pre_auth, clients, owner, nodes, tenants: BTreeMap::new() }
    }

    /// Changes the number of slots. Connections over a lower number stay.
    pub fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Number of slots held.
    pub fn held(&self) -> usize {
        self.pre_auth + self.clients + self.owner + self.nodes
    }

    /// Whether the next connection of this class needs the slot of one that has not authenticated.
    pub fn needs_eviction(&self, class: SlotClass) -> bool {
        let pre_auth_max = (self.max / PRE_AUTH_SHARE).max(PRE_AUTH_MIN);
        let is_full = self.pre_auth > 0 && self.held() >= self.max;
        is_full || (class == SlotClass::PreAuth && self.pre_auth >= pre_auth_max)
    }

    /// Takes a slot for a connection of this class.
    pub fn enter(&mut self, class: SlotClass) -> Result<(), SlotRefusal> {
        if self.held() >= self.max {
            return Err(SlotRefusal::Full);
        }
        self.check(class)?;
        self.add(class);
        Ok(())
    }

    /// A connection has authenticated: its slot is of another class from now on. If that is
    /// refused, nothing changes.
    pub fn change(&mut self, from: SlotClass, to: SlotClass) -> Result<(), SlotRefusal> {
        self.leave(from);
        let outcome = self.check(to);
        self.add(if outcome.is_ok() { to } else { from });
        outcome
    }

    /// Frees a slot of this class.
    pub fn leave(&mut self, class: SlotClass) {
        match class {
            SlotClass::PreAuth => self.pre_auth -= 1,
            SlotClass::Owner => self.owner -= 1,
            SlotClass::Node => self.nodes -= 1,
            SlotClass::Client(tenant) => {
                self.clients -= 1;
                if let Some(tenant) = tenant {
                    let held = self.tenants.get_mut(&tenant).expect("it entered");
                    *held -= 1;
                    if *held == 0 {
                        self.tenants.remove(&tenant);
                    }
                }
            }
        }
    }

    fn add(&mut self, class: SlotClass) {
        match class {
            SlotClass::PreAuth => self.pre_auth += 1,
            SlotClass::Owner => self.owner += 1,
            SlotClass::Node => self.nodes += 1,
            SlotClass::Client(tenant) => {
                self.clients += 1;
                if let Some(tenant) = tenant {
                    *self.tenants.entry(tenant).or_default() += 1;
                }
            }
        }
    }

    /// Whether a class has reached its share. The connection itself is not counted yet.
    fn check(&self, class: SlotClass) -> Result<(), SlotRefusal> {
        let for_owner = (self.max / OWNER_SHARE).min(RESERVED_MAX);
        let for_nodes = (self.max / NODES_SHARE).min(self.peers * CONNECTIONS_PER_NODE);
        // Slots that the other classes have reserved and do not use.
        let owner_free = for_owner.saturating_sub(self.owner);
        let nodes_free = for_nodes.saturating_sub(self.nodes);
        let used = self.clients + self.owner + self.nodes;
        let reserved = match class {
            SlotClass::PreAuth => 0,
            SlotClass::Client(_) => owner_free + nodes_free,
            SlotClass::Owner => nodes_free,
            SlotClass::Node => owner_free,
        };
        if used + reserved >= self.max {
            return Err(SlotRefusal::Full);
        }
        if let SlotClass::Client(Some(tenant)) = class {
            let held = self.tenants.get(&tenant).copied().unwrap_or(0);
            if held >= (self.max / TENANT_SHARE).max(1) {
                return Err(SlotRefusal::Tenant);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: SlotClass = SlotClass::Client(Some(TenantId(0)));
    const B: SlotClass = SlotClass::Client(Some(TenantId(1)));
    const C: SlotClass = SlotClass::Client(Some(TenantId(2)));

    fn enter_all(slots: &mut ConnectionSlots, class: SlotClass) -> usize {
        (0..1000).take_while(|_| slots.enter(class).is_ok()).count()
    }

    /// Promise 6: one tenant cannot take all connections, and the owner is always served.
    #[test]
    fn tenants_share_the_slots_and_the_owner_and_nodes_have_their_own() {
        let mut slots = ConnectionSlots::new(64, 3);
        assert_eq!(enter_all(&mut slots, A), 32);
        assert_eq!(slots.enter(A), Err(SlotRefusal::Tenant));
        assert_eq!(enter_all(&mut slots, B), 64 - 32 - 8 - 6);
        assert_eq!(slots.enter(C), Err(SlotRefusal::Full));
        assert_eq!(enter_all(&mut slots, SlotClass::Owner), 8, "6 are left for the nodes");
        assert_eq!(enter_all(&mut slots, SlotClass::Node), 6);
        assert_eq!((slots.held(), slots.enter(SlotClass::Owner)), (64, Err(SlotRefusal::Full)));
        slots.leave(A);
        assert!(slots.enter(C).is_ok());
    }

    /// A node without tenants and peers serves its owner with all slots, however few they are.
    #[test]
    fn a_node_of_one_user_has_all_slots() {
        for max in [1, 3, 64] {
            let mut slots = ConnectionSlots::new(max, 0);
            assert_eq!(enter_all(&mut slots, SlotClass::Owner), max);
        }
        let mut slots = ConnectionSlots::new(64, 0);
        assert_eq!(enter_all(&mut slots, SlotClass::Client(None)), 56);
    }

    #[test]
    fn a_connection_that_authenticates_keeps_its_slot_or_is_refused() {
        let mut slots = ConnectionSlots::new(16, 0);
        assert_eq!(enter_all(&mut slots, A), 8);
        slots.enter(SlotClass::PreAuth).unwrap();
        assert_eq!(slots.change(SlotClass::PreAuth, A), Err(SlotRefusal::Tenant));
        assert_eq!(slots.change(SlotClass::PreAuth, B), Ok(()));
        assert_eq!((slots.pre_auth, slots.held()), (0, 9));
    }

    /// Connections that have not authenticated use what is free, and are evicted for others.
    #[test]
    fn pre_auth_connections_give_way() {
        let mut slots = ConnectionSlots::new(16, 0);
        assert_eq!(enter_all(&mut slots, A), 8);
        assert_eq!(enter_all(&mut slots, SlotClass::PreAuth), 8);
        assert!(slots.needs_eviction(SlotClass::Owner) && slots.needs_eviction(B));
        slots.leave(SlotClass::PreAuth);
        assert!(slots.enter(SlotClass::Owner).is_ok());
        let mut large = ConnectionSlots::new(128, 0);
        (0..16).for_each(|_| large.enter(SlotClass::PreAuth).unwrap());
        assert!(large.needs_eviction(SlotClass::PreAuth) && !large.needs_eviction(A));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// For any sequence of connections: no tenant has more than half, all together have no
        /// more than `max`, and an owner and a node are accepted while they use less than what is
        /// reserved, once those that have not authenticated are evicted.
        #[test]
        fn reserved_slots_are_never_taken(
            max in 8_usize..100,
            steps in proptest::collection::vec((0_usize..5, 0_usize..3, any::<bool>()), 0..300),
        ) {
            let mut slots = ConnectionSlots::new(max, 2);
            let classes = [A, B, SlotClass::Owner, SlotClass::Node, SlotClass::PreAuth];
            let mut held: Vec<SlotClass> = Vec::new();
            for (class, what, _) in steps {
                let class = classes[class];
                match what {
                    0 if !held.is_empty() => {
                        slots.leave(held.swap_remove(class_index(class) % held.len()));
                    }
                    1 => {
                        let at = held.iter().position(|held| *held == SlotClass::PreAuth);
                        if let Some(at) = at
                            && slots.change(SlotClass::PreAuth, class).is_ok()
                        {
                            held[at] = class;
                        }
                    }
                    _ => {
                        if slots.enter(class).is_ok() {
                            held.push(class);
                        }
                    }
                }
                let count = |class| held.iter().filter(|held| **held == class).count();
                prop_assert_eq!(slots.held(), held.len());
                prop_assert!(held.len() <= max && count(A) <= max / 2 && count(B) <= max / 2);
                let others = held.len() - count(SlotClass::PreAuth);
                if count(SlotClass::Owner) < (max / 8).min(8) {
                    prop_assert!(others < max && slots.check(SlotClass::Owner).is_ok());
                }
                if count(SlotClass::Node) < (max / 8).min(4) {
                    prop_assert!(others < max && slots.check(SlotClass::Node).is_ok());
                }
            }
        }
    }

    fn class_index(class: SlotClass) -> usize {
        match class {
            A => 0,
            B => 1,
            SlotClass::Owner => 2,
            _ => 3,
        }
    }
}
