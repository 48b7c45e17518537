//! Parsing and checking of training scenarios.

use super::*;

/// A valid scenario.
const GOOD: &str = r#"about = "two jobs"
policy = "lru"
warm_up = "10s"
duration = "100s"

[origin]
bandwidth = "1GB/s"
per_connection = "20MB/s"
latency = "5ms"

[cache]
capacity = "20%"
nodes = 3
read_bandwidth = "2GB/s"

[[dataset]]
name = "photos"
size = "10GB"
items = 100_000
chunks = 10

[[dataset]]
name = "sounds"
size = "30GB"
items = 1000

[[job]]
name = "trainer"
count = 2
dataset = "photos"
gpus = 4
batch = 256
compute = "50ms"

[[job]]
name = "listener"
dataset = "sounds"
batch = 32
compute = "1s"
epochs = 3

[[fault]]
at = "1min"
job = "trainer-2"
for = "10s"

[[variant]]
name = "small"
capacity = "12GB"

[[variant]]
name = "alone"
jobs = ["listener"]
"#;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(text, "mine.toml", "mine")
}

#[test]
fn a_file_gives_datasets_jobs_and_variants() {
    let scenario = parse(GOOD).unwrap();
    assert_eq!((&*scenario.name, scenario.policy, scenario.seed), ("mine", Policy::Lru, 0));
    let [small, alone] = &scenario.setups[..] else { panic!("two variants") };
    assert_eq!(small.variant.as_deref(), Some("small"));
    assert_eq!(small.capacity, ByteSize::gb(12));
    let names: Vec<&str> = small.jobs.iter().map(|job| &*job.name).collect();
    assert_eq!(names, ["trainer-1", "trainer-2", "listener"]);
    let trainer = &small.jobs[0];
    assert_eq!((trainer.workers, trainer.depth, trainer.end), (4, 9, End::Never));
    assert_eq!(small.datasets[trainer.dataset].item_bytes, 100_000);
    // The dataset and the fault of other jobs are left out.
    assert_eq!((alone.jobs.len(), alone.datasets.len(), alone.faults.len()), (1, 1, 0));
    assert_eq!(alone.datasets[alone.jobs[0].dataset].name, "sounds");
    assert_eq!(alone.jobs[0].end, End::Epochs(3));
    // A share is of the datasets that are read, in whole chunks: a fifth of ten is two.
    assert_eq!(alone.capacity, ByteSize(2 * alone.datasets[0].chunk_size().0));
}

/// Every kind of error: the change to the valid file, the line, and parts of the message.
#[test]
#[expect(clippy::too_many_lines, reason = "a line for each error")]
fn errors_name_the_line_and_the_remedy() {
    let cases: &[(&str, &str, usize, &[&str])] = &[
        ("policy = \"lru\"", "policy = \"mru\"", 2, &["`policy`", "`mru`", "there are none, lru"]),
        ("policy = \"lru\"", "policies = 3", 2, &["no key `policies`", "about, policy, seed"]),
        ("about = \"two jobs\"", "", 1, &["`about` is missing", "about = \""]),
        ("bandwidth = \"1GB/s\"", "bandwith = \"1GB/s\"", 7, &["no key `bandwith`", "bandwidth"]),
        ("bandwidth = \"1GB/s\"", "", 6, &["`bandwidth` is missing", "\"1GB/s\""]),
        ("bandwidth = \"1GB/s\"", "bandwidth = \"1GB\"", 7, &["`bandwidth`", "does not end in /s"]),
        ("bandwidth = \"1GB/s\"", "bandwidth = \"0B/s\"", 7, &["the rate is zero", "100MB/s"]),
        ("bandwidth = \"1GB/s\"", "bandwidth = 1000", 7, &["`bandwidth`", "\"100MB/s\""]),
        ("latency = \"5ms\"", "latency = \"5\"", 9, &["`latency`", "ms, s or min"]),
        ("capacity = \"20%\"", "capacity = \"120%\"", 12, &["`120%` is no share", "0% to 100%"]),
        ("capacity = \"20%\"", "capacity = \"20\"", 12, &["unit is missing", "15GB"]),
        ("nodes = 3", "nodes = 0", 13, &["`nodes` is 0", "1 to 10000"]),
        ("nodes = 3", "nodes = -3", 13, &["`nodes`", "whole number from 1 to 10000"]),
        ("nodes = 3", "nodes = 1e308", 13, &["`nodes`: write a whole number from 1 to 10000"]),
        ("capacity = \"20%\"", "capacity = \"2000PB\"", 12, &["at most 1000PB"]),
        ("capacity = \"20%\"", "capacity = 20GB", 12, &["`capacity`", "quotes", "\"100GB\""]),
        ("capacity = \"20%\"", "capacity = \"20%", 12, &["`capacity`", "two quotes"]),
        (
            "capacity = \"20%\"",
            "capacity = \"16EB\"",
            12,
            &["unit is unknown", "PB, or KiB to PiB"],
        ),
        (
            "capacity = \"20%\"",
            "capacity = \"1,5GB\"",
            12,
            &["unit is unknown", "fractions have a point"],
        ),
        ("capacity = \"20%\"", "nodes = 3", 13, &["`nodes` is there twice", "leave one out"]),
        ("[cache]", "[[cache]]", 11, &["one cache", "[cache] in single brackets"]),
        ("[[fault]]", "[fault]", 42, &["[[fault]] in double brackets"]),
        ("[[dataset]]\nname = \"photos\"", "[dataset]\nname = \"photos\"", 22, &["dataset"]),
        ("duration = \"100s\"", "duration = \"0s\"", 4, &["`duration` of 0"]),
        ("duration = \"100s\"", "duration = \"50s\"", 43, &["after the end", "`duration` longer"]),
        ("compute = \"50ms\"", "compute = \"0ms\"", 33, &["`compute` of 0"]),
        ("epochs = 3", "epochs = 3\nstarts = \"2min\"", 41, &["`starts` is after the end"]),
        ("gpus = 4", "gpus = 4\nstarts = \"90s\"", 44, &["`trainer-2` starts later"]),
        ("batch = 32", "batch = 1001", 38, &["`batch` is 1001", "`sounds` has 1000 items"]),
        ("items = 1000\n", "items = 99_999_999\n", 25, &["100000000 items together"]),
        ("size = \"30GB\"", "size = \"1000PB\"", 24, &["1000 PB together", "lower `size`"]),
        ("[[variant]]\nname = \"small\"", "[[variant]]", 47, &["add name = \"small\""]),
        ("[[job]]\nname = \"trainer\"", "[[job]]", 27, &["add name = \"resnet50\""]),
        ("[origin]", "[variant]", 47, &["[[variant]] in double brackets"]),
        ("read_bandwidth = \"2GB/s\"", "", 11, &["`read_bandwidth` is missing"]),
        ("size = \"10GB\"", "size = \"10kB\"", 18, &["less than a byte", "100000 items"]),
        ("size = \"10GB\"", "size = \"10\"", 18, &["`size`", "unit is missing"]),
        ("size = \"10GB\"", "size = \"99999999PB\"", 18, &["`size`", "too large"]),
        ("size = \"10GB\"", "", 16, &["`size` is missing", "size = \"154GB\""]),
        ("items = 100_000", "items = 0", 19, &["`items` is 0", "1 to 100000000"]),
        ("items = 100_000", "items = 1e5", 19, &["`items`", "a whole number from 1"]),
        ("chunks = 10", "chunks = 0", 20, &["`chunks` is 0", "1 to 32768"]),
        ("chunks = 10", "chunks = 65536", 20, &["`chunks` is 65536", "1 to 32768"]),
        ("name = \"sounds\"", "name = \"photos\"", 23, &["a dataset `photos` already"]),
        ("name = \"sounds\"", "name = \"so und\"", 23, &["`so und` cannot name a dataset"]),
        (
            "dataset = \"photos\"",
            "dataset = \"fotos\"",
            30,
            &["no dataset `fotos`", "photos, sounds", "[[dataset]]"],
        ),
        ("count = 2", "count = 0", 29, &["`count` is 0"]),
        ("count = 2", "count = 9999", 29, &["`count` is 9999", "1 to 1000"]),
        ("batch = 256", "batch = 0", 32, &["`batch` is 0"]),
        ("batch = 256", "", 27, &["`batch` is missing", "batch = 512"]),
        ("compute = \"50ms\"", "compute = \"50\"", 33, &["`compute`", "20ms"]),
        ("compute = \"50ms\"", "compute = \"99999999min\"", 33, &["more than a year"]),
        (
            "duration = \"100s\"",
            "",
            27,
            &["would never end", "`epochs` or `batches`", "`duration`"],
        ),
        (
            "duration = \"100s\"",
            "duration = \"5s\"",
            3,
            &["`warm_up` leaves nothing", "`duration` longer"],
        ),
        ("epochs = 3", "epochs = 3\nbatches = 5", 41, &["leave one out"]),
        ("epochs = 3", "batches = 0", 40, &["`batches` is 0"]),
        ("name = \"listener\"", "name = \"trainer\"", 36, &["a job `trainer` already"]),
        ("name = \"listener\"", "name = \"trainer-1\"", 36, &["two jobs", "`trainer-1`"]),
        (
            "job = \"trainer-2\"",
            "job = \"trainer\"",
            44,
            &["no job `trainer`", "trainer-1, trainer-2"],
        ),
        ("job = \"trainer-2\"", "node = 4", 42, &["leave out `for`"]),
        ("job = \"trainer-2\"\nfor = \"10s\"", "node = 4", 44, &["no node 4", "from 1 to 3"]),
        ("job = \"trainer-2\"\nfor = \"10s\"", "origin = \"1MB/s\"", 42, &["for = \"1min\""]),
        ("job = \"trainer-2\"", "", 42, &["one of `job`, `node` and `origin`"]),
        ("name = \"alone\"", "name = \"small\"", 52, &["a variant `small` already"]),
        (
            "jobs = [\"listener\"]",
            "jobs = [\"missing\"]",
            53,
            &["no job `missing`", "trainer, listener"],
        ),
        ("jobs = [\"listener\"]", "jobs = []", 53, &["without `jobs`", "name at least one"]),
        ("[cache]", "[cache", 11, &[]),
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
}

#[test]
fn missing_tables_and_exceeded_limits_are_errors() {
    for (text, part) in [
        ("", "the file is empty; docs/reference/scenarios.md"),
        ("about = \"x\"", "add [origin] with bandwidth"),
        ("about = \"x\"\norigin = { bandwidth = \"1\" }", "`bandwidth`: `1` is not"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let long = GOOD.replace("\"trainer\"", &format!("\"{}\"", "a".repeat(63)));
    assert!(parse(&long).unwrap_err().to_string().contains("use 1 to 64 letters"));
    let many = GOOD.replace("count = 2", "count = 9").replace("= 100_000", "= 90_000_000");
    assert!(parse(&many).unwrap_err().to_string().contains("more than 500000000"));
    let variants: String = (0..101).map(|at| format!("[[variant]]\nname = \"v{at}\"\n")).collect();
    assert!(
        parse(&(GOOD.to_owned() + &variants)).unwrap_err().to_string().contains("100 variants")
    );
    let jobless = GOOD.split("[[job]]").next().unwrap();
    assert!(parse(jobless).unwrap_err().to_string().contains("add [[job]]"));
    let empty = GOOD.split("[[dataset]]").next().unwrap();
    assert!(parse(empty).unwrap_err().to_string().contains("add [[dataset]]"));
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
        let scenario = Scenario::built_in(built_in.name).unwrap();
        assert!(!scenario.about.is_empty() && !scenario.setups.is_empty(), "{}", built_in.name);
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let texts = std::fs::read_dir(folder).unwrap();
    let texts = texts.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let files = texts.filter(|text| crate::kind(text, "") == Ok(crate::Kind::Train)).count();
    assert_eq!(files, BUILT_IN.len(), "every file in scenarios/ is part of the binary");
}

#[test]
fn chunks_contain_every_item_once() {
    let scenario = parse(GOOD).unwrap();
    for dataset in &scenario.setups[0].datasets {
        let chunks = (0..dataset.chunking.chunks()).map(ChunkOrdinal);
        let mut items: Vec<u64> =
            chunks.flat_map(|chunk| dataset.items_of(chunk)).flatten().collect();
        items.sort_unstable();
        assert!(items.into_iter().eq(0..dataset.items), "{}", dataset.name);
    }
}

/// The example in the documentation is valid and has every key.
#[test]
fn the_documented_example_is_valid() {
    let page = include_str!("../../../../../docs/reference/scenarios.md");
    let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let scenario = parse(example).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((scenario.setups.len(), scenario.setups[0].faults.len()), (2, 3));
    // The example shows its faults: jobs start well before the first, and the end is well after the
    // last.
    let setup = &scenario.setups[0];
    let end = setup.duration.unwrap();
    assert!(setup.faults.iter().all(|fault| fault.at + Duration::from_mins(5) < end));
    assert!(setup.jobs.iter().all(|job| job.starts + Duration::from_mins(5) <= setup.faults[0].at));
    let keys = file::HINTS.examples.iter().map(|(key, _)| *key);
    for key in
        keys.chain(["network", "chunks", "count", "transform", "depth", "starts", "epochs", "for"])
    {
        let known = [format!("{key} ="), format!("[{key}]"), format!("[[{key}]]")];
        assert!(known.iter().any(|known| example.contains(known)), "`{key}` is not in the example");
    }
}
