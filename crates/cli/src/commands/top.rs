//! `forebay top`: the activity of a node over time, as a screen in a terminal or lines in a file.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    io::{IsTerminal as _, stdout},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use forebay_client::{Client, Handle};
use forebay_core::{ByteSize, units::parse_duration, util::printable::printable_lines};
use forebay_digest::{Digest, DigestFile};

use crate::{
    args::{digest::DigestArg, node::NodeArg},
    commands::explain,
    output::{self, Format, Verdict},
    signals,
};

/// Samples in the graph of the screen.
const GRAPH_SAMPLES: usize = 60;
const EIGHTHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The first interval of a screen.
const FIRST_INTERVAL: Duration = Duration::from_millis(300);

/// Show the activity of a node.
///
/// In a terminal, a screen is redrawn at every interval until Ctrl-C. In a file or a pipe, each
/// interval is a line. A node shows the chunks and jobs of a dataset only to a client that holds
/// its digest, so name the digests of the datasets to show.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Also show these datasets, on the screen of a terminal only: digests, or URLs.
    #[arg(value_name = "DIGEST")]
    digests: Vec<DigestArg>,
    #[command(flatten)]
    node: NodeArg,
    /// Update at this interval: 1s to 60min.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    every: Duration,
    /// Stop after this number of intervals [default: until Ctrl-C].
    #[arg(long, value_name = "N")]
    times: Option<u64>,
    /// Print the intervals in this format. JSON is one object per line, also in a terminal.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  forebay top
  forebay top train.digest
  forebay top s3://bucket/train
  forebay top --every 5s --times 12 >> node.log
  forebay top --format json --times 1 | jq .hit_bytes_per_second";

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    let allowed = Duration::from_secs(1)..=Duration::from_hours(1);
    allowed.contains(&interval).then_some(interval).ok_or_else(|| "give 1s to 60min".to_owned())
}

type Counters = BTreeMap<String, u64>;

/// A dataset to show.
struct ShownDataset {
    name: String,
    file: DigestFile,
    handle: Handle,
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let stop = signals::stop_requested()?;
    let (mut client, shown) = tokio::task::block_in_place(|| connect(&args))?;
    let has_screen = stdout().is_terminal() && args.format == Format::Text;
    let screen = has_screen.then(Screen::begin).transpose()?;
    let mut stop = std::pin::pin!(stop);
    let (mut last, mut at) = (query(&mut client)?, Instant::now());
    let mut graph = VecDeque::new();
    for number in 0.. {
        if args.times == Some(number) {
            break;
        }
        // The first interval of a screen is short, so that it is not empty for long.
        let pause = if number == 0 && screen.is_some() { FIRST_INTERVAL } else { args.every };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = &mut stop => break,
        }
        let now = tokio::task::block_in_place(|| query(&mut client))?;
        let interval = Interval { last: &last, now: &now, passed: at.elapsed() };
        at = Instant::now();
        if screen.is_some() {
            graph.push_back(interval.increase("hit_bytes") as f64 / interval.passed.as_secs_f64());
            if graph.len() > GRAPH_SAMPLES {
                graph.pop_front();
            }
            let mut text = interval.screen(&graph);
            for shown in &shown {
                text += &tokio::task::block_in_place(|| dataset(&mut client, shown))?;
            }
            Screen::draw(&text)?;
        } else if args.format == Format::Json {
            output::data(&format!("{}\n", serde_json::to_string(&interval.sample())?))?;
        } else {
            output::data(&interval.line(number == 0))?;
        }
        last = now;
    }
    Ok(Verdict::Yes)
}

fn connect(args: &Args) -> anyhow::Result<(Client, Vec<ShownDataset>)> {
    let mut client = args.node.connect()?;
    let mut shown = Vec::new();
    for named in &args.digests {
        let file = named.open()?;
        let handle = client.open(&file.digest).context("cannot open the dataset on the node")?;
        shown.push(ShownDataset { name: named.to_string(), file, handle });
    }
    Ok((client, shown))
}

fn query(client: &mut Client) -> anyhow::Result<Counters> {
    Ok(client.stats().context("cannot query the node")?.into_iter().collect())
}

/// The alternate screen of a terminal, which is restored on drop.
struct Screen;

impl Screen {
    fn begin() -> anyhow::Result<Self> {
        output::raw("\x1b[?1049h\x1b[?25l")?;
        Ok(Self)
    }

    /// Overwrites the screen without clearing it first, which would flicker.
    fn draw(text: &str) -> anyhow::Result<()> {
        let text = printable_lines(text).replace('\n', "\x1b[K\r\n");
        output::raw(&format!("\x1b[H{text}\x1b[J"))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = output::raw("\x1b[?25h\x1b[?1049l");
    }
}

/// One interval in JSON. Rates are per second; loaded and evicted chunks are of the interval.
#[derive(Debug, serde::Serialize)]
struct Sample {
    seconds: f64,
    hits_per_second: f64,
    hit_bytes_per_second: f64,
    memory_hits_per_second: f64,
    /// Absent without reads.
    hit_share: Option<f64>,
    puts_per_second: f64,
    put_bytes_per_second: f64,
    claims_held: u64,
    resident_bytes: u64,
    capacity_bytes: u64,
    chunks_loaded: u64,
    chunks_evicted: u64,
    connections_open: u64,
    jobs: u64,
}

/// Two samples of the counters, and the time between them.
struct Interval<'a> {
    last: &'a Counters,
    now: &'a Counters,
    passed: Duration,
}

impl Interval<'_> {
    fn value(&self, name: &str) -> u64 {
        self.now.get(name).copied().unwrap_or(0)
    }

    fn increase(&self, name: &str) -> u64 {
        self.value(name).saturating_sub(self.last.get(name).copied().unwrap_or(0))
    }

    fn per_second(&self, name: &str) -> f64 {
        self.increase(name) as f64 / self.passed.as_secs_f64()
    }

    /// Increase per second, as text.
    fn rate(&self, name: &str) -> String {
        format!("{:.0}", self.per_second(name))
    }

    /// The interval as numbers.
    fn sample(&self) -> Sample {
        let reads =
            self.increase("hits") + self.increase("misses") + self.increase("wait_timeouts");
        Sample {
            seconds: self.passed.as_secs_f64(),
            hits_per_second: self.per_second("hits"),
            hit_bytes_per_second: self.per_second("hit_bytes"),
            memory_hits_per_second: self.per_second("memory_hits"),
            hit_share: (reads > 0).then(|| self.increase("hits") as f64 / reads as f64),
            puts_per_second: self.per_second("puts"),
            put_bytes_per_second: self.per_second("put_bytes"),
            claims_held: self.value("claims_held"),
            resident_bytes: self.value("resident_bytes"),
            capacity_bytes: self.value("capacity_bytes"),
            chunks_loaded: self.increase("chunks_loaded"),
            chunks_evicted: self.increase("chunks_evicted"),
            connections_open: self.value("connections_open"),
            jobs: self.value("jobs"),
        }
    }

    /// Increase in bytes per second.
    fn bytes(&self, name: &str) -> String {
        let millis = u64::try_from(self.passed.as_millis()).unwrap_or(u64::MAX).max(1);
        format!("{}/s", ByteSize(self.increase(name).saturating_mul(1000) / millis).rounded())
    }

    fn size(&self, name: &str) -> String {
        ByteSize(self.value(name)).rounded()
    }

    /// Shares of reads that were hits: in the interval, and since the start of the node.
    fn shares(&self) -> [String; 2] {
        let share = |part: &dyn Fn(&str) -> u64| {
            let reads = part("hits") + part("misses") + part("wait_timeouts");
            match reads {
                0 => "-".to_owned(),
                reads => format!("{:.1}%", part("hits") as f64 / reads as f64 * 100.0),
            }
        };
        [share(&|name| self.increase(name)), share(&|name| self.value(name))]
    }

    fn screen(&self, samples: &VecDeque<f64>) -> String {
        let [now, total] = self.shares();
        let (hit, put) = (self.value("hit_bytes"), self.value("put_bytes"));
        let mut text = String::new();
        let mut row = |name: &str, value: &str| {
            let _ = writeln!(text, " {name:<9} {value}");
        };
        let (resident, capacity) = (self.value("resident_bytes"), self.value("capacity_bytes"));
        row(
            "resident",
            &format!(
                "{} {} of {}",
                bar(resident, capacity),
                ByteSize(resident).rounded(),
                ByteSize(capacity).rounded()
            ),
        );
        let (memory, limit) = (self.value("memory_bytes"), self.value("memory_capacity_bytes"));
        let sizes = [memory, limit].map(|bytes| ByteSize(bytes).rounded());
        let used = format!("{} {} of {}", bar(memory, limit), sizes[0], sizes[1]);
        row("memory", &used);
        row("", "");
        row("hits", &format!("{now:>7} now, {total} since the start"));
        row(
            "",
            &format!(
                "{:>7}/s  {:>11}   {}/s from memory",
                self.rate("hits"),
                self.bytes("hit_bytes"),
                self.rate("memory_hits")
            ),
        );
        row("", &graph(samples));
        row(
            "misses",
            &format!(
                "{:>7}/s  {} waits for a fetch, {} timed out",
                self.rate("misses"),
                self.value("waits"),
                self.value("wait_timeouts")
            ),
        );
        row("stored", &format!("{:>7}/s  {:>11}", self.rate("puts"), self.bytes("put_bytes")));
        row(
            "saved",
            &format!(
                "{} served to jobs, {} fetched from the origin: {} less",
                ByteSize(hit).rounded(),
                ByteSize(put).rounded(),
                ByteSize(hit.saturating_sub(put)).rounded()
            ),
        );
        row("", "");
        row(
            "jobs",
            &format!(
                "{} on {}; {} jobs report on {}",
                output::count(self.value("connections_open"), "connection"),
                output::count(self.value("datasets_open"), "dataset"),
                self.value("jobs"),
                output::count(self.value("datasets_managed"), "dataset")
            ),
        );
        row(
            "chunks",
            &format!(
                "{} pinned, {} rotating, {} loading; {} loaded and {} evicted since the start",
                in_chunks(self.value("half_chunks_pinned")),
                in_chunks(self.value("half_chunks_rotating")),
                in_chunks(self.value("half_chunks_loading")),
                self.value("chunks_loaded"),
                self.value("chunks_evicted")
            ),
        );
        row(
            "claims",
            &format!(
                "{} held, {} granted; {} expired, {} abandoned, {} uncached",
                self.value("claims_held"),
                self.value("claims_granted"),
                self.value("claims_expired"),
                self.value("claims_abandoned"),
                self.value("claims_uncached")
            ),
        );
        let devices = format!(
            "{} of {} healthy, {} written",
            self.value("devices_healthy"),
            output::count(self.value("devices_configured"), "device"),
            self.size("flash_device_written_bytes")
        );
        row("flash", &devices);
        row("up", &format!("{} s", self.value("uptime_seconds")));
        text
    }

    /// The line of an interval, with a header before the first.
    fn line(&self, header: bool) -> String {
        let [share, _] = self.shares();
        let cells = [
            ("HITS/s", self.rate("hits")),
            ("HIT BYTES", self.bytes("hit_bytes")),
            ("HITS", share),
            ("MEMORY/s", self.rate("memory_hits")),
            ("PUTS/s", self.rate("puts")),
            ("PUT BYTES", self.bytes("put_bytes")),
            ("CLAIMS", self.value("claims_held").to_string()),
            ("RESIDENT", self.size("resident_bytes")),
            ("CHUNKS +", self.increase("chunks_loaded").to_string()),
            ("-", self.increase("chunks_evicted").to_string()),
            ("CONNECTED", self.value("connections_open").to_string()),
        ];
        let line = |part: fn(&(&str, String)) -> String| {
            let cells: Vec<String> = cells.iter().map(part).collect();
            let widths = [8, 12, 7, 9, 8, 12, 7, 10, 9, 4, 10];
            let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
            padded.collect::<Vec<_>>().join(" ") + "\n"
        };
        let head = if header { line(|(name, _)| (*name).to_owned()) } else { String::new() };
        head + &line(|(_, value)| value.clone())
    }
}

/// The state of a dataset.
fn dataset(client: &mut Client, shown: &ShownDataset) -> anyhow::Result<String> {
    let text = match explain::describe(client, shown.handle)? {
        Some(explanation) => explain::explanation_to_text(&explanation),
        None => resident_blobs(client, shown.handle, &shown.file.digest)?,
    };
    let indented: String = text.lines().map(|line| format!(" {line}\n")).collect();
    Ok(format!("\n {}\n{indented}", shown.name))
}

/// Resident blobs of a dataset without a manager.
fn resident_blobs(client: &mut Client, handle: Handle, digest: &Digest) -> anyhow::Result<String> {
    let blobs = digest.summary().blobs;
    let presence = client.presence(handle, blobs).context("cannot query the node")?;
    let resident: u64 = presence.iter().map(|bits| u64::from(bits.count_ones())).sum();
    Ok(format!("{} {resident} of {}\n", bar(resident, blobs), output::count(blobs, "blob")))
}

/// A number of half-chunks, in chunks.
fn in_chunks(halves: u64) -> String {
    if halves.is_multiple_of(2) { (halves / 2).to_string() } else { format!("{}½", halves / 2) }
}

fn bar(part: u64, whole: u64) -> String {
    const WIDTH: usize = 20;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
    let full = (part as f64 / whole.max(1) as f64 * WIDTH as f64).round() as usize;
    let full = full.min(WIDTH);
    format!("[{}{}]", "=".repeat(full), " ".repeat(WIDTH - full))
}

/// A graph of one line.
fn graph(values: &VecDeque<f64>) -> String {
    let most = values.iter().copied().fold(0.0, f64::max);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an eighth")]
    let height = |value: &f64| EIGHTHS[((value / most * 7.0).round() as usize).min(7)];
    if most > 0.0 { values.iter().map(height).collect() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(hits: u64, misses: u64) -> Counters {
        let pairs = [("hits", hits), ("misses", misses), ("hit_bytes", hits * 1_000_000)];
        pairs.map(|(name, value)| (name.to_owned(), value)).into()
    }

    #[test]
    fn rates_are_increases_per_second() {
        let (last, now) = (counters(100, 10), counters(400, 110));
        let interval = Interval { last: &last, now: &now, passed: Duration::from_secs(2) };
        let text = interval.line(true);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1][0], "150", "hits per second");
        assert!(rows[1].contains(&"75.0%"), "{text}");
        let screen = interval.screen(&[1.0, 2.0].into());
        assert!(screen.contains("75.0% now, 78.4% since"), "{screen}");
        let restarted = Interval { last: &now, now: &last, passed: Duration::from_secs(1) };
        assert!(restarted.line(false).contains(" 0 "), "counters begin at 0 after a restart");
        let sample = interval.sample();
        assert!((sample.hits_per_second - 150.0).abs() < 1e-9, "{sample:?}");
        assert!((sample.hit_share.unwrap() - 0.75).abs() < 1e-9, "{sample:?}");
    }

    #[test]
    fn bars_and_graphs_have_a_fixed_width() {
        assert_eq!(bar(1, 2), "[==========          ]");
        assert_eq!(bar(9, 0), "[====================]");
        assert_eq!(graph(&[0.0, 7.0, 3.5].into()), "▁█▅");
        assert_eq!(graph(&[0.0].into()), "");
        assert_eq!((in_chunks(4), in_chunks(3)), ("2".to_owned(), "1½".to_owned()));
    }
}
