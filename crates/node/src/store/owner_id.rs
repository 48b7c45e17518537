//! Owner id: a random number that marks a device as this node's. It is stored in the node's
//! directory and on every device.

use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use anyhow::{Context as _, anyhow, ensure};
use forebay_transport::Entropy;

/// File with the owner id, in the node's directory.
pub(super) const FILE: &str = "node.id";

/// Reads the owner id of a directory, or creates it.
pub(super) fn read_or_create(directory: &Path) -> anyhow::Result<[u8; 16]> {
    let path = directory.join(FILE);
    let shown = path.display();
    if let Ok(bytes) = fs::read(&path) {
        let id: Option<[u8; 16]> = bytes.try_into().ok();
        return id.with_context(|| {
            format!("`{shown}` is damaged: it is not 16 bytes long; remove it and the devices")
        });
    }
    let nonce = Entropy::kernel().nonce().context("cannot read random bytes from the kernel")?;
    let id = *nonce.first_chunk::<16>().expect("longer");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| {
            anyhow!("cannot create `{shown}`: {error}; choose another directory with --directory")
        })?;
    file.write_all(&id)?;
    file.sync_all()?;
    ensure!(fs::read(&path)? == id, "another process writes `{shown}`; start one node at a time");
    Ok(id)
}

/// Removes the owner id that a failed first start has created.
pub(super) fn remove(directory: &Path) {
    // If it stays, the next start warns of lost devices, which is harmless.
    let _ = fs::remove_file(directory.join(FILE));
}
