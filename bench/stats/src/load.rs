//! Load generator: concurrent operations for a limited time, with their count, latencies and CPU
//! time.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream::FuturesUnordered};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{Row, Target, evaluate};

/// Measurements of one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    /// Completed operations.
    pub operations: u64,
    /// Bytes of all operations.
    pub bytes: u64,
    /// Duration of the run.
    pub seconds: f64,
    /// CPU time of all threads of the process.
    pub cpu_seconds: f64,
    /// Median latency in microseconds.
    pub latency_p50: f64,
    /// 99th percentile of latency in microseconds.
    pub latency_p99: f64,
}

/// A run in progress.
pub struct Watch {
    started: Instant,
    cpu: Duration,
    bytes: u64,
    latencies: Vec<Duration>,
}

impl Watch {
    /// Starts the clocks.
    pub fn start() -> Self {
        // Page faults of the buffer happen before the clock starts.
        let mut latencies = vec![Duration::ZERO; 1 << 18];
        latencies.clear();
        Self { cpu: cpu_time(), started: Instant::now(), bytes: 0, latencies }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Records a completed operation.
    pub fn count(&mut self, began: Instant, bytes: u64) {
        self.bytes += bytes;
        self.latencies.push(began.elapsed());
    }

    /// A percentile of the sorted latencies, in microseconds.
    fn latency(&self, percent: usize) -> f64 {
        let at = self.latencies.len().saturating_sub(1) * percent / 100;
        self.latencies.get(at).map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
    }

    /// Stops the clocks.
    pub fn finish(mut self) -> Sample {
        let seconds = self.started.elapsed().as_secs_f64();
        let cpu_seconds = (cpu_time().saturating_sub(self.cpu)).as_secs_f64();
        self.latencies.sort_unstable();
        let (operations, bytes) = (self.latencies.len() as u64, self.bytes);
        let (latency_p50, latency_p99) = (self.latency(50), self.latency(99));
        Sample { operations, bytes, seconds, cpu_seconds, latency_p50, latency_p99 }
    }
}

impl Sample {
    /// Throughput in GB/s (10^9 bytes).
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }

    /// Operations per second.
    pub fn operations_per_second(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// CPU seconds per GB (10^9 bytes).
    pub fn cpu_seconds_per_gigabyte(&self) -> f64 {
        self.cpu_seconds / (self.bytes as f64 / 1e9)
    }
}

/// Keeps `depth` operations in flight until `limit` has passed, and waits for the last of them.
/// Each operation returns its number of bytes.
pub async fn drive<F, E>(
    depth: usize,
    limit: Duration,
    mut next: impl FnMut() -> F,
) -> Result<Watch, E>
where
    F: Future<Output = Result<u64, E>>,
{
    let mut start = || {
        let began = Instant::now();
        let operation = next();
        async move { operation.await.map(|bytes| (began, bytes)) }
    };
    let mut running = FuturesUnordered::new();
    let mut watch = Watch::start();
    running.extend((0..depth).map(|_| start()));
    while let Some(done) = running.next().await {
        let (began, bytes) = done?;
        watch.count(began, bytes);
        if watch.elapsed() < limit {
            running.push(start());
        }
    }
    Ok(watch)
}

/// Compares pairs of runs: throughput and CPU time with targets, operations and latencies without.
pub fn rows(
    name: &str,
    against: &str,
    throughput: Target,
    cpu: Target,
    pairs: &[(Sample, Sample)],
) -> Vec<Row> {
    let row = |unit: &str, target, figure: &dyn Fn(&Sample) -> f64| {
        let pairs: Vec<_> =
            pairs.iter().map(|(ours, theirs)| (figure(ours), figure(theirs))).collect();
        evaluate(name, unit, against, target, &pairs)
    };
    vec![
        row("GB/s", throughput, &Sample::gigabytes_per_second),
        row("ops/s", Target::Open, &Sample::operations_per_second),
        row("CPU-s/GB", cpu, &Sample::cpu_seconds_per_gigabyte),
        row("p50 us", Target::Open, &|sample| sample.latency_p50),
        row("p99 us", Target::Open, &|sample| sample.latency_p99),
    ]
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, convert::Infallible, task::Poll};

    use super::*;

    #[test]
    fn depth_operations_are_in_flight_and_all_are_counted() {
        let (running, most, begun) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let operation = || {
            begun.set(begun.get() + 1);
            running.set(running.get() + 1);
            most.set(most.get().max(running.get()));
            async {
                // Pending at the first poll.
                let mut first = true;
                std::future::poll_fn(|context| {
                    context.waker().wake_by_ref();
                    if std::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }
                })
                .await;
                running.set(running.get() - 1);
                Ok::<u64, Infallible>(10)
            }
        };
        let watch = drive(7, Duration::from_millis(5), operation);
        let Ok(watch) = futures::executor::block_on(watch);
        let sample = watch.finish();
        assert_eq!((most.get(), running.get()), (7, 0));
        assert_eq!(sample.operations, begun.get());
        assert_eq!(sample.bytes, 10 * begun.get());
        assert!(sample.latency_p50 <= sample.latency_p99);
        assert!(sample.seconds >= 0.005);
    }
}
