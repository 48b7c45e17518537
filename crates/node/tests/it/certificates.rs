//! Wrong certificates, tokens and ports: each is reported in one line that names the remedy.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use forebay_auth::{Credentials, Files};
use forebay_client::Client;
use forebay_core::{
    Endpoint,
    cluster::ring::{Member, Weight},
};
use forebay_node::{Config, TenantConfig};
use forebay_transport::{Connector as _, Sockets};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::{
    harness::TIMEOUT,
    test_ca::{Authority, EXPIRED, NOT_YET_VALID, VALID, Years, private},
    two_tenants::{OURS, TenantSetup, Transport, hello, token_of},
};

fn at(scheme: &str, address: SocketAddr) -> Endpoint {
    format!("{scheme}://{address}").parse().unwrap()
}

/// The error of a connection attempt.
fn connect_error(credentials: &Credentials, endpoint: Endpoint) -> String {
    let error = Client::connect_as(credentials, endpoint, "x", TIMEOUT).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

/// A server that presents a certificate without checking it.
fn server_with_certificate(certificate: &Path, key: &Path) -> SocketAddr {
    let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let (listener, config) = (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(config));
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let _ = StreamOwned::new(tls, socket).read(&mut [0; 1]);
        }
    });
    address
}

/// A server that answers every connection with these bytes.
fn server_answering(bytes: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let _ = socket.read(&mut [0; 1]);
            let _ = socket.write_all(bytes);
            thread::sleep(Duration::from_millis(200));
        }
    });
    address
}

#[test]
fn a_node_with_an_invalid_certificate_is_rejected() {
    let files = tempfile::tempdir().unwrap();
    let authority = Authority::new(files.path(), "authority");
    let other = Authority::new(files.path(), "other");
    let credentials =
        Credentials::read(&Files { authority: Some(authority.path()), ..Files::default() })
            .unwrap();
    let shown = |by: &Authority, names: &[&str], years: Years| {
        let (certificate, key) = by.sign("shown", names, years);
        connect_error(&credentials, at("tls", server_with_certificate(&certificate, &key)))
    };
    let here = ["127.0.0.1"];
    let expired = shown(&authority, &here, EXPIRED);
    assert!(
        expired.contains("expired") && expired.contains("renew it, or set the clock"),
        "{expired}"
    );
    let early = shown(&authority, &here, NOT_YET_VALID);
    assert!(early.contains("do the clocks of the two machines agree?"), "{early}");
    let foreign = shown(&other, &here, VALID);
    assert!(
        foreign.contains("another authority") && foreign.contains("FOREBAY_TLS_CA"),
        "{foreign}"
    );
    let elsewhere = shown(&authority, &["elsewhere.example"], VALID);
    assert!(elsewhere.contains("for another name"), "{elsewhere}");
    let no_ca = connect_error(&Credentials::default(), at("tls", server_answering(b"")));
    assert!(no_ca.contains("set FOREBAY_TLS_CA"), "{no_ca}");
}

#[test]
fn a_client_with_an_invalid_certificate_gets_the_reason() {
    let setup = TenantSetup::new(Transport::Tls);
    let other = Authority::new(setup.files.path(), "other");
    let foreign = setup.credentials(None, Some(other.sign("foreign", &["ours.example"], VALID)));
    let error = connect_error(&foreign, setup.endpoint());
    assert!(error.contains("`tls_client_ca` names"), "{error}");
    let unknown = setup.authority.sign("unknown", &["unknown.example"], VALID);
    let error = connect_error(&setup.credentials(None, Some(unknown)), setup.endpoint());
    assert!(error.contains("does not know you"), "{error}");
    // If no tenant has a token, the handshake requires a certificate.
    let strict = TenantSetup::with(Transport::Tls, |config| {
        config.tenants.iter_mut().for_each(|tenant| tenant.tokens.clear());
    });
    let error = connect_error(&strict.credentials(None, None), strict.endpoint());
    assert!(error.contains("wants a certificate; set FOREBAY_TLS_CERTIFICATE"), "{error}");
    assert!(strict.connect(&strict.by_certificate(OURS), "x").is_ok());
}

#[test]
fn the_wrong_kind_of_port_is_named() {
    let (plain, tls) = (TenantSetup::new(Transport::Cleartext), TenantSetup::new(Transport::Tls));
    let credentials = plain.credentials(None, None);
    let error = connect_error(&credentials, at("tls", plain.node.listen.unwrap()));
    assert!(error.contains("does not speak TLS") && error.contains("use tcp://"), "{error}");
    let error = connect_error(&credentials, at("tcp", tls.node.listen.unwrap()));
    assert!(error.contains("use tls:// instead of tcp://"), "{error}");
    let error = connect_error(&plain.by_token(OURS), at("tcp", plain.node.listen.unwrap()));
    assert!(error.contains("no token is sent; use the node's Unix socket"), "{error}");
    let http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    let error = connect_error(&credentials, at("tcp", server_answering(http)));
    assert!(error.contains("does not speak forebay's protocol"), "{error}");
    let error = connect_error(&credentials, at("tls", server_answering(http)));
    assert!(error.contains("does not speak TLS"), "{error}");
    let error = connect_error(&credentials, "tcp://127.0.0.1:1".parse().unwrap());
    assert!(error.contains("no process listens at `tcp://127.0.0.1:1`"), "{error}");
}

struct TestFiles {
    directory: tempfile::TempDir,
    authority: Authority,
}

impl TestFiles {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The error of a configuration with these changes.
    fn config_error(&self, change: impl FnOnce(&mut Config)) -> String {
        let (certificate, key) = self.authority.sign("node", &["localhost"], VALID);
        private(&self.path("a.token"), &"a".repeat(64));
        private(&self.path("b.token"), &"b".repeat(64));
        let tenant = |name: &str| TenantConfig {
            name: name.to_owned(),
            tokens: vec![self.path(&format!("{name}.token"))],
            namespaces: vec!["public".into()],
            ..TenantConfig::default()
        };
        let mut config = Config {
            listen: Some("0.0.0.0:0".parse().unwrap()),
            tls_certificate: Some(certificate),
            tls_key: Some(key),
            tenants: vec![tenant("a"), tenant("b")],
            ..Config::default()
        };
        config
            .check()
            .and_then(|()| config.check_files())
            .expect("it is valid without the changes");
        change(&mut config);
        let error = config.check().and_then(|()| config.check_files()).unwrap_err();
        let error = format!("{error:#}");
        assert!(!error.contains('\n') && !error.contains("aaaa"), "{error}");
        error
    }
}

#[test]
fn invalid_files_are_named_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "authority");
    let files = TestFiles { directory, authority };
    let sign = |name: &str, years| files.authority.sign(name, &["localhost"], years);
    let with = |(certificate, key): (PathBuf, PathBuf)| {
        files.config_error(|config| {
            config.tls_certificate = Some(certificate);
            config.tls_key = Some(key);
        })
    };
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    assert!(with(sign("old", EXPIRED)).contains("expired"), "expired");
    assert!(with(sign("new", NOT_YET_VALID)).contains("compare the clocks"), "not yet valid");
    let (one, other) = (sign("one", VALID), sign("other", VALID));
    let error = with((one.0.clone(), other.1));
    assert!(error.contains("does not belong to the certificate"), "{error}");
    open(&one.1, 0o640);
    assert!(with(one.clone()).contains("chmod 600"), "a key that other users can read");
    private(&files.path("empty.pem"), "");
    let error = with((files.path("empty.pem"), one.1.clone()));
    assert!(error.contains("there is no certificate in"), "{error}");
    open(&one.1, 0o600);
    let error = with((one.0.clone(), files.path("empty.pem")));
    assert!(error.contains("there is no private key in"), "{error}");
    let error = files.config_error(|config| config.tls_client_ca = Some(files.path("none.pem")));
    assert!(error.contains("none.pem"), "{error}");

    let token = |content: &str, mode| {
        files.config_error(|_| {
            private(&files.path("b.token"), content);
            open(&files.path("b.token"), mode);
        })
    };
    assert!(token(&"b".repeat(64), 0o644).contains("chmod 600"));
    assert!(token("", 0o600).contains("the tenant `b`: the token file"));
    assert!(token(&"b".repeat(257), 0o600).contains("longer than 256"));
    assert!(token(&"a".repeat(64), 0o600).contains("`a` and `b` have a token in common"));
    let error = files.config_error(|config| config.tenants[1].name = "a".to_owned());
    assert!(error.contains("two tenants `a`"), "{error}");
    let error =
        files.config_error(|config| config.tenants[0].namespaces = vec!["public".into(); 2]);
    assert!(error.contains("named twice"), "{error}");
}

/// A certificate that the other nodes would reject is an error of the configuration.
#[test]
fn the_certificate_of_a_node_is_valid_for_its_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "authority");
    let other = Authority::new(directory.path(), "other");
    let files = TestFiles { directory, authority };
    let in_a_cluster = |config: &mut Config| {
        let member = |name: &str| Member {
            name: name.parse().unwrap(),
            endpoint: format!("tls://{name}.example:7070").parse().unwrap(),
            weight: Weight::default(),
            zone: None,
        };
        config.nodes = vec![member("a"), member("b")];
        config.name = Some("a".parse().unwrap());
        private(&files.path("cluster.token"), &"c".repeat(64));
        config.cluster_token = Some(files.path("cluster.token"));
    };
    let error = files.config_error(|config| {
        in_a_cluster(config);
        config.cluster_ca = Some(other.path());
    });
    assert!(error.contains("was not signed by the authority in"), "{error}");
    let error = files.config_error(|config| {
        in_a_cluster(config);
        config.cluster_ca = Some(files.authority.path());
        private(&files.path("cluster.token"), &"b".repeat(64));
    });
    assert!(error.contains("`b` has the same token as the cluster"), "{error}");
    let error = files.config_error(|config| {
        in_a_cluster(config);
        config.cluster_ca = Some(files.authority.path());
        config.check().and_then(|()| config.check_files()).expect("it is signed");
        let (certificate, key) = files.authority.sign_for_clients("client", &["localhost"]);
        (config.tls_certificate, config.tls_key) = (Some(certificate), Some(key));
    });
    assert!(error.contains("extendedKeyUsage=serverAuth"), "{error}");
}

/// The files in a client's environment are checked before it connects.
#[test]
fn a_clients_own_files_are_checked_first() {
    let files = tempfile::tempdir().unwrap();
    let authority = Authority::new(files.path(), "authority");
    let read = |certificate: Option<PathBuf>, key: Option<PathBuf>, named: bool| {
        let authority = named.then(|| authority.path());
        let read = Credentials::read(&Files { token: None, authority, certificate, key });
        read.unwrap_err().to_string()
    };
    let (certificate, key) = authority.sign("me", &["me.example"], EXPIRED);
    let expired = read(Some(certificate.clone()), Some(key.clone()), true);
    assert!(expired.contains("expired") && expired.contains("renew it"), "{expired}");
    assert!(read(Some(certificate.clone()), None, true).contains("go together"));
    assert!(read(Some(certificate), Some(key), false).contains("needs FOREBAY_TLS_CA"));
}

/// Agents connect asynchronously, with other code than jobs.
#[test]
fn an_agents_connection_has_the_same_errors() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let setup = TenantSetup::new(Transport::Tls);
    let connect_agent = |credentials: &Credentials, endpoint: Endpoint| {
        runtime.block_on(async {
            let connected = Sockets.connect(&endpoint, credentials, TIMEOUT);
            let (mut reader, mut writer) = connected.await?;
            let hello = hello("agent", token_of(OURS).as_bytes()).encode(1).to_bytes();
            writer.write_all(&hello).await?;
            writer.flush().await?;
            reader.read_u32_le().await
        })
    };
    let credentials = setup.credentials(None, None);
    assert_eq!(connect_agent(&credentials, setup.endpoint()).unwrap(), 6, "a version and a lease");
    let other = Authority::new(setup.files.path(), "other");
    let foreign = Files { authority: Some(other.path()), ..Files::default() };
    let error = connect_agent(&Credentials::read(&foreign).unwrap(), setup.endpoint()).unwrap_err();
    assert!(error.to_string().contains("another authority"), "{error}");
    let plain = TenantSetup::new(Transport::Cleartext);
    let error = connect_agent(&credentials, at("tls", plain.node.listen.unwrap())).unwrap_err();
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
    let error = connect_agent(&Credentials::default(), setup.endpoint()).unwrap_err();
    assert!(error.to_string().contains("FOREBAY_TLS_CA"), "{error}");
    assert!(connect_agent(&credentials, plain.endpoint()).is_ok());
}
