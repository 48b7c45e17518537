//! Secrets: the token and key files that all worlds of a process share. Their content is fixed, so
//! that it does not change a run.

use std::{
    fs,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::LazyLock,
};

use forebay_auth::{Credentials, Files};
use forebay_core::Namespace;
use tempfile::TempDir;

/// The files.
pub static SECRETS: LazyLock<Secrets> = LazyLock::new(Secrets::new);

/// Token and key files.
pub struct Secrets {
    /// The token by which nodes authenticate each other.
    pub cluster: PathBuf,
    /// The token of the tenant whose jobs run.
    pub team: PathBuf,
    /// The token of the tenant that attacks.
    pub other: PathBuf,
    /// The key of the team's namespace.
    pub key: PathBuf,
    /// The team's namespace.
    pub namespace: Namespace,
    _directory: TempDir,
}

impl Secrets {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let own = fs::Permissions::from_mode(0o700);
        fs::set_permissions(directory.path(), own).expect("an own directory");
        let namespace = Namespace::secret([9; 32]).expect("a key");
        let file = |name: &str, content: &str| {
            let path = directory.path().join(name);
            let mut options = fs::OpenOptions::new();
            let opened = options.write(true).create_new(true).mode(0o600).open(&path);
            let mut file = opened.expect("a new file");
            std::io::Write::write_all(&mut file, content.as_bytes()).expect("a short file");
            path
        };
        Self {
            cluster: file("cluster.token", &"cluster-".repeat(5)),
            team: file("team.token", &"team-".repeat(8)),
            other: file("other.token", &"other-".repeat(8)),
            key: file("team.key", &namespace.to_key_file()),
            namespace,
            _directory: directory,
        }
    }

    /// The credentials of a tenant with this token.
    pub fn credentials(token: &Path) -> Credentials {
        let files = Files { token: Some(token.to_owned()), ..Files::default() };
        Credentials::read(&files).expect("a token")
    }
}
