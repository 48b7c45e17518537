//! The bare loop: a process that writes requested items from its memory to a socket, and nothing
//! else.
//!
//! A request is a batch of item numbers, 8 bytes each. The answer is their bytes.

use std::{
    io::{self, BufRead as _, BufReader, IoSlice, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use anyhow::Context as _;
use forebay_core::ByteSize;

use super::{
    batch,
    load::{Demand, Fetch, Server, Side},
    node::content,
};
/// Arguments of the process.
#[derive(Debug, clap::Args)]
pub struct Args {
    socket: PathBuf,
    item: usize,
    items: u64,
}

/// The process: answers on a Unix socket and on TCP until it is killed.
pub fn serve(args: &Args) -> anyhow::Result<()> {
    let memory: Vec<u8> =
        (0..args.items).flat_map(|number| content(args.item, number).to_vec()).collect();
    let memory: &'static [u8] = memory.leak();
    let (local, remote) = (UnixListener::bind(&args.socket)?, TcpListener::bind("127.0.0.1:0")?);
    println!("{}", remote.local_addr()?);
    let item = args.item;
    let accepting = thread::spawn(move || {
        for socket in remote.incoming().flatten() {
            thread::spawn(move || {
                socket.set_nodelay(true)?;
                answer(memory, item, socket)
            });
        }
    });
    for socket in local.incoming() {
        let socket = socket?;
        thread::spawn(move || answer(memory, item, socket));
    }
    accepting.join().expect("the thread does not panic");
    Ok(())
}

fn answer(memory: &[u8], item: usize, mut socket: impl Read + Write) -> io::Result<()> {
    let mut request = vec![0; 8 * batch(item)];
    loop {
        socket.read_exact(&mut request)?;
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let bytes = request.chunks(8).map(|bytes| {
            let at = usize::try_from(number(bytes)).expect("the item is in memory") * item;
            IoSlice::new(&memory[at..at + item])
        });
        let mut slices: Vec<IoSlice<'_>> = bytes.collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let written = socket.write_vectored(rest)?;
            IoSlice::advance_slices(&mut rest, written);
        }
    }
}

/// The running process.
pub struct Bare {
    server: Server,
    tcp: SocketAddr,
    item: usize,
    items: u64,
}

impl Bare {
    pub fn start(directory: &Path, item: usize, bytes: ByteSize) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let (socket, items) = (directory.join("bare.sock"), bytes.0 / item as u64);
        let mut child = Command::new(std::env::current_exe().context("find this program")?)
            .arg("wire-bare")
            .arg(&socket)
            .args([item.to_string(), items.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .context("start the bare loop")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout is piped")).read_line(&mut line)?;
        let server = Server { child, socket };
        let tcp = line.trim().parse().context("the bare loop did not start")?;
        Ok(Self { server, tcp, item, items })
    }

    pub fn side(&self, is_tcp: bool, clients: usize, batch: usize) -> anyhow::Result<Side> {
        let connect = || {
            let memory = vec![vec![1; self.item]; batch];
            let mut client: Box<dyn Fetch> = if is_tcp {
                let socket = TcpStream::connect(self.tcp)?;
                socket.set_nodelay(true)?;
                Box::new(BareClient { socket, memory })
            } else {
                Box::new(BareClient { socket: UnixStream::connect(&self.server.socket)?, memory })
            };
            client.fetch(&vec![0; batch])?;
            Ok(client)
        };
        Side::connect(&self.server, Demand { clients, batch, items: self.items }, connect)
    }
}

struct BareClient<S> {
    socket: S,
    memory: Vec<Vec<u8>>,
}

impl<S: Read + Write + Send> Fetch for BareClient<S> {
    fn fetch(&mut self, items: &[u64]) -> anyhow::Result<u64> {
        let request: Vec<u8> = items.iter().flat_map(|item| item.to_le_bytes()).collect();
        self.socket.write_all(&request)?;
        for memory in &mut self.memory {
            self.socket.read_exact(memory)?;
        }
        Ok(self.memory.iter().map(|memory| memory.len() as u64).sum())
    }
}
