//! Reads with `io_uring`: one system call submits all reads of a round and returns when all are
//! done.
//!
//! **Invariant:** the kernel writes only to memory that the ring owns, and that is not freed while
//! it may. [`Ring::read`] returns when the kernel is done with that memory. If that is unknown,
//! because the ring itself failed, the memory is never freed and the ring never used again.

#![expect(unsafe_code, reason = "the kernel holds pointers, whose lifetimes Rust cannot check")]

use std::{io, mem::ManuallyDrop, os::fd::AsRawFd as _};

use io_uring::{IoUring, opcode, types::Fd};
use memmap2::MmapMut;
use rustix::io::Errno;

use super::{Read, read_whole};

/// A ring, and the memory that it reads into.
pub(crate) struct Ring {
    queues: IoUring,
    memory: ManuallyDrop<MmapMut>,
    /// Bytes of `memory` that were ever used.
    used: usize,
    /// Reads that the kernel has not completed.
    running: usize,
    process: u32,
}

impl Ring {
    /// A ring for `reads` reads at once, into `bytes` bytes of memory.
    pub(super) fn new(reads: usize, bytes: usize) -> io::Result<Self> {
        let entries = u32::try_from(reads).expect("a small number");
        // Completions without interrupts, where the kernel supports it (Linux 5.19).
        let queues = match IoUring::builder().setup_coop_taskrun().build(entries) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                IoUring::new(entries)?
            }
            other => other?,
        };
        let memory = ManuallyDrop::new(MmapMut::map_anon(bytes)?);
        Ok(Self { queues, memory, used: 0, running: 0, process: std::process::id() })
    }

    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id() && self.running == 0
    }

    /// Bytes of the memory that was used, and of the queues: 96 for each read that fits.
    pub(super) fn bytes(&self) -> u64 {
        (self.used + super::ROUND_READS * 96) as u64
    }

    pub(super) fn memory(&self) -> &[u8] {
        assert_eq!(self.running, 0, "the kernel may still be writing");
        &self.memory
    }

    /// Executes all of these reads, which do not overlap in memory.
    pub(super) fn read(&mut self, reads: &[Read<'_>]) -> Vec<io::Result<usize>> {
        assert!(self.is_ours(), "the ring has failed or belongs to another process");
        for (number, read) in reads.iter().enumerate() {
            self.used = self.used.max(read.at + read.length);
            let target = &mut self.memory[read.at..][..read.length];
            let length = u32::try_from(read.length).expect("a round is smaller");
            let entry = opcode::Read::new(Fd(read.file.as_raw_fd()), target.as_mut_ptr(), length)
                .offset(read.offset)
                .build()
                .user_data(number as u64);
            // SAFETY: `target` is in memory that this ring owns, and that is neither read nor freed
            // before `running` is 0 again. The descriptor is borrowed for longer than this call.
            unsafe { self.queues.submission().push(&entry) }
                .expect("a round is no longer than the ring");
            self.running += 1;
        }
        let mut found: Vec<io::Result<usize>> = Vec::new();
        found.resize_with(reads.len(), || Err(io::Error::other("the ring failed")));
        while self.running > 0 {
            match self.queues.submit_and_wait(self.running) {
                Ok(_) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                    _ => return found,
                },
            }
            for entry in self.queues.completion() {
                self.running -= 1;
                let number = usize::try_from(entry.user_data()).expect("one of ours");
                found[number] = usize::try_from(entry.result())
                    .map_err(|_| Errno::from_raw_os_error(-entry.result()).into());
            }
        }
        // A short read is repeated with `pread`; it is usually at the end of a file.
        for (read, found) in reads.iter().zip(&mut found) {
            let short = match found {
                Ok(count) => *count < read.length,
                Err(error) => {
                    matches!(Errno::from_io_error(error), Some(Errno::INTR | Errno::AGAIN))
                }
            };
            if short {
                let target = &mut self.memory[read.at..][..read.length];
                *found = read_whole(read.file, read.offset, target);
            }
        }
        found
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.running == 0 {
            // SAFETY: the memory is dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("running", &self.running).finish_non_exhaustive()
    }
}
