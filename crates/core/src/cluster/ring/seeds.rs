//! Seeds: where a client gets the list of nodes from. Either endpoints, one of which it asks for
//! the list, or a list of its own.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::NodeList;
use crate::{Endpoint, Zone, ids::endpoint::EndpointError};

/// Most endpoints. Every node has the whole list, so a few suffice.
const SEEDS_MAX: usize = 64;

/// Endpoints to ask for the list, or the list itself. By default neither: there is no node.
#[derive(Debug, Clone, Default)]
pub struct Seeds {
    endpoints: Vec<Endpoint>,
    list: Option<(NodeList, Option<Zone>)>,
}

/// Why a text is not a list of endpoints.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeedsError {
    /// It has more than `SEEDS_MAX` endpoints.
    #[error("{0} nodes are named; name at most {SEEDS_MAX}, since each has the whole list")]
    TooMany(usize),
    /// An endpoint is malformed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

impl Seeds {
    /// A list, and the zone of this client. `None` if no node is in that zone's ring.
    pub fn of_list(list: NodeList, zone: Option<Zone>) -> Option<Self> {
        list.ring(zone.as_ref())?;
        Some(Self { endpoints: Vec::new(), list: Some((list, zone)) })
    }

    /// The endpoints, in the order in which they are asked.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The list and the zone, if they are configured.
    pub fn list(&self) -> Option<(&NodeList, Option<&Zone>)> {
        self.list.as_ref().map(|(list, zone)| (list, zone.as_ref()))
    }

    /// Whether no node is configured.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.list.is_none()
    }
}

impl From<Endpoint> for Seeds {
    fn from(endpoint: Endpoint) -> Self {
        Self { endpoints: vec![endpoint], list: None }
    }
}

impl From<PathBuf> for Seeds {
    fn from(socket: PathBuf) -> Self {
        Endpoint::from(socket).into()
    }
}

impl From<&Path> for Seeds {
    fn from(socket: &Path) -> Self {
        Endpoint::from(socket).into()
    }
}

/// Endpoints, separated by commas.
impl FromStr for Seeds {
    type Err = SeedsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let count = text.split(',').count();
        if count > SEEDS_MAX {
            return Err(SeedsError::TooMany(count));
        }
        let endpoints = text.split(',').map(|endpoint| endpoint.trim().parse());
        Ok(Self { endpoints: endpoints.collect::<Result<_, _>>()?, list: None })
    }
}

/// The endpoints, as [`FromStr`] reads them. A list is not shown.
impl fmt::Display for Seeds {
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
    fn seeds_are_separated_by_commas() {
        let seeds: Seeds = "/run/a.sock, tcp://127.0.0.1:7,tls://b.example:8".parse().unwrap();
        assert_eq!(seeds.endpoints().len(), 3);
        assert_eq!(seeds.to_string(), "/run/a.sock,tcp://127.0.0.1:7,tls://b.example:8");
        assert!("a,,b".parse::<Seeds>().is_err() && "".parse::<Seeds>().is_err());
        let many = vec!["a"; 65].join(",");
        assert!(many.parse::<Seeds>().unwrap_err().to_string().contains("at most 64"));
        assert!(Seeds::default().is_empty() && !seeds.is_empty());
    }
}
