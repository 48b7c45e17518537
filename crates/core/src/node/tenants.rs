//! Tenants: who may use a node, and which namespaces.
//!
//! A tenant is identified by a token, by its user id on this machine, or by a name in its
//! certificate. It may use a list of namespaces; about all others it learns nothing.

use std::collections::HashSet;

use crate::{JobName, NamespaceId, ids::TokenHash};

/// Maximum number of tenants: each hello is compared with all of them.
pub const TENANTS_MAX: usize = 1024;

/// Identifies a tenant: its index in [`Tenants::all`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub usize);

/// One or more jobs that share an identity and namespaces.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// Name in the configuration and in the log.
    pub name: String,
    /// Hashes of its tokens: several during a rotation of tokens.
    pub tokens: Vec<TokenHash>,
    /// Its local users.
    pub uids: Vec<u32>,
    /// DNS names of its certificates, in lower case.
    pub certificates: Vec<String>,
    /// Namespaces that it may use.
    pub namespaces: Vec<NamespaceId>,
}

/// Why a list of tenants is refused. Never quotes a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TenantsError {
    /// More than [`TENANTS_MAX`].
    #[error("there are more than {TENANTS_MAX} tenants; let jobs that trust each other share one")]
    TooMany,
    /// Not a valid name.
    #[error(
        "`{}` cannot name a tenant: use 1 to 64 letters, digits, `.`, `_` or `-`, and begin with a \
         letter or digit",
        .0.escape_debug()
    )]
    Name(String),
    /// Two tenants have the same name.
    #[error("there are two tenants `{0}`; give each a name of its own")]
    SameName(String),
    /// Two tenants share an identity.
    #[error("the tenants `{0}` and `{1}` have {2} in common; give each its own")]
    Common(String, String, &'static str),
    /// The tenant has no identity.
    #[error("the tenant `{0}` has no identity; give it `tokens`, `uids` or `certificates`")]
    Unknowable(String),
    /// The tenant has no namespace.
    #[error("the tenant `{0}` has no `namespaces`; give it key files, or \"public\"")]
    Nothing(String),
}

/// The tenants of a node. No two share an identity.
#[derive(Debug, Clone, Default)]
pub struct Tenants(Vec<Tenant>);

/// What a client presents to be identified.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClientIdentity<'a> {
    /// Hash of the token that it sent.
    pub token: Option<TokenHash>,
    /// DNS names of its verified certificate.
    pub certificate: &'a [String],
    /// Its local user.
    pub uid: Option<u32>,
}

impl Tenants {
    /// Checks that the tenants can be told apart.
    pub fn new(tenants: Vec<Tenant>) -> Result<Self, TenantsError> {
        if tenants.len() > TENANTS_MAX {
            return Err(TenantsError::TooMany);
        }
        let mut names = HashSet::new();
        for tenant in &tenants {
            let name = || tenant.name.clone();
            if tenant.name.parse::<JobName>().is_err() {
                return Err(TenantsError::Name(tenant.name.chars().take(80).collect()));
            }
            if !names.insert(&tenant.name) {
                return Err(TenantsError::SameName(name()));
            }
            if tenant.tokens.is_empty() && tenant.uids.is_empty() && tenant.certificates.is_empty()
            {
                return Err(TenantsError::Unknowable(name()));
            }
            if tenant.namespaces.is_empty() {
                return Err(TenantsError::Nothing(name()));
            }
        }
        for (at, one) in tenants.iter().enumerate() {
            for other in &tenants[at + 1..] {
                if let Some(what) = in_common(one, other) {
                    return Err(TenantsError::Common(one.name.clone(), other.name.clone(), what));
                }
            }
        }
        Ok(Self(tenants))
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All tenants. A [`TenantId`] is an index into this list.
    pub fn all(&self) -> &[Tenant] {
        &self.0
    }

    /// Identifies a client by its token, else by its certificate, else by its user. A token that is
    /// wrong identifies no tenant, whatever else the client presents. A client that matches two
    /// tenants is refused.
    pub fn identify(&self, client: ClientIdentity<'_>) -> Option<TenantId> {
        // Compares with all tenants, so that the time does not depend on which one matches.
        let only = |matches: &dyn Fn(&Tenant) -> bool| {
            let mut found = None;
            let mut count = 0;
            for (at, tenant) in self.0.iter().enumerate() {
                if matches(tenant) {
                    (found, count) = (Some(TenantId(at)), count + 1);
                }
            }
            found.filter(|_| count == 1)
        };
        if let Some(token) = client.token {
            return only(&|tenant| {
                tenant.tokens.iter().filter(|known| **known == token).count() > 0
            });
        }
        if !client.certificate.is_empty() {
            let has = |tenant: &Tenant| {
                client.certificate.iter().any(|name| tenant.certificates.contains(name))
            };
            return only(&has);
        }
        let uid = client.uid?;
        only(&|tenant| tenant.uids.contains(&uid))
    }

    /// Whether another tenant may use a namespace, too.
    pub fn is_shared(&self, tenant: TenantId, namespace: NamespaceId) -> bool {
        let mut others = self.0.iter().enumerate().filter(|(at, _)| *at != tenant.0);
        others.any(|(_, other)| other.namespaces.contains(&namespace))
    }
}

fn in_common(one: &Tenant, other: &Tenant) -> Option<&'static str> {
    if one.tokens.iter().any(|token| other.tokens.contains(token)) {
        return Some("a token");
    }
    if one.uids.iter().any(|uid| other.uids.contains(uid)) {
        return Some("a uid");
    }
    let common = one.certificates.iter().any(|name| other.certificates.contains(name));
    common.then_some("a certificate's name")
}

#[cfg(test)]
mod tests {
    use crate::Namespace;

    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant {
            name: name.to_owned(),
            tokens: vec![TokenHash::of(name.as_bytes())],
            uids: Vec::new(),
            certificates: vec![format!("{name}.example")],
            namespaces: vec![Namespace::public().id()],
        }
    }

    /// Promise 4: a client that receives bytes has proved its identity.
    #[test]
    fn a_client_is_identified_as_one_tenant_or_none() {
        let mut tenants = vec![tenant("a"), tenant("b"), tenant("c")];
        tenants[1].uids = vec![7, 8];
        let tenants = Tenants::new(tenants).unwrap();
        let by_token = |token: &[u8], uid, certificate: &[&str]| {
            let certificate: Vec<String> = certificate.iter().map(|&name| name.into()).collect();
            let token = (!token.is_empty()).then(|| TokenHash::of(token));
            tenants.identify(ClientIdentity { token, certificate: &certificate, uid })
        };
        assert_eq!(by_token(b"a", None, &[]), Some(TenantId(0)));
        assert_eq!(by_token(b"c", Some(7), &["b.example"]), Some(TenantId(2)), "the token decides");
        assert_eq!(by_token(b"wrong", Some(7), &["b.example"]), None, "a wrong token decides, too");
        assert_eq!(by_token(b"", Some(8), &[]), Some(TenantId(1)));
        assert_eq!(by_token(b"", Some(9), &[]), None);
        assert_eq!(by_token(b"", None, &["x.example", "a.example"]), Some(TenantId(0)));
        assert_eq!(by_token(b"", None, &["a.example", "b.example"]), None, "matches two tenants");
        assert_eq!(by_token(b"", Some(7), &["z.example"]), None, "an unknown certificate");
        assert_eq!(by_token(b"", None, &[]), None);
    }

    #[test]
    fn tenants_that_cannot_be_told_apart_are_refused() {
        let refused = |change: &dyn Fn(&mut Vec<Tenant>)| {
            let mut tenants = vec![tenant("a"), tenant("b")];
            change(&mut tenants);
            Tenants::new(tenants).unwrap_err().to_string()
        };
        assert!(refused(&|all| all[1].name = "a".into()).contains("two tenants `a`"));
        assert!(
            refused(&|all| all[1].tokens = all[0].tokens.clone()).contains("a token in common")
        );
        let same_uid = |all: &mut Vec<Tenant>| all.iter_mut().for_each(|one| one.uids = vec![1]);
        assert!(refused(&same_uid).contains("a uid in common"));
        let same_name = |all: &mut Vec<Tenant>| all[1].certificates = vec!["a.example".into()];
        assert!(refused(&same_name).contains("a certificate's name in common"));
        let unknowable = |all: &mut Vec<Tenant>| {
            all[0].tokens.clear();
            all[0].certificates.clear();
        };
        assert!(refused(&unknowable).contains("give it `tokens`"));
        assert!(refused(&|all| all[0].namespaces.clear()).contains("no `namespaces`"));
        assert!(refused(&|all| all[0].name = "a b/c".into()).contains("cannot name a tenant"));
        let many = (0..=TENANTS_MAX).map(|at| tenant(&format!("t{at}"))).collect();
        assert_eq!(Tenants::new(many).unwrap_err(), TenantsError::TooMany);
    }

    #[test]
    fn a_namespace_is_shared_if_another_has_it() {
        let secret = Namespace::secret([7; 32]).unwrap().id();
        let mut tenants = vec![tenant("a"), tenant("b")];
        tenants[0].namespaces.push(secret);
        let tenants = Tenants::new(tenants).unwrap();
        assert!(
            tenants.is_shared(TenantId(0), Namespace::public().id())
                && !tenants.is_shared(TenantId(0), secret)
        );
        assert!(tenants.is_shared(TenantId(1), secret));
    }
}
