//! Client credentials: a token, a certificate, or only the user id of the process.

use std::{env, fmt, path::PathBuf, sync::Arc};

use forebay_core::Token;
use rustls::ClientConfig;

use crate::{PrivateFileError, TlsFileError, client_config, read_token_file};

/// Why credentials cannot be used. The message never quotes a secret.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The token file.
    #[error("FOREBAY_TOKEN_FILE: {0}")]
    Token(#[source] PrivateFileError),
    /// A certificate or key file.
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    /// A certificate without a key, or a key without a certificate.
    #[error("FOREBAY_TLS_CERTIFICATE and FOREBAY_TLS_KEY go together; set both or neither")]
    Half,
    /// A client certificate without the authority that authenticates nodes.
    #[error(
        "FOREBAY_TLS_CERTIFICATE needs FOREBAY_TLS_CA, the authority that signs nodes' certificates"
    )]
    NoAuthority,
    /// `FOREBAY_NODE_UID` is not a number.
    #[error("FOREBAY_NODE_UID is not a number; set it to the user id of the nodes that you trust")]
    Uid,
}

/// Paths of credential files. The environment has paths only, never secrets.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// `FOREBAY_TOKEN_FILE`.
    pub token: Option<PathBuf>,
    /// `FOREBAY_TLS_CA`.
    pub authority: Option<PathBuf>,
    /// `FOREBAY_TLS_CERTIFICATE`.
    pub certificate: Option<PathBuf>,
    /// `FOREBAY_TLS_KEY`.
    pub key: Option<PathBuf>,
}

/// The credentials of a client, and the rule for nodes that it trusts.
#[derive(Clone, Default)]
pub struct Credentials {
    token: Option<Token>,
    tls: Option<Arc<ClientConfig>>,
    /// User id whose nodes are trusted on this machine, besides the client's own and root.
    node_uid: Option<u32>,
}

impl Credentials {
    /// Reads the files named by environment variables.
    pub fn from_environment() -> Result<Self, CredentialsError> {
        let file = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let read = Self::read(&Files {
            token: file("FOREBAY_TOKEN_FILE"),
            authority: file("FOREBAY_TLS_CA"),
            certificate: file("FOREBAY_TLS_CERTIFICATE"),
            key: file("FOREBAY_TLS_KEY"),
        })?;
        let uid = env::var("FOREBAY_NODE_UID").ok().filter(|uid| !uid.is_empty());
        let uid = uid.map(|uid| uid.parse().map_err(|_| CredentialsError::Uid)).transpose()?;
        Ok(Self { node_uid: uid, ..read })
    }

    /// Reads these files.
    pub fn read(files: &Files) -> Result<Self, CredentialsError> {
        let token = files.token.as_deref().map(read_token_file).transpose();
        let own = match (&files.certificate, &files.key) {
            (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
            (None, None) => None,
            _ => return Err(CredentialsError::Half),
        };
        let tls = match &files.authority {
            Some(authority) => Some(client_config(authority, own)?),
            None if own.is_some() => return Err(CredentialsError::NoAuthority),
            None => None,
        };
        Ok(Self { token: token.map_err(CredentialsError::Token)?, tls, node_uid: None })
    }

    /// The token that is sent with `hello`; empty if there is none.
    pub fn token(&self) -> &[u8] {
        self.token.as_ref().map_or(&[], Token::as_bytes)
    }

    /// The TLS configuration; `None` if no authority is set.
    pub fn tls(&self) -> Option<&Arc<ClientConfig>> {
        self.tls.as_ref()
    }

    /// Whether a node on this machine that runs as this user is trusted.
    pub fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == rustix::process::geteuid().as_raw() || self.node_uid == Some(uid)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.is_some();
        f.debug_struct("Credentials").field("token", &token).finish_non_exhaustive()
    }
}
