//! Who uses a node, and what is theirs.
//!
//! A tenant is known by a token, by its user id on this machine, or by a name in its certificate. What is its
//! own is a list of namespaces; everything else it is told nothing about.

use std::collections::HashSet;

use crate::{JobId, NamespaceId, names::TokenHash};

/// A node has no more of them: each hello is compared with all.
pub const TENANTS_MAX: usize = 1024;

/// One who uses a node.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// What it is called in the configuration and in the log.
    pub name: String,
    /// The tokens by which it is known: several while one replaces another.
    pub tokens: Vec<TokenHash>,
    /// Its users on this machine.
    pub uids: Vec<u32>,
    /// DNS names of its certificates, in small letters.
    pub certificates: Vec<String>,
    /// What it may use.
    pub namespaces: Vec<NamespaceId>,
}

/// Why there cannot be such tenants. Never quotes a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TenantsError {
    /// Too many.
    #[error(
        "there are more than {TENANTS_MAX} tenants; share a tenant among those who trust each other"
    )]
    TooMany,
    /// It cannot be called that.
    #[error(
        "`{}` cannot name a tenant: use 1 to 64 letters, digits, `.`, `_` or `-`, and begin with a letter or digit",
        .0.escape_debug()
    )]
    Name(String),
    /// The same name twice.
    #[error("there are two tenants `{0}`; give each a name of its own")]
    SameName(String),
    /// Nobody could tell the two apart.
    #[error("the tenants `{0}` and `{1}` have {2} in common; give each its own")]
    Common(String, String, &'static str),
    /// Nobody could be it.
    #[error(
        "the tenant `{0}` cannot be known by anything; give it `tokens`, `uids` or `certificates`"
    )]
    Unknowable(String),
    /// It could do nothing.
    #[error("the tenant `{0}` has no `namespaces`; give it key files, or \"public\"")]
    Nothing(String),
}

/// All who use a node.
#[derive(Debug, Clone, Default)]
pub struct Tenants(Vec<Tenant>);

/// What somebody has shown of itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown<'a> {
    /// What it sent as a token.
    pub token: Option<TokenHash>,
    /// The names of its certificate, which has been proved.
    pub certificate: &'a [String],
    /// Its user on this machine.
    pub uid: Option<u32>,
}

impl Tenants {
    /// Those who can be told apart.
    pub fn new(tenants: Vec<Tenant>) -> Result<Self, TenantsError> {
        if tenants.len() > TENANTS_MAX {
            return Err(TenantsError::TooMany);
        }
        let mut names = HashSet::new();
        for tenant in &tenants {
            let name = || tenant.name.clone();
            if tenant.name.parse::<JobId>().is_err() {
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

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn all(&self) -> &[Tenant] {
        &self.0
    }

    /// Who this is, as a place in [`Tenants::all`]. A token speaks for itself: with a wrong one, nothing else counts.
    /// Then a certificate, then the user. Whoever could be two is nobody.
    pub fn identify(&self, shown: Shown<'_>) -> Option<usize> {
        // All are looked at, wherever the right one is.
        let only = |is_it: &dyn Fn(&Tenant) -> bool| {
            let mut found = None;
            let mut count = 0;
            for (at, tenant) in self.0.iter().enumerate() {
                if is_it(tenant) {
                    (found, count) = (Some(at), count + 1);
                }
            }
            found.filter(|_| count == 1)
        };
        if let Some(token) = shown.token {
            return only(&|tenant| {
                tenant.tokens.iter().filter(|known| **known == token).count() > 0
            });
        }
        if !shown.certificate.is_empty() {
            let has = |tenant: &Tenant| {
                shown.certificate.iter().any(|name| tenant.certificates.contains(name))
            };
            return only(&has);
        }
        let uid = shown.uid?;
        only(&|tenant| tenant.uids.contains(&uid))
    }

    /// Whether others than this one may use a namespace.
    pub fn is_shared(&self, tenant: usize, namespace: NamespaceId) -> bool {
        let mut others = self.0.iter().enumerate().filter(|(at, _)| *at != tenant);
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

    /// Promise 4: whoever is given bytes has proved its identity.
    #[test]
    fn nobody_is_taken_for_another() {
        let mut tenants = vec![tenant("a"), tenant("b"), tenant("c")];
        tenants[1].uids = vec![7, 8];
        let tenants = Tenants::new(tenants).unwrap();
        let by_token = |token: &[u8], uid, certificate: &[&str]| {
            let certificate: Vec<String> = certificate.iter().map(|&name| name.into()).collect();
            let token = (!token.is_empty()).then(|| TokenHash::of(token));
            tenants.identify(Shown { token, certificate: &certificate, uid })
        };
        assert_eq!(by_token(b"a", None, &[]), Some(0));
        assert_eq!(by_token(b"c", Some(7), &["b.example"]), Some(2), "the token speaks");
        assert_eq!(by_token(b"wrong", Some(7), &["b.example"]), None, "and a wrong one, too");
        assert_eq!(by_token(b"", Some(8), &[]), Some(1));
        assert_eq!(by_token(b"", Some(9), &[]), None);
        assert_eq!(by_token(b"", None, &["x.example", "a.example"]), Some(0));
        assert_eq!(by_token(b"", None, &["a.example", "b.example"]), None, "who of the two?");
        assert_eq!(by_token(b"", Some(7), &["z.example"]), None, "a stranger's certificate");
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
        assert!(tenants.is_shared(0, Namespace::public().id()) && !tenants.is_shared(0, secret));
        assert!(tenants.is_shared(1, secret));
    }
}
