//! Namespace key files.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use forebay_core::ids::{Namespace, NamespaceKeyError};
use zeroize::Zeroizing;

use crate::private_file::{PrivateFileError, read_private};

/// Longest key file that is read. A key file is two short lines.
const SIZE_MAX: u64 = 4096;

/// Why a key file cannot be read or created. The message never quotes its content.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file is not private, or cannot be read.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// Not a key.
    #[error("`{}`: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The error.
        source: NamespaceKeyError,
    },
    /// The file exists already.
    #[error(
        "`{}` exists already, and a key is never overwritten; choose another name",
        path.display()
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
}

/// Reads a namespace's key from a private file.
pub fn read_key_file(path: &Path) -> Result<Namespace, KeyFileError> {
    let content = read_private(path, SIZE_MAX)?;
    let text = str::from_utf8(&content).map_err(|_| NamespaceKeyError::Header);
    let namespace = text.and_then(Namespace::from_key_file);
    namespace.map_err(|source| KeyFileError::Key { path: path.to_owned(), source })
}

/// Creates a namespace with a random key, in a new private file.
pub fn create_key_file(path: &Path) -> Result<Namespace, KeyFileError> {
    let failed = |source| PrivateFileError::Io { path: path.to_owned(), source };
    let mut key = Zeroizing::new([0; 32]);
    let mut random = File::open("/dev/urandom").map_err(failed)?;
    random.read_exact(&mut *key).map_err(failed)?;
    let namespace = Namespace::secret(*key)
        .map_err(|source| KeyFileError::Key { path: path.to_owned(), source })?;
    let options = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = options.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => KeyFileError::Exists { path: path.to_owned() },
        _ => failed(source).into(),
    })?;
    let written = file
        .write_all(Zeroizing::new(namespace.to_key_file()).as_bytes())
        .and_then(|()| file.sync_all());
    if let Err(source) = written {
        let _ = fs::remove_file(path);
        return Err(failed(source).into());
    }
    Ok(namespace)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_file_is_read_back_and_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("team.key");
        let made = create_key_file(&path).unwrap();
        assert_eq!(read_key_file(&path).unwrap(), made);
        assert!(matches!(create_key_file(&path), Err(KeyFileError::Exists { .. })));
        assert_eq!(read_key_file(&path).unwrap(), made);
    }

    #[test]
    fn a_key_that_other_users_can_read_is_refused_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("team.key");
        create_key_file(&path).unwrap();
        for mode in [0o640, 0o604, 0o660, 0o601] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read_key_file(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn other_files_are_not_keys() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        for content in [&b""[..], b"\xff\xfe", &[b'a'; 4_000]] {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(read_key_file(&path), Err(KeyFileError::Key { .. })));
        }
        assert!(matches!(
            read_key_file(&directory.path().join("none")),
            Err(KeyFileError::File(_))
        ));
    }
}
