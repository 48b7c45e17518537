//! Private files: the one rule by which files are opened that another user may have made.
//!
//! Another user can put anything under a name that this process will open: a link, a pipe without a
//! writer, a device that never ends. Three kinds of path have three degrees of the rule:
//!
//! | path | function | checked |
//! |---|---|---|
//! | that the operator names: configuration, certificates | [`read_named`] | regular file, size |
//! | of a secret: tokens, keys | `read_private` | the same, owner, mode 0600 |
//! | in a directory that other users can write to | [`open_own`], [`ensure_own_directory`] | the same, owner, no link |
//!
//! No open blocks. Links are followed where the operator names the path: secrets that Kubernetes
//! mounts are links. The counterpart in Python is `_runtime/private_files.py`.

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use forebay_core::ids::{Token, TokenError};
use rustix::{fs::OFlags, process::geteuid};
use zeroize::Zeroizing;

/// Longest token file that is read. A token file is one short line.
const TOKEN_FILE_SIZE_MAX: u64 = 4096;

/// Why a file or directory is not used. The message never quotes its content.
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
    /// Another user owns the file and can replace its content.
    #[error(
        "the file `{}` belongs to another user, who can replace it; use a copy of your own",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A directory, link, pipe or device. A pipe may never end.
    #[error("`{}` is not a file; name a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is too long to be what it should be.
    #[error("`{}` is longer than {size_max} bytes; name another file", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The limit.
        size_max: u64,
    },
    /// Other users could replace what lies in the directory.
    #[error(
        "`{}` is a link, belongs to another user, or others may write to it; use a directory of \
         your own with mode 700",
        path.display()
    )]
    Directory {
        /// The directory.
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

/// Reads a file that the operator names, of at most `size_max` bytes.
pub fn read_named(path: &Path, size_max: u64) -> Result<Vec<u8>, PrivateFileError> {
    let (file, _) = open_regular(path, OpenOptions::new().read(true), OFlags::empty())?;
    let mut content = Vec::new();
    read_up_to(path, file, size_max, &mut content)?;
    Ok(content)
}

/// Reads a file of at most `size_max` bytes that only its owner, this user, can access.
pub(crate) fn read_private(
    path: &Path,
    size_max: u64,
) -> Result<Zeroizing<Vec<u8>>, PrivateFileError> {
    let (file, metadata) = open_regular(path, OpenOptions::new().read(true), OFlags::empty())?;
    if metadata.mode() & 0o077 != 0 {
        return Err(PrivateFileError::Readable { path: path.to_owned() });
    }
    check_owner(path, &metadata)?;
    // Of its final size, because a buffer that grows leaves copies behind.
    let size = usize::try_from(size_max + 1).unwrap_or(0);
    let mut content = Zeroizing::new(Vec::with_capacity(size));
    read_up_to(path, file, size_max, &mut content)?;
    Ok(content)
}

/// Opens a regular file of this user in a directory that other users may write to. `options` with
/// `create` make it with mode 0600.
pub fn open_own(path: &Path, options: &mut OpenOptions) -> Result<File, PrivateFileError> {
    // Before the open, because opening a device can have effects.
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            return Err(PrivateFileError::NotAFile { path: path.to_owned() });
        }
        Ok(metadata) => check_owner(path, &metadata)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(PrivateFileError::Io { path: path.to_owned(), source }),
    }
    let (file, metadata) = open_regular(path, options.mode(0o600), OFlags::NOFOLLOW)?;
    check_owner(path, &metadata)?;
    Ok(file)
}

/// Creates a directory with this mode, and its parents. An existing one must be this user's, no
/// link, and writable for this user only.
pub fn ensure_own_directory(path: &Path, mode: u32) -> Result<Metadata, PrivateFileError> {
    let failed = |source| PrivateFileError::Io { path: path.to_owned(), source };
    let refused = || PrivateFileError::Directory { path: path.to_owned() };
    match DirBuilder::new().recursive(true).mode(mode).create(path) {
        // A link to nothing, or a file.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(refused()),
        created => created.map_err(failed)?,
    }
    let metadata = fs::symlink_metadata(path).map_err(failed)?;
    let is_own = metadata.is_dir() && metadata.uid() == geteuid().as_raw();
    if is_own && metadata.mode() & 0o022 == 0 { Ok(metadata) } else { Err(refused()) }
}

/// Opens a regular file without waiting for the other end of a pipe.
fn open_regular(
    path: &Path,
    options: &mut OpenOptions,
    flags: OFlags,
) -> Result<(File, Metadata), PrivateFileError> {
    let failed = |source| PrivateFileError::Io { path: path.to_owned(), source };
    let not_a_file = || PrivateFileError::NotAFile { path: path.to_owned() };
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).expect("flags are positive");
    let file = match options.custom_flags(flags).open(path) {
        // The errors of a link with `NOFOLLOW`, and of a socket.
        Err(error) if is_kind_error(&error) => return Err(not_a_file()),
        opened => opened.map_err(failed)?,
    };
    // Check the open file, not the path, which could be replaced in between.
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_file() { Ok((file, metadata)) } else { Err(not_a_file()) }
}

/// Whether the open failed because of what lies at the path.
fn is_kind_error(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::LOOP, Errno::NXIO, Errno::ISDIR]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn check_owner(path: &Path, metadata: &Metadata) -> Result<(), PrivateFileError> {
    if metadata.uid() == geteuid().as_raw() {
        Ok(())
    } else {
        Err(PrivateFileError::Foreign { path: path.to_owned() })
    }
}

fn read_up_to(
    path: &Path,
    file: File,
    size_max: u64,
    content: &mut Vec<u8>,
) -> Result<(), PrivateFileError> {
    let read = file.take(size_max + 1).read_to_end(content);
    read.map_err(|source| PrivateFileError::Io { path: path.to_owned(), source })?;
    if content.len() as u64 > size_max {
        return Err(PrivateFileError::TooLong { path: path.to_owned(), size_max });
    }
    Ok(())
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
            (&secret.repeat(500), 0o600, "longer than 4096"),
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

    /// A pipe, a device that never ends, a link and a directory, each under a name of its own.
    fn traps(directory: &Path) -> [PathBuf; 4] {
        let traps = ["pipe", "link", "zero", "directory"].map(|name| directory.join(name));
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &traps[0], rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();
        fs::write(directory.join("file"), "content").unwrap();
        std::os::unix::fs::symlink(directory.join("file"), &traps[1]).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &traps[2]).unwrap();
        fs::create_dir(&traps[3]).unwrap();
        traps
    }

    #[test]
    fn nothing_but_an_own_regular_file_is_opened_in_a_shared_directory() {
        let directory = tempfile::tempdir().unwrap();
        for path in traps(directory.path()) {
            let refused = open_own(&path, OpenOptions::new().read(true)).unwrap_err();
            assert!(matches!(refused, PrivateFileError::NotAFile { .. }), "{refused}");
        }
        let new = directory.path().join("new");
        open_own(&new, OpenOptions::new().write(true).create(true)).unwrap();
        assert_eq!(fs::metadata(&new).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_named_file_is_regular_and_bounded_and_may_be_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let [pipe, link, zero, folder] = traps(directory.path());
        assert_eq!(read_named(&link, 7).unwrap(), b"content");
        let refused = read_named(&link, 6).unwrap_err();
        assert!(matches!(refused, PrivateFileError::TooLong { size_max: 6, .. }), "{refused}");
        for path in [pipe, zero, folder] {
            let refused = read_named(&path, 100).unwrap_err();
            assert!(matches!(refused, PrivateFileError::NotAFile { .. }), "{refused}");
        }
    }

    #[test]
    fn a_directory_that_others_can_replace_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("a/own");
        let metadata = ensure_own_directory(&own, 0o700).unwrap();
        assert_eq!(metadata.mode() & 0o777, 0o700);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let dangling = directory.path().join("dangling");
        std::os::unix::fs::symlink(directory.path().join("none"), &dangling).unwrap();
        let open = directory.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
        for path in [link, dangling, open] {
            let refused = ensure_own_directory(&path, 0o700).unwrap_err();
            assert!(matches!(refused, PrivateFileError::Directory { .. }), "{refused}");
        }
    }

    /// Only root can give a file to another user.
    #[test]
    fn files_and_directories_of_another_user_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (file, folder) = (directory.path().join("file"), directory.path().join("folder"));
        fs::write(&file, "").unwrap();
        fs::create_dir(&folder).unwrap();
        for path in [&file, &folder] {
            if std::os::unix::fs::chown(path, Some(65534), None).is_err() {
                return;
            }
        }
        let refused = open_own(&file, OpenOptions::new().read(true)).unwrap_err();
        assert!(matches!(refused, PrivateFileError::Foreign { .. }), "{refused}");
        let refused = ensure_own_directory(&folder, 0o700).unwrap_err();
        assert!(matches!(refused, PrivateFileError::Directory { .. }), "{refused}");
    }
}
