//! A ring for reads only, without a thread: for a process that reads the device of another.
//!
//! The thread that calls submits and waits. Where `io_uring` is not available, a read is made when
//! it is started.
//!
//! **Memory.** A buffer is in `in_flight` from before the kernel sees its read until the completion
//! has been taken. Dropping the ring waits for the reads that run.

#![expect(unsafe_code, reason = "the kernel gets pointers, which the compiler cannot check")]

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::Arc,
};

use io_uring::{IoUring, opcode, types::Fd};
use rustix::io::Errno;

use super::{Completion, IoFault, IoId};
use crate::{buffers::Buffer, format::BLOCK_SIZE};

/// Reads that can run at a time.
const ENTRIES: u32 = 64;

/// Reads of one file.
pub struct ReadRing {
    file: Arc<OwnedFd>,
    /// `None` where `io_uring` is not available.
    uring: Option<IoUring>,
    in_flight: BTreeMap<u64, Pending>,
    done: VecDeque<Completion>,
}

struct Pending {
    buffer: Buffer,
    length: usize,
}

impl ReadRing {
    /// A ring for a file that was opened for direct I/O.
    pub fn new(file: Arc<OwnedFd>) -> Self {
        let mut builder = IoUring::builder();
        builder.dontfork();
        let uring = builder.build(ENTRIES).inspect_err(|error| {
            tracing::info!(%error, "io_uring not available, reads are made one at a time");
        });
        Self { file, uring: uring.ok(), in_flight: BTreeMap::new(), done: VecDeque::new() }
    }

    /// Whether another read can be started.
    pub fn has_room(&self) -> bool {
        self.in_flight.len() < ENTRIES as usize
    }

    /// Starts a read into the first bytes of a buffer. All numbers are multiples of a block.
    pub fn start(&mut self, IoId(id): IoId, offset: u64, mut buffer: Buffer, length: usize) {
        assert!(self.has_room(), "the caller asks first");
        assert!(length <= buffer.len(), "the read fits into the buffer");
        assert!((offset | length as u64).is_multiple_of(BLOCK_SIZE as u64), "whole blocks");
        let Some(uring) = &mut self.uring else {
            let read = rustix::io::pread(&*self.file, &mut buffer[..length], offset);
            let result = whole(read.map_err(IoFault::from), length);
            return self.done.push_back(Completion { id: IoId(id), buffer: Some(buffer), result });
        };
        let (start, bytes) = (buffer.as_mut_ptr(), u32::try_from(length).expect("below 4 GiB"));
        let before = self.in_flight.insert(id, Pending { buffer, length });
        assert!(before.is_none(), "a read has a number of its own");
        let read = opcode::Read::new(Fd(self.file.as_raw_fd()), start, bytes).offset(offset);
        let entry = read.build().user_data(id);
        // SAFETY: the buffer is in `in_flight` until the completion has been taken, and the file is
        // open while the ring lives.
        let pushed = unsafe { uring.submission().push(&entry) };
        pushed.expect("the queue has room for all reads in flight");
        // Reads that are not accepted now are submitted by the next wait.
        let _ = uring.submit();
    }

    /// Waits for a read; `None` if none runs.
    pub fn wait(&mut self) -> io::Result<Option<Completion>> {
        loop {
            if let Some(completion) = self.done.pop_front() {
                return Ok(Some(completion));
            }
            if self.in_flight.is_empty() {
                return Ok(None);
            }
            self.enter()?;
        }
    }

    /// Waits for at least one completion.
    fn enter(&mut self) -> io::Result<()> {
        let uring = self.uring.as_mut().expect("reads are in flight");
        match uring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                _ => return Err(error),
            },
        }
        for entry in uring.completion() {
            let Pending { buffer, length } =
                self.in_flight.remove(&entry.user_data()).expect("a read completes once");
            let read = usize::try_from(entry.result())
                .map_err(|_| IoFault::from(Errno::from_raw_os_error(-entry.result())));
            let (id, result) = (IoId(entry.user_data()), whole(read, length));
            self.done.push_back(Completion { id, buffer: Some(buffer), result });
        }
        Ok(())
    }
}

impl Drop for ReadRing {
    fn drop(&mut self) {
        while !self.in_flight.is_empty() {
            if self.enter().is_err() {
                // The kernel may still write to the buffers.
                std::mem::forget(std::mem::take(&mut self.in_flight));
            }
        }
    }
}

fn whole(read: Result<usize, IoFault>, length: usize) -> Result<(), IoFault> {
    match read {
        Ok(read) if read == length => Ok(()),
        Ok(_) => Err(IoFault::Short),
        Err(fault) => Err(fault),
    }
}
