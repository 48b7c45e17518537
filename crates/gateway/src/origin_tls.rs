//! TLS of the connections to an origin: the machine's list of authorities, or configured ones.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, ensure};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};

/// Longest file of authorities that is read.
const FILE_SIZE_MAX: u64 = 1 << 20;

/// The configuration for an `https://` origin.
pub fn client_config(authorities: Option<&Path>) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = authorities {
        let pem = forebay_auth::read_named(path, FILE_SIZE_MAX)?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate =
                certificate.with_context(|| format!("`{}` is not a PEM file", path.display()))?;
            roots
                .add(certificate)
                .with_context(|| format!("a certificate in `{}` is invalid", path.display()))?;
        }
        ensure!(!roots.is_empty(), "there is no certificate in `{}`", path.display());
    } else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        ensure!(
            !roots.is_empty(),
            "this machine has no list of certificate authorities; install ca-certificates, or \
             name a PEM file in `origin_ca`"
        );
    }
    Ok(with_roots(roots))
}

/// A configuration that trusts no server, for an `http://` origin.
pub fn without_roots() -> ClientConfig {
    with_roots(RootCertStore::empty())
}

fn with_roots(roots: RootCertStore) -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth()
}
