//! The option `--node`: which node a command connects to, and the remedy if that fails.

use std::{io::ErrorKind, time::Duration};

use anyhow::{anyhow, bail};
use forebay_auth::Credentials;
use forebay_client::{Client, ClientError};
use forebay_core::{Endpoint, cluster::ring::Seeds};
use forebay_node::default_socket;
use forebay_wire::ErrorCode;

/// A node that does not answer within this time counts as hung.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The node to connect to.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeArg {
    /// Connect to this node: a socket path, tcp://HOST:PORT or tls://HOST:PORT.
    ///
    /// Of several endpoints, separated by commas, the first that answers is used [default:
    /// `$FOREBAY_SOCKET`, or the socket of this user's node].
    #[arg(long, value_name = "ENDPOINTS", visible_alias = "socket")]
    node: Option<Seeds>,
}

impl NodeArg {
    /// The endpoints to try, in order.
    pub fn contacts(&self) -> Seeds {
        self.node.clone().unwrap_or_else(|| default_socket().into())
    }

    /// The endpoints, if the option was given.
    pub fn named(&self) -> Option<&Seeds> {
        self.node.as_ref()
    }

    /// Connects to the first endpoint that answers.
    pub fn connect(&self) -> anyhow::Result<Client> {
        let contacts = self.contacts();
        let mut failed = Vec::new();
        for endpoint in contacts.endpoints() {
            match connect(endpoint)? {
                Ok(client) => return Ok(client),
                Err(error) => failed.push(error),
            }
        }
        if failed.iter().all(ClientError::is_not_running) {
            let tried: Vec<String> =
                contacts.endpoints().iter().map(|endpoint| format!("`{endpoint}`")).collect();
            bail!("no node listens at {}; {}", tried.join(" or "), self.not_running_remedy());
        }
        let other = failed.into_iter().find(|error| !error.is_not_running());
        Err(with_remedy(&other.expect("a node listens at one of the endpoints")))
    }

    /// The remedy if no node listens at any of the endpoints.
    fn not_running_remedy(&self) -> String {
        let Some(named) = &self.node else {
            return "start one with `forebay serve`".to_owned();
        };
        let host = named.endpoints().iter().find_map(|endpoint| {
            let text = endpoint.to_string();
            let is_tcp = format!("tcp://{text}").parse::<Endpoint>().is_ok();
            (is_tcp && !text.contains('/')).then_some(text)
        });
        match host {
            Some(host) => format!("did you mean tcp://{host}?"),
            None => "check --node, or start one with `forebay serve`".to_owned(),
        }
    }
}

/// Connects to one node with the credentials of the environment.
pub fn connect(endpoint: &Endpoint) -> anyhow::Result<Result<Client, ClientError>> {
    let credentials = Credentials::from_environment()?;
    Ok(Client::connect_as(&credentials, endpoint.clone(), "forebay", TIMEOUT))
}

/// The error, followed by its remedy unless the message contains one.
pub fn with_remedy(error: &ClientError) -> anyhow::Error {
    match remedy(error) {
        Some(remedy) => anyhow!("{error}; {remedy}"),
        None => anyhow!("{error}"),
    }
}

/// The remedy of an error, unless its message contains one.
pub fn remedy(error: &ClientError) -> Option<&'static str> {
    let is_silent = |kind| matches!(kind, ErrorKind::TimedOut | ErrorKind::WouldBlock);
    match error {
        error if error.is_not_running() => Some("start one with `forebay serve`"),
        ClientError::Connect { cause, .. } if cause.kind() == ErrorKind::PermissionDenied => Some(
            "the user of the node has to allow you: `chmod 711` on the directory of the socket, \
             and your uid among the `tenants`",
        ),
        ClientError::Connect { cause, .. } | ClientError::Broken(cause)
            if is_silent(cause.kind()) =>
        {
            Some("the node hangs; see its log, or restart it")
        }
        ClientError::Broken(_) => Some("see the log of the node"),
        ClientError::Malformed(_) | ClientError::Unexpected => {
            Some("check that it is a forebay node of the same version")
        }
        ClientError::Refused(refusal) => match refusal.code {
            ErrorCode::Stopping => Some("restart the node"),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use forebay_auth::TrustError;

    use super::*;

    #[test]
    fn each_error_has_its_own_remedy() {
        let connect = |kind: ErrorKind| ClientError::Connect {
            endpoint: "/x".to_owned(),
            cause: kind.into(),
        };
        let untrusted = |cause| ClientError::Untrusted { endpoint: "/x".to_owned(), cause };
        for (error, remedy) in [
            (connect(ErrorKind::NotFound), "start one"),
            (connect(ErrorKind::ConnectionRefused), "start one"),
            (connect(ErrorKind::PermissionDenied), "chmod 711"),
            (connect(ErrorKind::WouldBlock), "hangs"),
            (io::Error::from(ErrorKind::TimedOut).into(), "hangs"),
            (untrusted(TrustError::ForeignSocket { owner: 5 }), "FOREBAY_NODE_UID=5"),
            (untrusted(TrustError::NoCa), "set FOREBAY_TLS_CA"),
            (ClientError::Unexpected, "same version"),
        ] {
            let text = format!("{:#}", with_remedy(&error));
            assert!(text.contains(remedy), "{text}");
            assert_eq!(text.contains("forebay serve"), remedy == "start one", "{text}");
        }
    }
}
