//! A node with two tenants, who do not trust each other.

use std::{net::TcpStream, path::PathBuf, sync::Arc};

use forebay_client::{Client, ClientError};
use forebay_core::{Endpoint, Namespace};
use forebay_identity::{Credentials, Files, create_key_file};
use forebay_server::{Config, TenantConfig};
use forebay_wire::{ErrorCode, Refusal, Reply, Request, SentToken};
use tokio_rustls::rustls::{ClientConnection, StreamOwned, pki_types::ServerName};

use crate::{
    authority::{Authority, NOW, private},
    harness::{PATIENCE, Raw, TestNode},
};

/// How the node is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// On this machine: clients over its Unix socket, since they send no token over TCP; bare connections over that.
    Clear,
    Tls,
}

/// Two tenants, `ours` and `theirs`, each with a token, a certificate and a namespace of its own; both use the
/// public one.
pub struct Town {
    pub node: TestNode,
    pub authority: Authority,
    pub way: Way,
    pub files: tempfile::TempDir,
}

pub const OURS: &str = "ours";
pub const THEIRS: &str = "theirs";

impl Town {
    pub fn new(way: Way) -> Self {
        Self::with(way, |_| {})
    }

    pub fn with(way: Way, change: impl FnOnce(&mut Config)) -> Self {
        let files = tempfile::tempdir().unwrap();
        let authority = Authority::new(files.path(), "authority");
        let mut tenants = Vec::new();
        for name in [OURS, THEIRS] {
            let path = |end: &str| files.path().join(format!("{name}.{end}"));
            private(&path("token"), &token_of(name));
            create_key_file(&path("namespace")).unwrap();
            let by_name = (way == Way::Tls).then(|| format!("{name}.example"));
            tenants.push(TenantConfig {
                name: name.to_owned(),
                tokens: vec![path("token")],
                uids: Vec::new(),
                certificates: by_name.into_iter().collect(),
                namespaces: vec![path("namespace"), PathBuf::from("public")],
            });
            authority.sign(name, &[&format!("{name}.example")], NOW);
        }
        let (certificate, key) = authority.sign("node", &["localhost", "127.0.0.1"], NOW);
        let node = TestNode::start_with(
            |config| {
                config.listen = Some("127.0.0.1:0".parse().unwrap());
                config.tenants = tenants;
                if way == Way::Tls {
                    config.tls_certificate = Some(certificate);
                    config.tls_key = Some(key);
                    config.tls_clients = Some(authority.path());
                }
                change(config);
            },
            Vec::new(),
        );
        Self { node, authority, way, files }
    }

    pub fn endpoint(&self) -> Endpoint {
        match self.way {
            Way::Clear => self.node.config.socket.as_path().into(),
            Way::Tls => format!("tls://{}", self.node.listen.unwrap()).parse().unwrap(),
        }
    }

    pub fn namespace(&self, of: &str) -> Namespace {
        forebay_identity::read_key_file(&self.files.path().join(format!("{of}.namespace"))).unwrap()
    }

    /// Known by a token.
    pub fn by_token(&self, of: &str) -> Credentials {
        self.credentials(Some(self.files.path().join(format!("{of}.token"))), None)
    }

    /// Known by a certificate.
    pub fn by_certificate(&self, of: &str) -> Credentials {
        let path = |end| self.files.path().join(format!("{of}.{end}"));
        self.credentials(None, Some((path("pem"), path("key"))))
    }

    pub fn credentials(
        &self,
        token: Option<PathBuf>,
        own: Option<(PathBuf, PathBuf)>,
    ) -> Credentials {
        let (certificate, key) = own.unzip();
        let authority = Some(self.authority.path());
        Credentials::read(&Files { token, authority, certificate, key }).unwrap()
    }

    pub fn connect(&self, credentials: &Credentials, job: &str) -> Result<Client, ClientError> {
        Client::connect_as(credentials, self.endpoint(), job, PATIENCE)
    }

    /// A bare connection of somebody who can shake hands and has said nothing.
    pub fn silent(&self) -> Raw {
        let socket = TcpStream::connect(self.node.listen.unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        if self.way == Way::Clear {
            return Raw::over(socket);
        }
        let credentials = self.credentials(None, None);
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let tls = ClientConnection::new(Arc::clone(credentials.tls().unwrap()), name).unwrap();
        Raw::over(StreamOwned::new(tls, socket))
    }

    /// The same, after a hello with this tenant's token.
    pub fn raw(&self, of: &str) -> Raw {
        self.raw_as("raw", &token_of(of))
    }

    /// The same, after a hello with this name and token.
    pub fn raw_as(&self, job: &str, token: &str) -> Raw {
        let mut raw = self.silent();
        let greeted = raw.ask(&hello(job, token.as_bytes()));
        assert!(matches!(greeted, Reply::Hello { .. }), "{greeted:?}");
        raw
    }
}

pub fn hello(job: &str, token: &[u8]) -> Request {
    let token = SentToken(token.to_vec());
    Request::Hello { version_min: 1, version_max: 1, job: job.to_owned(), token }
}

/// Long, and easy to search for.
pub fn token_of(name: &str) -> String {
    format!("token-of-{name}-").repeat(4)
}

/// Both ways, one after the other.
pub fn on_both_ways(test: impl Fn(&Town)) {
    for way in [Way::Clear, Way::Tls] {
        test(&Town::new(way));
    }
}

pub fn refusal(reply: Reply) -> Refusal {
    match reply {
        Reply::Error(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

pub fn code(error: &ClientError) -> ErrorCode {
    match error {
        ClientError::Refused(refusal) => refusal.code,
        other => panic!("{other}"),
    }
}
