//! Borrowed stores: the sealed streams of a store that another process of the same user owns.
//!
//! The owner passes the descriptor of the device and the places of blocks. The borrower reads and
//! verifies by itself, into its own memory and without a thread. Its leases end with its
//! connection.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use forebay_core::{
    ByteSize,
    streams::{
        StreamName,
        catalogue::StreamInfo,
        lending::LeaseId,
        loan::{LOAN_VERSION, LoanReply, LoanRequest, LoanTerms},
    },
};
use forebay_flash::{
    buffers::BufferPool,
    format::{DeviceId, Geometry, REGION_SIZE_MAX, REGION_SIZE_MIN, REGIONS_MAX},
};
use parking_lot::{Mutex, MutexGuard};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{PidfdFlags, pidfd_open},
};

use crate::{
    borrowed_reader::BorrowedReader,
    error::{StoreError, StreamError},
    interrupt::Interrupt,
    loan_socket::{LoanSocket, LoanWait},
    of_process::OfProcess,
    owned_reader::slot_length,
    reader::{OpenOptions, Reader},
};

/// Longest wait for a reply of the owner. It answers from memory, and writes up to 16 MiB that are
/// staged first. An owner that is stopped does not answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the reply to a returned lease. Nothing depends on it but the number of readers
/// that the owner counts.
const RETURN_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which a thread that waits for another one's request looks at interrupts.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// A store that another process owns.
#[derive(Clone)]
pub struct BorrowedStore {
    pub(crate) lender: OfProcess<Arc<LenderLink>>,
}

/// The connection to the owner, and what belongs to it.
pub(crate) struct LenderLink {
    directory: PathBuf,
    socket: LoanSocket,
    /// Requests whose replies were not awaited. Locked while a request is on its way.
    unanswered: Mutex<u32>,
    interrupt: Interrupt,
    /// A descriptor that is readable when the owner has ended.
    owner: OwnedFd,
    pub(crate) device: Arc<OwnedFd>,
    pub(crate) geometry: Geometry,
    block_length: u64,
    /// Memory of all readers.
    pub(crate) memory: Arc<BufferPool>,
    process: u32,
}

impl BorrowedStore {
    /// Connects to the process that owns the store in this directory. `None` if no process does.
    /// `memory` is for readers, and is taken at once. `interrupt` ends this wait for the owner, and
    /// those of later calls.
    pub fn connect(
        directory: &Path,
        memory: ByteSize,
        interrupt: Interrupt,
    ) -> Result<Option<Self>, StoreError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::Interrupted => StoreError::Interrupted,
            _ => StoreError::Borrow { path: directory.to_owned(), source },
        };
        let wait = LoanWait::new(TIMEOUT, interrupt.clone());
        let socket = match LoanSocket::connect(directory, &wait) {
            Ok(socket) => socket,
            Err(error) => {
                return match error.kind() {
                    // No socket, or one that an owner left when it was killed.
                    io::ErrorKind::NotFound
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::NotADirectory => Ok(None),
                    io::ErrorKind::PermissionDenied => {
                        Err(StoreError::NotPermitted(directory.to_owned()))
                    }
                    _ => Err(failed(error)),
                };
            }
        };
        let peer = socket.peer().map_err(failed)?;
        if !peer.is_same_user {
            return Err(StoreError::OtherUser(directory.to_owned()));
        }
        let owner = match pidfd_open(peer.process, PidfdFlags::empty()) {
            Ok(owner) => owner,
            // It has ended since it accepted the connection.
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        };
        // An owner that refuses this process replies and closes before it is asked.
        let _ = socket.send(&LoanRequest::Hello { version: LOAN_VERSION }.encode(), &wait);
        let received = match socket.receive_with(&wait) {
            Ok((message, _)) if message.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            received => received,
        };
        let (message, device) = match received {
            Ok(received) => received,
            Err(_) if has_ended(&owner) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let (terms, device) = match (LoanReply::decode(&message), device) {
            (Some(LoanReply::Welcome(terms)), Some(device)) => (terms, device),
            (Some(LoanReply::Refused(text)), _) => return Err(StoreError::NotLent(text)),
            _ => return Err(failed(io::ErrorKind::InvalidData.into())),
        };
        let geometry = geometry(&terms).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
        let slot = slot_length(terms.block_length) as u64;
        if memory.0 < slot {
            let (block, min) = (ByteSize(terms.block_length), ByteSize(slot));
            return Err(StoreError::Memory { memory, block, min });
        }
        let memory = usize::try_from(memory.0).unwrap_or(usize::MAX);
        let link = LenderLink {
            directory: directory.to_owned(),
            socket,
            unanswered: Mutex::default(),
            interrupt,
            owner,
            device: Arc::new(device),
            geometry,
            block_length: terms.block_length,
            memory: BufferPool::new(memory).map_err(failed)?,
            process: std::process::id(),
        };
        Ok(Some(Self { lender: OfProcess::new(Arc::new(link)) }))
    }

    /// Opens a sealed stream. `follow` and `consume` are for the owner alone.
    pub fn open(&self, name: &str, options: OpenOptions) -> Result<Reader, StreamError> {
        let name = StreamName::new(name)?;
        BorrowedReader::open(&self.lender, name, options).map(Reader::from)
    }

    /// The streams, by name.
    pub fn list(&self) -> Result<Vec<StreamInfo>, StreamError> {
        let mut streams: Vec<StreamInfo> = Vec::new();
        loop {
            let after = streams.last().map(|last| last.name.clone());
            match self.lender.ask(&LoanRequest::List { after })? {
                LoanReply::Streams(more) if more.is_empty() => return Ok(streams),
                LoanReply::Streams(more) => streams.extend(more),
                _ => return Err(self.lender.end()),
            }
        }
    }

    /// Longest block.
    pub fn block_length(&self) -> u64 {
        self.lender.block_length
    }

    /// Size of the store.
    pub fn capacity(&self) -> ByteSize {
        let geometry = &self.lender.geometry;
        ByteSize(u64::from(geometry.regions) * geometry.region_size)
    }

    /// Addresses of the memory for reading, in which the blocks of all readers lie.
    pub fn read_memory(&self) -> std::ops::Range<usize> {
        let start = self.lender.memory.base() as usize;
        start..start + self.lender.memory.size()
    }

    /// Memory for reading, and how much of it no reader has reserved.
    pub fn read_memory_sizes(&self) -> (ByteSize, ByteSize) {
        let memory = &self.lender.memory;
        (ByteSize(memory.size() as u64), ByteSize(memory.free_bytes() as u64))
    }

    /// Fails in a forked child, which has to connect by itself.
    pub fn check_process(&self) -> Result<(), StreamError> {
        self.lender.check_process()
    }
}

impl LenderLink {
    pub(crate) fn block_length(&self) -> u64 {
        self.block_length
    }

    pub(crate) fn check_process(&self) -> Result<(), StreamError> {
        let (owner, process) = (self.process, std::process::id());
        if owner == process { Ok(()) } else { Err(StreamError::Forked { owner, process }) }
    }

    /// Sends a request and waits for the reply. A reply that does not come in time ends the
    /// connection. After an interrupt, the reply is skipped when it comes.
    pub(crate) fn ask(&self, request: &LoanRequest) -> Result<LoanReply, StreamError> {
        self.check_process()?;
        let wait = LoanWait::new(TIMEOUT, self.interrupt.clone());
        let asked = self.locked(&wait).and_then(|mut unanswered| {
            self.skip_replies(&mut unanswered, &wait)?;
            self.send(request, &mut unanswered, &wait)?;
            self.receive(&mut unanswered, &wait)
        });
        match asked {
            Ok(LoanReply::Refused(text)) => Err(StreamError::Refused(text)),
            Ok(reply) => Ok(reply),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                Err(StreamError::Interrupted)
            }
            Err(_) => Err(self.end()),
        }
    }

    /// Returns a lease. Waits for 1 s at most, so that the owner has one reader less after this;
    /// the reply of an owner that is stopped is skipped when it comes.
    pub(crate) fn return_lease(&self, lease: LeaseId) {
        let wait = LoanWait::new(RETURN_TIMEOUT, Interrupt::NEVER);
        let returned = self.locked(&wait).and_then(|mut unanswered| {
            let is_behind = *unanswered > 0;
            self.send(&LoanRequest::Return(lease), &mut unanswered, &wait)?;
            if is_behind {
                return Ok(());
            }
            self.receive(&mut unanswered, &wait).map(|_| ())
        });
        match returned {
            Err(error) if error.kind() != io::ErrorKind::TimedOut => drop(self.end()),
            // If the owner is gone, so is the lease.
            _ => {}
        }
    }

    /// The right to send and to receive.
    fn locked(&self, wait: &LoanWait) -> io::Result<MutexGuard<'_, u32>> {
        loop {
            if let Some(unanswered) = self.unanswered.try_lock_for(LOCK_INTERVAL) {
                return Ok(unanswered);
            }
            wait.check()?;
        }
    }

    fn send(&self, request: &LoanRequest, unanswered: &mut u32, wait: &LoanWait) -> io::Result<()> {
        self.socket.send(&request.encode(), wait)?;
        *unanswered += 1;
        Ok(())
    }

    fn receive(&self, unanswered: &mut u32, wait: &LoanWait) -> io::Result<LoanReply> {
        let message = self.socket.receive(wait)?;
        *unanswered -= 1;
        LoanReply::decode(&message).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Receives the replies that were not awaited. A lease among them is returned.
    fn skip_replies(&self, unanswered: &mut u32, wait: &LoanWait) -> io::Result<()> {
        while *unanswered > 0 {
            if let LoanReply::Lent(stream) = self.receive(unanswered, wait)? {
                self.send(&LoanRequest::Return(stream.lease), unanswered, wait)?;
            }
        }
        Ok(())
    }

    /// Ends the connection, after a reply that belongs to no request of this process or that did
    /// not come.
    pub(crate) fn end(&self) -> StreamError {
        self.socket.end();
        self.broken()
    }

    /// Fails if the owner has ended, or has closed the store.
    pub(crate) fn check_owner(&self) -> Result<(), StreamError> {
        let mut watched =
            [PollFd::new(&self.owner, PollFlags::IN), PollFd::new(&self.socket, PollFlags::RDHUP)];
        match poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            _ => Err(self.broken()),
        }
    }

    /// The error of a connection that has ended.
    pub(crate) fn broken(&self) -> StreamError {
        StreamError::OwnerGone(self.directory.display().to_string())
    }
}

/// Whether the process of this descriptor has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// The geometry that an owner has sent, if it is possible.
fn geometry(terms: &LoanTerms) -> Option<Geometry> {
    let is_possible = terms.region_size.is_power_of_two()
        && (REGION_SIZE_MIN..=REGION_SIZE_MAX).contains(&terms.region_size)
        && terms.regions <= REGIONS_MAX
        && terms.block_length <= terms.region_size;
    let (region_size, regions) = (terms.region_size, terms.regions);
    is_possible.then_some(Geometry { device: DeviceId(terms.device), region_size, regions })
}
