//! The configuration of tenants: the key `tenants`.

use std::path::PathBuf;

use anyhow::Context as _;
use forebay_core::ByteSize;

use crate::config::{
    unknown_key,
    value::{ConfigValue, GatewayTable, paths},
};

/// A tenant in the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantConfig {
    /// Its name, for the log.
    pub name: String,
    /// Files with its tokens. Several are useful while one replaces another.
    pub tokens: Vec<PathBuf>,
    /// Its user ids on this machine.
    pub uids: Vec<u32>,
    /// DNS names of its certificates.
    pub certificates: Vec<String>,
    /// Key files of its namespaces, or `public`.
    pub namespaces: Vec<PathBuf>,
    /// Flash for its streams.
    pub streams: ByteSize,
    /// Files of access keys for the S3 endpoint.
    pub access_keys: Vec<PathBuf>,
    /// The origin identity of its requests to the S3 endpoint.
    pub origin: Option<GatewayTable>,
}

const KEYS: [&str; 8] =
    ["name", "tokens", "uids", "certificates", "namespaces", "streams", "access_keys", "origin"];

impl TenantConfig {
    /// Whether its clients use the S3 endpoint only. To the node such a tenant does not exist.
    pub(crate) fn is_s3_only(&self) -> bool {
        !self.access_keys.is_empty()
            && self.tokens.is_empty()
            && self.uids.is_empty()
            && self.certificates.is_empty()
    }

    /// Parses the value of `tenants`.
    pub(crate) fn all(value: &toml::Value) -> anyhow::Result<Vec<Self>> {
        let list =
            value.as_array().context("should be a list of tables, each under [[tenants]]")?;
        list.iter().map(Self::one).collect()
    }

    fn one(value: &toml::Value) -> anyhow::Result<Self> {
        let mut tenant = Self::default();
        for (key, value) in
            value.as_table().context("should be a list of tables, each under [[tenants]]")?
        {
            tenant.set(key, value).with_context(|| format!("`{key}`"))?;
        }
        Ok(tenant)
    }

    fn set(&mut self, key: &str, value: &toml::Value) -> anyhow::Result<()> {
        match key {
            "name" => self.name = value.as_str().context("should be a text in quotes")?.into(),
            "tokens" => self.tokens = paths(value)?,
            "uids" => {
                let uid = |uid: &toml::Value| u32::try_from(uid.as_integer()?).ok();
                let uids = value.as_array().and_then(|list| list.iter().map(uid).collect());
                self.uids =
                    uids.context("should be a list of user ids; `id -u NAME` prints one")?;
            }
            "certificates" => {
                let name = |name: &toml::Value| name.as_str().map(str::to_ascii_lowercase);
                let names = value.as_array().and_then(|list| list.iter().map(name).collect());
                self.certificates = names.context("should be a list of DNS names")?;
            }
            "namespaces" => self.namespaces = paths(value)?,
            "streams" => self.streams = ByteSize::read(value)?,
            "access_keys" => self.access_keys = paths(value)?,
            "origin" => self.origin = ConfigValue::read(value)?,
            unknown => return Err(unknown_key(unknown, &KEYS)),
        }
        Ok(())
    }
}
