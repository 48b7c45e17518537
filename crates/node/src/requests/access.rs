//! Who may connect to a node, and what each may use (promise 4).
//!
//! A node without tenants is its user's own: whoever gets as far as saying hello may use every namespace that it
//! serves. With tenants, each is confined to its namespaces, and the node's own user (and root), on the Unix socket
//! and without a token, may use all of them: it could read the node's memory anyway.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use anyhow::{Context as _, bail};
use forebay_core::{
    Namespace, NamespaceId,
    manager::Description,
    names::TokenHash,
    tenants::{Shown, Tenant, Tenants},
};
use forebay_identity::{read_key_file, read_token_file};
use forebay_wire::{ErrorCode, Refusal};
use parking_lot::RwLock;
use rustix::process::geteuid;

use crate::{config::Config, peer::Peer, tenant_config::TenantConfig};

/// What a tenant calls the namespace that everyone has the key of.
const PUBLIC: &str = "public";
/// With tenants, nobody but the node's user may have more than one part in so many of all connections.
const CONNECTIONS_SHARE: usize = 2;

/// Who may connect, and what each may use.
pub(crate) struct Access {
    namespaces: RwLock<HashMap<NamespaceId, Namespace>>,
    tenants: Tenants,
    /// Connections of each tenant.
    connected: Vec<Arc<AtomicUsize>>,
    connections_max: AtomicUsize,
}

/// One who was let in.
pub(crate) struct Guest {
    /// Its place among the tenants; nothing for the node's own user.
    tenant: Option<usize>,
    _place: Option<Place>,
}

/// A connection of a tenant, until it is dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Guest {
    /// The node's own user, or whoever runs the cluster.
    pub fn owner() -> Self {
        Self { tenant: None, _place: None }
    }

    /// Its place among the tenants; nothing for the owner.
    pub fn tenant(&self) -> Option<usize> {
        self.tenant
    }
}

impl Access {
    /// Reads all files that the configuration names. The namespaces are those of a node without tenants.
    pub fn load(config: &Config, namespaces: Vec<Namespace>) -> anyhow::Result<Self> {
        let mut all = by_id(namespaces);
        let mut tenants = Vec::new();
        for written in &config.tenants {
            let tenant = load_tenant(written, &mut all)
                .with_context(|| format!("the tenant `{}`", written.name.escape_debug()))?;
            tenants.push(tenant);
        }
        let tenants = Tenants::new(tenants).context("`tenants`")?;
        let connected = tenants.all().iter().map(|_| Arc::default()).collect();
        let (namespaces, connections_max) = (RwLock::new(all), AtomicUsize::new(0));
        let access = Self { namespaces, tenants, connected, connections_max };
        access.share(config.connections);
        Ok(access)
    }

    /// There are so many connections to share from now on.
    pub fn share(&self, connections: usize) {
        self.connections_max.store((connections / CONNECTIONS_SHARE).max(1), Relaxed);
    }

    /// Whether a user of this machine is known before a word is said.
    pub fn knows(&self, uid: u32) -> bool {
        is_owner(uid) || self.tenants.all().iter().any(|tenant| tenant.uids.contains(&uid))
    }

    /// Lets somebody in, or not. Whatever is wrong with who it says it is, the answer is the same.
    pub fn admit(&self, peer: &Peer, token: &[u8]) -> Result<Guest, Refusal> {
        if self.tenants.is_empty() {
            return Ok(Guest::owner());
        }
        let (uid, certificate) = match peer {
            Peer::Unix { uid } => (Some(*uid), &[][..]),
            Peer::Tcp => (None, &[][..]),
            Peer::Tls { names } => (None, &names[..]),
        };
        let token = (!token.is_empty()).then(|| TokenHash::of(token));
        match self.tenants.identify(Shown { token, certificate, uid }) {
            Some(tenant) => {
                let connected = &self.connected[tenant];
                let place = Place(Arc::clone(connected));
                // It counts from here on, and no more when the place is dropped.
                if connected.fetch_add(1, Relaxed) >= self.connections_max.load(Relaxed) {
                    let text = "this tenant has too many connections; close some, or raise `connections`";
                    return Err(Refusal { code: ErrorCode::TooMuch, text: text.to_owned() });
                }
                Ok(Guest { tenant: Some(tenant), _place: Some(place) })
            }
            None if uid.is_some_and(is_owner) && token.is_none() => Ok(Guest::owner()),
            None => Err(Refusal {
                code: ErrorCode::Identity,
                text: "this node does not know you; have your token, certificate or uid added to its `tenants`, \
                       and see that FOREBAY_TOKEN_FILE or FOREBAY_TLS_CERTIFICATE names it"
                    .to_owned(),
            }),
        }
    }

    /// A namespace that this node serves.
    pub fn namespace(&self, id: &NamespaceId) -> Option<Namespace> {
        self.namespaces.read().get(id).cloned()
    }

    /// A node without tenants serves these private namespaces from now on; those of tenants are theirs.
    pub fn serve(&self, namespaces: Vec<Namespace>) {
        if self.tenants.is_empty() {
            *self.namespaces.write() = by_id(namespaces);
        }
    }

    /// Whether a guest may use a namespace. That it is not served looks the same.
    pub fn allows(&self, guest: &Guest, namespace: &NamespaceId) -> bool {
        let is_its = |tenant: usize| self.tenants.all()[tenant].namespaces.contains(namespace);
        self.namespaces.read().contains_key(namespace) && guest.tenant.is_none_or(is_its)
    }

    /// Whether what a guest does to a namespace's data is others' business, too.
    pub fn is_shared(&self, guest: &Guest, namespace: NamespaceId) -> bool {
        guest.tenant.is_some_and(|tenant| self.tenants.is_shared(tenant, namespace))
    }

    /// What the guest is called in the log.
    pub fn name(&self, guest: &Guest) -> &str {
        guest.tenant.map_or("", |tenant| &self.tenants.all()[tenant].name)
    }

    /// What a job is known by among those of all tenants. Names of tenants have no slash in them.
    pub fn job(&self, guest: &Guest, job: &str) -> String {
        if self.tenants.is_empty() {
            return job.to_owned();
        }
        format!("{}/{job}", self.name(guest))
    }

    /// How a dataset stands, for the eyes of this guest: nothing of others' jobs but that there are some.
    pub fn seen_by(&self, guest: &Guest, mut description: Description) -> Description {
        if guest.tenant.is_none() {
            return description;
        }
        let own = format!("{}/", self.name(guest));
        description.jobs.retain_mut(|job| {
            let name = job.name.strip_prefix(&own).map(str::to_owned);
            name.map(|name| job.name = name).is_some()
        });
        // Each name in it follows this word.
        let mut named = description.why.split("job ").skip(1);
        description.why = if named.all(|rest| rest.starts_with(&own)) {
            description.why.replace(&format!("job {own}"), "job ")
        } else {
            let what = description.why.split(": ").next().unwrap_or_default();
            format!("{what}: it is shared with jobs of other tenants")
        };
        description
    }
}

/// The node's own user could read its memory anyway, and so could root.
fn is_owner(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

fn by_id(namespaces: Vec<Namespace>) -> HashMap<NamespaceId, Namespace> {
    let all = namespaces.into_iter().chain([Namespace::public()]);
    all.map(|namespace| (namespace.id(), namespace)).collect()
}

fn load_tenant(
    written: &TenantConfig,
    all: &mut HashMap<NamespaceId, Namespace>,
) -> anyhow::Result<Tenant> {
    let tokens =
        written.tokens.iter().map(|path| Ok(TokenHash::of(read_token_file(path)?.as_bytes())));
    let mut namespaces = Vec::new();
    for path in &written.namespaces {
        let namespace =
            if path == Path::new(PUBLIC) { Namespace::public() } else { read_key_file(path)? };
        if namespaces.contains(&namespace.id()) {
            bail!("`{}` is named twice in its `namespaces`", path.display());
        }
        namespaces.push(namespace.id());
        all.insert(namespace.id(), namespace);
    }
    Ok(Tenant {
        name: written.name.clone(),
        tokens: tokens.collect::<anyhow::Result<_>>()?,
        uids: written.uids.clone(),
        certificates: written.certificates.clone(),
        namespaces,
    })
}

#[cfg(test)]
mod tests {
    use forebay_core::manager::JobDescription;

    use super::*;

    fn access(names: &[&str]) -> Access {
        let tenant = |name: &&str| Tenant {
            name: (*name).to_owned(),
            tokens: vec![TokenHash::of(name.as_bytes())],
            uids: Vec::new(),
            certificates: Vec::new(),
            namespaces: vec![Namespace::public().id()],
        };
        Access {
            namespaces: RwLock::new(by_id(Vec::new())),
            tenants: Tenants::new(names.iter().map(tenant).collect()).unwrap(),
            connected: names.iter().map(|_| Arc::default()).collect(),
            connections_max: 2.into(),
        }
    }

    fn described(why: &str, jobs: &[&str]) -> Description {
        let job = |name: &&str| JobDescription {
            name: (*name).to_owned(),
            gpus: 1,
            is_cached: true,
            unread_bytes: 0,
            bytes_per_second: 0,
            hit_s: None,
            rotating_s: None,
            miss_s: None,
        };
        let jobs = jobs.iter().map(job).collect();
        let (manager, pieces) = (String::new(), Vec::new());
        Description { manager, term: 0, why: why.to_owned(), pieces, jobs }
    }

    /// Promise 4: "not allowed" and "not there" look alike; so do a wrong token and none.
    #[test]
    fn whoever_is_not_known_is_answered_alike() {
        let access = access(&["a", "b"]);
        let refused = |peer: Peer, token: &[u8]| access.admit(&peer, token).err().unwrap();
        let wrong = refused(Peer::Tcp, b"wrong");
        assert_eq!(wrong.code, ErrorCode::Identity);
        let names = vec!["a.example".to_owned()];
        for other in [
            refused(Peer::Tcp, b""),
            refused(Peer::Tls { names }, b""),
            refused(Peer::Unix { uid: 12_345 }, b""),
            refused(Peer::Unix { uid: 0 }, b"wrong"),
        ] {
            assert_eq!(other, wrong);
        }
        let owner = access.admit(&Peer::Unix { uid: geteuid().as_raw() }, b"").unwrap();
        assert!(owner.tenant.is_none());
    }

    /// Promise 6: what one takes, the others still have their share of.
    #[test]
    fn a_tenant_has_no_more_than_its_share_of_connections() {
        let access = access(&["a", "b"]);
        let first = access.admit(&Peer::Tcp, b"a").unwrap();
        let _second = access.admit(&Peer::Tcp, b"a").unwrap();
        assert_eq!(access.admit(&Peer::Tcp, b"a").err().unwrap().code, ErrorCode::TooMuch);
        assert!(access.admit(&Peer::Tcp, b"b").is_ok());
        drop(first);
        assert!(access.admit(&Peer::Tcp, b"a").is_ok());
        access.share(6);
        let _third = access.admit(&Peer::Tcp, b"a").expect("there are more to share");
    }

    #[test]
    fn names_of_others_are_not_told() {
        let access = access(&["a", "b"]);
        let guest = access.admit(&Peer::Tcp, b"a").unwrap();
        assert_eq!(access.job(&guest, "x/y"), "a/x/y");
        let alone = described("two rotate: job a/x gains 2.0x, job a/y is compute-bound", &["a/x"]);
        let seen = access.seen_by(&guest, alone);
        assert_eq!(seen.why, "two rotate: job x gains 2.0x, job y is compute-bound");
        assert_eq!(seen.jobs[0].name, "x");
        let both =
            described("two rotate: job a/x gains 2.0x, job b/secret gains", &["a/x", "b/secret"]);
        let seen = access.seen_by(&guest, both.clone());
        assert!(!format!("{seen:?}").contains("secret") && seen.jobs.len() == 1, "{seen:?}");
        let owner = access.admit(&Peer::Unix { uid: 0 }, b"").unwrap();
        assert_eq!(access.seen_by(&owner, both.clone()), both);
    }
}
