//! Checks of the cluster keys: whether the other nodes can reach this node and verify it. A mistake
//! is reported before the node starts.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf, absolute},
};

use anyhow::{Context as _, bail, ensure};
use forebay_auth::{check_signed, client_config, read_token_file};
use forebay_core::{
    Endpoint,
    cluster::ring::Member,
    ids::{TokenHash, endpoint::HostPort},
};

use crate::config::Config;

impl Config {
    /// Checks the list of nodes. Reads no file.
    pub(crate) fn check_cluster(&self) -> anyhow::Result<()> {
        if self.nodes.is_empty() {
            if let Some(name) = &self.name {
                bail!(
                    "`name` is `{name}`, but there are no `nodes`; give the file with the list by \
                     --config, or remove the name"
                );
            }
            for (key, file) in
                [("cluster_token", &self.cluster_token), ("cluster_ca", &self.cluster_ca)]
            {
                ensure!(
                    file.is_none(),
                    "`{key}` is for a cluster, but there are no other nodes; list them in `nodes`, \
                     or remove it"
                );
            }
            return Ok(());
        }
        for Member { name, endpoint, .. } in &self.nodes {
            if let Endpoint::Tcp(host) = endpoint {
                ensure!(
                    is_loopback(host),
                    "the `endpoint` of `{name}` is {endpoint}, but cleartext is for this machine \
                     only; use tls://{}:{}",
                    host.host(),
                    host.port()
                );
            }
            let is_other = self.name.as_ref() != Some(name);
            ensure!(
                !is_other
                    || !matches!(endpoint, Endpoint::Tls(_))
                    || self.cluster_token.is_none()
                    || self.cluster_ca.is_some(),
                "the `endpoint` of `{name}` is {endpoint}, but there is no CA for its certificate; \
                 name the CA that signs it in `cluster_ca`"
            );
        }
        self.own().map_or(Ok(()), |own| self.check_own(&own.endpoint))
    }

    /// Settings that are valid only if a proxy forwards connections to this node.
    pub fn warnings(&self) -> Vec<String> {
        let own = self.own().map(|own| (&own.endpoint, self.listen));
        let Some((endpoint @ (Endpoint::Tcp(host) | Endpoint::Tls(host)), Some(listen))) = own
        else {
            return Vec::new();
        };
        let mut warnings = Vec::new();
        if listen.port() != 0 && listen.port() != host.port() {
            warnings.push(format!(
                "this node's own endpoint is {endpoint}, but it listens on {listen}; without a \
                 proxy in between, give both the same port"
            ));
        }
        if listen.ip().is_loopback() && !is_loopback(host) {
            warnings.push(format!(
                "this node's own endpoint is {endpoint}, but it listens on {listen}, which other \
                 machines cannot reach; without a proxy in between, use \
                 `listen = \"0.0.0.0:{}\"`",
                host.port()
            ));
        }
        warnings
    }

    fn own(&self) -> Option<&Member> {
        let name = self.name.as_ref()?;
        self.nodes.iter().find(|member| member.name == *name)
    }

    /// Checks that the node listens at its own endpoint.
    fn check_own(&self, endpoint: &Endpoint) -> anyhow::Result<()> {
        let own = format!("this node's own endpoint is {endpoint}");
        match endpoint {
            Endpoint::Unix(path) => ensure!(
                resolved(path) == resolved(&self.socket),
                "{own}, but it listens at {}; give both the same path (`socket`, or --socket)",
                self.socket.display()
            ),
            Endpoint::Tcp(host) | Endpoint::Tls(host) => {
                ensure!(
                    self.listen.is_some(),
                    "{own}, but it listens on no port; set `listen = \"0.0.0.0:{}\"` (or --listen)",
                    host.port()
                );
                let is_tls = matches!(endpoint, Endpoint::Tls(_));
                ensure!(
                    !is_tls || self.tls_certificate.is_some(),
                    "{own}, but it has no certificate; give `tls_certificate` and `tls_key`"
                );
                ensure!(
                    is_tls || self.tls_certificate.is_none(),
                    "{own}, but with `tls_certificate` it uses TLS there; use tls://{}:{}",
                    host.host(),
                    host.port()
                );
            }
        }
        Ok(())
    }

    /// Checks the files by which nodes authenticate each other.
    pub(crate) fn check_cluster_files(&self) -> anyhow::Result<()> {
        if let Some(path) = &self.cluster_token {
            let token = TokenHash::of(read_token_file(path).context("`cluster_token`")?.as_bytes());
            for tenant in &self.tenants {
                for other in &tenant.tokens {
                    ensure!(
                        TokenHash::of(read_token_file(other)?.as_bytes()) != token,
                        "the tenant `{}` has the same token as the cluster, so it could pose as a \
                         node; create another for it with `openssl rand -hex 32`",
                        tenant.name
                    );
                }
            }
        }
        let Some(authority) = &self.cluster_ca else { return Ok(()) };
        client_config(authority, None).context("`cluster_ca`")?;
        if let (Some(certificate), Some(Endpoint::Tls(_))) =
            (&self.tls_certificate, self.own().map(|own| &own.endpoint))
        {
            check_signed(certificate, authority).context("`cluster_ca`")?;
        }
        Ok(())
    }
}

fn is_loopback(host: &HostPort) -> bool {
    host.host() == "localhost"
        || host.host().parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The canonical form of a path whose last component need not exist.
fn resolved(path: &Path) -> PathBuf {
    let path = absolute(path).unwrap_or_else(|_| path.to_owned());
    match (path.parent().and_then(|parent| fs::canonicalize(parent).ok()), path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> anyhow::Result<Config> {
        let config = Config::parse(text)?;
        config.check()?;
        Ok(config)
    }

    fn error(text: &str) -> String {
        format!("{:#}", checked(text).unwrap_err())
    }

    fn list(a: &str, b: &str) -> String {
        format!(
            "[[nodes]]\nname = \"a\"\nendpoint = \"{a}\"\n\
             [[nodes]]\nname = \"b\"\nendpoint = \"{b}\"\n"
        )
    }

    const TLS: &str = "name = \"a\"\nlisten = \"127.0.0.1:7\"\n\
                       tls_certificate = \"n.pem\"\ntls_key = \"n.key\"\n";

    #[test]
    fn the_cluster_keys_need_a_list_of_nodes() {
        assert!(error("name = \"a\"").contains("by --config, or remove the name"));
        assert!(error("cluster_token = \"x\"").contains("list them in `nodes`"));
        assert!(error("cluster_ca = \"x\"").contains("list them in `nodes`"));
    }

    #[test]
    fn other_machines_need_tls_and_a_ca() {
        let head = "name = \"a\"\nsocket = \"/run/a.sock\"\n";
        let clear = error(&format!("{head}{}", list("/run/a.sock", "tcp://10.0.0.1:7070")));
        assert!(clear.contains("`b`") && clear.contains("use tls://10.0.0.1:7070"), "{clear}");
        let named = error(&format!("{head}{}", list("/run/a.sock", "tcp://b.example:7")));
        assert!(named.contains("use tls://b.example:7"), "{named}");
        for own in ["tcp://127.0.0.1:8", "tcp://localhost:8", "tcp://[::1]:8", "/run/b.sock"] {
            checked(&format!("{head}{}", list("/run/a.sock", own))).unwrap();
        }
        let nodes = list("/run/a.sock", "tls://b.example:7");
        let without_ca = error(&format!("cluster_token = \"t\"\n{head}{nodes}"));
        assert!(without_ca.contains("signs it in `cluster_ca`"), "{without_ca}");
        checked(&format!("{head}{nodes}")).unwrap();
        let with_ca = "cluster_token = \"t\"\ncluster_ca = \"ca.pem\"\n";
        checked(&format!("{with_ca}{head}{nodes}")).unwrap();
    }

    #[test]
    fn a_node_listens_at_its_own_endpoint() {
        let at = |own: &str| list(own, "/run/b.sock");
        let head = "name = \"a\"\nsocket = \"/run/a.sock\"\n";
        let elsewhere = error(&format!("{head}{}", at("/tmp/a.sock")));
        assert!(elsewhere.contains("/tmp/a.sock, but it listens at /run/a.sock"), "{elsewhere}");
        checked(&format!("{head}{}", at("/run/../run/a.sock"))).unwrap();
        let nowhere = error(&format!("{head}{}", at("tcp://127.0.0.1:7")));
        assert!(nowhere.contains("set `listen = \"0.0.0.0:7\"`"), "{nowhere}");
        let bare = format!("{head}listen = \"127.0.0.1:7\"\n{}", at("tls://localhost:7"));
        assert!(error(&bare).contains("give `tls_certificate` and `tls_key`"));
        let both = error(&format!("{TLS}{}", at("tcp://localhost:7")));
        assert!(both.contains("use tls://localhost:7"), "{both}");
        let warnings = |own| checked(&format!("{TLS}{}", at(own))).unwrap().warnings();
        assert!(warnings("tls://localhost:7").is_empty());
        assert!(warnings("tls://localhost:8")[0].contains("the same port"));
        assert!(warnings("tls://a.example:7")[0].contains("listen = \"0.0.0.0:7\""));
    }
}
