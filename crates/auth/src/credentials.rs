//! What a client shows to nodes: a token, a certificate, or nothing but its user id.

use std::{env, fmt, path::PathBuf, sync::Arc};

use forebay_core::Token;
use rustls::ClientConfig;

use crate::{PrivateFileError, TlsFileError, client_config, read_token_file};

/// Why credentials could not be used. Never quotes one.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The token.
    #[error("FOREBAY_TOKEN_FILE: {0}")]
    Token(#[source] PrivateFileError),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    /// One of the two alone is of no use.
    #[error("FOREBAY_TLS_CERTIFICATE and FOREBAY_TLS_KEY go together; set both or neither")]
    Half,
    /// A certificate is shown to nodes that are known.
    #[error(
        "FOREBAY_TLS_CERTIFICATE needs FOREBAY_TLS_CA, the authority that signs nodes' certificates"
    )]
    NoAuthority,
    /// Not a number.
    #[error("FOREBAY_NODE_UID should be the number of the user whose nodes you trust")]
    Uid,
}

/// Where credentials lie. Only the names of files are in the environment, never secrets.
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

/// What a client shows, and whom it believes.
#[derive(Clone, Default)]
pub struct Credentials {
    token: Option<Token>,
    tls: Option<Arc<ClientConfig>>,
    /// Whose nodes are trusted on this machine, besides one's own and root's.
    node_uid: Option<u32>,
}

impl Credentials {
    /// Reads the files that the environment names.
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

    /// What is sent with the hello; empty without a token.
    pub fn token(&self) -> &[u8] {
        self.token.as_ref().map_or(&[], Token::as_bytes)
    }

    /// How TLS is spoken; nothing, if no authority was named.
    pub fn tls(&self) -> Option<&Arc<ClientConfig>> {
        self.tls.as_ref()
    }

    /// Whether a process of this user may be the node.
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
