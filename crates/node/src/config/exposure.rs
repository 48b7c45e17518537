//! Who can reach a node over the network, and whether that is safe.

mod cluster;

use std::sync::Arc;

use anyhow::{bail, ensure};
use forebay_identity::Clients;
use tokio_rustls::rustls::ServerConfig;

use crate::{access::Access, config::Config};

impl Config {
    /// Refuses to be reached by those who cannot be told apart, or to be overheard (promise 4).
    pub(crate) fn check_reach(&self) -> anyhow::Result<()> {
        ensure!(
            self.tls_certificate.is_some() == self.tls_key.is_some(),
            "`tls_certificate` and `tls_key` go together; give both or neither"
        );
        ensure!(
            self.tls_clients.is_none() || self.tls_certificate.is_some(),
            "`tls_clients` is about TLS; give `tls_certificate` and `tls_key` as well"
        );
        ensure!(
            self.tls_certificate.is_none() || self.listen.is_some(),
            "`tls_certificate` is shown to those who connect over TCP; say where with `listen`"
        );
        ensure!(
            self.tenants.is_empty() || self.namespaces.is_empty(),
            "with `tenants`, each has `namespaces` of its own; move those of the node there"
        );
        self.check_cluster()?;
        let by_certificate = self.tenants.iter().find(|tenant| !tenant.certificates.is_empty());
        if let Some(tenant) = by_certificate.filter(|_| self.tls_clients.is_none()) {
            bail!(
                "the tenant `{}` is known by its certificate; name the authority that signs it in `tls_clients`",
                tenant.name.escape_debug()
            );
        }
        if let Some(listen) = self.listen.filter(|listen| !listen.ip().is_loopback()) {
            let fix = match (self.tls_certificate.is_some(), self.tenants.is_empty()) {
                (true, false) => return Ok(()),
                (false, false) => "give `tls_certificate` and `tls_key`",
                (true, true) => "say who may connect in `tenants`",
                (false, true) => {
                    "give `tls_certificate` and `tls_key`, and say who may connect in `tenants`"
                }
            };
            bail!(
                "`listen` is {listen}, which other machines can reach: {fix}; or listen on 127.0.0.1:{}",
                listen.port()
            );
        }
        Ok(())
    }

    /// How TLS is spoken, if it is. Reads the files.
    pub(crate) fn tls(&self) -> anyhow::Result<Option<Arc<ServerConfig>>> {
        let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) else {
            return Ok(None);
        };
        // Whoever has a token needs no certificate, and other nodes have the cluster's.
        let by_certificate = self.tenants.iter().all(|tenant| tenant.tokens.is_empty());
        let required = by_certificate && self.cluster_token.is_none();
        let clients = self.tls_clients.as_deref();
        let clients = clients.map(|authority| Clients { authority, required });
        Ok(Some(forebay_identity::server_config(certificate, key, clients)?))
    }

    /// Whether all the files that say who is who can be used.
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

    fn complaint(text: &str) -> String {
        format!("{:#}", checked(text).unwrap_err())
    }

    const TLS: &str = "tls_certificate = \"node.pem\"\ntls_key = \"node.key\"\n";
    const TENANT: &str =
        "[[tenants]]\nname = \"a\"\ntokens = [\"a.token\"]\nnamespaces = [\"public\"]\n";

    /// Promise 4: whoever is given bytes has proved its identity, and nobody listens in.
    #[test]
    fn other_machines_are_told_apart_and_nobody_listens_in() {
        let beyond = "listen = \"0.0.0.0:7070\"\n";
        let both = "give `tls_certificate` and `tls_key`, and say who may connect in `tenants`";
        assert!(complaint(beyond).contains(both));
        assert!(complaint(beyond).contains("or listen on 127.0.0.1:7070"));
        assert!(
            complaint(&format!("{beyond}{TLS}")).contains(": say who may connect in `tenants`")
        );
        assert!(complaint(&format!("{beyond}{TENANT}")).contains(": give `tls_certificate`"));
        assert!(checked(&format!("{beyond}{TLS}{TENANT}")).is_ok());
        assert!(checked("listen = \"[::1]:7070\"").is_ok(), "this machine's own users");
        assert!(complaint("listen = \"[::]:7070\"").contains("other machines"));
    }

    #[test]
    fn contradictions_about_who_is_who_are_named() {
        let listen = "listen = \"127.0.0.1:7070\"\n";
        assert!(complaint(TLS).contains("say where with `listen`"));
        assert!(complaint("tls_key = \"k\"").contains("go together"));
        assert!(complaint("tls_clients = \"ca.pem\"").contains("give `tls_certificate`"));
        let keys = format!("namespaces = [\"team.key\"]\n{TENANT}");
        assert!(complaint(&keys).contains("move those of the node there"));
        let by_name = format!("{listen}{TLS}{TENANT}certificates = [\"A.example\"]\n");
        assert!(complaint(&by_name).contains("name the authority that signs it in `tls_clients`"));
        assert!(complaint(&format!("{TENANT}token = \"x\"")).contains("did you mean `tokens`"));
        assert!(complaint(&format!("{TENANT}uids = [-1]")).contains("`id -u NAME`"));
        assert!(complaint("tenants = 3").contains("[[tenants]]"));
    }
}
