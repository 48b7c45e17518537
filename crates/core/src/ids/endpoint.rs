//! Endpoints: where a node listens, as a path, `tcp://host:port` or `tls://host:port`.
//!
//! A path names a Unix socket, the usual case. A URL with another scheme is an error, so that a
//! typing mistake does not become a file name.

use std::{
    fmt,
    net::Ipv6Addr,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Longest host name that DNS allows.
const HOST_LENGTH_MAX: usize = 253;

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// A Unix socket of this machine.
    Unix(PathBuf),
    /// Unencrypted TCP, for this machine only.
    Tcp(HostPort),
    /// TLS over TCP.
    Tls(HostPort),
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPort {
    host: String,
    port: u16,
}

/// A text that is not an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not an endpoint; use the path of a node's socket, tcp://HOST:PORT or tls://HOST:PORT",
    text.escape_debug()
)]
pub struct EndpointError {
    text: String,
}

impl HostPort {
    /// A host name, or an IP address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, never 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let is_digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| *port > 0 && is_digits)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let host = match host.strip_prefix('[') {
            Some(address) => {
                let address = address.strip_suffix(']')?;
                address.parse::<Ipv6Addr>().ok()?.to_string()
            }
            None if host.chars().all(plain) => host.to_ascii_lowercase(),
            None => return None,
        };
        let is_host = !host.is_empty() && host.len() <= HOST_LENGTH_MAX;
        is_host.then_some(Self { host, port })
    }
}

impl Endpoint {
    /// The socket's path, if it is a Unix socket.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => Some(path),
            Self::Tcp(_) | Self::Tls(_) => None,
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = match text.split_once("://") {
            Some(("tcp", rest)) => HostPort::parse(rest).map(Self::Tcp),
            Some(("tls", rest)) => HostPort::parse(rest).map(Self::Tls),
            Some(_) => None,
            None => (!text.is_empty()).then(|| Self::Unix(text.into())),
        };
        parsed.ok_or_else(|| EndpointError { text: text.chars().take(HOST_LENGTH_MAX).collect() })
    }
}

impl From<PathBuf> for Endpoint {
    fn from(path: PathBuf) -> Self {
        Self::Unix(path)
    }
}

impl From<&PathBuf> for Endpoint {
    fn from(path: &PathBuf) -> Self {
        Self::Unix(path.clone())
    }
}

impl From<&Path> for Endpoint {
    fn from(path: &Path) -> Self {
        Self::Unix(path.to_owned())
    }
}

impl From<&Endpoint> for Endpoint {
    fn from(endpoint: &Endpoint) -> Self {
        endpoint.clone()
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(host_port) => write!(f, "tcp://{host_port}"),
            Self::Tls(host_port) => write!(f, "tls://{host_port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_survive_a_round_trip_through_text() {
        for text in [
            "/run/forebay/node.sock",
            "node.sock",
            "tcp://127.0.0.1:7070",
            "tls://cache-3.example:65535",
            "tls://[::1]:1",
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), text);
            assert_eq!(endpoint.path().is_some(), !text.contains("://"));
        }
        let mixed_case: Endpoint = "tls://Cache.Example:7".parse().unwrap();
        assert_eq!(mixed_case.to_string(), "tls://cache.example:7", "host names have no case");
    }

    #[test]
    fn malformed_urls_are_not_taken_for_paths() {
        for text in [
            "",
            "http://host:80",
            "TLS://host:80",
            "://",
            "tcp://host",
            "tcp://:80",
            "tcp://host:",
            "tcp://host:0",
            "tcp://host:+1",
            "tcp://host:65536",
            "tcp://::1:80",
            "tcp://[::1:80",
            "tcp://[host]:80",
            "tcp://me@host:80",
            "tcp://host:80/path",
            "tls://hö:80",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains("tls://HOST:PORT"), "{error}");
        }
        let long = format!("tcp://{}:80", "x".repeat(10_000));
        assert!(long.parse::<Endpoint>().unwrap_err().to_string().len() < 400);
    }
}
