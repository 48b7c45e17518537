//! Certificates, tokens and ports that do not fit: one line each, which names the fix.

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

use forebay_client::Client;
use forebay_core::{
    Endpoint,
    ring::{Member, Weight},
};
use forebay_identity::{Credentials, Files};
use forebay_server::{Config, TenantConfig, dial};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::{
    authority::{Authority, NOW, OVER, TO_COME, Years, private},
    harness::PATIENCE,
    town::{OURS, Town, Way, hello, token_of},
};

fn at(scheme: &str, address: SocketAddr) -> Endpoint {
    format!("{scheme}://{address}").parse().unwrap()
}

/// What a client is told.
fn told(credentials: &Credentials, endpoint: Endpoint) -> String {
    let error = Client::connect_as(credentials, endpoint, "x", PATIENCE).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

/// Somebody who shows a certificate without having looked at it.
fn careless(certificate: &Path, key: &Path) -> SocketAddr {
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

/// Somebody who answers everybody with these bytes.
fn answering(bytes: &'static [u8]) -> SocketAddr {
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
fn a_node_whose_certificate_does_not_hold_is_not_believed() {
    let files = tempfile::tempdir().unwrap();
    let authority = Authority::new(files.path(), "authority");
    let other = Authority::new(files.path(), "other");
    let credentials =
        Credentials::read(&Files { authority: Some(authority.path()), ..Files::default() })
            .unwrap();
    let shown = |by: &Authority, names: &[&str], years: Years| {
        let (certificate, key) = by.sign("shown", names, years);
        told(&credentials, at("tls", careless(&certificate, &key)))
    };
    let here = ["127.0.0.1"];
    let expired = shown(&authority, &here, OVER);
    assert!(
        expired.contains("expired") && expired.contains("renew it, or set the clock"),
        "{expired}"
    );
    let early = shown(&authority, &here, TO_COME);
    assert!(early.contains("do the clocks of the two machines agree?"), "{early}");
    let foreign = shown(&other, &here, NOW);
    assert!(
        foreign.contains("another authority") && foreign.contains("FOREBAY_TLS_CA"),
        "{foreign}"
    );
    let elsewhere = shown(&authority, &["elsewhere.example"], NOW);
    assert!(elsewhere.contains("for another name"), "{elsewhere}");
    let nobody = told(&Credentials::default(), at("tls", answering(b"")));
    assert!(nobody.contains("set FOREBAY_TLS_CA"), "{nobody}");
}

#[test]
fn a_client_whose_certificate_does_not_hold_is_told() {
    let town = Town::new(Way::Tls);
    let other = Authority::new(town.files.path(), "other");
    let foreign = town.credentials(None, Some(other.sign("foreign", &["ours.example"], NOW)));
    let error = told(&foreign, town.endpoint());
    assert!(error.contains("`tls_clients` names"), "{error}");
    let strange = town.authority.sign("strange", &["strange.example"], NOW);
    let error = told(&town.credentials(None, Some(strange)), town.endpoint());
    assert!(error.contains("does not know you"), "{error}");
    // Where nobody has a token, a certificate is asked for at once.
    let strict = Town::with(Way::Tls, |config| {
        config.tenants.iter_mut().for_each(|tenant| tenant.tokens.clear());
    });
    let error = told(&strict.credentials(None, None), strict.endpoint());
    assert!(error.contains("wants a certificate; set FOREBAY_TLS_CERTIFICATE"), "{error}");
    assert!(strict.connect(&strict.by_certificate(OURS), "x").is_ok());
}

#[test]
fn the_wrong_kind_of_port_is_named() {
    let (plain, tls) = (Town::new(Way::Clear), Town::new(Way::Tls));
    let credentials = plain.credentials(None, None);
    let error = told(&credentials, at("tls", plain.node.listen.unwrap()));
    assert!(error.contains("does not speak TLS") && error.contains("use tcp://"), "{error}");
    let error = told(&credentials, at("tcp", tls.node.listen.unwrap()));
    assert!(error.contains("use tls:// instead of tcp://"), "{error}");
    let error = told(&plain.by_token(OURS), at("tcp", plain.node.listen.unwrap()));
    assert!(error.contains("no token is sent there; use the node's Unix socket"), "{error}");
    let http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    let error = told(&credentials, at("tcp", answering(http)));
    assert!(error.contains("does not speak forebay's protocol"), "{error}");
    let error = told(&credentials, at("tls", answering(http)));
    assert!(error.contains("does not speak TLS"), "{error}");
    let error = told(&credentials, "tcp://127.0.0.1:1".parse().unwrap());
    assert!(error.contains("nobody answers at `tcp://127.0.0.1:1`"), "{error}");
}

struct Given {
    directory: tempfile::TempDir,
    authority: Authority,
}

impl Given {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What is said of a configuration with these changes.
    fn complaint(&self, change: impl FnOnce(&mut Config)) -> String {
        let (certificate, key) = self.authority.sign("node", &["localhost"], NOW);
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
        config.check().and_then(|()| config.check_files()).expect("it can be used as it is");
        change(&mut config);
        let error = config.check().and_then(|()| config.check_files()).unwrap_err();
        let error = format!("{error:#}");
        assert!(!error.contains('\n') && !error.contains("aaaa"), "{error}");
        error
    }
}

#[test]
fn files_that_cannot_be_used_are_named_with_the_fix() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "authority");
    let files = Given { directory, authority };
    let sign = |name: &str, years| files.authority.sign(name, &["localhost"], years);
    let with = |(certificate, key): (PathBuf, PathBuf)| {
        files.complaint(|config| {
            config.tls_certificate = Some(certificate);
            config.tls_key = Some(key);
        })
    };
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    assert!(with(sign("old", OVER)).contains("expired"), "expired");
    assert!(with(sign("new", TO_COME)).contains("do the clocks"), "not yet");
    let (one, other) = (sign("one", NOW), sign("other", NOW));
    let error = with((one.0.clone(), other.1));
    assert!(error.contains("does not belong to the certificate"), "{error}");
    open(&one.1, 0o640);
    assert!(with(one.clone()).contains("chmod 600"), "a key that others can read");
    private(&files.path("empty.pem"), "");
    let error = with((files.path("empty.pem"), one.1.clone()));
    assert!(error.contains("there is no certificate in"), "{error}");
    open(&one.1, 0o600);
    let error = with((one.0.clone(), files.path("empty.pem")));
    assert!(error.contains("there is no private key in"), "{error}");
    let error = files.complaint(|config| config.tls_clients = Some(files.path("none.pem")));
    assert!(error.contains("none.pem"), "{error}");

    let token = |content: &str, mode| {
        files.complaint(|_| {
            private(&files.path("b.token"), content);
            open(&files.path("b.token"), mode);
        })
    };
    assert!(token(&"b".repeat(64), 0o644).contains("chmod 600"));
    assert!(token("", 0o600).contains("the tenant `b`: the token file"));
    assert!(token(&"b".repeat(257), 0o600).contains("longer than 256"));
    assert!(token(&"a".repeat(64), 0o600).contains("`a` and `b` have a token in common"));
    let error = files.complaint(|config| config.tenants[1].name = "a".to_owned());
    assert!(error.contains("two tenants `a`"), "{error}");
    let error = files.complaint(|config| config.tenants[0].namespaces = vec!["public".into(); 2]);
    assert!(error.contains("named twice"), "{error}");
}

/// What the other nodes would refuse is refused here first.
#[test]
fn a_node_has_a_certificate_that_the_others_believe() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "authority");
    let other = Authority::new(directory.path(), "other");
    let files = Given { directory, authority };
    let among_others = |config: &mut Config| {
        let member = |name: &str| Member {
            name: name.parse().unwrap(),
            endpoint: format!("tls://{name}.example:7440").parse().unwrap(),
            weight: Weight::default(),
            zone: None,
        };
        config.nodes = vec![member("a"), member("b")];
        config.name = Some("a".parse().unwrap());
        private(&files.path("cluster.token"), &"c".repeat(64));
        config.cluster_token = Some(files.path("cluster.token"));
    };
    let error = files.complaint(|config| {
        among_others(config);
        config.cluster_authority = Some(other.path());
    });
    assert!(error.contains("was not signed by the authority in"), "{error}");
    let error = files.complaint(|config| {
        among_others(config);
        config.cluster_authority = Some(files.authority.path());
        private(&files.path("cluster.token"), &"b".repeat(64));
    });
    assert!(error.contains("`b` has the same token as the cluster"), "{error}");
    let error = files.complaint(|config| {
        among_others(config);
        config.cluster_authority = Some(files.authority.path());
        config.check().and_then(|()| config.check_files()).expect("it is signed");
        let (certificate, key) = files.authority.sign_for_clients("client", &["localhost"]);
        (config.tls_certificate, config.tls_key) = (Some(certificate), Some(key));
    });
    assert!(error.contains("extendedKeyUsage=serverAuth"), "{error}");
}

/// What a client has in its environment is looked at before anybody is called.
#[test]
fn a_clients_own_files_are_looked_at_first() {
    let files = tempfile::tempdir().unwrap();
    let authority = Authority::new(files.path(), "authority");
    let read = |certificate: Option<PathBuf>, key: Option<PathBuf>, named: bool| {
        let authority = named.then(|| authority.path());
        let read = Credentials::read(&Files { token: None, authority, certificate, key });
        read.unwrap_err().to_string()
    };
    let (certificate, key) = authority.sign("me", &["me.example"], OVER);
    let expired = read(Some(certificate.clone()), Some(key.clone()), true);
    assert!(expired.contains("expired") && expired.contains("renew it"), "{expired}");
    assert!(read(Some(certificate.clone()), None, true).contains("go together"));
    assert!(read(Some(certificate), Some(key), false).contains("needs FOREBAY_TLS_CA"));
}

/// Agents connect by tasks, and by other code than jobs.
#[test]
fn an_agents_way_to_a_node_is_told_the_same() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let town = Town::new(Way::Tls);
    let dial = |credentials: &Credentials, endpoint: Endpoint| {
        runtime.block_on(async {
            let (mut reader, mut writer) = dial(&endpoint, credentials, PATIENCE).await?;
            let greeting = hello("agent", token_of(OURS).as_bytes()).encode(1).to_bytes();
            writer.write_all(&greeting).await?;
            writer.flush().await?;
            reader.read_u32_le().await
        })
    };
    let credentials = town.credentials(None, None);
    assert_eq!(dial(&credentials, town.endpoint()).unwrap(), 6, "a version and a lease");
    let other = Authority::new(town.files.path(), "other");
    let foreign = Files { authority: Some(other.path()), ..Files::default() };
    let error = dial(&Credentials::read(&foreign).unwrap(), town.endpoint()).unwrap_err();
    assert!(error.to_string().contains("another authority"), "{error}");
    let plain = Town::new(Way::Clear);
    let error = dial(&credentials, at("tls", plain.node.listen.unwrap())).unwrap_err();
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
    let error = dial(&Credentials::default(), town.endpoint()).unwrap_err();
    assert!(error.to_string().contains("FOREBAY_TLS_CA"), "{error}");
    assert!(dial(&credentials, plain.endpoint()).is_ok());
}
