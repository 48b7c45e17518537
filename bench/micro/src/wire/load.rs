//! Clients that ask for items for a while, and what it costs them and the server.

use std::{
    fs,
    path::PathBuf,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use forebay_measure::load::Sample;
use rustix::time::{ClockId, clock_gettime};

/// One client, connected.
pub trait Fetch: Send {
    /// Asks for these items, and has them when this returns. How many bytes they are.
    fn fetch(&mut self, items: &[u64]) -> anyhow::Result<u64>;
}

/// A server and those who ask it.
pub struct Side {
    /// The server's processes.
    pub processes: Vec<u32>,
    pub clients: Vec<Box<dyn Fetch>>,
    /// How many items there are.
    pub items: u64,
    /// How many are asked for at a time.
    pub batch: usize,
    pub random: fastrand::Rng,
}

impl Side {
    /// So many clients of a server with so many items, each asking for a batch at a time.
    pub fn of(
        server: &Server,
        (clients, batch, items): (usize, usize, u64),
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

/// What came of it.
#[derive(Clone)]
pub struct Run {
    /// Processor time is that of both sides.
    pub sample: Sample,
    /// The server's share of it.
    pub server_seconds: f64,
}

impl Run {
    /// Without another side.
    pub fn alone(sample: Sample) -> Self {
        Self { sample, server_seconds: 0.0 }
    }
}

impl Side {
    /// All clients at once, for so long.
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
                        let asked = Instant::now();
                        bytes += client.fetch(&wanted)?;
                        latencies.push(asked.elapsed());
                    }
                    anyhow::Ok((latencies, bytes))
                }));
            }
            let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
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
        for thread in threads.context("the server has gone; its log says why")? {
            // A thread may end while it is looked at.
            if let Ok(text) = fs::read_to_string(thread?.path().join("schedstat")) {
                let first = text.split(' ').next().and_then(|number| number.parse::<u64>().ok());
                nanoseconds += first.context("the kernel keeps no time of threads (SCHED_INFO)")?;
            }
        }
    }
    Ok(nanoseconds as f64 / 1e9)
}

/// A server that ends with the benchmark.
pub struct Server {
    pub child: Child,
    /// Where it listens.
    pub socket: PathBuf,
}

impl Server {
    /// Its process and those that it has started.
    pub fn processes(&self) -> Vec<u32> {
        let own = self.child.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        let children = children.unwrap_or_default();
        children.split(' ').filter_map(|number| number.parse().ok()).chain([own]).collect()
    }

    /// Waits until somebody listens there.
    pub fn wait(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while std::os::unix::net::UnixStream::connect(&self.socket).is_err() {
            let ended = self.child.try_wait()?;
            anyhow::ensure!(
                ended.is_none() && began.elapsed() < Duration::from_secs(20),
                "nobody listens at {}",
                self.socket.display()
            );
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Politely, so that those whom it has started end, too.
        if let Some(process) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
