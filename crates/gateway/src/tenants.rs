//! Tenants: which access keys clients may sign with, and as which principal each key acts.

use std::{collections::HashMap, sync::Arc};

use anyhow::{Context as _, ensure};
use forebay_auth::{AccessKey, read_access_key_file};
use s3s::{
    S3Result,
    auth::{S3Auth, SecretKey},
    s3_error,
};

use crate::{
    config::GatewayTenant,
    object_request::{IdentityId, JobTag, Principal},
};

/// Shortest secret of an access key. A signature lets its owner test guesses of the secret.
const SECRET_LENGTH_MIN: usize = 16;
/// The access key of a trusted gateway, which only processes of this machine reach.
pub const TRUSTED_KEY: &str = "forebay";
/// Its secret, which is published.
pub const TRUSTED_SECRET: &str = "forebay-trusted";

struct Entry {
    secret: SecretKey,
    principal: Principal,
}

/// The access keys of all tenants.
#[derive(Clone, Default)]
pub struct AccessKeys(Arc<HashMap<String, Entry>>);

impl std::fmt::Debug for AccessKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessKeys").field("count", &self.0.len()).finish()
    }
}

/// An access key as a client presents it: `vision`, or `vision.ranker-7` for the job `ranker-7`.
pub fn split_job(presented: &str) -> (&str, Option<&str>) {
    presented.split_once('.').map_or((presented, None), |(key, job)| (key, Some(job)))
}

impl AccessKeys {
    /// Reads the key files of tenants. Tenant `n` has the identity `n`.
    pub(crate) fn read(tenants: &[GatewayTenant]) -> anyhow::Result<Self> {
        let mut keys = HashMap::new();
        for (number, tenant) in tenants.iter().enumerate() {
            let identity = IdentityId(u32::try_from(number).context("too many tenants")?);
            let principal = Principal::new(tenant.name.as_str().into(), identity);
            for path in &tenant.access_keys {
                let AccessKey { id, secret, session_token } = read_access_key_file(path)?;
                let shown = path.display();
                ensure!(
                    !id.contains('.'),
                    "`{shown}`: a dot separates the access key from the name of a job; use an id \
                     without one"
                );
                ensure!(
                    secret.len() >= SECRET_LENGTH_MIN,
                    "`{shown}`: the secret has fewer than {SECRET_LENGTH_MIN} characters; make one \
                     with `openssl rand -hex 20`"
                );
                ensure!(
                    session_token.is_none(),
                    "`{shown}`: access keys of the gateway have no session token; remove it"
                );
                let entry = Entry { secret: (**secret).into(), principal: principal.clone() };
                ensure!(
                    keys.insert(id, entry).is_none(),
                    "`{shown}`: another file has the same access key id; give each key one tenant"
                );
            }
        }
        Ok(Self(Arc::new(keys)))
    }

    /// The published key of a trusted gateway, with the identity 0.
    pub(crate) fn trusted() -> Self {
        let principal = Principal::new("trusted".into(), IdentityId(0));
        let entry = Entry { secret: TRUSTED_SECRET.into(), principal };
        Self(Arc::new(HashMap::from([(TRUSTED_KEY.to_owned(), entry)])))
    }

    /// The principal and the job of a presented access key.
    pub fn principal(&self, presented: &str) -> Option<(Principal, Option<JobTag>)> {
        let (key, job) = split_job(presented);
        let principal = self.0.get(key)?.principal.clone();
        match job {
            None => Some((principal, None)),
            Some(job) => Some((principal, Some(JobTag::parse(job)?))),
        }
    }
}

#[async_trait::async_trait]
impl S3Auth for AccessKeys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let (key, job) = split_job(access_key);
        if job.is_some_and(|job| JobTag::parse(job).is_none()) {
            return Err(s3_error!(
                InvalidAccessKeyId,
                "After the dot of an access key comes the name of a job: 1 to 64 characters of \
                 A-Z a-z 0-9 . _ -"
            ));
        }
        match self.0.get(key) {
            Some(entry) => Ok(entry.secret.clone()),
            None => Err(s3_error!(
                InvalidAccessKeyId,
                "The AWS Access Key Id you provided does not exist in our records."
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

    use super::*;

    fn tenant(directory: &std::path::Path, name: &str, keys: &[(&str, &str)]) -> GatewayTenant {
        let write = |(id, secret): &(&str, &str)| -> PathBuf {
            let path = directory.join(format!("{name}-{id}"));
            let text = format!("aws_access_key_id={id}\naws_secret_access_key={secret}\n");
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let access_keys = keys.iter().map(write).collect();
        GatewayTenant { name: name.to_owned(), access_keys, origin: None }
    }

    const SECRET: &str = "0123456789abcdef0123";

    #[test]
    fn two_keys_of_a_tenant_are_one_principal_and_the_suffix_is_the_job() {
        let directory = tempfile::tempdir().unwrap();
        let a = tenant(directory.path(), "a", &[("one", SECRET), ("two", SECRET)]);
        let b = tenant(directory.path(), "b", &[("three", SECRET)]);
        let keys = AccessKeys::read(&[a, b]).unwrap();
        let (first, none) = keys.principal("one").unwrap();
        let (second, job) = keys.principal("two.ranker-7.v2").unwrap();
        assert_eq!((first.clone(), none), (second, None));
        assert_eq!(job.unwrap().as_str(), "ranker-7.v2");
        assert_ne!(first, keys.principal("three").unwrap().0);
        assert!(keys.principal("four").is_none() && keys.principal("one.").is_none());
    }

    #[test]
    fn a_key_of_two_tenants_and_a_weak_one_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = |tenants: &[GatewayTenant]| AccessKeys::read(tenants).unwrap_err().to_string();
        let a = tenant(directory.path(), "a", &[("one", SECRET)]);
        let b = tenant(directory.path(), "b", &[("one", SECRET)]);
        assert!(error(&[a, b]).contains("the same access key id"));
        let weak = tenant(directory.path(), "c", &[("two", "short")]);
        assert!(error(&[weak]).contains("openssl rand"));
        let dotted = tenant(directory.path(), "d", &[("a.b", SECRET)]);
        assert!(error(&[dotted]).contains("name of a job"));
    }
}
