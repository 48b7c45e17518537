//! Harness: a node with two tenants that do not trust each other.

use std::{net::TcpStream, path::PathBuf, sync::Arc};

use forebay_auth::{Credentials, Files, create_key_file};
use forebay_client::{Client, ClientError};
use forebay_core::{ByteSize, Endpoint, Namespace};
use forebay_node::{Config, TenantConfig};
use forebay_wire::{ErrorCode, Refusal, Reply, Request, SentToken};
use tokio_rustls::rustls::{ClientConnection, StreamOwned, pki_types::ServerName};

use crate::{
    harness::{Raw, TIMEOUT, TestNode},
    test_ca::{Authority, VALID, private},
};

/// The transport of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Raw connections over TCP, and clients over the Unix socket, because a client sends no token
    /// over cleartext TCP.
    Cleartext,
    Tls,
}

/// A node with the tenants `ours` and `theirs`. Each has a token, a certificate and a private
/// namespace; both may use the public one.
pub struct TenantSetup {
    pub node: TestNode,
    pub authority: Authority,
    pub transport: Transport,
    pub files: tempfile::TempDir,
}

pub const OURS: &str = "ours";
pub const THEIRS: &str = "theirs";

impl TenantSetup {
    pub fn new(transport: Transport) -> Self {
        Self::with(transport, |_| {})
    }

    pub fn with(transport: Transport, change: impl FnOnce(&mut Config)) -> Self {
        let files = tempfile::tempdir().unwrap();
        let authority = Authority::new(files.path(), "authority");
        let mut tenants = Vec::new();
        for name in [OURS, THEIRS] {
            let path = |end: &str| files.path().join(format!("{name}.{end}"));
            private(&path("token"), &token_of(name));
            create_key_file(&path("namespace")).unwrap();
            let by_name = (transport == Transport::Tls).then(|| format!("{name}.example"));
            tenants.push(TenantConfig {
                name: name.to_owned(),
                tokens: vec![path("token")],
                uids: Vec::new(),
                certificates: by_name.into_iter().collect(),
                namespaces: vec![path("namespace"), PathBuf::from("public")],
                streams: ByteSize::ZERO,
                ..TenantConfig::default()
            });
            authority.sign(name, &[&format!("{name}.example")], VALID);
        }
        let (certificate, key) = authority.sign("node", &["localhost", "127.0.0.1"], VALID);
        let node = TestNode::start_with(
            |config| {
                config.listen = Some("127.0.0.1:0".parse().unwrap());
                config.tenants = tenants;
                if transport == Transport::Tls {
                    config.tls_certificate = Some(certificate);
                    config.tls_key = Some(key);
                    config.tls_client_ca = Some(authority.path());
                }
                change(config);
            },
            Vec::new(),
        );
        Self { node, authority, transport, files }
    }

    pub fn endpoint(&self) -> Endpoint {
        match self.transport {
            Transport::Cleartext => self.node.config.socket.as_path().into(),
            Transport::Tls => format!("tls://{}", self.node.listen.unwrap()).parse().unwrap(),
        }
    }

    pub fn namespace(&self, of: &str) -> Namespace {
        forebay_auth::read_key_file(&self.files.path().join(format!("{of}.namespace"))).unwrap()
    }

    /// Credentials with a tenant's token.
    pub fn by_token(&self, of: &str) -> Credentials {
        self.credentials(Some(self.files.path().join(format!("{of}.token"))), None)
    }

    /// Credentials with a tenant's certificate.
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
        Client::connect_as(credentials, self.endpoint(), job, TIMEOUT)
    }

    /// A raw connection without a hello, after the TLS handshake if any.
    pub fn without_hello(&self) -> Raw {
        let socket = TcpStream::connect(self.node.listen.unwrap()).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.set_write_timeout(Some(TIMEOUT)).unwrap();
        if self.transport == Transport::Cleartext {
            return Raw::over(socket);
        }
        let credentials = self.credentials(None, None);
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let tls = ClientConnection::new(Arc::clone(credentials.tls().unwrap()), name).unwrap();
        Raw::over(StreamOwned::new(tls, socket))
    }

    /// A raw connection after a hello with this tenant's token.
    pub fn raw(&self, of: &str) -> Raw {
        self.raw_as("raw", &token_of(of))
    }

    /// A raw connection after a hello with this name and token.
    pub fn raw_as(&self, job: &str, token: &str) -> Raw {
        let mut raw = self.without_hello();
        let reply = raw.call(&hello(job, token.as_bytes()));
        assert!(matches!(reply, Reply::Hello { .. }), "{reply:?}");
        raw
    }
}

pub fn hello(job: &str, token: &[u8]) -> Request {
    let token = SentToken(token.to_vec());
    Request::Hello { version_min: 1, version_max: 1, job: job.to_owned(), token }
}

/// A token that is long and easy to search for.
pub fn token_of(name: &str) -> String {
    format!("token-of-{name}-").repeat(4)
}

/// Runs a test with each transport.
pub fn on_each_transport(test: impl Fn(&TenantSetup)) {
    for transport in [Transport::Cleartext, Transport::Tls] {
        test(&TenantSetup::new(transport));
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
