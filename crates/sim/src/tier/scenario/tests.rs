//! Parsing and checking of tier scenarios.

use super::*;
use crate::tier::{Announced, Event, Order};

/// A valid scenario.
const GOOD: &str = r#"kind = "tier"
about = "two jobs"
policy = "lru"
segment = "1MiB"
skew = "10%"
vary = "20%"

[tier]
flash = "100MiB"
dram = "4MiB"
nodes = 2
write_limit = "10MB/s"
threshold_min = 1.5
refresh = "5s"
expert = ["day-1"]

[disks]
capacity = "10TB"
bandwidth = "100MB/s"

[[partition]]
name = "day"
count = 3
size = "64MiB"
columns = 4

[[partition]]
name = "extra"
size = "10MiB"

[[job]]
name = "trainer"
count = 2
reads = ["day-1", "day-2"]
columns = 2
readers = 3
rate = "1MB/s"

[[job]]
name = "later"
wave = 2
reads = ["extra"]
says = ["day-3"]
rate = "1MB/s"
order = "shuffle 10%"
announced = "queued"
stops_after = "50%"

[[variant]]
name = "plain"

[[variant]]
name = "other"
flash = "50MiB"
skew = "0%"
order = "reverse"
announced = "never"
reinsertion = true
"#;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, "mine.toml", "mine")
}

#[test]
fn a_file_gives_partitions_jobs_and_variants() {
    let scenario = parse(GOOD).unwrap();
    assert_eq!((&*scenario.name, scenario.policy), ("mine", PolicyKind::Lru));
    let [plain, other] = &scenario.setups[..] else { panic!("two variants") };
    assert_eq!((plain.nodes, plain.flash, other.flash), (2, ByteSize::mib(100), ByteSize::mib(50)));
    assert_eq!((plain.reinsertion, other.reinsertion), (false, true));
    let workload = &plain.workload;
    let names: Vec<&str> = workload.jobs.iter().map(|job| &*job.name).collect();
    assert_eq!(names, ["trainer-1", "trainer-2", "later"]);
    // Three days of four columns each, and one undivided partition.
    assert_eq!((workload.parts.len(), workload.segments()), (13, 3 * 64 + 10));
    assert_eq!(workload.jobs[0].stages, [[0, 1], [4, 5]], "two columns of two days");
    assert_eq!(plain.expert, (0..4).map(Bucket).collect());
    // 64 segments of 1 MiB at 3 MB/s. The second starts a tenth of that later, the next wave when
    // both are done.
    let starts: Vec<u128> = workload.jobs.iter().map(|job| job.starts.as_millis()).collect();
    assert_eq!(starts, [0, 2236, 24_606]);
    assert_eq!(workload.segments_of(&workload.jobs[2]), 5, "it stops after half");
    assert_eq!(workload.jobs[2].order, Order::Shuffle(0.1));
    assert!(other.workload.jobs.iter().all(|job| job.announced == Announced::Never));
}

#[test]
fn every_job_reads_every_segment_once_in_any_order() {
    for order in ["sequence", "reverse", "parts", "shuffle", "shuffle 10%"] {
        let text = GOOD.replace("shuffle 10%", order).replace("stops_after = \"50%\"\n", "");
        let scenario = parse(&text).unwrap();
        let workload = &scenario.setups[0].workload;
        let mut read: Vec<Vec<u64>> = vec![Vec::new(); workload.jobs.len()];
        let mut last = std::time::Duration::ZERO;
        for (at, event) in workload.events() {
            assert!(at >= last, "time does not go back");
            last = at;
            if let Event::Read(request) = event {
                read[usize::try_from(request.job.unwrap().0).unwrap()].push(request.segment.0);
            }
        }
        for (job, mut segments) in workload.jobs.iter().zip(read) {
            let parts = job.stages.iter().flatten().map(|part| &workload.parts[*part as usize]);
            let mut expected: Vec<u64> = parts
                .flat_map(|part| (part.first..part.first + part.segments).map(u64::from))
                .collect();
            segments.sort_unstable();
            expected.sort_unstable();
            assert_eq!(segments, expected, "{order}, {}", job.name);
        }
    }
}

/// Every kind of error: the change to the valid file, the line, and parts of the message.
#[test]
fn errors_name_the_line_and_the_remedy() {
    let cases: &[(&str, &str, usize, &[&str])] = &[
        ("policy = \"lru\"", "policy = \"quiver\"", 3, &["`policy`", "`quiver`", "fifo, lru"]),
        ("about = \"two jobs\"", "", 1, &["`about` is missing"]),
        ("segment = \"1MiB\"", "segment = \"1KiB\"", 4, &["`segment` is 1 KiB", "4 KiB to"]),
        ("segment = \"1MiB\"", "segment = \"1\"", 4, &["`segment`", "unit is missing"]),
        (
            "segment = \"1MiB\"",
            "segment = \"128MiB\"",
            24,
            &["no segment of 128 MiB", "change one"],
        ),
        ("skew = \"10%\"", "skew = \"110%\"", 5, &["`skew`", "0% to 100%"]),
        ("vary = \"20%\"", "vary = \"100%\"", 6, &["`vary`", "less than 100%"]),
        ("flash = \"100MiB\"", "", 8, &["`flash` is missing", "flash = \"1TB\""]),
        (
            "flash = \"50MiB\"",
            "flash = \"1MiB\"",
            54,
            &["does not hold a segment of 1 MiB on each"],
        ),
        ("nodes = 2", "nodes = 0", 11, &["`nodes` is 0", "1 to 1000"]),
        ("write_limit = \"10MB/s\"", "write_limit = \"0B/s\"", 12, &["the rate is zero"]),
        ("threshold_min = 1.5", "threshold_min = -1.0", 13, &["`threshold_min`", "0.0 to 100.0"]),
        ("threshold_min = 1.5", "threshold_min = nan", 13, &["`threshold_min`", "0.0 to 100.0"]),
        ("refresh = \"5s\"", "refresh = \"0s\"", 14, &["`refresh` is too short"]),
        ("expert = [\"day-1\"]", "expert = [\"day\"]", 15, &["no partition `day`", "day-1, day-2"]),
        ("count = 3", "count = 0", 23, &["`count` is 0"]),
        ("columns = 4", "columns = 99", 25, &["`columns` is 99", "1 to 64"]),
        ("name = \"extra\"", "name = \"day-1\"", 28, &["two partitions", "`day-1`"]),
        ("name = \"extra\"", "name = \"day\"", 28, &["a partition `day` already"]),
        ("name = \"extra\"", "name = \"e x\"", 28, &["`e x` cannot name a partition"]),
        ("\"day-1\", \"day-2\"]", "\"day-1\", \"day-9\"]", 34, &["no partition `day-9`"]),
        ("\"day-1\", \"day-2\"]", "\"day-1\", \"day-1\"]", 34, &["`day-1` is named twice"]),
        ("reads = [\"extra\"]", "reads = []", 42, &["reads nothing", "name at least one"]),
        ("says = [\"day-3\"]", "says = [\"day-7\"]", 43, &["no partition `day-7`"]),
        ("rate = \"1MB/s\"\norder", "rate = \"2B/s\"\norder", 39, &["less than 1 kB/s", "raise"]),
        ("rate = \"1MB/s\"\norder", "order", 39, &["`rate` is missing", "\"1.5GB/s\""]),
        ("shuffle 10%", "random", 45, &["no order `random`", "\"sequence\""]),
        ("shuffle 10%", "shuffle 200%", 45, &["0% to 100%"]),
        (
            "announced = \"queued\"",
            "announced = \"soon\"",
            46,
            &["`soon` is no such time", "never"],
        ),
        ("stops_after = \"50%\"", "stops_after = \"0%\"", 47, &["reads nothing", "more than 0%"]),
        ("name = \"later\"", "name = \"trainer\"", 40, &["a job `trainer` already"]),
        ("name = \"other\"", "name = \"plain\"", 53, &["a variant `plain` already"]),
        ("[disks]", "[disk]", 17, &["no key `disk`", "generator"]),
        (
            "[[variant]]",
            "[generator]\ntables = 3\ndays = 3\npartition = \"1GB\"\njobs = 3\nover = \
             \"10min\"\nrate = \"1MB/s\"\n[[variant]]",
            21,
            &["a [generator], or partitions and jobs", "leave one out"],
        ),
    ];
    for (good, bad, line, parts) in cases {
        assert!(GOOD.contains(good), "`{good}` is not in the valid file");
        let error = parse(&GOOD.replacen(good, bad, 1)).expect_err(bad).to_string();
        assert!(error.starts_with(&format!("mine.toml, line {line}: ")), "{bad}: {error}");
        for part in *parts {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let jobless = GOOD.split("[[job]]").next().unwrap();
    assert!(parse(jobless).unwrap_err().to_string().contains("add [[job]]"));
    let empty = GOOD.split("[[partition]]").next().unwrap();
    assert!(parse(empty).unwrap_err().to_string().contains("add [[partition]]"));
    let long = GOOD.replace("64MiB", "4TiB").replace("count = 2", "count = 9999");
    assert!(parse(&long).unwrap_err().to_string().contains("raise `segment`"));
}

/// Randomly edited files either parse or give an error.
#[test]
fn mutated_files_never_panic() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut good = 0;
    for _ in 0..2000 {
        let mut text: Vec<char> = GOOD.chars().collect();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..text.len());
            match random.u8(..4) {
                0 => text[at] = random.char(..),
                1 => text.insert(
                    at,
                    *random.choice(&['"', '[', ']', '=', '\n', '#', 'é', '0', '9']).unwrap(),
                ),
                2 => drop(text.remove(at)),
                _ => text[at] = char::from(random.u8(b'0'..=b'9')),
            }
        }
        match parse(&text.iter().collect::<String>()) {
            Ok(_) => good += 1,
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!((20..1900).contains(&good), "some are valid, some are not: {good}");
}

#[test]
fn every_built_in_scenario_is_valid() {
    for built_in in BUILT_IN {
        let scenario = Scenario::built_in(built_in.name, None).unwrap();
        assert!(!scenario.about.is_empty() && !scenario.setups.is_empty(), "{}", built_in.name);
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let texts = std::fs::read_dir(folder).unwrap();
    let texts = texts.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let files = texts.filter(|text| crate::kind(text, "") == Ok(crate::Kind::Tier)).count();
    assert_eq!(files, BUILT_IN.len(), "every file in scenarios/ is part of the binary");
}

/// Properties of the workload that section 3.2.1 of the paper states.
#[test]
fn the_generator_matches_the_published_characteristics() {
    let scenario = Scenario::built_in("shift-days", Some(3)).unwrap();
    let workload = &scenario.setups[0].workload;
    let mut by_table = vec![0_u64; 85];
    let (mut large, mut all, mut few, mut newest) = (0, 0, 0, 0);
    let mut by_column = [0_u64; 8];
    for job in &workload.jobs {
        let reads = workload.segments_of(job);
        let table = workload.parts[job.stages[0][0] as usize].table;
        by_table[table as usize] += reads;
        all += reads;
        large += if job.stages.len() >= 20 { reads } else { 0 };
        few += usize::from(job.stages.len() <= 5);
        newest += usize::from(job.stages.last().unwrap()[0] % (40 * 8) == 39 * 8);
        job.stages.iter().flatten().for_each(|part| by_column[(part % 8) as usize] += 1);
    }
    assert!(few * 2 > workload.jobs.len(), "4a: most jobs read only a few partitions");
    assert!(large * 2 > all, "4a: the majority comes from jobs that read 20 or more");
    assert!(newest * 4 > workload.jobs.len(), "4b: a large fraction reads the most recent");
    by_table.sort_unstable();
    assert!(by_table[80..].iter().sum::<u64>() * 2 > all, "3: a few tables get most reads");
    assert!(by_table.iter().filter(|reads| **reads > 0).count() > 30, "3: a long tail gets some");
    let columns: u64 = by_column.iter().sum();
    assert!(
        by_column[..4].iter().sum::<u64>() * 10 > columns * 9,
        "5a: half of the columns get almost all reads"
    );
    assert_eq!(
        by_column.iter().filter(|reads| **reads > 0).count(),
        6,
        "5a: three quarters are read at all"
    );
}

/// The example in the documentation is valid and has every key.
#[test]
fn the_documented_example_is_valid() {
    let page = include_str!("../../../../../docs/reference/scenarios.md");
    let example = page.split("```toml\n").nth(2).and_then(|rest| rest.split("```").next()).unwrap();
    let scenario = parse(example).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((scenario.setups.len(), scenario.setups[0].workload.jobs.len()), (2, 4));
    let keys = file::HINTS.examples.iter().map(|(key, _)| *key);
    let generator = ["tables", "days", "partition", "jobs", "over"];
    for key in keys.filter(|key| !generator.contains(key)).chain([
        "segment",
        "skew",
        "vary",
        "dram",
        "nodes",
        "write_limit",
        "threshold_min",
        "refresh",
        "reinsertion",
        "history",
        "history_segments",
        "expert",
        "count",
        "columns",
        "says",
        "readers",
        "wave",
        "order",
        "announced",
        "stops_after",
    ]) {
        let known = [format!("{key} ="), format!("[{key}]"), format!("[[{key}]]")];
        assert!(known.iter().any(|known| example.contains(known)), "`{key}` is not in the example");
    }
}
