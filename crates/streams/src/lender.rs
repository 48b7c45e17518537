//! The lender: a thread of the owner that gives places of sealed streams to other processes.
//!
//! It answers one message after another. A borrower that does not read its replies, or that sends
//! what is no message, is disconnected; its leases end. The thread starts when the first process
//! connects.

use std::{
    collections::BTreeMap,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    thread::JoinHandle,
};

use forebay_core::streams::{
    BlockNumber, StreamId, StreamName,
    catalogue::{CatalogueError, OpenMode, StreamInfo},
    lending::{BorrowerId, LeaseId, Lending},
    loan::{
        EXTENTS_MAX, LISTED_MAX, LOAN_VERSION, LentExtent, LentStream, LoanReply, LoanRequest,
        LoanTerms,
    },
};
use forebay_flash::{
    io::{Uninherited, Watch},
    shard::{ShardAnswer, ShardRequest},
};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};

use crate::{
    block_on::block_on,
    error::StreamError,
    loan_socket::{LoanSocket, LoanWait, accept_from, listen_in, socket_path},
    shared::Shared,
};

/// The lender of a store. Dropping it ends its thread and all leases.
pub(crate) struct Lender {
    call: LenderCall,
    stop: Arc<OwnedFd>,
    socket: PathBuf,
}

/// Starts the lender when a process connects for the first time: a store that no other process
/// opens has no thread besides the device's, which waits for the first connection.
#[derive(Clone)]
pub(crate) struct LenderCall {
    /// Readable when a process connects.
    connections: Arc<OwnedFd>,
    state: Arc<Mutex<CallState>>,
}

#[derive(Default)]
struct CallState {
    is_called: bool,
    /// Until the thread is started.
    service: Option<Service>,
    thread: Option<JoinHandle<()>>,
}

impl LenderCall {
    pub(crate) fn new() -> io::Result<Self> {
        let connections = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        Ok(Self { connections, state: Arc::default() })
    }

    /// What the device's thread watches. The disk of a system without `io_uring` cannot, so it
    /// calls at once.
    pub(crate) fn watch(&self) -> Watch {
        let call = self.clone();
        let on_readable = Arc::new(move || {
            let mut state = call.state.lock();
            state.is_called = true;
            state.start();
        });
        Watch { descriptor: Arc::clone(&self.connections), on_readable }
    }
}

impl CallState {
    /// Starts the thread, once a process has connected and there is a store to lend from.
    fn start(&mut self) {
        if let Some(service) = self.service.take_if(|_| self.is_called) {
            let thread = std::thread::Builder::new().name("lender".into());
            match thread.spawn(|| service.run()) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => tracing::warn!(%error, "lender not started"),
            }
        }
    }
}

impl Lender {
    /// Listens in the directory of a store.
    pub(crate) fn listen(
        call: LenderCall,
        shared: &Arc<Shared>,
        directory: &Path,
        device: &Path,
    ) -> io::Result<Self> {
        let socket = socket_path(directory);
        let listener = listen_in(directory)?;
        let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("a flag");
        // Borrowers cannot write through this descriptor, and do not share the device's lock.
        let device = std::fs::File::options().read(true).custom_flags(direct).open(device)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let data = epoll::EventData::new_u64(0);
        epoll::add(&call.connections, &listener, data, epoll::EventFlags::IN)?;
        let service = Service {
            shared: Arc::downgrade(shared),
            listener,
            device: device.into(),
            stop: Arc::clone(&stop),
            lending: Lending::default(),
            borrowers: BTreeMap::new(),
        };
        {
            let mut state = call.state.lock();
            state.service = Some(service);
            state.start();
        }
        Ok(Self { call, stop, socket })
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        let CallState { service, thread, .. } = std::mem::take(&mut *self.call.state.lock());
        drop(service);
        // The last handle of a store may be dropped by the lender itself, in the middle of a reply.
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if let Some(thread) = thread.filter(|thread| !is_own(thread)) {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The state of the thread.
struct Service {
    shared: Weak<Shared>,
    listener: Uninherited<OwnedFd>,
    device: OwnedFd,
    stop: Arc<OwnedFd>,
    lending: Lending,
    borrowers: BTreeMap<BorrowerId, Borrower>,
}

struct Borrower {
    socket: LoanSocket,
    has_greeted: bool,
}

impl Service {
    fn run(mut self) {
        loop {
            let mut ready = {
                let stop = PollFd::new(&self.stop, PollFlags::IN);
                let listener = PollFd::new(&self.listener, PollFlags::IN);
                let sockets = self.borrowers.values();
                let sockets = sockets.map(|borrower| PollFd::new(&borrower.socket, PollFlags::IN));
                let mut all: Vec<_> = [stop, listener].into_iter().chain(sockets).collect();
                match poll(&mut all, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return tracing::warn!(%error, "lender ended"),
                }
                all.iter().map(|one| !one.revents().is_empty()).collect::<Vec<_>>().into_iter()
            };
            let (is_stopped, has_connection) = (ready.next(), ready.next());
            let ids: Vec<_> = self.borrowers.keys().copied().collect();
            let Some(shared) = self.shared.upgrade().filter(|_| is_stopped == Some(false)) else {
                return self.end();
            };
            for (id, _) in ids.into_iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
                if self.serve(&shared, id).is_err() {
                    self.disconnect(&shared, id);
                }
            }
            if has_connection == Some(true) {
                self.accept();
            }
        }
    }

    /// Ends all leases.
    fn end(mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let ids: Vec<_> = self.borrowers.keys().copied().collect();
        for id in ids {
            self.disconnect(&shared, id);
        }
    }

    fn accept(&mut self) {
        let socket = match accept_from(&self.listener) {
            Ok(Some(socket)) => socket,
            Ok(None) => return,
            Err(error) => return tracing::warn!(%error, "connection to a store not accepted"),
        };
        // The directory is private, but its permissions may have been changed.
        if !socket.peer().is_ok_and(|peer| peer.is_same_user) {
            let text = "the store belongs to another user: run as that user".to_owned();
            let _ = socket.send(&LoanReply::Refused(text).encode(), &LoanWait::NONE);
            return;
        }
        match self.lending.on_connect() {
            Ok(id) => drop(self.borrowers.insert(id, Borrower { socket, has_greeted: false })),
            Err(error) => {
                let refused = LoanReply::Refused(error.to_string()).encode();
                drop(socket.send(&refused, &LoanWait::NONE));
            }
        }
    }

    fn disconnect(&mut self, shared: &Arc<Shared>, id: BorrowerId) {
        if let Some(borrower) = self.borrowers.remove(&id) {
            borrower.socket.end();
        }
        for stream in self.lending.on_disconnect(id) {
            shared.close(stream);
        }
    }

    /// Answers a message. An error ends the connection.
    fn serve(&mut self, shared: &Arc<Shared>, id: BorrowerId) -> io::Result<()> {
        let Some(borrower) = self.borrowers.get_mut(&id) else { return Ok(()) };
        let message = borrower.socket.receive(&LoanWait::NONE)?;
        let request = LoanRequest::decode(&message).ok_or(io::ErrorKind::InvalidData)?;
        if let LoanRequest::Hello { version } = request {
            if version != LOAN_VERSION {
                let text = format!(
                    "the owner of the store lends by version {LOAN_VERSION} and this process by \
                     {version}: use the same forebay in both"
                );
                return borrower.socket.send(&LoanReply::Refused(text).encode(), &LoanWait::NONE);
            }
            borrower.has_greeted = true;
            let terms = LoanReply::Welcome(terms(shared)).encode();
            return borrower.socket.send_with(&terms, self.device.as_fd());
        }
        if !borrower.has_greeted {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let reply = self.answer(shared, id, request);
        let reply = reply.unwrap_or_else(|error| LoanReply::Refused(error.to_string()));
        let send = |borrower: &Borrower| borrower.socket.send(&reply.encode(), &LoanWait::NONE);
        self.borrowers.get(&id).map_or(Ok(()), send)
    }

    fn answer(
        &mut self,
        shared: &Arc<Shared>,
        id: BorrowerId,
        request: LoanRequest,
    ) -> Result<LoanReply, StreamError> {
        match request {
            LoanRequest::Hello { .. } => unreachable!("answered before"),
            LoanRequest::List { after } => Ok(LoanReply::Streams(list(shared, after.as_ref()))),
            LoanRequest::Open(name) => self.lend(shared, id, &name).map(LoanReply::Lent),
            LoanRequest::Extents { lease, first } => {
                let stream = self.lending.stream(id, lease)?;
                extents(shared, stream, first).map(LoanReply::Extents)
            }
            LoanRequest::Return(lease) => {
                let stream = self.lending.on_returned(id, lease)?;
                shared.close(stream);
                Ok(LoanReply::Done)
            }
        }
    }

    fn lend(
        &mut self,
        shared: &Arc<Shared>,
        id: BorrowerId,
        name: &StreamName,
    ) -> Result<LentStream, StreamError> {
        self.lending.check_room(id)?;
        let stream = shared.open_stream(name, OpenMode::Read)?;
        // The borrower reads the device, so everything has to be there.
        let written = block_on(shared.request(ShardRequest::Write { group: stream.group }));
        let info = shared.catalogue.lock().info(stream.id);
        let lease = self.lending.on_lent(id, stream.id);
        let (lease, info) = match (written, lease, info) {
            (Ok(_), Ok(lease), Some(info)) => (lease, info),
            (written, lease, _) => {
                if let Ok(lease) = lease {
                    let _: Result<StreamId, _> = self.lending.on_returned(id, lease);
                }
                shared.close(stream.id);
                let failed = |error| StreamError::Write { stream: name.to_string(), error };
                written.map_err(failed)?;
                lease?;
                return Err(CatalogueError::NotFound(name.to_string()).into());
            }
        };
        let lease: LeaseId = lease;
        Ok(LentStream { lease, number: stream.number, blocks: info.blocks, bytes: info.bytes })
    }
}

fn terms(shared: &Shared) -> LoanTerms {
    let geometry = shared.engine.geometry();
    LoanTerms {
        device: geometry.device.0,
        region_size: geometry.region_size,
        regions: geometry.regions,
        block_length: shared.block_length,
        free: shared.engine.counters().regions_free * geometry.region_size,
    }
}

fn list(shared: &Shared, after: Option<&StreamName>) -> Vec<StreamInfo> {
    shared.end_leases();
    let streams = shared.catalogue.lock().list().into_iter();
    let streams = streams.filter(|info| after.is_none_or(|after| info.name > *after));
    streams.take(LISTED_MAX).collect()
}

/// Where the blocks from this one on lie. Ends before the first that is lost.
fn extents(
    shared: &Shared,
    stream: StreamId,
    BlockNumber(first): BlockNumber,
) -> Result<Vec<LentExtent>, StreamError> {
    let (group, name, ordinals) = {
        let catalogue = shared.catalogue.lock();
        let info = catalogue.info(stream);
        let place = catalogue.place(stream);
        let (Some(info), Some((family, _))) = (info, place) else {
            return Err(StreamError::Destroyed("of the lease".into()));
        };
        let end = first.saturating_add(EXTENTS_MAX as u64);
        let blocks = (first..end).map(|block| catalogue.ordinal(stream, BlockNumber(block)));
        (family, info.name.to_string(), blocks.map_while(|ordinal| ordinal).collect())
    };
    let group = shared.group(group).ok_or(StreamError::Destroyed(name.clone()))?;
    let located = block_on(shared.request(ShardRequest::Locate { group, ordinals }));
    let extents = match located {
        Ok(ShardAnswer::Extents(extents)) => extents,
        Ok(_) => unreachable!("Locate is answered with extents"),
        Err(error) => {
            return Err(StreamError::Read { stream: name, block: BlockNumber(first), error });
        }
    };
    let lent = extents.into_iter().map_while(|extent| {
        let extent = extent?;
        let (key, location) = (extent.key.0, extent.location.to_bits());
        Some(LentExtent { key, location, generation: extent.generation.0 })
    });
    let lent: Vec<_> = lent.collect();
    if lent.is_empty() {
        let block = BlockNumber(first);
        shared.on_lost(stream, block);
        return Err(StreamError::Lost { stream: name, block });
    }
    Ok(lent)
}
