//! Owner id: a random number that marks a device as this node's. It is stored in the node's
//! directory and on every device.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

use anyhow::Context as _;
use forebay_auth::{PrivateFileError, read_named};
use forebay_transport::Entropy;
use tempfile::NamedTempFile;

/// File with the owner id, in the node's directory.
pub(super) const FILE: &str = "node.id";

/// Length of an owner id in bytes.
const LENGTH: usize = 16;

/// Reads the owner id of a directory, or creates it.
pub(super) fn read_or_create(directory: &Path) -> anyhow::Result<[u8; LENGTH]> {
    let path = directory.join(FILE);
    let shown = path.display();
    match read_named(&path, LENGTH as u64) {
        Ok(bytes) => bytes.try_into().ok().with_context(|| {
            format!("`{shown}` is damaged: it is not 16 bytes long; remove it and the devices")
        }),
        Err(PrivateFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            let nonce =
                Entropy::kernel().nonce().context("cannot read random bytes from the kernel")?;
            let id = *nonce.first_chunk::<LENGTH>().expect("longer");
            create(directory, &path, &id).with_context(|| {
                format!(
                    "cannot create `{shown}`; free space, start one node at a time, or choose \
                     another directory with --directory"
                )
            })?;
            Ok(id)
        }
        Err(error) => Err(error).context("cannot read the owner id"),
    }
}

/// Publishes an owner id. The file appears complete or not at all, since a node that fails halfway,
/// on a full disk for example, must not leave one that the next start refuses.
fn create(directory: &Path, path: &Path, id: &[u8; LENGTH]) -> io::Result<()> {
    let mut file = NamedTempFile::with_prefix_in(FILE, directory)?;
    file.write_all(id)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    File::open(directory)?.sync_all()
}

/// Removes the owner id that a failed first start has created.
pub(super) fn remove(directory: &Path) {
    // If it stays, the next start warns of lost devices, which is harmless.
    let _ = fs::remove_file(directory.join(FILE));
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn an_owner_id_is_created_once() {
        let directory = tempfile::tempdir().unwrap();
        let id = read_or_create(directory.path()).unwrap();
        assert_eq!(read_or_create(directory.path()).unwrap(), id);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file");
    }

    #[test]
    fn anything_but_a_file_is_refused_by_name_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let refused = || format!("{:#}", read_or_create(directory.path()).unwrap_err());
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(refused().contains("node.id` is not a file"), "{}", refused());
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(refused().contains("node.id` is not a file"), "{}", refused());
        fs::remove_file(&path).unwrap();
        for damaged in [0, 15, 17, 1 << 20] {
            fs::write(&path, vec![1; damaged]).unwrap();
            assert!(refused().contains("node.id` is "), "{}", refused());
        }
    }
}
