//! Sockets between the owner of a store and its borrowers: messages with boundaries, in the store's
//! directory, between processes of one user.

use std::{
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use forebay_core::streams::loan::MESSAGE_MAX;
use forebay_flash::io::Uninherited;
use forebay_shm::{receive_with_fd, send_with_fd};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
        accept_with, bind, connect, listen, recv, send, shutdown, socket_with, sockopt,
    },
    process::Pid,
};

use crate::interrupt::Interrupt;

/// Name of the socket in a store's directory.
const SOCKET: &str = "store.sock";
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Interval at which a wait looks at its deadline and at interrupts.
const SLICE: Duration = Duration::from_millis(50);

/// One end of a connection. A forked child does not have it: otherwise the connection would outlive
/// its process.
#[derive(Debug)]
pub(crate) struct LoanSocket {
    socket: Uninherited<OwnedFd>,
}

/// How long a call of a borrower waits. The owner's end does not wait.
#[derive(Debug, Clone)]
pub(crate) struct LoanWait {
    deadline: Option<Instant>,
    interrupt: Interrupt,
}

impl LoanWait {
    /// Not at all.
    pub(crate) const NONE: Self = Self { deadline: None, interrupt: Interrupt::NEVER };

    /// For at most `timeout`, and not after an interrupt.
    pub(crate) fn new(timeout: Duration, interrupt: Interrupt) -> Self {
        Self { deadline: Some(Instant::now() + timeout), interrupt }
    }

    /// Fails if the wait is over: with the kind `Interrupted` after an interrupt.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.interrupt.has_happened() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match self.deadline {
            Some(at) if Instant::now() < at => Ok(()),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Repeats a call that was interrupted by a signal, or by the completion of a read in an
    /// `io_uring` of this thread, and one that has waited for [`SLICE`].
    fn repeat<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    if self.deadline.is_some() {
                        self.check()?;
                    }
                }
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && self.deadline.is_some() =>
                {
                    self.check()?;
                }
                done => return done,
            }
        }
    }
}

/// The process at the other end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoanPeer {
    pub(crate) process: Pid,
    /// Whether it is of the same user as this process.
    pub(crate) is_same_user: bool,
}

/// The path of a store's socket.
pub(crate) fn socket_path(directory: &Path) -> PathBuf {
    directory.join(SOCKET)
}

/// Calls `act` with the address of a store's socket. The path in an address has at most 107 bytes;
/// a longer one is reached through a descriptor of the directory.
fn with_address<T>(
    directory: &Path,
    act: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<T>,
) -> io::Result<T> {
    if let Ok(address) = SocketAddrUnix::new(socket_path(directory)) {
        return Ok(act(&address)?);
    }
    let opened = std::fs::File::open(directory)?;
    let short = format!("/proc/self/fd/{}/{SOCKET}", opened.as_raw_fd());
    Ok(act(&SocketAddrUnix::new(short)?)?)
}

/// Listens on a store's socket. The caller has locked the device, so a socket that is there was
/// left by an owner that is gone.
pub(crate) fn listen_in(directory: &Path) -> io::Result<Uninherited<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = new_socket(flags)?;
    let path = socket_path(directory);
    let _ = std::fs::remove_file(&path);
    with_address(directory, |address| bind(&socket, address))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The next connection; `None` if there is none now.
pub(crate) fn accept_from(listener: &impl AsFd) -> io::Result<Option<LoanSocket>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match Uninherited::new(|| Ok::<_, io::Error>(accept_with(listener, flags)?)) {
        Ok(socket) => Ok(Some(LoanSocket { socket })),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            _ => Err(error),
        },
    }
}

fn new_socket(flags: SocketFlags) -> io::Result<Uninherited<OwnedFd>> {
    let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    Uninherited::new(|| Ok(socket()?))
}

impl LoanSocket {
    /// Connects to the owner of a store.
    pub(crate) fn connect(directory: &Path, wait: &LoanWait) -> io::Result<Self> {
        let socket = new_socket(SocketFlags::CLOEXEC)?;
        for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&socket, direction, Some(SLICE))?;
        }
        wait.repeat(|| with_address(directory, |to| connect(&socket, to)))?;
        Ok(Self { socket })
    }

    pub(crate) fn peer(&self) -> io::Result<LoanPeer> {
        let peer = sockopt::socket_peercred(&self.socket)?;
        let is_same_user = peer.uid == rustix::process::geteuid();
        Ok(LoanPeer { process: peer.pid, is_same_user })
    }

    /// Ends the connection, also if a forked child has a copy of the socket.
    pub(crate) fn end(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    pub(crate) fn send(&self, message: &[u8], wait: &LoanWait) -> io::Result<()> {
        wait.repeat(|| Ok(send(&self.socket, message, SendFlags::NOSIGNAL)?)).map(|_| ())
    }

    pub(crate) fn send_with(&self, message: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
        LoanWait::NONE.repeat(|| send_with_fd(&self.socket, message, descriptor)).map(|_| ())
    }

    /// The next message; an error of the kind `UnexpectedEof` after the last one.
    pub(crate) fn receive(&self, wait: &LoanWait) -> io::Result<Vec<u8>> {
        let mut message = vec![MaybeUninit::uninit(); MESSAGE_MAX];
        wait.repeat(|| {
            let ((bytes, _), _) = recv(&self.socket, &mut message[..], RecvFlags::empty())?;
            let is_end = bytes.is_empty();
            if is_end { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes.to_vec()) }
        })
    }

    /// The next message, and the descriptor that came with it.
    pub(crate) fn receive_with(&self, wait: &LoanWait) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut message = vec![0; MESSAGE_MAX];
        // An owner that refuses a process replies, and closes while a request is on its way. The
        // kernel reports that first, and the reply afterwards.
        let mut receive = || wait.repeat(|| receive_with_fd(&self.socket, &mut message));
        let received = match receive() {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => receive(),
            received => received,
        };
        let (length, descriptor) = received?;
        message.truncate(length);
        Ok((message, descriptor))
    }
}

impl AsFd for LoanSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
