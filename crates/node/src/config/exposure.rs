//! Exposure: checks that a node which other machines can reach has TLS and tenants.

use std::sync::Arc;

use anyhow::{bail, ensure};
use forebay_auth::Clients;
use tokio_rustls::rustls::ServerConfig;

use crate::{config::Config, requests::access::Access};

impl Config {
    /// Checks that clients of other machines are authenticated and encrypted (promise 4).
    pub(crate) fn check_exposure(&self) -> anyhow::Result<()> {
        ensure!(
            self.tls_certificate.is_some() == self.tls_key.is_some(),
            "`tls_certificate` and `tls_key` go together; give both or neither"
        );
        ensure!(
            self.tls_client_ca.is_none() || self.tls_certificate.is_some(),
            "`tls_client_ca` needs TLS; give `tls_certificate` and `tls_key` as well"
        );
        ensure!(
            self.tls_certificate.is_none() || self.listen.is_some(),
            "`tls_certificate` is for TCP connections; give the address in `listen`"
        );
        ensure!(
            self.node_tenants().next().is_none() || self.namespaces.is_empty(),
            "with `tenants`, each tenant has its own `namespaces`; move the node's to them"
        );
        self.check_cluster()?;
        let by_certificate = self.tenants.iter().find(|tenant| !tenant.certificates.is_empty());
        if let Some(tenant) = by_certificate.filter(|_| self.tls_client_ca.is_none()) {
            bail!(
                "the tenant `{}` has `certificates`; name the CA that signs them in \
                 `tls_client_ca`",
                tenant.name.escape_debug()
            );
        }
        if let Some(listen) = self.listen.filter(|listen| !listen.ip().is_loopback()) {
            let fix = match (self.tls_certificate.is_some(), self.node_tenants().next().is_none()) {
                (true, false) => return Ok(()),
                (false, false) => "give `tls_certificate` and `tls_key`",
                (true, true) => "list the clients in `tenants`",
                (false, true) => {
                    "give `tls_certificate` and `tls_key`, and list the clients in `tenants`"
                }
            };
            bail!(
                "`listen` is {listen}, which other machines can reach: {fix}; or listen on \
                 127.0.0.1:{}",
                listen.port()
            );
        }
        Ok(())
    }

    /// The TLS configuration, if the node uses TLS. Reads the files.
    pub(crate) fn tls(&self) -> anyhow::Result<Option<Arc<ServerConfig>>> {
        let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) else {
            return Ok(None);
        };
        // Tenants with tokens need no certificate, and other nodes authenticate by the cluster
        // token.
        let by_certificate = self.node_tenants().all(|tenant| tenant.tokens.is_empty());
        let required = by_certificate && self.cluster_token.is_none();
        let clients = self.tls_client_ca.as_deref();
        let clients = clients.map(|authority| Clients { authority, required });
        Ok(Some(forebay_auth::server_config(certificate, key, clients)?))
    }

    /// Checks all files of certificates, keys and tokens.
    pub fn check_files(&self) -> anyhow::Result<()> {
        self.tls()?;
        Access::load(self, Vec::new())?;
        self.check_cluster_files()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> anyhow::Result<()> {
        Config::parse(text)?.check()
    }

    fn error(text: &str) -> String {
        format!("{:#}", checked(text).unwrap_err())
    }

    const TLS: &str = "tls_certificate = \"node.pem\"\ntls_key = \"node.key\"\n";
    const TENANT: &str =
        "[[tenants]]\nname = \"a\"\ntokens = [\"a.token\"]\nnamespaces = [\"public\"]\n";

    /// Promise 4: clients prove their identity, and connections to other machines are encrypted.
    #[test]
    fn other_machines_need_tls_and_tenants() {
        let beyond = "listen = \"0.0.0.0:7070\"\n";
        let both = "give `tls_certificate` and `tls_key`, and list the clients in `tenants`";
        assert!(error(beyond).contains(both));
        assert!(error(beyond).contains("or listen on 127.0.0.1:7070"));
        assert!(error(&format!("{beyond}{TLS}")).contains(": list the clients in `tenants`"));
        assert!(error(&format!("{beyond}{TENANT}")).contains(": give `tls_certificate`"));
        assert!(checked(&format!("{beyond}{TLS}{TENANT}")).is_ok());
        assert!(checked("listen = \"[::1]:7070\"").is_ok(), "this machine only");
        assert!(error("listen = \"[::]:7070\"").contains("other machines"));
    }

    #[test]
    fn contradictions_between_tls_and_tenants_are_named() {
        let listen = "listen = \"127.0.0.1:7070\"\n";
        assert!(error(TLS).contains("give the address in `listen`"));
        assert!(error("tls_key = \"k\"").contains("go together"));
        assert!(error("tls_client_ca = \"ca.pem\"").contains("give `tls_certificate`"));
        let keys = format!("namespaces = [\"team.key\"]\n{TENANT}");
        assert!(error(&keys).contains("move the node's to them"));
        let by_name = format!("{listen}{TLS}{TENANT}certificates = [\"A.example\"]\n");
        assert!(error(&by_name).contains("name the CA that signs them in `tls_client_ca`"));
        assert!(error(&format!("{TENANT}token = \"x\"")).contains("did you mean `tokens`"));
        assert!(error(&format!("{TENANT}uids = [-1]")).contains("`id -u NAME`"));
        assert!(error("tenants = 3").contains("[[tenants]]"));
    }
}
