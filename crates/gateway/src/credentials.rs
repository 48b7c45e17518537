//! Origin identities: where the credential comes from that signs a tenant's requests.

use std::{fmt, sync::Arc};

use crate::sign::Credential;

/// Why an identity has no credential now. The message never quotes a secret.
#[derive(Debug, thiserror::Error)]
#[error("the origin identity of this access key has no valid credential: {0}")]
pub struct CredentialError(pub(crate) String);

/// The source of an identity's credentials.
pub enum IdentitySource {
    /// Requests are not signed: public buckets.
    Anonymous,
    /// One credential that never changes.
    Fixed(Arc<Credential>),
}

impl fmt::Debug for IdentitySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Fixed(_) => "Fixed",
        })
    }
}

impl IdentitySource {
    /// The current credential. `None` leaves requests unsigned.
    #[expect(clippy::unused_async, reason = "roles are assumed by a request")]
    pub(crate) async fn credential(&self) -> Result<Option<Arc<Credential>>, CredentialError> {
        match self {
            Self::Anonymous => Ok(None),
            Self::Fixed(credential) => Ok(Some(Arc::clone(credential))),
        }
    }
}
