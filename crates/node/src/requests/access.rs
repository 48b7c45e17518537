//! Access: which clients may connect to a node, and which namespaces each may use (promise 4).
//!
//! Without tenants, every client that can connect may use every namespace that the node serves.
//! With tenants, each is confined to its own namespaces. The *owner*, the node's own user or root
//! on the Unix socket without a token, may use all of them: it could read the node's memory as
//! well.

use std::{collections::HashMap, path::Path};

use anyhow::{Context as _, bail};
use forebay_auth::{read_key_file, read_token_file};
use forebay_core::{
    Namespace, NamespaceId,
    ids::TokenHash,
    node::{
        connection_slots::SlotClass,
        tenants::{ClientIdentity, Tenant, TenantId, Tenants},
    },
    train::manager::Explanation,
};
use forebay_transport::Peer;
use forebay_wire::{ErrorCode, Refusal};
use parking_lot::RwLock;
use rustix::process::geteuid;

use crate::config::{Config, tenants::TenantConfig};

/// The name of the public namespace in a tenant's `namespaces`.
const PUBLIC: &str = "public";

/// Tenants, and the namespaces that a node serves.
pub(crate) struct Access {
    namespaces: RwLock<HashMap<NamespaceId, Namespace>>,
    tenants: Tenants,
}

/// The authenticated identity of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The tenant, or `None` for the owner.
    tenant: Option<TenantId>,
}

impl Identity {
    /// The owner, or a client with the cluster token.
    pub fn owner() -> Self {
        Self { tenant: None }
    }

    /// The tenant, or `None` for the owner.
    pub fn tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    /// The class of the client's connection.
    pub fn class(self, peer: &Peer) -> SlotClass {
        match peer {
            Peer::Unix { uid } if self.tenant.is_none() && is_owner(*uid) => SlotClass::Owner,
            _ => SlotClass::Client(self.tenant),
        }
    }
}

impl Access {
    /// Reads the files of a configuration. `namespaces` are those of a node without tenants.
    pub fn load(config: &Config, namespaces: Vec<Namespace>) -> anyhow::Result<Self> {
        let mut all = by_id(namespaces);
        let mut tenants = Vec::new();
        for tenant in config.node_tenants() {
            let tenant = load_tenant(tenant, &mut all)
                .with_context(|| format!("the tenant `{}`", tenant.name.escape_debug()))?;
            tenants.push(tenant);
        }
        let tenants = Tenants::new(tenants).context("`tenants`")?;
        Ok(Self { namespaces: RwLock::new(all), tenants })
    }

    /// Number of tenants.
    pub fn tenants(&self) -> usize {
        self.tenants.all().len()
    }

    /// The class of a local user's connection, until its hello.
    pub fn class_of_uid(&self, uid: u32) -> SlotClass {
        if is_owner(uid) {
            return SlotClass::Owner;
        }
        let client = ClientIdentity { uid: Some(uid), ..ClientIdentity::default() };
        let tenant = self.tenants.identify(client);
        tenant.map_or(SlotClass::PreAuth, |tenant| SlotClass::Client(Some(tenant)))
    }

    /// Authenticates a client. Every failed authentication has the same refusal.
    pub fn authenticate(&self, peer: &Peer, token: &[u8]) -> Result<Identity, Refusal> {
        if self.tenants.is_empty() {
            return Ok(Identity::owner());
        }
        let (uid, certificate) = match peer {
            Peer::Unix { uid } => (Some(*uid), &[][..]),
            Peer::Tcp => (None, &[][..]),
            Peer::Tls { names } => (None, &names[..]),
        };
        let token = (!token.is_empty()).then(|| TokenHash::of(token));
        match self.tenants.identify(ClientIdentity { token, certificate, uid }) {
            Some(tenant) => Ok(Identity { tenant: Some(tenant) }),
            None if uid.is_some_and(is_owner) && token.is_none() => Ok(Identity::owner()),
            None => Err(Refusal {
                code: ErrorCode::Identity,
                text: "this node does not know you; have your token, certificate or uid added to \
                       its `tenants`, and name it in FOREBAY_TOKEN_FILE or \
                       FOREBAY_TLS_CERTIFICATE"
                    .to_owned(),
            }),
        }
    }

    /// A namespace, if the node serves it.
    pub fn namespace(&self, id: &NamespaceId) -> Option<Namespace> {
        self.namespaces.read().get(id).cloned()
    }

    /// Replaces the private namespaces of a node without tenants. With tenants it has no effect.
    pub fn set_namespaces(&self, namespaces: Vec<Namespace>) {
        if self.tenants.is_empty() {
            *self.namespaces.write() = by_id(namespaces);
        }
    }

    /// Whether a client may use a namespace. The same for a forbidden one and one that is not
    /// served.
    pub fn allows(&self, identity: &Identity, namespace: &NamespaceId) -> bool {
        let has = |tenant: TenantId| self.tenants.all()[tenant.0].namespaces.contains(namespace);
        self.namespaces.read().contains_key(namespace) && identity.tenant.is_none_or(has)
    }

    /// Whether other tenants use a namespace of this client.
    pub fn is_shared(&self, identity: &Identity, namespace: NamespaceId) -> bool {
        identity.tenant.is_some_and(|tenant| self.tenants.is_shared(tenant, namespace))
    }

    /// The tenant's name, for the log; empty for the owner.
    pub fn name(&self, identity: &Identity) -> &str {
        identity.tenant.map_or("", |tenant| &self.tenants.all()[tenant.0].name)
    }

    /// The name of a job, unique among all tenants: the tenant's name, which has no slash, and the
    /// job's.
    pub fn job_name(&self, identity: &Identity, job: &str) -> String {
        if self.tenants.is_empty() {
            return job.to_owned();
        }
        format!("{}/{job}", self.name(identity))
    }

    /// Removes other tenants' jobs from an explanation, except the fact that there are some.
    pub fn redact_for(&self, identity: &Identity, mut explanation: Explanation) -> Explanation {
        if identity.tenant.is_none() {
            return explanation;
        }
        let own = format!("{}/", self.name(identity));
        let jobs = explanation.jobs.len();
        explanation.jobs.retain_mut(|job| {
            let name = job.name.strip_prefix(&own).map(str::to_owned);
            name.map(|name| job.name = name).is_some()
        });
        let is_shared = explanation.jobs.len() < jobs;
        // The line may be older than the list, and name jobs that have left. Those of the node's
        // owner have no tenant's name.
        let tenants = self.tenants.all().iter().map(|tenant| tenant.name.as_str()).chain([""]);
        let mut others = tenants.map(|name| format!("{name}/")).filter(|prefix| *prefix != own);
        let why = &explanation.why;
        let what = why.split(": ").next().unwrap_or_default();
        explanation.why = if is_shared {
            format!("{what}: it is shared with jobs of other tenants")
        } else if others.any(|prefix| why.contains(&format!("job {prefix}"))) {
            what.to_owned()
        } else {
            why.replace(&format!("job {own}"), "job ")
        };
        explanation
    }
}

/// Whether a uid is the node's own user, or root.
fn is_owner(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

fn by_id(namespaces: Vec<Namespace>) -> HashMap<NamespaceId, Namespace> {
    let all = namespaces.into_iter().chain([Namespace::public()]);
    all.map(|namespace| (namespace.id(), namespace)).collect()
}

fn load_tenant(
    config: &TenantConfig,
    all: &mut HashMap<NamespaceId, Namespace>,
) -> anyhow::Result<Tenant> {
    let tokens =
        config.tokens.iter().map(|path| Ok(TokenHash::of(read_token_file(path)?.as_bytes())));
    let mut namespaces = Vec::new();
    for path in &config.namespaces {
        let namespace =
            if path == Path::new(PUBLIC) { Namespace::public() } else { read_key_file(path)? };
        if namespaces.contains(&namespace.id()) {
            bail!("`{}` is named twice in its `namespaces`", path.display());
        }
        namespaces.push(namespace.id());
        all.insert(namespace.id(), namespace);
    }
    Ok(Tenant {
        name: config.name.clone(),
        tokens: tokens.collect::<anyhow::Result<_>>()?,
        uids: config.uids.clone(),
        certificates: config.certificates.clone(),
        namespaces,
    })
}

#[cfg(test)]
mod tests {
    use forebay_core::train::manager::JobExplanation;

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
        }
    }

    fn explanation(why: &str, jobs: &[&str]) -> Explanation {
        let job = |name: &&str| JobExplanation {
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
        let (manager, half_chunks) = (String::new(), Vec::new());
        Explanation { manager, term: 0, why: why.to_owned(), half_chunks, jobs }
    }

    /// Promise 4: "not allowed" and "not there" look alike; so do a wrong token and none.
    #[test]
    fn all_failed_authentications_look_alike() {
        let access = access(&["a", "b"]);
        let refused = |peer: Peer, token: &[u8]| access.authenticate(&peer, token).err().unwrap();
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
        let owner = access.authenticate(&Peer::Unix { uid: geteuid().as_raw() }, b"").unwrap();
        assert!(owner.tenant.is_none());
    }

    /// The reserved slots are for the owner on the Unix socket, not for its user's tenants.
    #[test]
    fn the_class_of_a_connection_follows_its_identity() {
        let access = access(&["a", "b"]);
        let own = Peer::Unix { uid: geteuid().as_raw() };
        let class =
            |peer: &Peer, token: &[u8]| access.authenticate(peer, token).unwrap().class(peer);
        assert_eq!(class(&own, b""), SlotClass::Owner);
        assert_eq!(class(&own, b"b"), SlotClass::Client(Some(TenantId(1))));
        assert_eq!(class(&Peer::Tcp, b"a"), SlotClass::Client(Some(TenantId(0))));
        assert_eq!(access.class_of_uid(geteuid().as_raw()), SlotClass::Owner);
        assert_eq!(access.class_of_uid(54_321), SlotClass::PreAuth);
    }

    #[test]
    fn an_explanation_does_not_name_other_tenants_jobs() {
        let access = access(&["a", "b"]);
        let identity = access.authenticate(&Peer::Tcp, b"a").unwrap();
        assert_eq!(access.job_name(&identity, "x/y"), "a/x/y");
        let own_jobs =
            explanation("two rotate: job a/x gains 2.0x, job a/y is compute-bound", &["a/x"]);
        let redacted = access.redact_for(&identity, own_jobs);
        assert_eq!(redacted.why, "two rotate: job x gains 2.0x, job y is compute-bound");
        assert_eq!(redacted.jobs[0].name, "x");
        let both =
            explanation("two rotate: job a/x gains 2.0x, job b/secret gains", &["a/x", "b/secret"]);
        let redacted = access.redact_for(&identity, both.clone());
        assert!(
            !format!("{redacted:?}").contains("secret") && redacted.jobs.len() == 1,
            "{redacted:?}"
        );
        let owner = access.authenticate(&Peer::Unix { uid: 0 }, b"").unwrap();
        assert_eq!(access.redact_for(&owner, both.clone()), both);
        // Its job has left, and the line still names it; "/secret" is a job of the node's owner.
        for name in ["b/secret", "/secret"] {
            let left = explanation(&format!("two rotate: job {name} gains"), &[]);
            assert_eq!(access.redact_for(&identity, left).why, "two rotate");
        }
    }

    #[test]
    fn a_dataset_of_one_tenant_is_not_called_shared() {
        let access = access(&["a", "b"]);
        let identity = access.authenticate(&Peer::Tcp, b"a").unwrap();
        for (why, jobs, expected) in [
            ("x: no job reads it", &[][..], "x: no job reads it"),
            ("no job has reported yet", &[], "no job has reported yet"),
            ("x: job a/my-job is slow", &["a/my-job"], "x: job my-job is slow"),
            ("x: job a/job 7 is slow", &["a/job 7"], "x: job job 7 is slow"),
        ] {
            assert_eq!(access.redact_for(&identity, explanation(why, jobs)).why, expected);
        }
    }
}
