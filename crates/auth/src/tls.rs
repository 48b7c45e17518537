//! TLS configurations from PEM files, which are checked before the first connection.
//!
//! TLS 1.3 only, with `ring`. The authorities are the configured ones: the system's list is for web
//! sites. Sessions are not resumed, so that each connection presents its certificate.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::Resumption,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject as _},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};
use webpki::{EndEntityCert, KeyUsage};

use crate::{
    private_file::{PrivateFileError, read_named, read_private},
    tls_errors::span,
};

/// Longest certificate or key file that is read. Chains and keys are a few KiB.
const FILE_SIZE_MAX: u64 = 1 << 20;

/// Why certificates cannot be used. The message never quotes a key.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    /// The key's file is not private, or cannot be read.
    #[error(transparent)]
    Key(#[from] PrivateFileError),
    /// I/O error.
    #[error("cannot read the certificates in `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file has no PEM section of the expected kind.
    #[error("there is no {what} in `{}`; give a PEM file that has one", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
    },
    /// The certificate has expired.
    #[error(
        "the certificate `{}` expired {} ago; renew it, or set this machine's clock",
        path.display(), span(*seconds)
    )]
    Expired {
        /// The file.
        path: PathBuf,
        /// Seconds since it expired.
        seconds: u64,
    },
    /// The certificate is not valid yet, or the clock is wrong.
    #[error(
        "the certificate `{}` is not valid before {} from now; \
         compare the clocks of this machine and of the one that signed it",
        path.display(), span(*seconds)
    )]
    NotYet {
        /// The file.
        path: PathBuf,
        /// Seconds until it is valid.
        seconds: u64,
    },
    /// Certificate and key do not match.
    #[error(
        "the key `{}` does not belong to the certificate `{}`; \
         give the two that were made together",
        key.display(), certificate.display()
    )]
    Mismatch {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// The certificate has another extended key usage.
    #[error(
        "the certificate `{}` is not made for {}; have one signed with `extendedKeyUsage={}`",
        path.display(), usage.purpose(), usage.name()
    )]
    Usage {
        /// The file.
        path: PathBuf,
        /// The usage that it needs.
        usage: Usage,
    },
    /// The certificate was signed by another authority.
    #[error(
        "the certificate `{}` was not signed by the authority in `{}`, \
         so other nodes will refuse it; \
         have it signed by that authority, or configure the one that signed it",
        path.display(), authority.display()
    )]
    Unsigned {
        /// The certificate.
        path: PathBuf,
        /// The authority.
        authority: PathBuf,
    },
    /// Another defect of the certificate.
    #[error("the certificate `{}` cannot be used here: {problem}", path.display())]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// The defect.
        problem: String,
    },
}

/// The side of a connection that presents a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// A node.
    Server,
    /// A client.
    Client,
}

impl Usage {
    fn purpose(self) -> &'static str {
        match self {
            Self::Server => "nodes",
            Self::Client => "clients",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Server => "serverAuth",
            Self::Client => "clientAuth",
        }
    }

    fn key_usage(self) -> KeyUsage {
        match self {
            Self::Server => KeyUsage::server_auth(),
            Self::Client => KeyUsage::client_auth(),
        }
    }
}

/// A node's policy for client certificates.
#[derive(Debug, Clone, Copy)]
pub struct Clients<'a> {
    /// The authority that signs them.
    pub authority: &'a Path,
    /// Whether the handshake fails without one.
    pub required: bool,
}

/// The TLS configuration of a node.
pub fn server_config(
    certificate: &Path,
    key: &Path,
    clients: Option<Clients<'_>>,
) -> Result<Arc<ServerConfig>, TlsFileError> {
    let chain = read_chain(certificate, Usage::Server)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring supports TLS 1.3");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(Clients { authority, required }) => {
            let authorities = Arc::new(read_authorities(authority)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider());
            let verifier =
                if required { verifier } else { verifier.allow_unauthenticated() }.build();
            builder
                .with_client_cert_verifier(verifier.map_err(|error| unsuitable(authority, &error))?)
        }
    };
    let config = builder.with_single_cert(chain, read_key(key)?);
    let mut config = config.map_err(|error| not_together(certificate, key, &error))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The TLS configuration of a client. It trusts nodes whose certificates the authority has signed,
/// and presents its own certificate and key (`own`) if it has them.
pub fn client_config(
    authority: &Path,
    own: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, TlsFileError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring supports TLS 1.3")
        .with_root_certificates(read_authorities(authority)?);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = read_chain(certificate, Usage::Client)?;
            let config = builder.with_client_auth_cert(chain, read_key(key)?);
            config.map_err(|error| not_together(certificate, key, &error))?
        }
    };
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Checks that a node's certificate was signed by an authority.
pub fn check_signed(certificate: &Path, authority: &Path) -> Result<(), TlsFileError> {
    let chain = read_chain(certificate, Usage::Server)?;
    let authorities = read_authorities(authority)?;
    let first =
        EndEntityCert::try_from(&chain[0]).map_err(|error| unsuitable(certificate, &error))?;
    let (usage, algorithms) =
        (KeyUsage::server_auth(), provider().signature_verification_algorithms);
    let (algorithms, now) = (algorithms.all, UnixTime::now());
    let verified =
        first.verify_for_usage(algorithms, &authorities.roots, &chain[1..], now, usage, None, None);
    let (path, authority) = (certificate.to_owned(), authority.to_owned());
    verified.map(drop).map_err(|_| TlsFileError::Unsigned { path, authority })
}

/// The DNS names of a peer's certificate, which must have been verified.
pub fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    EndEntityCert::try_from(certificate)
        .map(|certificate| certificate.valid_dns_names().map(str::to_ascii_lowercase).collect())
        .unwrap_or_default()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let missing = || TlsFileError::Missing { path: path.to_owned(), what: "certificate" };
    let pem = read_named(path, FILE_SIZE_MAX).map_err(|error| match error {
        PrivateFileError::Io { path, source } => TlsFileError::Io { path, source },
        _ => missing(),
    })?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(missing)
}

fn read_authorities(path: &Path) -> Result<RootCertStore, TlsFileError> {
    let mut authorities = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        authorities.add(certificate).map_err(|error| unsuitable(path, &error))?;
    }
    Ok(authorities)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsFileError> {
    let pem = read_private(path, FILE_SIZE_MAX)?;
    PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| TlsFileError::Missing { path: path.to_owned(), what: "private key" })
}

/// Reads a chain whose first certificate is valid now and for this usage.
fn read_chain(path: &Path, usage: Usage) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let chain = read_certificates(path)?;
    let certificate = EndEntityCert::try_from(&chain[0]);
    let certificate = certificate.map_err(|error| unsuitable(path, &error))?;
    // The peers decide which authority they trust. Without one, this verifies the times and the
    // usage, and then fails with `UnknownIssuer`.
    let verified =
        certificate.verify_for_usage(&[], &[], &[], UnixTime::now(), usage.key_usage(), None, None);
    match verified.map(drop) {
        Err(webpki::Error::CertExpired { time, not_after }) => Err(TlsFileError::Expired {
            path: path.to_owned(),
            seconds: time.as_secs().saturating_sub(not_after.as_secs()),
        }),
        Err(webpki::Error::CertNotValidYet { time, not_before }) => Err(TlsFileError::NotYet {
            path: path.to_owned(),
            seconds: not_before.as_secs().saturating_sub(time.as_secs()),
        }),
        Ok(()) | Err(webpki::Error::UnknownIssuer) => Ok(chain),
        Err(webpki::Error::RequiredEkuNotFoundContext(_)) => {
            Err(TlsFileError::Usage { path: path.to_owned(), usage })
        }
        Err(error) => Err(unsuitable(path, &error)),
    }
}

fn unsuitable(path: &Path, problem: &impl fmt::Display) -> TlsFileError {
    TlsFileError::Unsuitable { path: path.to_owned(), problem: problem.to_string() }
}

fn not_together(certificate: &Path, key: &Path, error: &rustls::Error) -> TlsFileError {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsFileError::Mismatch { certificate: certificate.to_owned(), key: key.to_owned() }
        }
        error => unsuitable(certificate, error),
    }
}
