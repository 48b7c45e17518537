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
    time::Duration,
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

/// Name of the socket in a store's directory.
const SOCKET: &str = "store.sock";
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// One end of a connection. A forked child does not have it: otherwise the connection would outlive
/// its process.
#[derive(Debug)]
pub(crate) struct LoanSocket(Uninherited<OwnedFd>);

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
        Ok(socket) => Ok(Some(LoanSocket(socket))),
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
    /// Connects to the owner of a store. Messages that take longer than `timeout` fail.
    pub(crate) fn connect(directory: &Path, timeout: Duration) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = new_socket(flags)?;
        for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&socket, direction, Some(timeout))?;
        }
        with_address(directory, |address| connect(&socket, address))?;
        Ok(Self(socket))
    }

    pub(crate) fn peer(&self) -> io::Result<LoanPeer> {
        let peer = sockopt::socket_peercred(&self.0)?;
        let is_same_user = peer.uid == rustix::process::geteuid();
        Ok(LoanPeer { process: peer.pid, is_same_user })
    }

    /// Ends the connection, also if a forked child has a copy of the socket.
    pub(crate) fn end(&self) {
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    pub(crate) fn send(&self, message: &[u8]) -> io::Result<()> {
        send(&self.0, message, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    pub(crate) fn send_with(&self, message: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
        send_with_fd(&self.0, message, descriptor).map(|_| ())
    }

    /// The next message; an error of the kind `UnexpectedEof` after the last one.
    pub(crate) fn receive(&self) -> io::Result<Vec<u8>> {
        let mut message = vec![MaybeUninit::uninit(); MESSAGE_MAX];
        let ((bytes, _), _) = recv(&self.0, &mut message[..], RecvFlags::empty())?;
        if bytes.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes.to_vec()) }
    }

    /// The next message, and the descriptor that came with it.
    pub(crate) fn receive_with(&self) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut message = vec![0; MESSAGE_MAX];
        // An owner that refuses a process replies, and closes while a request is on its way. The
        // kernel reports that first, and the reply afterwards.
        let received = match receive_with_fd(&self.0, &mut message) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                receive_with_fd(&self.0, &mut message)
            }
            received => received,
        };
        let (length, descriptor) = received?;
        message.truncate(length);
        Ok((message, descriptor))
    }
}

impl AsFd for LoanSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
