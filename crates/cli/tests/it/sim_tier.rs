//! `forebay sim` for a flash tier: scenarios, recorded traces and power.

use std::{fs, path::Path};

use serde_json::Value;

use crate::harness::{Forebay, Sandbox};

/// Three jobs, two of which read the same partition.
const SMALL: &str = r#"
kind = "tier"
about = "three small jobs"
policy = "lru"
segment = "1MiB"
tier = { flash = "40MiB" }

[[partition]]
name = "day"
count = 2
size = "100MiB"

[[job]]
name = "tuning"
count = 2
reads = ["day-1"]
rate = "1MB/s"

[[job]]
name = "scan"
reads = ["day-2"]
rate = "1MB/s"

[[variant]]
name = "near"
skew = "10%"

[[variant]]
name = "far"
skew = "60%"
"#;

fn with_scenario() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::write(sandbox.out("small.toml"), SMALL).unwrap();
    sandbox
}

fn sim(sandbox: &Sandbox, options: &[&str]) -> Forebay {
    sandbox.forebay(["sim"].iter().chain(options))
}

#[test]
fn a_comparison_shows_every_policy_and_the_optimum() {
    let sandbox = with_scenario();
    let options = ["compare", "small.toml", "--variant", "far", "--plot", "absorbed.svg"];
    let text = sim(&sandbox, &options).succeeds().stdout;
    for part in ["small, far, seed 0", "OF OPTIMUM", "-- optimum", "next-use", "hybrid", "100.0%"] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    assert!(!text.contains("near"));
    let svg = fs::read_to_string(sandbox.out("absorbed.svg")).unwrap();
    assert!(svg.contains("next-use") && svg.contains("GB/s"));
}

#[test]
fn the_same_seed_gives_the_same_json() {
    let sandbox = with_scenario();
    let run = |seed: &str| {
        sim(
            &sandbox,
            &["run", "small.toml", "--policy", "next-use", "--seed", seed, "--format", "json"],
        )
        .succeeds()
        .json()
    };
    let runs = run("1");
    assert_eq!(runs, run("1"));
    let [near, far] = &runs["runs"].as_array().unwrap()[..] else { panic!("two variants") };
    assert_eq!((&near["policy"], &near["requests"]), (&Value::from("next-use"), &Value::from(300)));
    let absorbed = |run: &Value| run["flash_hit_bytes"].as_u64().unwrap();
    assert_eq!(absorbed(near), 100 << 20, "the second job hits everything");
    assert!(absorbed(far) >= far["optimum_bytes"].as_u64().unwrap() * 9 / 10, "{far}");
}

#[test]
fn invalid_options_are_rejected_with_the_remedy() {
    let sandbox = with_scenario();
    fs::write(sandbox.out("bad.toml"), SMALL.replace("40MiB", "40")).unwrap();
    fs::write(sandbox.out("kind.toml"), SMALL.replace("\"tier\"", "\"teir\"")).unwrap();
    for (options, expected) in [
        (&["run", "bad.toml"][..], &["bad.toml, line 6", "unit is missing"][..]),
        (&["run", "kind.toml"], &["kind.toml, line 2", "there is no kind `teir`", "train, tier"]),
        (
            &["run", "small.toml", "--policy", "quiver"],
            &["`quiver` is a policy for kind = \"train\"", "hybrid"],
        ),
        (
            &["run", "one-job", "--policy", "hybrid"],
            &["`hybrid` is a policy for kind = \"tier\"; `one-job` takes none, lru"],
        ),
        (&["run", "small.toml", "--variant", "x"], &["no variant `x`", "near, far"]),
        (&["power", "--flash", "5"], &["--flash", "unit is missing"]),
    ] {
        sim(&sandbox, options).refuses(expected);
    }
}

#[test]
fn power_is_computed_as_in_table_1() {
    let sandbox = Sandbox::new();
    let options = ["power", "--flash", "5PB", "--absorbed", "5TB/s", "--format", "json"];
    let power = sim(&sandbox, &options).succeeds().json();
    let figure = |name: &str| (power[name].as_f64().unwrap() * 100.0).round() / 100.0;
    let figures = ["disks_only", "flash_only", "ideal"].map(figure);
    assert!(
        figures.iter().zip([9.92, 6.53, 2.69]).all(|(ours, table)| (ours - table).abs() < 0.005)
    );
    let text = sim(&sandbox, &["power"]).succeeds().stdout;
    assert!(text.contains("disks alone") && text.contains("It is neutral at"), "{text}");
    let low = ["power", "--bandwidth", "1GB/s", "--absorbed", "1GB/s"];
    let text = sim(&sandbox, &low).succeeds().stdout;
    assert!(text.contains("uses more power than the disks that it replaces"), "{text}");
    sim(&sandbox, &["power", "--absorbed", "20TB/s"])
        .refuses(&["--bandwidth is 10.0 TB/s", "lower"]);
    sim(&sandbox, &["power", "--flash", "0B"]).refuses(&["--flash is 0B"]);
}

/// Requests in the format of libCacheSim.
fn oracle_general(requests: &[(u32, u64)]) -> Vec<u8> {
    let record = |(time, key): &(u32, u64)| {
        let mut bytes = time.to_le_bytes().to_vec();
        bytes.extend(key.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend((-1_i64).to_le_bytes());
        bytes
    };
    requests.iter().flat_map(record).collect()
}

/// The same requests have the same hits in every format.
#[test]
fn traces_of_every_format_are_replayed() {
    let sandbox = Sandbox::new();
    // Ten keys in a cycle, alternating with one key: an LRU cache of two hits that one only.
    let keys: Vec<u64> = (0..200).flat_map(|at| [at % 10, 77]).collect();
    let timed: Vec<(u32, u64)> = keys.iter().map(|key| (5, *key)).collect();
    let csv = |header: &str, line: &dyn Fn(u64) -> String| {
        format!("{header}\n{}", keys.iter().map(|key| line(*key)).collect::<String>())
    };
    fs::write(sandbox.out("a.oracleGeneral"), oracle_general(&timed)).unwrap();
    fs::write(sandbox.out("b.csv"), csv("time,key", &|key| format!("5.5,{key}\n"))).unwrap();
    fs::write(sandbox.out("c.csv"), csv("id", &|key| format!("word-{key}\n"))).unwrap();
    let words = |width: usize| {
        let bytes = |key: &u64| key.to_be_bytes()[8 - width..].to_vec();
        keys.iter().flat_map(bytes).collect::<Vec<u8>>()
    };
    fs::write(sandbox.out("d.trace"), words(4)).unwrap();
    fs::write(sandbox.out("e.bin"), words(8)).unwrap();
    let pages = keys.iter().map(|key| format!("{key} 1 0 0\n")).collect::<String>();
    fs::write(sandbox.out("f.lis"), pages).unwrap();
    for file in ["a.oracleGeneral", "b.csv", "c.csv", "d.trace", "e.bin", "f.lis"] {
        let mut options = vec!["trace", file, "--policy", "lru,fifo", "--cache", "20%"];
        options.extend(["--format", "json"]);
        if file == "e.bin" {
            options.extend(["--trace-format", "i64"]);
        }
        let rows = sim(&sandbox, &options).succeeds().json();
        let [lru, fifo] = &rows.as_array().unwrap()[..] else { panic!("two policies") };
        assert_eq!(
            (&lru["capacity"], &lru["hits"]),
            (&Value::from(2), &Value::from(199)),
            "{file}"
        );
        assert!(fifo["hits"].as_u64() < Some(199), "{file}");
        assert!(lru["optimum_hits"].as_u64() > Some(199), "{file}");
    }
}

#[test]
fn truncated_or_unordered_traces_are_reported() {
    let sandbox = Sandbox::new();
    let whole = oracle_general(&[(9, 1), (3, 2), (4, 1)]);
    fs::write(sandbox.out("cut.oracleGeneral"), &whole[..50]).unwrap();
    fs::write(sandbox.out("order.oracleGeneral"), &whole).unwrap();
    fs::write(sandbox.out("time.csv"), "key,time\n1,soon\n").unwrap();
    fs::write(sandbox.out("header.csv"), "1,2\n3,4\n").unwrap();
    fs::write(sandbox.out("empty.csv"), "key\n").unwrap();
    fs::write(sandbox.out("odd.trace"), [1, 2, 3]).unwrap();
    for (file, expected) in [
        ("cut.oracleGeneral", &["50 bytes", "cut off after 2"][..]),
        ("time.csv", &["line 2", "`soon` is no time"]),
        ("header.csv", &["line 1", "no column is called `key`"]),
        ("empty.csv", &["no requests"]),
        ("odd.trace", &["3 bytes", "no whole number"]),
        ("nothing.csv", &["error: there is no file `nothing.csv`; check its name"]),
        (".", &["is a directory"]),
        ("/dev/zero", &["neither a file nor a pipe"]),
    ] {
        sim(&sandbox, &["trace", file]).refuses(expected);
    }
    let ran = sim(&sandbox, &["trace", "order.oracleGeneral", "--cache", "50%"]).run();
    assert_eq!(ran.code, Some(0));
    assert!(ran.stderr.contains("2 times in the trace went backwards"), "{}", ran.stderr);
}

/// Hashed keys give the same result as small keys.
#[test]
fn the_values_of_keys_do_not_matter() {
    let sandbox = Sandbox::new();
    let mut random = 1_u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let keys: Vec<u64> =
        (0..20_000_u64).map(|at| [draw(500), 500 + at][usize::from(at % 3 == 0)]).collect();
    let timed = |key: fn(u64) -> u64| -> Vec<(u32, u64)> {
        keys.iter().zip(0..).map(|(number, at)| (at * 10, key(*number))).collect()
    };
    fs::write(sandbox.out("small.oracleGeneral"), oracle_general(&timed(|key| key))).unwrap();
    let hashed = timed(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    fs::write(sandbox.out("hashed.oracleGeneral"), oracle_general(&hashed)).unwrap();
    let [small, hashed] = ["small.oracleGeneral", "hashed.oracleGeneral"].map(|file| {
        let rows = sim(&sandbox, &["trace", file, "--format", "json"]).succeeds().json();
        let hits = rows.as_array().unwrap().iter().map(|row| row["hits"].as_u64());
        hits.collect::<Vec<_>>()
    });
    assert_eq!(small, hashed);
}

/// Runs only where the recorded traces exist.
#[test]
fn recorded_traces_have_at_most_the_hits_of_the_optimum() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces");
    let sandbox = Sandbox::new();
    for (file, requests) in [("caffeine_web07.trace.xz", 76_118), ("arc_P3.lis.zst", 3_912_296)] {
        let path = folder.join(file);
        if !path.exists() || (file.contains("arc") && std::env::var_os("SEEDS").is_none()) {
            continue;
        }
        let options =
            ["trace", path.to_str().unwrap(), "--policy", "lru,next-use", "--format", "json"];
        let rows = sim(&sandbox, &options).succeeds().json();
        for row in rows.as_array().unwrap() {
            assert_eq!(row["requests"], requests, "{file}");
            assert!(row["hits"].as_u64() <= row["optimum_hits"].as_u64(), "{row}");
        }
    }
}
