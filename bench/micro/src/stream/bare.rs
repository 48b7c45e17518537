//! The yardstick of streams: a bare loop of direct I/O over a file with blocks as long as a
//! stream's.

use std::{path::Path, sync::Arc};

use forebay_flash::{
    buffers::BufferPool,
    io::{Backend, DeviceFile, Disk, IoCommand, IoId, open_disk},
};

use super::{BLOCK, IN_FLIGHT};

/// A file of blocks.
pub struct Bare {
    disk: Box<dyn Disk>,
    pool: Arc<BufferPool>,
    blocks: u64,
    /// Where the next write begins.
    at: u64,
}

impl Bare {
    pub fn open(path: &Path, blocks: u64) -> anyhow::Result<Self> {
        let file = Arc::new(DeviceFile::open(path, blocks * BLOCK as u64)?);
        let pool = BufferPool::new(IN_FLIGHT as usize * BLOCK)?;
        let disk = open_disk(&file, Backend::Auto, &[Arc::clone(&pool)])?;
        Ok(Self { disk, pool, blocks, at: 0 })
    }

    /// Reads the file in order, past the page cache. Returns its bytes.
    pub fn read(&mut self) -> anyhow::Result<u64> {
        self.run(false, 0, self.blocks)
    }

    /// Writes this number of blocks behind those of the last call, around the file. A store fills
    /// its regions in turn, too: a drive may absorb writes to one place better.
    pub fn write_next(&mut self, count: u64) -> anyhow::Result<u64> {
        let at = (self.at + count) % self.blocks;
        let first = std::mem::replace(&mut self.at, at);
        self.run(true, first, count)
    }

    fn run(&mut self, is_write: bool, first: u64, count: u64) -> anyhow::Result<u64> {
        let (mut begun, mut ended) = (0, 0);
        let (mut commands, mut done) = (Vec::new(), Vec::new());
        while ended < count {
            while begun < count
                && let Some(buffer) = self.pool.take(BLOCK)
            {
                let offset = (first + begun) % self.blocks * BLOCK as u64;
                let id = IoId(begun);
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
        Ok(count * BLOCK as u64)
    }

    /// Reads one block.
    pub fn read_one(&mut self) -> anyhow::Result<()> {
        self.run(false, 0, 1).map(|_| ())
    }
}
