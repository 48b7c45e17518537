//! Origin identities: where the credential comes from that signs a tenant's requests.
//!
//! Temporary credentials are refreshed before they expire. While a refresh fails, the old one is
//! used until it expires; then the tenant's requests fail with 403, and no other tenant's.

use std::{fmt, path::Path, sync::Arc};

use anyhow::Context as _;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider};
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::{
    assume_role::RoleSession,
    config::{GatewayConfig, IdentityBase, IdentityConfig},
    sign::Credential,
};

/// Why an identity has no credential now. The message never quotes a secret.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the origin identity of this access key has no valid credential: {0}")]
pub struct CredentialError(pub(crate) String);

/// The source of an identity's credentials.
pub enum IdentitySource {
    /// Requests are not signed: public buckets.
    Anonymous,
    /// One credential that never changes.
    Fixed(Arc<Credential>),
    /// A web identity, or the role of the machine or container. `object_store` refreshes it.
    Provided(ProvidedCredential),
    /// A role that another identity assumes.
    Assumed(Box<RoleSession>),
}

impl fmt::Debug for IdentitySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Fixed(_) => "Fixed",
            Self::Provided(_) => "Provided",
            Self::Assumed(_) => "Assumed",
        })
    }
}

impl IdentitySource {
    /// The source of a configured identity. Reads its files; sends nothing.
    pub(crate) fn open(identity: &IdentityConfig, config: &GatewayConfig) -> anyhow::Result<Self> {
        let base = match &identity.base {
            IdentityBase::Anonymous => Self::Anonymous,
            IdentityBase::File(path) => Self::Fixed(Arc::new(from_file(path)?)),
            IdentityBase::Profile(name) => Self::Fixed(Arc::new(from_profile(name)?)),
            IdentityBase::WebIdentity { token, role } => {
                let token = token.to_str().context("the path of the token is not UTF-8")?;
                Self::Provided(ProvidedCredential::open([
                    (AmazonS3ConfigKey::WebIdentityTokenFile, token),
                    (AmazonS3ConfigKey::RoleArn, role),
                    (AmazonS3ConfigKey::Region, &config.region),
                    (AmazonS3ConfigKey::StsEndpoint, config.sts_endpoint.to_string().as_str()),
                ])?)
            }
            IdentityBase::Machine => {
                let variables: Vec<(AmazonS3ConfigKey, String)> = [
                    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                    "AWS_METADATA_ENDPOINT",
                ]
                .into_iter()
                .filter_map(|name| {
                    Some((name.to_ascii_lowercase().parse().ok()?, std::env::var(name).ok()?))
                })
                .collect();
                let variables = variables.iter().map(|(key, value)| (*key, value.as_str()));
                Self::Provided(ProvidedCredential::open(variables)?)
            }
        };
        Ok(match &identity.role {
            None => base,
            Some(role) => Self::Assumed(Box::new(RoleSession::new(base, role.clone(), config)?)),
        })
    }

    /// The current credential. `None` leaves requests unsigned.
    pub(crate) async fn credential(&self) -> Result<Option<Arc<Credential>>, CredentialError> {
        match self {
            Self::Anonymous => Ok(None),
            Self::Fixed(credential) => Ok(Some(Arc::clone(credential))),
            Self::Provided(provided) => provided.credential().await.map(Some),
            Self::Assumed(session) => session.credential().await.map(Some),
        }
    }
}

fn from_file(path: &Path) -> anyhow::Result<Credential> {
    let key = forebay_auth::read_access_key_file(path)?;
    let token = key.session_token.map(|token| (*token).clone());
    Ok(Credential::new(key.id, key.secret, token))
}

fn from_profile(name: &str) -> anyhow::Result<Credential> {
    let mut settings = forebay_origin::aws_profile(Some(name));
    let mut take = |key: &str| {
        settings.remove(key).with_context(|| {
            format!(
                "the profile `{}` has no `{key}` in ~/.aws/credentials or ~/.aws/config; add it \
                 with `aws configure --profile`, or name another",
                name.escape_debug()
            )
        })
    };
    let (id, secret) = (take("aws_access_key_id")?, take("aws_secret_access_key")?);
    let token = settings.remove("aws_session_token");
    Ok(Credential::new(id, Zeroizing::new(secret), token))
}

/// A credential that `object_store` obtains and refreshes.
pub struct ProvidedCredential {
    provider: AwsCredentialProvider,
    /// The last credential as it came, and in our form, which has the derived key.
    last: Mutex<Option<(Arc<AwsCredential>, Arc<Credential>)>>,
}

impl ProvidedCredential {
    fn open<'a>(
        settings: impl IntoIterator<Item = (AmazonS3ConfigKey, &'a str)>,
    ) -> anyhow::Result<Self> {
        // The HTTP client of `object_store` uses the default provider of the process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = AmazonS3Builder::new().with_bucket_name("credentials-only");
        for (key, value) in settings {
            builder = builder.with_config(key, value);
        }
        let store = builder.build().context("cannot set up the credentials")?;
        Ok(Self { provider: Arc::clone(store.credentials()), last: Mutex::new(None) })
    }

    async fn credential(&self) -> Result<Arc<Credential>, CredentialError> {
        let current = self.provider.get_credential().await;
        let current = current.map_err(|error| {
            tracing::warn!(%error, "credential not refreshed");
            CredentialError("it could not be obtained".to_owned())
        })?;
        let mut last = self.last.lock();
        if let Some((known, credential)) = &*last
            && Arc::ptr_eq(known, &current)
        {
            return Ok(Arc::clone(credential));
        }
        let secret = Zeroizing::new(current.secret_key.clone());
        let credential =
            Arc::new(Credential::new(current.key_id.clone(), secret, current.token.clone()));
        *last = Some((current, Arc::clone(&credential)));
        Ok(credential)
    }
}
