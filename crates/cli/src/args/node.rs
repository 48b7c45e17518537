//! Which node a command speaks to, and what is said if that does not work: the cause, with its own remedy.

use std::{io::ErrorKind, time::Duration};

use anyhow::{anyhow, bail};
use forebay_client::{Client, ClientError};
use forebay_core::{Endpoint, ring::Contacts};
use forebay_identity::Credentials;
use forebay_server::default_socket;
use forebay_wire::ErrorCode;

/// A node that does not answer within this is not well.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which node.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeArg {
    /// Where a node listens: a socket's path, tcp://HOST:PORT or tls://HOST:PORT, or several of these with commas in
    /// between: the first that answers is asked; by default `$FOREBAY_SOCKET`, or this user's socket.
    #[arg(long, value_name = "ENDPOINTS", visible_alias = "socket")]
    node: Option<Contacts>,
}

impl NodeArg {
    /// Whom to ask.
    pub fn contacts(&self) -> Contacts {
        self.node.clone().unwrap_or_else(|| default_socket().into())
    }

    /// Whom to ask, if that was said.
    pub fn named(&self) -> Option<&Contacts> {
        self.node.as_ref()
    }

    /// Connects to the first that answers.
    pub fn connect(&self) -> anyhow::Result<Client> {
        let contacts = self.contacts();
        let mut failed = Vec::new();
        for endpoint in contacts.endpoints() {
            match connect(endpoint)? {
                Ok(client) => return Ok(client),
                Err(error) => failed.push(error),
            }
        }
        if failed.iter().all(ClientError::is_nobody) {
            let all: Vec<String> = failed.iter().map(ToString::to_string).collect();
            bail!("no forebay node; start one with `forebay serve`: {}", all.join("; "));
        }
        let there = failed.into_iter().find(|error| !error.is_nobody());
        Err(in_words(&there.expect("not all are nobody")))
    }
}

/// Connects to one node, as whom the environment says.
pub fn connect(endpoint: &Endpoint) -> anyhow::Result<Result<Client, ClientError>> {
    let credentials = Credentials::from_environment()?;
    Ok(Client::connect_as(&credentials, endpoint.clone(), "forebay", PATIENCE))
}

/// What went wrong, with its remedy, unless it says that itself.
pub fn in_words(error: &ClientError) -> anyhow::Error {
    match remedy(error) {
        Some(remedy) => anyhow!("{error}; {remedy}"),
        None => anyhow!("{error}"),
    }
}

/// What to do about it, unless it says that itself.
pub fn remedy(error: &ClientError) -> Option<&'static str> {
    let is_silent = |kind| matches!(kind, ErrorKind::TimedOut | ErrorKind::WouldBlock);
    match error {
        error if error.is_nobody() => Some("start one with `forebay serve`"),
        ClientError::Connect { cause, .. } if cause.kind() == ErrorKind::PermissionDenied => Some(
            "its user has to let you in: with `chmod 711` on its directory, and your uid among the `tenants`",
        ),
        ClientError::Connect { cause, .. } | ClientError::Broken(cause)
            if is_silent(cause.kind()) =>
        {
            Some("it is there and hangs; its log says why, or stop it and start it again")
        }
        ClientError::Broken(_) => Some("its log says why"),
        ClientError::Nonsense(_) | ClientError::Unexpected => {
            Some("is it a forebay node, of the same version?")
        }
        ClientError::Refused(refusal) => match refusal.code {
            ErrorCode::Stopping => Some("start it again"),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn only_where_nobody_listens_is_one_to_be_started() {
        let connect = |kind: ErrorKind| ClientError::Connect {
            endpoint: "/x".to_owned(),
            cause: kind.into(),
        };
        for (error, says) in [
            (connect(ErrorKind::NotFound), "start one"),
            (connect(ErrorKind::ConnectionRefused), "start one"),
            (connect(ErrorKind::PermissionDenied), "chmod 711"),
            (connect(ErrorKind::WouldBlock), "hangs"),
            (io::Error::from(ErrorKind::TimedOut).into(), "hangs"),
            (ClientError::Stranger { path: "/x".to_owned(), owner: 5 }, "FOREBAY_NODE_UID=5"),
            (ClientError::NoAuthority, "set FOREBAY_TLS_CA"),
            (ClientError::Unexpected, "same version"),
        ] {
            let text = format!("{:#}", in_words(&error));
            assert!(text.contains(says), "{text}");
            assert_eq!(text.contains("forebay serve"), says == "start one", "{text}");
        }
    }
}
