//! A process that fills and reads devices is killed repeatedly, and restarted with other devices,
//! sizes and I/O backends. What was durable and still fits is there, what was freed is not, and no
//! read in any run returns a wrong byte (promises 1 and 7).
//!
//! The process is this test program, run with an otherwise ignored test.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use forebay_core::ByteSize;
use forebay_flash::{DeviceConfig, Flash, FlashConfig, Group, io::Backend, shard::Settings};

use crate::{
    devices::wait,
    world::{content, key},
};

const KILLS: u64 = 20;
/// Environment variable with the child's plan.
const PLAN: &str = "FOREBAY_TEST_KILLED";
/// Entries per kept group.
const KEPT: u64 = 12;
/// Kept groups at a time. Together with one that is being filled and three churn groups, they never
/// need all regions of the smallest device.
const KEPT_GROUPS: usize = 3;

/// Configuration of the engine in one run.
#[derive(Clone)]
struct Plan {
    directory: PathBuf,
    seed: u64,
    uring: bool,
    region_mib: u64,
    /// Size of each device in MiB.
    devices: Vec<u64>,
}

impl Plan {
    fn parse(text: &str) -> Self {
        let mut words = text.split('|');
        let mut next = || words.next().expect("all fields are there");
        let directory = PathBuf::from(next());
        let mut number = || next().parse().expect("a number");
        let (seed, uring, region_mib, count) = (number(), number() == 1, number(), number());
        let devices = (0..count).map(|_| number()).collect();
        Self { directory, seed, uring, region_mib, devices }
    }

    fn to_text(&self) -> String {
        let Self { directory, seed, uring, region_mib, devices } = self;
        let count = devices.len();
        let sizes: String = devices.iter().map(|size| format!("|{size}")).collect();
        let uring = u8::from(*uring);
        format!("{}|{seed}|{uring}|{region_mib}|{count}{sizes}", directory.display())
    }

    fn open(&self) -> Flash {
        let device = |(number, size): (usize, &u64)| DeviceConfig {
            path: self.directory.join(format!("device {number}")),
            capacity: ByteSize::mib(*size),
            region_size: Some(ByteSize::mib(self.region_mib)),
            owner: [7; 16],
        };
        let mut config = FlashConfig::new(self.devices.iter().enumerate().map(device).collect());
        // Where `io_uring` does not work, threads run in both cases.
        config.backend = if self.uring { Backend::Auto } else { Backend::Threads };
        config.staging_buffers = ByteSize::mib(4);
        config.read_buffers = ByteSize::mib(8);
        config.settings = Settings { write_size: 128 << 10, ..config.settings };
        Flash::open(&config).expect("the engine opens after any kill")
    }

    /// Whether everything that is durable under `before` fits here too.
    fn keeps(&self, before: &Self) -> bool {
        self.devices.len() >= before.devices.len()
            && self.devices.iter().zip(&before.devices).all(|(now, before)| now >= before)
    }
}

/// The bytes and the length of an entry, as functions of its number.
fn bytes_of(number: u64) -> Bytes {
    content(number, usize::try_from(number * 7919 % 90_000).expect("less than 90,000"))
}

/// Whether an entry is there. If it is, its bytes must be right.
async fn check(flash: &Flash, number: u64, range: bool) -> bool {
    let bytes = bytes_of(number);
    let part = bytes.len() / 3..bytes.len() - bytes.len() / 5;
    let wanted_range = range.then_some(part.start as u64..part.end as u64);
    let expected = if range { &bytes[part] } else { &bytes[..] };
    match flash.read(key(number), wanted_range).await {
        Ok(None) => false,
        Ok(Some(found)) => {
            assert!(&*found.bytes == expected, "WRONG BYTES of {number}");
            true
        }
        Err(error) => panic!("reading {number}: {error}"),
    }
}

/// What the children have reported before they were killed.
#[derive(Default)]
struct Reports {
    /// Durable entries by group.
    durable: BTreeMap<u64, Vec<u64>>,
    freed: BTreeSet<u64>,
    begun: u64,
}

impl Reports {
    fn on_line(&mut self, line: &str) {
        let mut words = line.split(' ');
        let (Some(word), Some(Ok(number))) = (words.next(), words.next().map(str::parse)) else {
            return;
        };
        match word {
            "begun" => self.begun = self.begun.max(number),
            "durable" => drop(self.durable.insert(number, entries_of(number).collect())),
            "freeing" => drop(self.durable.remove(&number)),
            "freed" => self.freed.extend(entries_of(number)),
            _ => {}
        }
    }
}

/// The entries of a kept group.
fn entries_of(group: u64) -> std::ops::Range<u64> {
    group * KEPT..(group + 1) * KEPT
}

fn group_name(group: u64) -> String {
    format!("kept {group}")
}

#[test]
fn a_killed_process_keeps_durable_entries_and_never_reads_a_wrong_byte() {
    let directory = tempfile::tempdir().unwrap();
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut reports = Reports::default();
    let (mut before, mut lines_read) = (None::<Plan>, 0);
    let (mut kept, mut served) = (0, 0);
    for kill in 0..KILLS {
        // In half of the runs only the backend changes, so all entries must be there.
        let devices = match &before {
            Some(before) if random.bool() => before.devices.clone(),
            _ => (0..random.usize(1..4)).map(|_| random.u64(48..80)).collect(),
        };
        let plan = Plan {
            directory: directory.path().to_owned(),
            seed: kill,
            uring: random.bool(),
            region_mib: 1 << random.u8(..3),
            devices,
        };
        let all_fit = before.as_ref().is_none_or(|before| plan.keeps(before));
        let flash = plan.open();
        wait(async {
            for entries in reports.durable.values_mut() {
                let mut there = Vec::new();
                for number in entries.iter().copied() {
                    let found = check(&flash, number, random.bool()).await;
                    assert!(found || !all_fit, "{number} was durable (kill {kill})");
                    there.extend(found.then_some(number));
                }
                (kept, served) = (kept + usize::from(all_fit), served + there.len());
                *entries = there;
            }
            for number in &reports.freed {
                let found = check(&flash, *number, false).await;
                assert!(!found, "{number} was freed (kill {kill})");
            }
        });
        drop(flash);
        if before.is_some_and(|before| before.devices.len() > plan.devices.len()) {
            // Entries on an absent device are neither there nor freed.
            reports = Reports { begun: reports.begun, ..Reports::default() };
            let others = plan.devices.len()..3;
            for device in others {
                let _ = std::fs::remove_file(directory.path().join(format!("device {device}")));
            }
        }
        lines_read += run_and_kill(&plan, &mut reports, &mut random);
        before = Some(plan);
    }
    assert!(lines_read > 100, "{lines_read} reports");
    assert!(kept > 10 && served > 100, "{kept} groups must be there, {served} entries are");
}

/// Runs a child until it has reported a random number of lines, possibly none, and kills it.
/// Returns the number of lines.
fn run_and_kill(plan: &Plan, reports: &mut Reports, random: &mut fastrand::Rng) -> usize {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill_and_restart::child", "--ignored", "--nocapture"])
        .env(PLAN, format!("{}#{}", plan.to_text(), reports.begun))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines_wanted = if random.u8(..5) == 0 { 0 } else { random.usize(1..60) };
    let mut lines_read = 0;
    while lines_read < lines_wanted
        && let Some(Ok(line)) = lines.next()
    {
        reports.on_line(&line);
        lines_read += 1;
    }
    // Right after a report, or at a random time.
    if random.bool() {
        std::thread::sleep(Duration::from_micros(random.u64(..30_000)));
    }
    kill(&mut child);
    for line in lines.map_while(Result::ok) {
        reports.on_line(&line);
        lines_read += 1;
    }
    lines_read
}

fn kill(child: &mut Child) {
    let ended = child.try_wait().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    if ended.is_some() {
        let mut stderr = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut stderr).unwrap();
        panic!("the child ended by itself: {stderr}");
    }
}

fn report(word: &str, number: u64) {
    // Whole lines, written past the capture of the test harness.
    let _ = std::io::stdout().lock().write_all(format!("{word} {number}\n").as_bytes());
}

/// Run by the test above.
#[test]
#[ignore = "child process of another test, which kills it"]
fn child() {
    let Ok(text) = std::env::var(PLAN) else { return };
    let (plan, begun) = text.split_once('#').expect("a plan and a number");
    let (plan, begun) = (Plan::parse(plan), begun.parse::<u64>().expect("a number"));
    let flash = plan.open();
    wait(load(&flash, plan.seed, begun));
}

/// Fills, seals, frees and reads until it is killed.
async fn load(flash: &Flash, seed: u64, begun: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut groups = kept_groups(flash).await;
    // Pinned before other groups can evict them.
    let mut pins = BTreeMap::new();
    for (number, group) in &groups {
        pins.insert(*number, group.pin().unwrap());
    }
    for next in begun + 1.. {
        while groups.len() > KEPT_GROUPS {
            let (oldest, group) = groups.pop_first().expect("not empty");
            report("freeing", oldest);
            drop(pins.remove(&oldest));
            group.free(Duration::ZERO).await.unwrap();
            report("freed", oldest);
        }
        report("begun", next);
        let group = flash.group(group_name(next).as_bytes(), 1, false).await.unwrap();
        pins.insert(next, group.pin().unwrap());
        for number in entries_of(next) {
            group.append(key(number), 0, bytes_of(number)).await.unwrap();
            churn(flash, &mut random).await;
        }
        if random.bool() {
            group.seal().await.unwrap();
        } else {
            flash.flush().await.unwrap();
        }
        report("durable", next);
        groups.insert(next, group);
        for number in entries_of(next) {
            assert!(check(flash, number, random.bool()).await, "{number} is pinned");
        }
    }
}

/// Entries that are evicted over time, and reads.
async fn churn(flash: &Flash, random: &mut fastrand::Rng) {
    const FIRST: u64 = 1 << 32;
    let name = format!("churn {}", random.u8(..3));
    let group = flash.group(name.as_bytes(), 2, false).await.unwrap();
    for _ in 0..random.u8(..12) {
        let number = FIRST + random.u64(..4000);
        group.append(key(number), 0, bytes_of(number)).await.unwrap();
        check(flash, FIRST + random.u64(..4000), random.bool()).await;
    }
}

/// The kept groups on the devices, by number.
async fn kept_groups(flash: &Flash) -> BTreeMap<u64, Group> {
    let mut groups = BTreeMap::new();
    for facts in flash.groups().await.unwrap() {
        let name = String::from_utf8(facts.name).unwrap();
        if let Some(number) = name.strip_prefix("kept ") {
            let group = flash.group(name.as_bytes(), 1, false).await.unwrap();
            groups.insert(number.parse().unwrap(), group);
        }
    }
    groups
}

#[test]
fn a_plan_round_trips() {
    let (directory, devices) = (Path::new("/a b/c").to_owned(), vec![30, 4]);
    let plan = Plan { directory, seed: 7, uring: true, region_mib: 2, devices };
    let parsed = Plan::parse(&plan.to_text());
    assert_eq!(parsed.to_text(), plan.to_text());
}
