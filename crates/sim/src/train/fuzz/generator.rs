//! Generator of random worlds: scenario files drawn from a seed.
//!
//! A world is the text of a scenario file, so `forebay sim` can run it again. What is drawn is what
//! decides between policies: how fast jobs are against the origin, the flash and the network, how
//! much of the data fits, how many jobs share a dataset, when they come, and what fails. Absolute
//! sizes and times do not matter for that, so a world has at most [`READS_MAX`] reads of items.

use std::fmt::Write as _;

use fastrand::Rng;

/// Item reads of all jobs at most, if no job ever waits: a world takes some 50 ms to simulate.
const READS_MAX: f64 = 60_000.0;

/// A random world.
#[derive(Debug, Clone)]
pub struct World {
    /// Its name: `world-SEED-NUMBER`.
    pub name: String,
    /// Text of its scenario file.
    pub text: String,
}

/// A group of jobs, before it is written.
struct Group {
    dataset: usize,
    count: u32,
    gpus: u32,
    batch: u64,
    /// Seconds of GPU time of an epoch.
    epoch_s: f64,
    /// Bytes per second of one job that never waits.
    rate: f64,
    /// Start, as a share of the duration.
    starts: f64,
}

struct DatasetSize {
    items: u64,
    bytes: f64,
}

impl World {
    /// World `number` of a seed.
    pub fn new(seed: u64, number: u64) -> Self {
        let mut random = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        let name = format!("world-{seed}-{number}");
        let text = text(&mut random, &name);
        Self { name, text }
    }
}

fn text(random: &mut Rng, name: &str) -> String {
    let datasets: Vec<DatasetSize> =
        (0..pick(random, &[(5, 1), (3, 2), (2, 3)])).map(|_| dataset(random)).collect();
    let epoch_s = log_uniform(random, 60.0, 1200.0);
    let mut groups: Vec<Group> =
        (0..datasets.len()).map(|at| group(random, &datasets, at, epoch_s)).collect();
    for _ in 0..pick(random, &[(4, 0), (4, 1), (2, 3)]) {
        let at = random.usize(0..datasets.len());
        groups.push(group(random, &datasets, at, epoch_s));
    }
    // The first job is there from the start.
    groups[0].starts = 0.0;
    let jobs = |group: &Group| f64::from(group.count);
    let demand: f64 = groups.iter().map(|group| jobs(group) * group.rate).sum();
    let reads_per_s: f64 = groups
        .iter()
        .map(|group| jobs(group) * datasets[group.dataset].items as f64 / group.epoch_s)
        .sum();
    let turns = log_uniform(random, 3.0, 12.0);
    let duration_s = (turns * epoch_s).min(READS_MAX / reads_per_s).max(10.0);
    let mut text = format!("about = \"Random world {name}\"\nduration = \"{duration_s:.3}s\"\n\n");
    write_origin(random, &mut text, demand, &groups);
    let nodes = write_cache(random, &mut text, demand, &groups);
    for (at, dataset) in datasets.iter().enumerate() {
        let chunks = match random.u32(0..4) {
            0 => format!("chunks = {}\n", random.u64(4..40)),
            _ => String::new(),
        };
        let (items, bytes) = (dataset.items, dataset.bytes);
        put(
            &mut text,
            format_args!(
                "[[dataset]]\nname = \"data-{at}\"\nsize = \"{bytes:.0}B\"\nitems = \
                 {items}\n{chunks}\n"
            ),
        );
    }
    for (at, group) in groups.iter().enumerate() {
        write_job(random, &mut text, &datasets, at, group, duration_s);
    }
    if random.u32(0..5) == 0 {
        write_fault(random, &mut text, demand, nodes, &groups[0], duration_s);
    }
    text
}

fn dataset(random: &mut Rng) -> DatasetSize {
    let items = log_uniform(random, 800.0, 6000.0);
    let item_bytes = log_uniform(random, 1e5, 1e7);
    DatasetSize { items: whole(items), bytes: items * item_bytes }
}

fn group(random: &mut Rng, datasets: &[DatasetSize], at: usize, epoch_s: f64) -> Group {
    let DatasetSize { items, bytes } = datasets[at];
    // Most jobs are of one speed, some are much faster: scans, small models.
    let speed = if random.u32(0..3) == 0 { log_uniform(random, 0.1, 1.5) } else { 1.0 };
    let epoch_s = epoch_s * speed;
    let batches = log_uniform(random, 60.0, 1500.0).min(items as f64);
    Group {
        dataset: at,
        count: pick(random, &[(5, 1), (3, 2), (2, 4), (1, 7)]),
        gpus: pick(random, &[(4, 1), (2, 2), (2, 4), (2, 8), (1, 32)]),
        batch: (items / whole(batches)).max(1),
        epoch_s,
        rate: bytes / epoch_s,
        starts: if random.u32(0..3) == 0 { random.f64() * 0.6 } else { 0.0 },
    }
}

fn write_origin(random: &mut Rng, text: &mut String, demand: f64, groups: &[Group]) {
    let bandwidth = demand * log_uniform(random, 0.05, 2.0);
    put(text, format_args!("[origin]\nbandwidth = \"{bandwidth:.0}B/s\"\n"));
    if random.bool() {
        let fastest = groups.iter().map(|group| group.rate).fold(1.0, f64::max);
        let rate = fastest / 8.0 * log_uniform(random, 0.2, 4.0);
        put(text, format_args!("per_connection = \"{rate:.0}B/s\"\n"));
    }
    if random.u32(0..3) == 0 {
        put(text, format_args!("latency = \"{:.3}ms\"\n", log_uniform(random, 1.0, 100.0)));
    }
    text.push('\n');
}

/// Returns the number of nodes.
fn write_cache(random: &mut Rng, text: &mut String, demand: f64, groups: &[Group]) -> u32 {
    let share = match random.u32(0..6) {
        0 => log_uniform(random, 1.0, 10.0),
        1..=3 => 10.0 + random.f64() * 50.0,
        4 => 60.0 + random.f64() * 39.0,
        _ => 100.0,
    };
    let nodes = random.u32(1..5);
    let flash = if random.u32(0..5) == 0 {
        log_uniform(random, 0.1, 1.0)
    } else {
        log_uniform(random, 1.5, 10.0)
    };
    let flash = demand * flash / f64::from(nodes);
    put(
        text,
        format_args!(
            "[cache]\ncapacity = \"{share:.2}%\"\nnodes = {nodes}\nread_bandwidth = \
             \"{flash:.0}B/s\"\n"
        ),
    );
    if random.u32(0..4) == 0 {
        let fastest = groups.iter().map(|group| group.rate).fold(1.0, f64::max);
        let network = fastest * log_uniform(random, 0.2, 4.0);
        put(text, format_args!("network = \"{network:.0}B/s\"\n"));
    }
    text.push('\n');
    nodes
}

fn write_job(
    random: &mut Rng,
    text: &mut String,
    datasets: &[DatasetSize],
    at: usize,
    group: &Group,
    duration_s: f64,
) {
    let batches = datasets[group.dataset].items.div_ceil(group.batch);
    let compute_ms = (group.epoch_s / batches as f64 * 1e3).max(0.001);
    put(
        text,
        format_args!(
            "[[job]]\nname = \"job-{at}\"\ndataset = \"data-{}\"\ncount = {}\ngpus = {}\nbatch = \
             {}\ncompute = \"{compute_ms:.3}ms\"\nstarts = \"{:.3}s\"\n",
            group.dataset,
            group.count,
            group.gpus,
            group.batch,
            group.starts * duration_s
        ),
    );
    if random.u32(0..4) == 0 {
        let transform_ms = compute_ms * 4.0 * random.f64();
        put(text, format_args!("transform = \"{transform_ms:.3}ms\"\n"));
    }
    if random.u32(0..5) == 0 {
        put(text, format_args!("epochs = {}\n", random.u32(1..4)));
    }
    text.push('\n');
}

fn write_fault(
    random: &mut Rng,
    text: &mut String,
    demand: f64,
    nodes: u32,
    first: &Group,
    duration_s: f64,
) {
    let at = duration_s * (0.2 + random.f64() * 0.6);
    put(text, format_args!("[[fault]]\nat = \"{at:.3}s\"\n"));
    match random.u32(0..3) {
        0 => put(text, format_args!("node = {}\n", random.u32(1..=nodes))),
        1 => {
            let rate = demand * log_uniform(random, 0.01, 0.2);
            let lasting = duration_s * 0.2 * random.f64();
            put(text, format_args!("origin = \"{rate:.0}B/s\"\nfor = \"{lasting:.3}s\"\n"));
        }
        _ => {
            let name = if first.count == 1 { "job-0" } else { "job-0-1" };
            let back = duration_s * 0.2 * random.f64();
            put(text, format_args!("job = \"{name}\"\nfor = \"{back:.3}s\"\n"));
        }
    }
}

/// One of several values, by weight.
fn pick<T: Copy>(random: &mut Rng, weighted: &[(u32, T)]) -> T {
    let mut left = random.u32(0..weighted.iter().map(|(weight, _)| weight).sum());
    for (weight, value) in weighted {
        if left < *weight {
            return *value;
        }
        left -= weight;
    }
    unreachable!("the weights have a sum")
}

/// Log-uniform between two positive numbers.
fn log_uniform(random: &mut Rng, low: f64, high: f64) -> f64 {
    (low.ln() + random.f64() * (high.ln() - low.ln())).exp()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive numbers below 2^32, rounded down"
)]
fn whole(number: f64) -> u64 {
    number.max(1.0) as u64
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a string takes everything");
}
