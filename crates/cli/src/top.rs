//! `forebay top`: what the node is doing, again and again.

use std::{
    collections::BTreeMap,
    io::{IsTerminal as _, stdout},
    thread,
    time::{Duration, Instant},
};

use forebay_client::Client;
use forebay_core::{ByteSize, Endpoint};

use crate::{
    output::{self, Verdict},
    status,
};

/// What the node is doing, live.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  forebay top\n  forebay top --every 5 --times 12 >> node.log")]
pub struct Args {
    /// Where the node listens: a socket's path, tcp://HOST:PORT or tls://HOST:PORT; by default `$FOREBAY_SOCKET`,
    /// or this user's socket.
    #[arg(long, value_name = "ENDPOINT", visible_alias = "socket")]
    node: Option<Endpoint>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Stop after so many looks; otherwise it goes on until it is interrupted.
    #[arg(long, value_name = "N")]
    times: Option<u64>,
}

type Counted = BTreeMap<String, u64>;

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let mut client = status::connect(args.node.as_ref())?;
    let (mut last, mut at) = (look(&mut client)?, Instant::now());
    for number in 0.. {
        if args.times == Some(number) {
            break;
        }
        thread::sleep(Duration::from_secs(args.every));
        let now = look(&mut client)?;
        let header = number == 0 || (number % 20 == 0 && stdout().is_terminal());
        output::data(&lines(&last, &now, at.elapsed(), header))?;
        (last, at) = (now, Instant::now());
    }
    Ok(Verdict::Yes)
}

fn look(client: &mut Client) -> anyhow::Result<Counted> {
    Ok(client.stats()?.into_iter().collect())
}

/// One line for a look, with a header now and then.
fn lines(last: &Counted, now: &Counted, passed: Duration, header: bool) -> String {
    let value = |counted: &Counted, name: &str| counted.get(name).copied().unwrap_or(0);
    let more = |name: &str| value(now, name).saturating_sub(value(last, name));
    let rate = |name: &str| format!("{:.0}", more(name) as f64 / passed.as_secs_f64());
    let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX).max(1);
    let bytes = |name: &str| {
        let a_second = more(name).saturating_mul(1000) / millis;
        format!("{}/s", ByteSize(a_second))
    };
    let asked = more("hits") + more("misses") + more("waits_in_vain");
    let share = match asked {
        0 => "-".to_owned(),
        asked => format!("{:.1}%", more("hits") as f64 / asked as f64 * 100.0),
    };
    let cells = [
        ("HITS/s", rate("hits")),
        ("HIT BYTES", bytes("hit_bytes")),
        ("HITS", share),
        ("MEMORY/s", rate("memory_hits")),
        ("PUTS/s", rate("puts")),
        ("PUT BYTES", bytes("put_bytes")),
        ("CLAIMS", value(now, "claims_held").to_string()),
        ("RESIDENT", ByteSize(value(now, "resident_bytes")).to_string()),
        ("CHUNKS +", more("chunks_loaded").to_string()),
        ("-", more("chunks_evicted").to_string()),
        ("CONNECTED", value(now, "connections_open").to_string()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_came_in_between() {
        let counted = |hits: u64, misses: u64| -> Counted {
            let pairs = [("hits", hits), ("misses", misses), ("hit_bytes", hits * 1_000_000)];
            pairs.map(|(name, value)| (name.to_owned(), value)).into()
        };
        let text = lines(&counted(100, 10), &counted(400, 110), Duration::from_secs(2), true);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1][0], "150", "hits a second");
        assert!(rows[1].contains(&"75.0%"), "{text}");
        assert!(
            lines(&counted(1, 1), &counted(0, 0), Duration::from_secs(1), false).contains(" 0 "),
            "a new node"
        );
    }
}
