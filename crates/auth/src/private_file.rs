//! Private files: secrets in files that only their owner can access.

use std::{
    fs::OpenOptions,
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use forebay_core::ids::{Token, TokenError};
use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// Longest token file that is read. A token file is one short line.
const TOKEN_FILE_SIZE_MAX: u64 = 4096;

/// Why a private file cannot be used. The message never quotes its content.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// Other users can access the secret.
    #[error(
        "the file `{}` holds a secret and can be read by others; restrict it with `chmod 600 {}`",
        path.display(), path.display()
    )]
    Readable {
        /// The file.
        path: PathBuf,
    },
    /// Another user owns the file and can replace the secret.
    #[error(
        "the file `{}` holds a secret and belongs to another user; use a copy of your own",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A directory, pipe or device. A pipe may never end.
    #[error(
        "`{}` is not a file; store the secret in one that only its user can read",
        path.display()
    )]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Not a token.
    #[error("the token file `{}`: {source}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The error.
        source: TokenError,
    },
    /// I/O error.
    #[error("cannot use the file `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Reads at most `size_max` bytes of a file that only its owner, this user, can access.
pub(crate) fn read_private(
    path: &Path,
    size_max: u64,
) -> Result<Zeroizing<Vec<u8>>, PrivateFileError> {
    let failed = |source| PrivateFileError::Io { path: path.to_owned(), source };
    // Opening a pipe without a writer would block.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag");
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    // Check the open file, not the path, which could be replaced in between.
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(PrivateFileError::NotAFile { path: path.to_owned() });
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(PrivateFileError::Readable { path: path.to_owned() });
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(PrivateFileError::Foreign { path: path.to_owned() });
    }
    // Of its final size, because a buffer that grows leaves copies behind.
    let mut content = Zeroizing::new(Vec::with_capacity(usize::try_from(size_max).unwrap_or(0)));
    file.take(size_max).read_to_end(&mut content).map_err(failed)?;
    Ok(content)
}

/// Reads a token from a private file.
pub fn read_token_file(path: &Path) -> Result<Token, PrivateFileError> {
    let content = read_private(path, TOKEN_FILE_SIZE_MAX)?;
    let text = str::from_utf8(&content).map_err(|_| TokenError::Characters);
    let token = text.and_then(str::parse);
    token.map_err(|source| PrivateFileError::Token { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn bad_token_files_are_refused_with_the_remedy_and_never_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("team.token");
        let secret = "s3cr3t-".repeat(8);
        let write = |content: &str, mode| {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write(&format!("{secret}\n"), 0o600);
        assert_eq!(read_token_file(&path).unwrap().as_bytes(), secret.as_bytes());
        for (content, mode, remedy) in [
            (secret.as_str(), 0o640, "chmod 600"),
            (&secret, 0o604, "chmod 600"),
            ("", 0o600, "no token in it; make one with `openssl rand -hex 32`"),
            ("s3cr3t", 0o600, "6 characters, fewer than 32"),
            (&secret.repeat(5), 0o600, "longer than 256"),
            (&secret.repeat(500), 0o600, "longer than 256"),
            (&format!("{secret} {secret}"), 0o600, "one line"),
        ] {
            write(content, mode);
            let error = read_token_file(&path).unwrap_err().to_string();
            assert!(error.contains(remedy) && !error.contains("s3cr3t-"), "{error}");
            assert!(error.contains("team.token") && !error.contains('\n'), "{error}");
        }
        fs::write(&path, b"\xff\xfe").unwrap();
        assert!(matches!(read_token_file(&path), Err(PrivateFileError::Token { .. })));
        let missing = read_token_file(&directory.path().join("none")).unwrap_err();
        assert!(missing.to_string().contains("none"), "{missing}");
    }

    #[test]
    fn a_pipe_is_refused_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let refused = read_token_file(&path).unwrap_err();
        assert!(matches!(refused, PrivateFileError::NotAFile { .. }), "{refused}");
        let refused = read_token_file(directory.path()).unwrap_err();
        assert!(matches!(
            refused,
            PrivateFileError::Readable { .. } | PrivateFileError::NotAFile { .. }
        ));
    }
}
