//! A process that fills and reads devices is killed, again and again, and started again on other devices, of
//! other sizes, with other I/O. What was durable and fits is there; what was freed is not; and nobody, in
//! any run, is ever given a wrong byte (promises 1 and 7).
//!
//! The process is this test program, run again with a test that is ignored otherwise.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use forebay_core::ByteSize;
use forebay_flash::{Config, DeviceConfig, Flash, Group, io::Backend, shard::Settings};

use crate::{
    devices::wait,
    world::{content, key},
};

const KILLS: u64 = 20;
/// How the child is told what to do.
const PLAN: &str = "FOREBAY_TEST_KILLED";
/// Entries of one kept group.
const KEPT: u64 = 12;
/// Kept groups that are there at a time. With one that is begun and three that churn, they never have all
/// regions of the smallest device.
const KEPT_GROUPS: usize = 3;

/// How the engine shall be in one run.
#[derive(Clone)]
struct Plan {
    directory: PathBuf,
    seed: u64,
    uring: bool,
    region_mib: u64,
    /// MiB of each device.
    devices: Vec<u64>,
}

impl Plan {
    fn parse(text: &str) -> Self {
        let mut words = text.split('|');
        let mut next = || words.next().expect("all of them");
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
        let mut config = Config::new(self.devices.iter().enumerate().map(device).collect());
        // Where there is no ring, threads are tried twice.
        config.backend = if self.uring { Backend::Auto } else { Backend::Threads };
        config.staging = ByteSize::mib(4);
        config.reading = ByteSize::mib(8);
        config.settings = Settings { piece_size: 128 << 10, ..config.settings };
        Flash::open(&config).expect("it opens, whatever happened before")
    }

    /// Whether everything that is durable under `before` has its place here.
    fn keeps(&self, before: &Self) -> bool {
        self.devices.len() >= before.devices.len()
            && self.devices.iter().zip(&before.devices).all(|(now, before)| now >= before)
    }
}

/// The bytes of an entry, and their number, are a function of its own number.
fn bytes_of(number: u64) -> Bytes {
    content(number, usize::try_from(number * 7919 % 90_000).expect("small"))
}

/// Whether it is there; if it is, it is right.
async fn check(flash: &Flash, number: u64, range: bool) -> bool {
    let bytes = bytes_of(number);
    let part = bytes.len() / 3..bytes.len() - bytes.len() / 5;
    let asked = range.then_some(part.start as u64..part.end as u64);
    let expected = if range { &bytes[part] } else { &bytes[..] };
    match flash.read(key(number), asked).await {
        Ok(None) => false,
        Ok(Some(found)) => {
            assert!(&*found.bytes == expected, "WRONG BYTES of {number}");
            true
        }
        Err(refusal) => panic!("reading {number}: {refusal}"),
    }
}

/// What the parent knows from what its children said before they died.
#[derive(Default)]
struct Ledger {
    /// By group.
    durable: BTreeMap<u64, Vec<u64>>,
    freed: BTreeSet<u64>,
    begun: u64,
}

impl Ledger {
    fn hear(&mut self, line: &str) {
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
fn killed_at_any_moment_it_serves_what_was_durable_and_never_a_wrong_byte() {
    let directory = tempfile::tempdir().unwrap();
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut ledger = Ledger::default();
    let (mut before, mut heard) = (None::<Plan>, 0);
    let (mut kept, mut served) = (0, 0);
    for kill in 0..KILLS {
        // Half the time nothing but the I/O changes, so that everything must be there.
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
        let nothing_goes = before.as_ref().is_none_or(|before| plan.keeps(before));
        let flash = plan.open();
        wait(async {
            for entries in ledger.durable.values_mut() {
                let mut there = Vec::new();
                for number in entries.iter().copied() {
                    let found = check(&flash, number, random.bool()).await;
                    assert!(found || !nothing_goes, "{number} was durable (kill {kill})");
                    there.extend(found.then_some(number));
                }
                (kept, served) = (kept + usize::from(nothing_goes), served + there.len());
                *entries = there;
            }
            for number in &ledger.freed {
                let found = check(&flash, *number, false).await;
                assert!(!found, "{number} was freed for good (kill {kill})");
            }
        });
        drop(flash);
        if before.is_some_and(|before| before.devices.len() > plan.devices.len()) {
            // What is on a device that is away is neither there nor freed.
            ledger = Ledger { begun: ledger.begun, ..Ledger::default() };
            let others = plan.devices.len()..3;
            for device in others {
                let _ = std::fs::remove_file(directory.path().join(format!("device {device}")));
            }
        }
        heard += run_and_kill(&plan, &mut ledger, &mut random);
        before = Some(plan);
    }
    assert!(heard > 100, "{heard} reports");
    assert!(kept > 10 && served > 100, "{kept} groups had to be there, {served} entries were");
}

/// Runs a child until it has said something, or not even that; returns how much.
fn run_and_kill(plan: &Plan, ledger: &mut Ledger, random: &mut fastrand::Rng) -> usize {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child", "--ignored", "--nocapture"])
        .env(PLAN, format!("{}#{}", plan.to_text(), ledger.begun))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let wanted = if random.u8(..5) == 0 { 0 } else { random.usize(1..60) };
    let mut heard = 0;
    while heard < wanted
        && let Some(Ok(line)) = lines.next()
    {
        ledger.hear(&line);
        heard += 1;
    }
    // As soon as it has said something, or not in step with that.
    if random.bool() {
        std::thread::sleep(Duration::from_micros(random.u64(..30_000)));
    }
    kill(&mut child);
    for line in lines.map_while(Result::ok) {
        ledger.hear(&line);
        heard += 1;
    }
    heard
}

fn kill(child: &mut Child) {
    let ended = child.try_wait().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    if ended.is_some() {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
        panic!("the child ended by itself: {said}");
    }
}

fn say(word: &str, number: u64) {
    // Whole lines only, past the capture of the test harness.
    let _ = std::io::stdout().lock().write_all(format!("{word} {number}\n").as_bytes());
}

/// Run by the test above.
#[test]
#[ignore = "it is a part of another test, which kills it"]
fn child() {
    let Ok(text) = std::env::var(PLAN) else { return };
    let (plan, begun) = text.split_once('#').expect("both");
    let (plan, begun) = (Plan::parse(plan), begun.parse::<u64>().expect("a number"));
    let flash = plan.open();
    wait(load(&flash, plan.seed, begun));
}

/// Fills, seals, frees and reads for ever.
async fn load(flash: &Flash, seed: u64, begun: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut groups = kept_groups(flash).await;
    // Held before anything can be evicted for the sake of others.
    let mut pins = BTreeMap::new();
    for (number, group) in &groups {
        pins.insert(*number, group.pin().unwrap());
    }
    for next in begun + 1.. {
        while groups.len() > KEPT_GROUPS {
            let (oldest, group) = groups.pop_first().expect("some");
            say("freeing", oldest);
            drop(pins.remove(&oldest));
            group.free(Duration::ZERO).await.unwrap();
            say("freed", oldest);
        }
        say("begun", next);
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
        say("durable", next);
        groups.insert(next, group);
        for number in entries_of(next) {
            assert!(check(flash, number, random.bool()).await, "{number} is pinned");
        }
    }
}

/// Entries that come and go by themselves, and reads.
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

/// The kept groups that are still there, by number.
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

/// What is told is what is heard.
#[test]
fn a_plan_can_be_told() {
    let (directory, devices) = (Path::new("/a b/c").to_owned(), vec![30, 4]);
    let plan = Plan { directory, seed: 7, uring: true, region_mib: 2, devices };
    let told = Plan::parse(&plan.to_text());
    assert_eq!(told.to_text(), plan.to_text());
}
