//! `forebay sim`, for people and for scripts.

use std::fs;

use serde_json::Value;

use crate::harness::{Forebay, Place};

/// Two jobs on a small dataset, with a variant.
const SMALL: &str = r#"
about = "two jobs, a small dataset"
policy = "lru"
origin = { bandwidth = "100MB/s" }
cache = { capacity = "50%", read_bandwidth = "1GB/s" }

[[dataset]]
name = "photos"
size = "50MB"
items = 5000

[[job]]
name = "trainer"
count = 2
dataset = "photos"
batch = 100
compute = "5ms"
epochs = 2

[[variant]]
name = "half"

[[variant]]
name = "most"
capacity = "90%"
"#;

fn place() -> Place {
    let place = Place::new();
    fs::write(place.out("small.toml"), SMALL).unwrap();
    place
}

fn sim(place: &Place, options: &[&str]) -> Forebay {
    place.forebay(["sim"].iter().chain(options))
}

#[test]
fn scenarios_are_listed_and_each_is_a_file() {
    let place = Place::new();
    let text = sim(&place, &["list"]).succeeds().stdout;
    let listed = sim(&place, &["list", "--format", "json"]).succeeds().json();
    for scenario in listed.as_array().unwrap() {
        let [name, about] = ["name", "about"].map(|field| scenario[field].as_str().unwrap());
        assert!(text.contains(name) && text.contains(about), "{name}");
    }
}

#[test]
fn a_run_is_told_to_people_and_to_scripts() {
    let place = place();
    let text = sim(&place, &["run", "small.toml"]).succeeds().stdout;
    for part in ["small, half under lru, seed 0", "small, most", "trainer x 2", "MS/BATCH"] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    let options =
        ["run", "small.toml", "--policy", "none", "--variant", "most", "--format", "json"];
    let runs = sim(&place, &options).succeeds().json();
    let [run] = &runs.as_array().unwrap()[..] else { panic!("one variant was asked for") };
    assert_eq!(run["policy"], "none");
    assert_eq!(run["origin_bytes"], 2 * 2 * 50_000_000_u64, "two jobs, two epochs");
    assert_eq!(run["item_reads"], 20_000);
}

#[test]
fn one_seed_one_answer() {
    let place = place();
    let run = |seed: &str| {
        sim(&place, &["run", "small.toml", "--seed", seed, "--format", "json"]).succeeds().stdout
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn policies_are_compared_with_the_first() {
    let place = place();
    let options = ["compare", "small.toml", "--policies", "none,hit,none", "--plot", "speed.svg"];
    let text = sim(&place, &options).succeeds().stdout;
    assert_eq!(text.matches("1.00x").count(), 2, "each variant, and no policy twice: {text}");
    assert!(fs::read_to_string(place.out("speed.svg")).unwrap().contains("hit"));
    let options = ["compare", "small.toml", "--policies", "none,lru", "--format", "json"];
    let comparison: Value = sim(&place, &options).succeeds().json();
    assert_eq!(comparison["runs"].as_array().unwrap().len(), 4);
}

#[test]
fn pictures_show_stages_and_chunks() {
    let place = place();
    sim(&place, &["run", "small.toml", "--policy", "quiver", "--plot", "run.svg"]).succeeds();
    let svg = fs::read_to_string(place.out("run.svg")).unwrap();
    for part in ["chunks of photos in the cache", "20 mini-batches of trainer-1", "transform"] {
        assert!(svg.contains(part), "`{part}` is not in the picture");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_way_out() {
    let place = place();
    fs::write(place.out("bad.toml"), SMALL.replace("50MB", "50")).unwrap();
    fs::write(place.out("binary.toml"), [0xff, 0xfe]).unwrap();
    for (options, saying) in [
        (&["run", "nothing"][..], &["no scenario and no file `nothing`", "one-job"][..]),
        (&["run", "."], &["`.` is a directory"]),
        (&["run", "binary.toml"], &["binary.toml"]),
        (&["run", "bad.toml"], &["bad.toml, line 9", "`size`", "unit is missing", "15GB"]),
        (&["run", "small.toml", "--policy", "mru"], &["mru", "quiver"]),
        (&["run", "small.toml", "--variant", "x"], &["no variant `x`", "half, most"]),
        (&["run", "faults", "--variant", "x"], &["`faults` has none"]),
        (&["compare", "small.toml", "--policies", "lru,mru"], &["mru", "forebay"]),
        (&["run", "small.toml", "--plot", "no/x.svg"], &["no directory `no`", "make it first"]),
        (&["run", "small.toml", "--plot", "small.toml"], &["what is to be read"]),
    ] {
        sim(&place, options).refuses(saying);
    }
}
