//! `forebay top`: what the node is doing, again and again: a screen for a terminal, lines for a file.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    io::{IsTerminal as _, stdout},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use forebay_client::{Client, Handle};
use forebay_core::{ByteSize, digest::Digest, manager::Description};
use forebay_digest::DigestFile;

use crate::{
    contact::NodeArg,
    explain,
    output::{self, Verdict},
    stop,
};

/// Looks that the curve of a screen shows.
const CURVE: usize = 60;
const EIGHTHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// What the node is doing, live.
///
/// In a terminal a screen that is drawn again and again; Ctrl-C ends it. Into a file or a pipe, a line for each
/// look. A node tells of its datasets only to those who hold their digests: name some, and it shows their
/// chunks and jobs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Datasets to be shown as well.
    #[arg(value_name = "DIGEST")]
    digests: Vec<PathBuf>,
    #[command(flatten)]
    node: NodeArg,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Stop after so many looks; otherwise it goes on until it is interrupted.
    #[arg(long, value_name = "N")]
    times: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  forebay top
  forebay top train.digest
  forebay top --every 5 --times 12 >> node.log";

type Counted = BTreeMap<String, u64>;

/// One dataset that is shown.
struct Shown {
    name: String,
    file: DigestFile,
    handle: Handle,
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let asked = stop::asked()?;
    let (mut client, shown) = tokio::task::block_in_place(|| connect(&args))?;
    let screen = stdout().is_terminal().then(Screen::begin).transpose()?;
    let mut asked = std::pin::pin!(asked);
    let (mut last, mut at) = (look(&mut client)?, Instant::now());
    let mut curve = VecDeque::new();
    for number in 0.. {
        if args.times == Some(number) {
            break;
        }
        // The first look comes soon: nobody likes an empty screen.
        let pause = if number == 0 && screen.is_some() { 300 } else { args.every * 1000 };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(pause)) => {}
            () = &mut asked => break,
        }
        let now = tokio::task::block_in_place(|| look(&mut client))?;
        let between = Between { last: &last, now: &now, passed: at.elapsed() };
        at = Instant::now();
        if screen.is_some() {
            curve.push_back(between.more("hit_bytes") as f64 / between.passed.as_secs_f64());
            if curve.len() > CURVE {
                curve.pop_front();
            }
            let mut text = between.screen(&curve);
            for shown in &shown {
                text += &tokio::task::block_in_place(|| dataset(&mut client, shown))?;
            }
            Screen::draw(&text)?;
        } else {
            output::data(&between.line(number == 0))?;
        }
        last = now;
    }
    Ok(Verdict::Yes)
}

fn connect(args: &Args) -> anyhow::Result<(Client, Vec<Shown>)> {
    let mut client = args.node.connect()?;
    let mut shown = Vec::new();
    for path in &args.digests {
        let file = forebay_digest::open(path)?;
        let handle =
            client.open(&file.digest).context("the node does not let us at the dataset")?;
        shown.push(Shown { name: path.display().to_string(), file, handle });
    }
    Ok((client, shown))
}

fn look(client: &mut Client) -> anyhow::Result<Counted> {
    Ok(client.stats().context("the node has gone")?.into_iter().collect())
}

/// A terminal that is drawn over, and left as it was.
struct Screen;

impl Screen {
    fn begin() -> anyhow::Result<Self> {
        output::data("\x1b[?1049h\x1b[?25l")?;
        Ok(Self)
    }

    /// Draws over what was there, without a flicker.
    fn draw(text: &str) -> anyhow::Result<()> {
        output::data(&format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\r\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = output::data("\x1b[?25h\x1b[?1049l");
    }
}

/// Two looks, and the time between them.
struct Between<'a> {
    last: &'a Counted,
    now: &'a Counted,
    passed: Duration,
}

impl Between<'_> {
    fn value(&self, name: &str) -> u64 {
        self.now.get(name).copied().unwrap_or(0)
    }

    fn more(&self, name: &str) -> u64 {
        self.value(name).saturating_sub(self.last.get(name).copied().unwrap_or(0))
    }

    /// So many a second.
    fn rate(&self, name: &str) -> String {
        format!("{:.0}", self.more(name) as f64 / self.passed.as_secs_f64())
    }

    fn bytes(&self, name: &str) -> String {
        let millis = u64::try_from(self.passed.as_millis()).unwrap_or(u64::MAX).max(1);
        format!("{}/s", ByteSize(self.more(name).saturating_mul(1000) / millis))
    }

    fn size(&self, name: &str) -> ByteSize {
        ByteSize(self.value(name))
    }

    /// The share of ranges that were hits: between the looks, and since the node's start.
    fn shares(&self) -> [String; 2] {
        let share = |part: &dyn Fn(&str) -> u64| {
            let asked = part("hits") + part("misses") + part("waits_in_vain");
            match asked {
                0 => "-".to_owned(),
                asked => format!("{:.1}%", part("hits") as f64 / asked as f64 * 100.0),
            }
        };
        [share(&|name| self.more(name)), share(&|name| self.value(name))]
    }

    fn screen(&self, curve: &VecDeque<f64>) -> String {
        let [now, ever] = self.shares();
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
                ByteSize(resident),
                ByteSize(capacity)
            ),
        );
        let (memory, most) = (self.value("memory_bytes"), self.value("memory_capacity_bytes"));
        row("memory", &format!("{} {} of {}", bar(memory, most), ByteSize(memory), ByteSize(most)));
        row("", "");
        row("hits", &format!("{now:>7} now, {ever} since the start"));
        row(
            "",
            &format!(
                "{:>7}/s  {:>11}   {}/s from memory",
                self.rate("hits"),
                self.bytes("hit_bytes"),
                self.rate("memory_hits")
            ),
        );
        row("", &graph(curve));
        row(
            "misses",
            &format!(
                "{:>7}/s  {} waited for somebody's fetch, {} in vain",
                self.rate("misses"),
                self.value("waits"),
                self.value("waits_in_vain")
            ),
        );
        row("stored", &format!("{:>7}/s  {:>11}", self.rate("puts"), self.bytes("put_bytes")));
        row(
            "saved",
            &format!(
                "{} given to jobs for {} from the origin: {} less",
                ByteSize(hit),
                ByteSize(put),
                ByteSize(hit.saturating_sub(put))
            ),
        );
        row("", "");
        row(
            "jobs",
            &format!(
                "{} on {}; {} report, of {}",
                output::count(self.value("connections_open"), "connection"),
                output::count(self.value("datasets_open"), "dataset"),
                self.value("jobs"),
                output::count(self.value("datasets_managed"), "dataset")
            ),
        );
        row(
            "chunks",
            &format!(
                "{} held, {} rotating, {} loading; {} loaded and {} evicted since the start",
                halves(self.value("pieces_held")),
                halves(self.value("pieces_rotating")),
                halves(self.value("pieces_loading")),
                self.value("chunks_loaded"),
                self.value("chunks_evicted")
            ),
        );
        row(
            "claims",
            &format!(
                "{} held, {} granted; {} expired, {} abandoned, {} outside",
                self.value("claims_held"),
                self.value("claims_granted"),
                self.value("claims_expired"),
                self.value("claims_abandoned"),
                self.value("claims_outside")
            ),
        );
        let well = format!(
            "{} of {} well, {} written",
            self.value("devices_well"),
            output::count(self.value("devices_named"), "device"),
            self.size("flash_device_written_bytes")
        );
        row("flash", &well);
        row("up", &format!("{} s", self.value("uptime_seconds")));
        text
    }

    /// One line for a look, with a header before the first.
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
            ("RESIDENT", self.size("resident_bytes").to_string()),
            ("CHUNKS +", self.more("chunks_loaded").to_string()),
            ("-", self.more("chunks_evicted").to_string()),
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

/// How a dataset stands.
fn dataset(client: &mut Client, shown: &Shown) -> anyhow::Result<String> {
    let json = client.explain(shown.handle).context("the node has gone")?;
    let described: Option<Description> =
        serde_json::from_slice(&json).context("the node's answer makes no sense; is it newer?")?;
    let text = match described {
        Some(described) => explain::for_people(&described),
        None => here(client, shown.handle, &shown.file.digest)?,
    };
    let indented: String = text.lines().map(|line| format!(" {line}\n")).collect();
    Ok(format!("\n {}\n{indented}", shown.name))
}

/// How much of a dataset that nobody manages is there.
fn here(client: &mut Client, handle: Handle, digest: &Digest) -> anyhow::Result<String> {
    let blobs = digest.summary().blobs;
    let presence = client.presence(handle, blobs).context("the node has gone")?;
    let here: u64 = presence.iter().map(|bits| u64::from(bits.count_ones())).sum();
    Ok(format!("{} {here} of {}\n", bar(here, blobs), output::count(blobs, "blob")))
}

/// Pieces are halves of chunks.
fn halves(pieces: u64) -> String {
    if pieces.is_multiple_of(2) { (pieces / 2).to_string() } else { format!("{}½", pieces / 2) }
}

fn bar(part: u64, whole: u64) -> String {
    const WIDTH: usize = 20;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
    let full = (part as f64 / whole.max(1) as f64 * WIDTH as f64).round() as usize;
    let full = full.min(WIDTH);
    format!("[{}{}]", "=".repeat(full), " ".repeat(WIDTH - full))
}

/// A curve of one line.
fn graph(values: &VecDeque<f64>) -> String {
    let most = values.iter().copied().fold(0.0, f64::max);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an eighth")]
    let height = |value: &f64| EIGHTHS[((value / most * 7.0).round() as usize).min(7)];
    if most > 0.0 { values.iter().map(height).collect() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(hits: u64, misses: u64) -> Counted {
        let pairs = [("hits", hits), ("misses", misses), ("hit_bytes", hits * 1_000_000)];
        pairs.map(|(name, value)| (name.to_owned(), value)).into()
    }

    #[test]
    fn rates_are_what_came_in_between() {
        let (last, now) = (counted(100, 10), counted(400, 110));
        let between = Between { last: &last, now: &now, passed: Duration::from_secs(2) };
        let text = between.line(true);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1][0], "150", "hits a second");
        assert!(rows[1].contains(&"75.0%"), "{text}");
        let screen = between.screen(&[1.0, 2.0].into());
        assert!(screen.contains("75.0% now, 78.4% since"), "{screen}");
        let begun = Between { last: &now, now: &last, passed: Duration::from_secs(1) };
        assert!(begun.line(false).contains(" 0 "), "a new node");
    }

    #[test]
    fn bars_and_curves_keep_to_their_place() {
        assert_eq!(bar(1, 2), "[==========          ]");
        assert_eq!(bar(9, 0), "[====================]");
        assert_eq!(graph(&[0.0, 7.0, 3.5].into()), "▁█▅");
        assert_eq!(graph(&[0.0].into()), "");
        assert_eq!((halves(4), halves(3)), ("2".to_owned(), "1½".to_owned()));
    }
}
