//! Traces, bounds and runs on generated data; a plain checkout has no other.

use std::{io::Write as _, path::Path};

use forebay_core::embeddings::{Key, PolicyKind, TableId};

use super::*;

fn file(name: &str, content: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    (folder, path)
}

fn key(table: u16, row: u64) -> Key {
    Key::new(TableId(table), row).unwrap()
}

/// Random requests with a few popular keys, so that policies differ.
fn skewed(requests: usize, tables: usize, seed: u64) -> Trace {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut builder = TraceBuilder::new("skewed");
    for table in 0..tables {
        builder.table(&format!("t{table}"));
    }
    for _ in 0..requests {
        for table in 0..tables {
            let value = (random.f64().powi(4) * 300.0) as u64;
            builder.key(table, &value.to_le_bytes());
        }
        builder.end_request();
    }
    builder.build()
}

#[test]
fn columns_are_tables_lines_are_requests_and_bars_make_bags() {
    let (_folder, path) = file("own.csv", b"user,genres\n7,Comedy|Drama\n7,\n8,NA\n8,Drama\n");
    let trace = load(&path).unwrap();
    let requests: Vec<&[Key]> = trace.requests().collect();
    assert_eq!(requests[0], [key(0, 0), key(1, 0), key(1, 1)]);
    assert_eq!(requests[1], [key(0, 0)], "an empty cell is no lookup");
    assert_eq!(requests[2], [key(0, 1)], "NA is no lookup");
    assert_eq!(requests[3], [key(0, 1), key(1, 1)]);
    assert_eq!((trace.rows(), trace.name()), (4, "own"));
}

#[test]
fn errors_name_the_file_and_the_line() {
    for (name, content, expected) in [
        ("a.csv", "user,film\n1,2\n3\n", "line 3: there are 1 values, but 2 columns"),
        ("b.csv", "", "no header line"),
        ("c.csv", "user,film\n", "there are no requests"),
        ("d.csv", "user,user\n1,1\n", "two columns are named `user`"),
        ("nycflights.csv", "year,month\n2013,1\n", "there is no column `day`"),
        (
            "ratings.csv",
            "userId,movieId,rating,timestamp\n1,2,3,soon\n",
            "line 2: the timestamp is no number",
        ),
        ("ratings.csv", "userId,movieId,rating,timestamp\n1,2\n", "line 2: a rating has 4 values"),
        ("x.lis", "5 two 0 0\n", "line 1: the count `two` is no number"),
        ("x.lis", "5\n", "line 1: the count is missing"),
        ("x.trace", "12345", "5 bytes are no whole number of 4-byte keys"),
        ("kddcup.csv", "1,2,3\n", "line 1: there are 3 values, but 42 columns"),
    ] {
        let (_folder, path) = file(name, content.as_bytes());
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
        assert!(error.contains(name), "it names the file: {error}");
    }
    let error = load(Path::new("/nowhere/own.csv")).unwrap_err().to_string();
    assert!(error.contains("/nowhere/own.csv"), "{error}");
}

#[test]
fn random_bytes_never_panic() {
    let mut random = fastrand::Rng::with_seed(11);
    let magics: [&[u8]; 5] = [
        &[],
        &[0x1f, 0x8b],
        b"PK\x03\x04",
        &[0xfd, b'7', b'z', b'X', b'Z', 0],
        &[0x28, 0xb5, 0x2f, 0xfd],
    ];
    for round in 0..200 {
        let mut content = magics[round % magics.len()].to_vec();
        content.extend((0..random.usize(0..200)).map(|_| random.u8(..)));
        let name = ["a.csv", "kddcup", "ratings.csv", "a.lis", "a.trace"][round / 5 % 5];
        let (_folder, path) = file(name, &content);
        let _ = load(&path);
    }
}

#[test]
fn compressed_files_are_unpacked() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"a,b\n1,2\n").unwrap();
    let (_folder, path) = file("own.csv.gz", &gzip.finish().unwrap());
    assert_eq!(load(&path).unwrap().len(), 1);
}

#[test]
fn pages_and_numbers_are_single_keys() {
    let (_folder, path) = file("x.lis", b"5 3 0 0\n6 1 0 0\n");
    let trace = load(&path).unwrap();
    assert_eq!((trace.len(), trace.rows()), (4, 3));
    let (_folder, path) = file("x.trace", &[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1]);
    let trace = load(&path).unwrap();
    assert_eq!((trace.len(), trace.rows()), (3, 2));
}

#[test]
fn the_criteo_trace_is_marked_synthetic_and_has_the_published_chains() {
    let trace = Criteo { requests: 14_624, seed: 3 }.generate();
    assert!(trace.synthetic() && trace.name().contains("synthetic"));
    assert_eq!(
        trace,
        Criteo { requests: 14_624, seed: 3 }.generate(),
        "a seed determines the trace"
    );
    for (from, to) in [
        (3, 12),
        (12, 21),
        (21, 16),
        (16, 4),
        (4, 24),
        (7, 13),
        (11, 13),
        (15, 2),
        (15, 14),
        (15, 18),
        (18, 2),
    ] {
        let mut implied = std::collections::HashMap::new();
        for request in trace.requests() {
            let before = implied.insert(request[from - 1], request[to - 1]);
            assert!(
                before.is_none_or(|before| before == request[to - 1]),
                "C{from} determines C{to}"
            );
        }
    }
    // "an exact functional chain over the 7,230 rows whose C3 repeats", in a sample of this size.
    let mut seen = std::collections::HashSet::new();
    let repeats = trace.requests().filter(|request| !seen.insert(request[2])).count();
    assert!((6_000..8_500).contains(&repeats), "{repeats} of 14,624 requests repeat C3");
}

#[test]
fn no_policy_beats_the_bounds() {
    let trace = skewed(4000, 3, 1);
    let mut simulation = Simulation::new(PolicyKind::ALL.to_vec());
    simulation.shares = vec!["5%".parse().unwrap(), "20%".parse().unwrap()];
    simulation.replay = true;
    let report = simulation.run(&trace);
    for row in &report.rows {
        let bounds = report.bounds.iter().find(|bounds| bounds.share == row.share).unwrap();
        assert!(row.single.perfect <= bounds.infinite.perfect, "{}", row.policy);
        assert!(row.single.hits <= bounds.infinite.hits, "{}", row.policy);
        assert!(row.single.perfect <= bounds.table_belady_perfect, "{}", row.policy);
        assert_eq!(row.single.requests, 3200, "the first fifth is not counted");
        assert_eq!(row.replay.unwrap().requests, 4000, "a replay counts all");
    }
    for bounds in &report.bounds {
        assert!(bounds.fixed.perfect > 0 && bounds.fixed.perfect <= bounds.fixed.requests);
    }
}

#[test]
fn peeling_finds_an_obvious_best_static_set() {
    // Two keys always come together; the others never return.
    let mut builder = TraceBuilder::new("obvious");
    let [a, b] = ["a", "b"].map(|name| builder.table(name));
    for index in 0..1000_u64 {
        let value = if index % 2 == 0 { 0 } else { index };
        builder.key(a, &value.to_le_bytes());
        builder.key(b, &value.to_le_bytes());
        builder.end_request();
    }
    let trace = builder.build();
    let mut simulation = Simulation::new(vec![PolicyKind::Lru]);
    simulation.shares = vec!["0.2%".parse().unwrap()]; // two rows of 1,002
    let report = simulation.run(&trace);
    assert_eq!(report.bounds[0].fixed.perfect, 400, "every other one of the 800 that count");
}

#[test]
fn group_keeps_keys_that_come_together() {
    let trace = skewed(20_000, 6, 2);
    let mut simulation = Simulation::new(vec![PolicyKind::Lru, PolicyKind::Group]);
    simulation.bounds = false;
    simulation.shares = vec!["10%".parse().unwrap()];
    let report = simulation.run(&trace);
    let perfect = |policy| report.row(policy, simulation.shares[0]).unwrap().single.perfect;
    let (lru, ours) = (perfect(PolicyKind::Lru), perfect(PolicyKind::Group));
    assert!(ours > 2 * lru, "{ours} against {lru}");
}

#[test]
fn a_bag_may_contain_a_key_twice() {
    let mut builder = TraceBuilder::new("twice");
    builder.table("bags");
    for request in 0..50_u32 {
        for key in [request % 5, request % 3, request % 5, request % 5] {
            builder.key(0, &key.to_le_bytes());
        }
        builder.end_request();
    }
    let report = Simulation::new(vec![PolicyKind::Lru, PolicyKind::Group]).run(&builder.build());
    assert_eq!(report.bounds.len(), CacheShare::DEFAULT.len());
}

#[test]
fn the_picture_sorts_sizes() {
    let mut simulation = Simulation::new(vec![PolicyKind::Lru]);
    simulation.shares = ["20%", "1%", "5%"].map(|share| share.parse().unwrap()).to_vec();
    let svg = simulation.run(&skewed(500, 2, 4)).svg();
    let position = |text: &str| svg.find(text).unwrap();
    assert!(position(">1%<") < position(">5%<") && position(">5%<") < position(">20%<"), "{svg}");
}

#[test]
fn reports_have_text_json_and_a_picture() {
    let trace = skewed(500, 2, 4);
    let mut simulation = Simulation::new(vec![PolicyKind::Lru, PolicyKind::Group]);
    simulation.replay = true;
    let report = simulation.run(&trace);
    let text = report.text();
    for part in ["POLICY", "lru", "group", "20%", "-- infinite", "-- static", "replayed"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["rows"][0]["policy"], "lru");
    assert!(json["rows"][0]["single"]["perfect"].is_u64());
    let svg = report.svg();
    assert!(
        svg.starts_with("<svg") && svg.contains("</svg>") && svg.matches("<polyline").count() == 2
    );
    assert_eq!(svg.matches("<circle").count(), 2 * simulation.shares.len(), "a dot per size");
    let costs = simulation.cost(&trace, "5%".parse().unwrap(), 1);
    assert!(costs.iter().all(|cost| cost.nanos_per_key > 0.0 && cost.against_lru > 0.0));
}

#[test]
fn cache_sizes_are_shares_in_percent() {
    for (text, shown) in [("5%", "5%"), (" 0.05 % ", "0.05%"), ("100%", "100%")] {
        assert_eq!(text.parse::<CacheShare>().unwrap().to_string(), shown);
    }
    for text in ["", "5", "0%", "-1%", "101%", "NaN%", "x%"] {
        let error = text.parse::<CacheShare>().unwrap_err().to_string();
        assert!(error.contains("such as 5%"), "{error}");
    }
}

#[test]
fn a_trace_can_be_reduced_to_some_tables() {
    let trace = skewed(100, 4, 5);
    let narrow = trace.with_tables(&[TableId(3), TableId(1)]);
    assert_eq!((narrow.len(), narrow.key_count()), (100, 200));
    assert_eq!(narrow.tables()[0].name, "t3");
    assert!(narrow.requests().all(|request| request[0].table() == TableId(0)));
}

#[test]
fn a_trace_can_be_cut_to_its_first_requests() {
    let whole = skewed(100, 2, 6);
    assert_eq!(whole.clone().first(1000), whole);
    let short = whole.clone().first(10);
    assert_eq!((short.len(), short.key_count()), (10, 20));
    assert!(short.rows() < whole.rows());
    assert_eq!(short.request(9), whole.request(9));
    assert!(whole.first(0).is_empty());
}

/// Randomly edited traces, compressed or not, either parse or give an error.
#[test]
fn mutated_traces_never_panic() {
    let text = b"user,genres\n7,Comedy|Drama\n7,\n8,NA\n8,Drama\n1,\"quoted, twice\"\n";
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text).unwrap();
    let mut xz = Vec::new();
    lzma_rs::xz_compress(&mut &text[..], &mut xz).unwrap();
    let pages = b"12 3 0 0\n18446744073709551615 1048576 0 0\n".to_vec();
    let valid = [text.to_vec(), gzip.finish().unwrap(), xz, pages];
    let mut random = fastrand::Rng::with_seed(11);
    let mut read = 0;
    for _ in 0..4000 {
        let mut bytes = random.choice(&valid).unwrap().clone();
        for _ in 0..random.usize(0..4) {
            let at = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes[at] = random.u8(..),
                1 => bytes[at] ^= 1 << random.u8(..8),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, random.u8(..)),
            }
        }
        let format = *random.choice(Format::ALL).unwrap();
        read += usize::from(parse_as(Path::new("nowhere/trace"), bytes, format).is_ok());
    }
    assert!((100..3900).contains(&read), "some are valid, some are not: {read}");
}

/// Target: on the synthetic trace `group` finds the chain C3 → C12 → C21 → C16 → C4 → C24, which
/// makes it more useful to know C3 early.
#[test]
fn the_chain_is_learned_and_implied_keys_are_prefetched() {
    let trace = Criteo { requests: 30_000, seed: 1 }.generate();
    let mut simulation = Simulation::new(vec![PolicyKind::Lru, PolicyKind::Group]);
    simulation.shares = vec!["5%".parse().unwrap()];
    simulation.bounds = false;
    simulation.prefetch = vec![TableId(2)];
    let report = simulation.run(&trace);
    let text = report.bundles_text();
    assert!(text.contains("C3 -> C12 -> C21 -> C16 -> C4 -> C24"), "{text}");
    let row = report.row(PolicyKind::Group, simulation.shares[0]).unwrap();
    let prefetch = row.prefetch.unwrap();
    let perfect = [row.single, prefetch.known, prefetch.bundles].map(|tally| tally.perfect);
    // Requests also need rows of twenty other tables, which limits the gain.
    let more = |than: u64| perfect[2] > than + than / 20;
    assert!(more(perfect[0]) && more(perfect[1]), "{perfect:?}");
    let lru = report.row(PolicyKind::Lru, simulation.shares[0]).unwrap();
    assert!(lru.bundles.is_empty(), "LRU learns none");
    let prefetch = lru.prefetch.unwrap();
    assert_eq!(prefetch.known, prefetch.bundles);
    assert!(report.text().contains("fetched one request ahead"));
}

#[test]
fn synthetic_traces_are_marked_distinct_and_reproducible() {
    let mut all = Vec::new();
    for made in Made::ALL {
        let trace = made.generate(8000, 1);
        assert!(trace.synthetic() && trace.name() == format!("made:{}", made.name));
        assert_eq!(trace, made.generate(8000, 1), "{}: a seed determines the trace", made.name);
        let longer = made.generate(9000, 1);
        assert!(
            trace.requests().zip(longer.requests()).all(|(one, other)| one == other),
            "{}: a shorter trace is a prefix",
            made.name
        );
        assert!(trace.tables().iter().all(|table| table.rows > 0), "{}: all tables", made.name);
        assert!((8_000..=50_000).contains(&made.requests()), "{}", made.name);
        all.push(trace.requests().map(<[Key]>::to_vec).collect::<Vec<_>>());
    }
    assert!((1..all.len()).all(|at| !all[..at].contains(&all[at])), "no two are equal");
    assert_eq!(Made::ALL.iter().filter(|made| made.held_out()).count(), Made::ALL.len() / 2);
    let error = "nothing".parse::<Made>().unwrap_err();
    assert!(error.contains("`nothing`") && error.contains("shift-all"), "{error}");
}

/// Distinct keys of a table in a range of requests of a synthetic trace.
fn distinct_keys(name: &str, table: u16, requests: std::ops::Range<usize>) -> Vec<Key> {
    let trace = name.parse::<Made>().unwrap().generate(requests.end, 1);
    let requested = requests.flat_map(|at| trace.request(at).to_vec());
    let mut keys: Vec<Key> = requested.filter(|key| key.table() == TableId(table)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

#[test]
fn synthetic_traces_have_their_patterns() {
    let common = |one: &[Key], other: &[Key]| one.iter().filter(|key| other.contains(key)).count();
    // Popular keys shift: none stays. Half of them shift: some stay.
    let [before, after] = [0..8000, 8000..16_000].map(|when| distinct_keys("shift-all", 0, when));
    assert!(before.len() > 1000 && common(&before, &after) == 0);
    let [before, after] = [0..6000, 6000..12_000].map(|when| distinct_keys("shift-half", 0, when));
    assert!((before.len() / 4..before.len() * 3 / 4).contains(&common(&before, &after)));
    // A loop repeats, and an epoch has each key once.
    assert_eq!(
        distinct_keys("loop-tables", 1, 0..1400),
        distinct_keys("loop-tables", 1, 1400..2800)
    );
    assert_eq!(distinct_keys("epochs", 0, 3000..6000).len(), 3000);
    // Companions come together. Day and night differ, and day returns.
    let trace = "companions-shift".parse::<Made>().unwrap().generate(7000, 1);
    let mut companions = std::collections::HashMap::new();
    for request in trace.requests() {
        assert_eq!(*companions.entry(request[0]).or_insert(request[1]), request[1]);
    }
    let [day, night, next] =
        [0..5000, 5000..10_000, 10_000..15_000].map(|when| distinct_keys("day-and-night", 0, when));
    assert!(common(&day, &night) == 0 && common(&day, &next) > day.len() / 2);
    // New items are new, and recency prefers the last keys.
    let [old, new] = [0..1000, 40_000..41_000].map(|when| distinct_keys("new-items", 0, when));
    assert_eq!(common(&old, &new), 0);
    let soon = distinct_keys("recency", 0, 20_000..20_200);
    assert!(common(&soon, &distinct_keys("recency", 0, 20_200..20_400)) > 20);
}

#[test]
fn group_is_compared_with_the_best_other_policy() {
    let trace = skewed(5000, 2, 4);
    let mut comparison = Comparison::default();
    let run = |policies: &[PolicyKind]| {
        let mut simulation = Simulation::new(policies.to_vec());
        simulation.bounds = false;
        simulation.run(&trace)
    };
    assert!(!comparison.add(&run(&[PolicyKind::Group]), false), "there is no other policy");
    let report = run(&[PolicyKind::Fifo, PolicyKind::Lru, PolicyKind::Group]);
    assert!(comparison.add(&report, false) && comparison.add(&report, true));
    let cell = &comparison.lines[0].cells[4];
    let perfect = |policy| report.row(policy, cell.share).unwrap().single.perfect;
    assert_eq!((cell.best_other, cell.others), (PolicyKind::Lru, perfect(PolicyKind::Lru)));
    let ratio = perfect(PolicyKind::Group) as f64 / perfect(PolicyKind::Lru) as f64;
    assert!((cell.ratio().unwrap() - ratio).abs() < 1e-9);
    let few = Cell { requests: 40_000, ours: 0, others: 2, ..cell.clone() };
    assert_eq!(few.ratio(), None, "two hits in 40,000 are chance");
    let text = comparison.text();
    assert!(text.contains("(held out)") && text.contains("tuned on: 0 of 5 cells"), "{text}");
}

/// When companions shift together, all keys of a request miss at first. `group` must still admit
/// them. It reaches 0.67 of LRU here; 0.8 when it evicted companions together.
#[test]
fn group_adapts_when_companions_shift_together() {
    let trace = "companions-shift".parse::<Made>().unwrap().generate(50_000, 1);
    let mut simulation = Simulation::new(vec![PolicyKind::Lru, PolicyKind::Group]);
    simulation.bounds = false;
    simulation.shares = vec!["10%".parse().unwrap()];
    let report = simulation.run(&trace);
    let perfect = |policy| report.row(policy, simulation.shares[0]).unwrap().single.perfect;
    let (lru, ours) = (perfect(PolicyKind::Lru), perfect(PolicyKind::Group));
    assert!(ours * 10 > lru * 6, "{ours} against {lru}");
}
