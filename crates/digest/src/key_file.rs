//! Key files of namespaces: readable by their owner alone, or not at all.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use forebay_core::names::{Namespace, NamespaceKeyError};

/// A key file is two short lines; whatever is longer is something else.
const SIZE_MAX: u64 = 4096;

/// Why a key file was not used. Never quotes what is in the file.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// Others could have read the key.
    #[error("the key file `{}` can be read by others; make it yours alone with `chmod 600 {}`", path.display(), path.display())]
    Readable {
        /// The file.
        path: PathBuf,
    },
    /// Somebody else could put their key there.
    #[error("the key file `{}` belongs to another user; use a copy of your own", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Not a key.
    #[error("`{}`: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: NamespaceKeyError,
    },
    /// A key is never overwritten.
    #[error("`{}` exists already, and a key is never overwritten; choose another name", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file failed.
    #[error("cannot use the key file `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// How.
        source: io::Error,
    },
}

/// Reads a namespace's key, if nobody else can.
pub fn read_key_file(path: &Path) -> Result<Namespace, KeyFileError> {
    let failed = |source| KeyFileError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    // Ask the open file, not the path: it cannot be exchanged in between.
    let metadata = file.metadata().map_err(failed)?;
    if metadata.mode() & 0o077 != 0 {
        return Err(KeyFileError::Readable { path: path.to_owned() });
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(KeyFileError::Foreign { path: path.to_owned() });
    }
    let mut text = String::new();
    let read = file.take(SIZE_MAX).read_to_string(&mut text);
    let key = |source| KeyFileError::Key { path: path.to_owned(), source };
    match read {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(key(NamespaceKeyError::Header))
        }
        Err(error) => Err(failed(error)),
        Ok(_) => Namespace::from_key_file(&text).map_err(key),
    }
}

/// Makes a namespace with a fresh random key, in a file that must not exist yet.
pub fn create_key_file(path: &Path) -> Result<Namespace, KeyFileError> {
    let failed = |source| KeyFileError::Io { path: path.to_owned(), source };
    let mut key = [0; 32];
    let mut random = File::open("/dev/urandom").map_err(failed)?;
    random.read_exact(&mut key).map_err(failed)?;
    let namespace = Namespace::secret(key)
        .map_err(|source| KeyFileError::Key { path: path.to_owned(), source })?;
    let options = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = options.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => KeyFileError::Exists { path: path.to_owned() },
        _ => failed(source),
    })?;
    file.write_all(namespace.to_key_file().as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    Ok(namespace)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

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
    fn a_key_that_others_can_read_is_refused_with_the_fix() {
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
        for content in [&b""[..], b"\xff\xfe", &[b'a'; 10_000]] {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(matches!(read_key_file(&path), Err(KeyFileError::Key { .. })));
        }
        assert!(matches!(
            read_key_file(&directory.path().join("none")),
            Err(KeyFileError::Io { .. })
        ));
    }
}
