//! Tenants, as a configuration names them: by files, users and certificates.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::config::{paths, unknown_key};

/// One who uses a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantConfig {
    /// What it is called in the log.
    pub name: String,
    /// Files with the tokens by which it is known: several while one replaces another.
    pub tokens: Vec<PathBuf>,
    /// Its users on this machine.
    pub uids: Vec<u32>,
    /// DNS names of its certificates.
    pub certificates: Vec<String>,
    /// Key files of the namespaces that it may use, or `public`.
    pub namespaces: Vec<PathBuf>,
}

const KEYS: [&str; 5] = ["name", "tokens", "uids", "certificates", "namespaces"];

impl TenantConfig {
    /// Understands the value of `tenants`.
    pub(crate) fn all(value: &toml::Value) -> anyhow::Result<Vec<Self>> {
        let list = value.as_array().context("should be a list, of [[tenants]]")?;
        list.iter().map(Self::one).collect()
    }

    fn one(value: &toml::Value) -> anyhow::Result<Self> {
        let mut tenant = Self::default();
        for (key, value) in value.as_table().context("should be a list, of [[tenants]]")? {
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
                self.uids = uids.context("should be a list of numbers; `id -u NAME` tells one")?;
            }
            "certificates" => {
                let name = |name: &toml::Value| name.as_str().map(str::to_ascii_lowercase);
                let names = value.as_array().and_then(|list| list.iter().map(name).collect());
                self.certificates = names.context("should be a list of DNS names")?;
            }
            "namespaces" => self.namespaces = paths(value)?,
            unknown => return Err(unknown_key(unknown, &KEYS)),
        }
        Ok(())
    }
}
