//! Endpoint trust: which servers a client may send requests and tokens to.
//!
//! Jobs, agents and nodes apply the same rule, whichever kind of socket they use:
//!
//! - A Unix socket must belong to this user, to root, or to the user in `FOREBAY_NODE_UID`.
//! - `tcp://` is not encrypted, so it is for loopback only and never carries a token.
//! - `tls://` needs the CA that signs the nodes' certificates.

use std::{net::IpAddr, sync::Arc};

use rustls::ClientConfig;

use crate::Credentials;

/// Why a server is not trusted. Each message names the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The socket belongs to another user.
    #[error(
        "the socket belongs to user {owner}, not to you; if you trust that user's node, set \
         FOREBAY_NODE_UID={owner}"
    )]
    ForeignSocket {
        /// The user that owns the socket.
        owner: u32,
    },
    /// Unencrypted TCP to another machine.
    #[error("it is another machine, and tcp:// is not encrypted; use tls://")]
    CleartextRemote,
    /// A token would go to any process that listens on that port.
    #[error(
        "any process on this machine may listen there, so no token is sent; use the node's Unix \
         socket or tls://, or unset FOREBAY_TOKEN_FILE"
    )]
    CleartextToken,
    /// The CA is not configured.
    #[error("for tls:// set FOREBAY_TLS_CA to the certificate of the CA that signs the nodes'")]
    NoCa,
}

impl Credentials {
    /// Checks the owner of a Unix socket.
    pub fn check_socket_owner(&self, owner: u32) -> Result<(), TrustError> {
        if self.trusts(owner) { Ok(()) } else { Err(TrustError::ForeignSocket { owner }) }
    }

    /// Checks an unencrypted TCP connection.
    pub fn check_cleartext(&self, peer: IpAddr) -> Result<(), TrustError> {
        if !peer.is_loopback() {
            return Err(TrustError::CleartextRemote);
        }
        if self.token().is_empty() { Ok(()) } else { Err(TrustError::CleartextToken) }
    }

    /// The TLS configuration that verifies the server.
    pub fn check_tls(&self) -> Result<&Arc<ClientConfig>, TrustError> {
        self.tls().ok_or(TrustError::NoCa)
    }
}
