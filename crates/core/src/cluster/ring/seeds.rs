//! Where a client learns who shares the work: from one of some nodes that it is told of, or from a list of its
//! own.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::NodeList;
use crate::{Endpoint, Zone, endpoint::EndpointError};

/// More are of no use: any of them knows all others.
const CONTACTS_MAX: usize = 64;

/// Whom to ask first, or what need not be asked. By default there is nobody.
#[derive(Debug, Clone, Default)]
pub struct Contacts {
    endpoints: Vec<Endpoint>,
    list: Option<(NodeList, Option<Zone>)>,
}

/// Why a text does not say whom to ask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContactsError {
    /// Too many.
    #[error("{0} nodes are named; name at most {CONTACTS_MAX}, since each knows the others")]
    TooMany(usize),
    /// One that is none.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

impl Contacts {
    /// A list of one's own, and where one stands. Nothing, if nobody of it is there.
    pub fn of_list(list: NodeList, zone: Option<Zone>) -> Option<Self> {
        list.ring(zone.as_ref())?;
        Some(Self { endpoints: Vec::new(), list: Some((list, zone)) })
    }

    /// Whom to ask, one after the other.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// What need not be asked.
    pub fn list(&self) -> Option<(&NodeList, Option<&Zone>)> {
        self.list.as_ref().map(|(list, zone)| (list, zone.as_ref()))
    }

    /// Whether there is nobody at all.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.list.is_none()
    }
}

impl From<Endpoint> for Contacts {
    fn from(endpoint: Endpoint) -> Self {
        Self { endpoints: vec![endpoint], list: None }
    }
}

impl From<PathBuf> for Contacts {
    fn from(socket: PathBuf) -> Self {
        Endpoint::from(socket).into()
    }
}

impl From<&Path> for Contacts {
    fn from(socket: &Path) -> Self {
        Endpoint::from(socket).into()
    }
}

/// Endpoints, with commas in between.
impl FromStr for Contacts {
    type Err = ContactsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let count = text.split(',').count();
        if count > CONTACTS_MAX {
            return Err(ContactsError::TooMany(count));
        }
        let endpoints = text.split(',').map(|one| one.trim().parse());
        Ok(Self { endpoints: endpoints.collect::<Result<_, _>>()?, list: None })
    }
}

/// As it is read again; a list is not.
impl fmt::Display for Contacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, endpoint) in self.endpoints.iter().enumerate() {
            write!(f, "{}{endpoint}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_are_named_with_commas() {
        let contacts: Contacts =
            "/run/a.sock, tcp://127.0.0.1:7,tls://b.example:8".parse().unwrap();
        assert_eq!(contacts.endpoints().len(), 3);
        assert_eq!(contacts.to_string(), "/run/a.sock,tcp://127.0.0.1:7,tls://b.example:8");
        assert!("a,,b".parse::<Contacts>().is_err() && "".parse::<Contacts>().is_err());
        let many = vec!["a"; 65].join(",");
        assert!(many.parse::<Contacts>().unwrap_err().to_string().contains("at most 64"));
        assert!(Contacts::default().is_empty() && !contacts.is_empty());
    }
}
