//! Yardsticks of streams: a bare loop of direct I/O, a buffered loop, and a mapped file, all over
//! one file with blocks of a stream's length.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use forebay_flash::{
    buffers::BufferPool,
    io::{Backend, DeviceFile, Disk, IoCommand, IoId, open_disk},
};
use memmap2::{Advice, Mmap};

use super::{BLOCK, DEPTH, sum};

/// A file of blocks.
pub struct Bare {
    path: PathBuf,
    disk: Box<dyn Disk>,
    pool: Arc<BufferPool>,
    blocks: u64,
}

impl Bare {
    pub fn open(path: &Path, blocks: u64) -> anyhow::Result<Self> {
        let file = Arc::new(DeviceFile::open(path, blocks * BLOCK as u64)?);
        let pool = BufferPool::new(DEPTH as usize * BLOCK)?;
        let disk = open_disk(&file, Backend::Auto, &[Arc::clone(&pool)])?;
        Ok(Self { path: path.to_owned(), disk, pool, blocks })
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

    /// Reads the whole file through the page cache, from which it is dropped before.
    pub fn read_buffered(&self) -> anyhow::Result<u64> {
        let file = self.uncached()?;
        let mut block = vec![0; BLOCK];
        for number in 0..self.blocks {
            file.read_exact_at(&mut block, number * BLOCK as u64)?;
        }
        Ok(self.blocks * BLOCK as u64)
    }

    /// Sums the numbers of the file, mapped and dropped from the page cache before.
    #[expect(unsafe_code, reason = "a file is mapped")]
    pub fn sum_mapped(&self) -> anyhow::Result<(u64, f64)> {
        let file = self.uncached()?;
        // SAFETY: no other process changes the file of the benchmark.
        let mapping = unsafe { Mmap::map(&file)? };
        mapping.advise(Advice::Sequential)?;
        Ok((self.blocks * BLOCK as u64, mapping.chunks(BLOCK).map(sum).sum()))
    }

    fn uncached(&self) -> anyhow::Result<File> {
        let file = File::open(&self.path)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential)?;
        Ok(file)
    }
}
