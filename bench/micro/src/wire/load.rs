//! Load by clients: throughput, latency, and processor time of clients and server.

use std::{
    fs,
    path::PathBuf,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use forebay_bench_stats::load::Sample;
use rustix::time::{ClockId, clock_gettime};

/// A connected client.
pub trait Fetch: Send {
    /// Requests these items and waits for their bytes. Returns their total length.
    fn fetch(&mut self, items: &[u64]) -> anyhow::Result<u64>;
}

/// What clients request.
#[derive(Clone, Copy)]
pub struct Demand {
    /// Number of clients.
    pub clients: usize,
    /// Items per request.
    pub batch: usize,
    /// Items that the server has.
    pub items: u64,
}

/// A server and its clients.
pub struct Side {
    /// Process ids of the server.
    processes: Vec<u32>,
    clients: Vec<Box<dyn Fetch>>,
    items: u64,
    batch: usize,
    random: fastrand::Rng,
}

impl Side {
    /// Connects clients to a server.
    pub fn connect(
        server: &Server,
        Demand { clients, batch, items }: Demand,
        connect: impl Fn() -> anyhow::Result<Box<dyn Fetch>>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            processes: server.processes(),
            clients: (0..clients).map(|_| connect()).collect::<anyhow::Result<_>>()?,
            items,
            batch,
            random: fastrand::Rng::with_seed(3),
        })
    }
}

/// Result of a run.
#[derive(Clone)]
pub struct Run {
    /// Its processor time is that of clients and server together.
    pub sample: Sample,
    /// Processor time of the server.
    pub server_seconds: f64,
}

impl Run {
    /// A run without a server process.
    pub fn in_process(sample: Sample) -> Self {
        Self { sample, server_seconds: 0.0 }
    }
}

impl Side {
    /// Runs all clients in parallel, for `limit`.
    pub fn run(&mut self, limit: Duration) -> anyhow::Result<Run> {
        let (items, batch) = (self.items, self.batch);
        let seeds: Vec<fastrand::Rng> = self.clients.iter().map(|_| self.random.fork()).collect();
        let cpu = || anyhow::Ok((own_seconds(), server_seconds(&self.processes)?));
        let before = cpu()?;
        let began = Instant::now();
        let clients = &mut self.clients;
        let ran = thread::scope(|scope| {
            let mut threads = Vec::with_capacity(clients.len());
            for (client, mut random) in clients.iter_mut().zip(seeds) {
                threads.push(scope.spawn(move || {
                    let (mut latencies, mut bytes) = (Vec::with_capacity(1 << 14), 0);
                    let mut wanted = vec![0; batch];
                    while began.elapsed() < limit {
                        wanted.fill_with(|| random.u64(..items));
                        let requested = Instant::now();
                        bytes += client.fetch(&wanted)?;
                        latencies.push(requested.elapsed());
                    }
                    anyhow::Ok((latencies, bytes))
                }));
            }
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().expect("the thread does not panic")
            };
            threads.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
        })?;
        let seconds = began.elapsed().as_secs_f64();
        let after = (own_seconds(), server_seconds(&self.processes)?);
        let bytes = ran.iter().map(|(_, bytes)| bytes).sum();
        let mut latencies: Vec<Duration> =
            ran.into_iter().flat_map(|(latencies, _)| latencies).collect();
        latencies.sort_unstable();
        let latency = |percent: usize| {
            let at = latencies.len().saturating_sub(1) * percent / 100;
            latencies.get(at).map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
        };
        let server_seconds = (after.1 - before.1).max(0.0);
        let sample = Sample {
            operations: (latencies.len() * batch) as u64,
            bytes,
            seconds,
            cpu_seconds: after.0 - before.0 + server_seconds,
            latency_p50: latency(50),
            latency_p99: latency(99),
        };
        Ok(Run { sample, server_seconds })
    }
}

/// Processor time of this process.
fn own_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Processor time of all threads of these processes.
fn server_seconds(processes: &[u32]) -> anyhow::Result<f64> {
    let mut nanoseconds = 0;
    for process in processes {
        let threads = fs::read_dir(format!("/proc/{process}/task"));
        for thread in
            threads.context("read the threads of the server; its log says why it ended")?
        {
            // A thread may end meanwhile.
            if let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) {
                let first = text.split(' ').next().and_then(|number| number.parse::<u64>().ok());
                nanoseconds += first
                    .context("read the processor time of a thread; the kernel needs SCHED_INFO")?;
            }
        }
    }
    Ok(nanoseconds as f64 / 1e9)
}

/// A server process, stopped when this is dropped.
pub struct Server {
    pub child: Child,
    /// Path of its Unix socket.
    pub socket: PathBuf,
}

impl Server {
    /// Its process and its child processes.
    pub fn processes(&self) -> Vec<u32> {
        let own = self.child.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        let children = children.unwrap_or_default();
        children.split(' ').filter_map(|number| number.parse().ok()).chain([own]).collect()
    }

    /// Waits until the socket accepts connections.
    pub fn wait(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while std::os::unix::net::UnixStream::connect(&self.socket).is_err() {
            let ended = self.child.try_wait()?;
            anyhow::ensure!(
                ended.is_none() && began.elapsed() < Duration::from_secs(20),
                "the server does not listen at `{}` after 20 s",
                self.socket.display()
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM, so that it stops its children.
        if let Some(process) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
