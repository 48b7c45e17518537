//! Access key files: an S3 access key id with its secret, as in `~/.aws/credentials`.

use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::private_file::{PrivateFileError, read_private};

/// Longest file that is read. A session token is about 1 KiB.
const SIZE_MAX: u64 = 16 << 10;
/// Longest access key id.
const ID_LENGTH_MAX: usize = 128;

/// Why an access key file cannot be used. The message never quotes its content.
#[derive(Debug, thiserror::Error)]
pub enum AccessKeyFileError {
    /// The file is not private, or cannot be read.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// A line that is not understood, or a key that is missing or given twice.
    #[error(
        "`{}`: {problem}; an access key file has the lines `aws_access_key_id = …` and \
         `aws_secret_access_key = …`", path.display()
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// The defect.
        problem: &'static str,
    },
}

/// An access key. Its secrets are overwritten when it is dropped.
pub struct AccessKey {
    /// The id, which is not secret: 1 to 128 visible ASCII characters without `/` and `,`.
    pub id: String,
    /// The secret.
    pub secret: Zeroizing<String>,
    /// The session token of a temporary key.
    pub session_token: Option<Zeroizing<String>>,
}

impl std::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Reads an access key from a private file.
pub fn read_access_key_file(path: &Path) -> Result<AccessKey, AccessKeyFileError> {
    let content = read_private(path, SIZE_MAX)?;
    let text = str::from_utf8(&content).map_err(|_| "it is not text");
    let key = text.and_then(parse);
    key.map_err(|problem| AccessKeyFileError::Content { path: path.to_owned(), problem })
}

fn parse(text: &str) -> Result<AccessKey, &'static str> {
    let (mut id, mut secret, mut session_token) = (None, None, None);
    let mut sections = 0;
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with('[') {
            sections += 1;
            continue;
        }
        let (name, value) = line.split_once('=').ok_or("a line has no `=`")?;
        let value = value.trim();
        let field = match name.trim() {
            "aws_access_key_id" => &mut id,
            "aws_secret_access_key" => &mut secret,
            "aws_session_token" => &mut session_token,
            _ => continue,
        };
        if field.replace(Zeroizing::new(value.to_owned())).is_some() {
            return Err("a key is given twice");
        }
    }
    if sections > 1 {
        return Err("it has several profiles");
    }
    let id = id.ok_or("the id is missing")?;
    let secret = secret.ok_or("the secret is missing")?;
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"/,".contains(&byte);
    if !(1..=ID_LENGTH_MAX).contains(&id.len()) || !id.bytes().all(is_plain) {
        return Err("the id is not 1 to 128 visible characters without `/` and `,`");
    }
    let is_visible = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_graphic());
    if !is_visible(&secret) || session_token.as_ref().is_some_and(|token| !is_visible(token)) {
        return Err("the secret is empty or not ASCII");
    }
    Ok(AccessKey { id: (*id).clone(), secret, session_token })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn a_section_of_a_credentials_file_is_a_key() {
        let key = parse("[default]\n# a\naws_access_key_id = vision\naws_secret_access_key=s=x\n");
        let key = key.unwrap();
        assert_eq!((&*key.id, &**key.secret), ("vision", "s=x"));
        assert!(key.session_token.is_none());
    }

    #[test]
    fn damaged_and_readable_files_are_refused_and_never_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("team.key");
        let full = "aws_access_key_id = vision\naws_secret_access_key = hunter2-hunter2\n";
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write(full, 0o600);
        assert_eq!(read_access_key_file(&path).unwrap().id, "vision");
        let secret_only = full.lines().nth(1).unwrap();
        for (text, mode, remedy) in [
            (full, 0o644, "chmod 600"),
            (secret_only, 0o600, "the id is missing"),
            (&full.replace("vision", "vi/sion"), 0o600, "without `/`"),
            (&full.repeat(2), 0o600, "twice"),
            (&format!("[a]\n{full}\n[b]\n"), 0o600, "several profiles"),
            (&format!("{full}hunter2"), 0o600, "no `=`"),
        ] {
            write(text, mode);
            let error = read_access_key_file(&path).unwrap_err().to_string();
            assert!(error.contains(remedy) && !error.contains("hunter2"), "{error}");
        }
    }
}
