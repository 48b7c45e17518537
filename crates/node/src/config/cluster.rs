//! Whether what a configuration says of the nodes that share the work can be true: whoever cannot be reached, or
//! believed, by the others is told before it starts.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf, absolute},
};

use anyhow::{Context as _, bail, ensure};
use forebay_core::{Endpoint, endpoint::HostPort, names::TokenHash, ring::Member};
use forebay_identity::{check_signed, client_config, read_token_file};

use crate::config::Config;

impl Config {
    /// Refuses a list in which this node cannot take its place. Reads no file.
    pub(super) fn check_cluster(&self) -> anyhow::Result<()> {
        if self.nodes.is_empty() {
            if let Some(name) = &self.name {
                bail!(
                    "`name` is `{name}`, but there are no `nodes` among which this is one; name the file that has \
                     the list with --config, or take the name out"
                );
            }
            for (key, file) in [
                ("cluster_token", &self.cluster_token),
                ("cluster_authority", &self.cluster_authority),
            ] {
                ensure!(
                    file.is_none(),
                    "`{key}` is about other nodes; list them in `nodes`, or take it out"
                );
            }
            return Ok(());
        }
        for Member { name, endpoint, .. } in &self.nodes {
            if let Endpoint::Tcp(place) = endpoint {
                ensure!(
                    is_loopback(place),
                    "the `endpoint` of `{name}` is {endpoint}, which is in the clear: nobody speaks so to other \
                     machines; use tls://{}:{}",
                    place.host(),
                    place.port()
                );
            }
            let is_other = self.name.as_ref() != Some(name);
            ensure!(
                !is_other
                    || !matches!(endpoint, Endpoint::Tls(_))
                    || self.cluster_token.is_none()
                    || self.cluster_authority.is_some(),
                "`{name}` is reached at {endpoint}, but whose certificates are believed is not said; name the \
                 authority that signs them in `cluster_authority`"
            );
        }
        self.own().map_or(Ok(()), |own| self.check_own(&own.endpoint))
    }

    /// What is odd, but may be meant: something in between may forward connections.
    pub fn doubts(&self) -> Vec<String> {
        let place = self.own().map(|own| (&own.endpoint, self.listen));
        let Some((endpoint @ (Endpoint::Tcp(own) | Endpoint::Tls(own)), Some(listen))) = place
        else {
            return Vec::new();
        };
        let mut doubts = Vec::new();
        if listen.port() != 0 && listen.port() != own.port() {
            doubts.push(format!(
                "this node's own endpoint is {endpoint}, but it listens on {listen}; unless something forwards \
                 from there to here, give both the same port"
            ));
        }
        if listen.ip().is_loopback() && !is_loopback(own) {
            doubts.push(format!(
                "this node's own endpoint is {endpoint}, but it listens on {listen}, where no other machine comes; \
                 unless something forwards from there to here, use `listen = \"0.0.0.0:{}\"`",
                own.port()
            ));
        }
        doubts
    }

    fn own(&self) -> Option<&Member> {
        let name = self.name.as_ref()?;
        self.nodes.iter().find(|member| member.name == *name)
    }

    /// Whether it listens where others look for it.
    fn check_own(&self, endpoint: &Endpoint) -> anyhow::Result<()> {
        let own = format!("this node's own endpoint is {endpoint}");
        match endpoint {
            Endpoint::Unix(path) => ensure!(
                resolved(path) == resolved(&self.socket),
                "{own}, but it listens at {}; give both the same path (`socket`, or --socket)",
                self.socket.display()
            ),
            Endpoint::Tcp(place) | Endpoint::Tls(place) => {
                ensure!(
                    self.listen.is_some(),
                    "{own}, but it listens on no port; say `listen = \"0.0.0.0:{}\"` (or --listen)",
                    place.port()
                );
                let is_tls = matches!(endpoint, Endpoint::Tls(_));
                ensure!(
                    !is_tls || self.tls_certificate.is_some(),
                    "{own}, but it has no certificate; give `tls_certificate` and `tls_key`"
                );
                ensure!(
                    is_tls || self.tls_certificate.is_none(),
                    "{own}, but with `tls_certificate` it speaks TLS there; use tls://{}:{}",
                    place.host(),
                    place.port()
                );
            }
        }
        Ok(())
    }

    /// Whether the files by which nodes know each other can be used, and say what they should.
    pub(super) fn check_cluster_files(&self) -> anyhow::Result<()> {
        if let Some(path) = &self.cluster_token {
            let token = TokenHash::of(read_token_file(path).context("`cluster_token`")?.as_bytes());
            for tenant in &self.tenants {
                for other in &tenant.tokens {
                    ensure!(
                        TokenHash::of(read_token_file(other)?.as_bytes()) != token,
                        "the tenant `{}` has the same token as the cluster, and could pass for a node; make another \
                         for it with `openssl rand -hex 32`",
                        tenant.name
                    );
                }
            }
        }
        let Some(authority) = &self.cluster_authority else { return Ok(()) };
        client_config(authority, None).context("`cluster_authority`")?;
        if let (Some(certificate), Some(Endpoint::Tls(_))) =
            (&self.tls_certificate, self.own().map(|own| &own.endpoint))
        {
            check_signed(certificate, authority).context("`cluster_authority`")?;
        }
        Ok(())
    }
}

fn is_loopback(place: &HostPort) -> bool {
    place.host() == "localhost"
        || place.host().parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// As it would be found, whichever way it was written. The socket itself need not be there.
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

    fn complaint(text: &str) -> String {
        format!("{:#}", checked(text).unwrap_err())
    }

    fn list(a: &str, b: &str) -> String {
        format!(
            "[[nodes]]\nname = \"a\"\nendpoint = \"{a}\"\n[[nodes]]\nname = \"b\"\nendpoint = \"{b}\"\n"
        )
    }

    const TLS: &str = "name = \"a\"\nlisten = \"127.0.0.1:7\"\ntls_certificate = \"n.pem\"\ntls_key = \"n.key\"\n";

    #[test]
    fn a_node_among_others_has_a_list_of_them() {
        assert!(complaint("name = \"a\"").contains("with --config, or take the name out"));
        assert!(complaint("cluster_token = \"x\"").contains("list them in `nodes`"));
        assert!(complaint("cluster_authority = \"x\"").contains("list them in `nodes`"));
    }

    #[test]
    fn nobody_is_reached_in_the_clear_or_believed_blindly() {
        let head = "name = \"a\"\nsocket = \"/run/a.sock\"\n";
        let clear = complaint(&format!("{head}{}", list("/run/a.sock", "tcp://10.0.0.1:7440")));
        assert!(clear.contains("`b`") && clear.contains("use tls://10.0.0.1:7440"), "{clear}");
        let named = complaint(&format!("{head}{}", list("/run/a.sock", "tcp://b.example:7")));
        assert!(named.contains("use tls://b.example:7"), "{named}");
        for place in ["tcp://127.0.0.1:8", "tcp://localhost:8", "tcp://[::1]:8", "/run/b.sock"] {
            checked(&format!("{head}{}", list("/run/a.sock", place))).unwrap();
        }
        let nodes = list("/run/a.sock", "tls://b.example:7");
        let blind = complaint(&format!("cluster_token = \"t\"\n{head}{nodes}"));
        assert!(blind.contains("signs them in `cluster_authority`"), "{blind}");
        checked(&format!("{head}{nodes}")).unwrap();
        let believed = "cluster_token = \"t\"\ncluster_authority = \"ca.pem\"\n";
        checked(&format!("{believed}{head}{nodes}")).unwrap();
    }

    #[test]
    fn a_node_listens_where_others_look_for_it() {
        let at = |place: &str| list(place, "/run/b.sock");
        let head = "name = \"a\"\nsocket = \"/run/a.sock\"\n";
        let elsewhere = complaint(&format!("{head}{}", at("/tmp/a.sock")));
        assert!(elsewhere.contains("/tmp/a.sock, but it listens at /run/a.sock"), "{elsewhere}");
        checked(&format!("{head}{}", at("/run/../run/a.sock"))).unwrap();
        let nowhere = complaint(&format!("{head}{}", at("tcp://127.0.0.1:7")));
        assert!(nowhere.contains("say `listen = \"0.0.0.0:7\"`"), "{nowhere}");
        let bare = format!("{head}listen = \"127.0.0.1:7\"\n{}", at("tls://localhost:7"));
        assert!(complaint(&bare).contains("give `tls_certificate` and `tls_key`"));
        let both = complaint(&format!("{TLS}{}", at("tcp://localhost:7")));
        assert!(both.contains("use tls://localhost:7"), "{both}");
        let doubts = |place| checked(&format!("{TLS}{}", at(place))).unwrap().doubts();
        assert!(doubts("tls://localhost:7").is_empty());
        assert!(doubts("tls://localhost:8")[0].contains("the same port"));
        assert!(doubts("tls://a.example:7")[0].contains("listen = \"0.0.0.0:7\""));
    }
}
