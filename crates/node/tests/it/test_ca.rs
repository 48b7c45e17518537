//! Test CA: signs certificates for the tests.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};

/// A certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
    name: String,
}

/// First and last year of validity.
pub type Years = (i32, i32);
pub const VALID: Years = (2000, 4000);
pub const EXPIRED: Years = (1990, 2001);
pub const NOT_YET_VALID: Years = (3990, 4000);

impl Authority {
    pub fn new(directory: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { issuer, directory: directory.to_owned(), name: name.to_owned() };
        fs::write(authority.path(), authority.issuer.pem()).unwrap();
        authority
    }

    /// The file with the CA's own certificate.
    pub fn path(&self) -> PathBuf {
        self.directory.join(format!("{}.pem", self.name))
    }

    /// Signs a certificate for these names. Returns the files of certificate and key.
    pub fn sign(&self, file: &str, names: &[&str], (from, to): Years) -> (PathBuf, PathBuf) {
        self.sign_as(file, names, |params| {
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(to, 1, 1);
        })
    }

    /// Signs a certificate that is valid for clients only.
    pub fn sign_for_clients(&self, file: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        self.sign_as(file, names, |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        })
    }

    fn sign_as(
        &self,
        file: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> (PathBuf, PathBuf) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = self.directory.join(format!("{file}.pem"));
        fs::write(&path, certificate.pem()).unwrap();
        let key_path = self.directory.join(format!("{file}.key"));
        private(&key_path, &key.serialize_pem());
        (path, key_path)
    }
}

/// Writes a file that only its owner can read.
pub fn private(path: &Path, content: &str) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}
