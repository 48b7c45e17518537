//! Origin identities in the configuration: `origin` of a tenant, `identity` of the gateway.

use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

use super::in_one_line;

/// Where an identity's first credential comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityBase {
    /// A private file with an access key.
    File(PathBuf),
    /// A profile of `~/.aws/credentials`.
    Profile(String),
    /// A token file and a role, as Kubernetes mounts them.
    WebIdentity {
        /// The file with the token.
        token: PathBuf,
        /// The role.
        role: String,
    },
    /// The role of the machine, or of the container.
    Machine,
    /// No credential.
    Anonymous,
}

/// A role that is assumed with another credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssumedRole {
    /// The role's name, `arn:aws:iam::123456789012:role/training`.
    pub arn: String,
    /// `RoleSessionName`.
    pub session_name: String,
    /// `ExternalId`.
    pub external_id: Option<String>,
}

/// An origin identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityConfig {
    /// The first credential.
    pub base: IdentityBase,
    /// The role that it assumes.
    pub role: Option<AssumedRole>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawIdentity {
    file: Option<PathBuf>,
    profile: Option<String>,
    web_identity_token: Option<PathBuf>,
    #[serde(default)]
    instance_role: bool,
    #[serde(default)]
    anonymous: bool,
    role: Option<String>,
    session_name: Option<String>,
    external_id: Option<String>,
}

const IDENTITY_REMEDY: &str = "give one of `file`, `profile`, `web_identity_token` with `role`, \
                               `instance_role = true`, `anonymous = true`";

impl IdentityConfig {
    /// Parses an identity. `node` is the gateway's own, which assumes roles that name no other.
    pub(super) fn parse(
        table: &toml::Table,
        node: Option<&Self>,
        tenant: &str,
    ) -> anyhow::Result<Self> {
        let raw: RawIdentity = table.clone().try_into().map_err(|error| in_one_line(&error))?;
        let mut bases = Vec::new();
        let mut role = raw.role;
        if let Some(file) = raw.file {
            bases.push(IdentityBase::File(file));
        }
        if let Some(profile) = raw.profile {
            bases.push(IdentityBase::Profile(profile));
        }
        if let Some(token) = raw.web_identity_token {
            let role = role.take().context("`web_identity_token` needs `role`")?;
            bases.push(IdentityBase::WebIdentity { token, role });
        }
        if raw.instance_role {
            bases.push(IdentityBase::Machine);
        }
        if raw.anonymous {
            bases.push(IdentityBase::Anonymous);
        }
        ensure!(bases.len() <= 1, "several kinds of identity; {IDENTITY_REMEDY}");
        let base = match (bases.pop(), &role, node) {
            (Some(base), ..) => base,
            (None, Some(_), Some(node)) if node.role.is_none() => node.base.clone(),
            (None, Some(_), _) => bail!(
                "`role` is assumed with the gateway's own `identity`, and there is none without a \
                 role; set `identity` in [gateway]"
            ),
            (None, None, _) => bail!("no kind of identity; {IDENTITY_REMEDY}"),
        };
        let role = role.map(|arn| AssumedRole {
            arn,
            session_name: raw.session_name.unwrap_or_else(|| format!("forebay-{tenant}")),
            external_id: raw.external_id,
        });
        if let Some(role) = &role {
            ensure!(
                base != IdentityBase::Anonymous,
                "an anonymous identity cannot assume a role; {IDENTITY_REMEDY}"
            );
            ensure!(
                role.arn.starts_with("arn:") && role.arn.len() <= 2048,
                "`role` is not the name of a role, such as \
                 arn:aws:iam::123456789012:role/training"
            );
        }
        Ok(Self { base, role })
    }
}
