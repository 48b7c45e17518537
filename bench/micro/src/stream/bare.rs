//! The yardstick of streams: a bare loop of direct I/O over a file with blocks as long as a
//! stream's.

use std::{path::Path, sync::Arc};

use forebay_flash::{
    buffers::BufferPool,
    io::{Backend, DeviceFile, Disk, IoCommand, IoId, open_disk},
};

use super::{BLOCK, DEPTH};

/// A file of blocks.
pub struct Bare {
    disk: Box<dyn Disk>,
    pool: Arc<BufferPool>,
    blocks: u64,
}

impl Bare {
    pub fn open(path: &Path, blocks: u64) -> anyhow::Result<Self> {
        let file = Arc::new(DeviceFile::open(path, blocks * BLOCK as u64)?);
        let pool = BufferPool::new(DEPTH as usize * BLOCK)?;
        let disk = open_disk(&file, Backend::Auto, &[Arc::clone(&pool)])?;
        Ok(Self { disk, pool, blocks })
    }

    /// Reads or writes the whole file in order, past the page cache. Returns its bytes.
    pub fn run(&mut self, is_write: bool) -> anyhow::Result<u64> {
        let (mut begun, mut ended) = (0, 0);
        let (mut commands, mut done) = (Vec::new(), Vec::new());
        while ended < self.blocks {
            while begun < self.blocks
                && let Some(buffer) = self.pool.take(BLOCK)
            {
                let (id, offset) = (IoId(begun), begun * BLOCK as u64);
                commands.push(if is_write {
                    IoCommand::Write { id, offset, bytes: buffer.freeze() }
                } else {
                    IoCommand::Read { id, offset, buffer, length: BLOCK }
                });
                begun += 1;
            }
            self.disk.submit(&mut commands);
            self.disk.wait(None, &mut done);
            for completion in done.drain(..) {
                completion.result?;
                ended += 1;
            }
        }
        Ok(self.blocks * BLOCK as u64)
    }

    /// Reads one block.
    pub fn read_one(&mut self) -> anyhow::Result<()> {
        let all = std::mem::replace(&mut self.blocks, 1);
        let outcome = self.run(false);
        self.blocks = all;
        outcome.map(|_| ())
    }
}
