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
        for variant in scenario["variants"].as_array().unwrap() {
            assert!(text.contains(variant.as_str().unwrap()), "{name}, {variant}");
        }
    }
    assert!(sim(&place, &["--help"]).succeeds().stdout.contains("Examples:"));
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
    assert_eq!(runs["format"], 1);
    let [run] = &runs["runs"].as_array().unwrap()[..] else { panic!("one variant was asked for") };
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
    let options = ["compare", "small.toml", "--policies", "none,hit", "--plot", "speed.svg"];
    let text = sim(&place, &options).succeeds().stdout;
    assert_eq!(text.matches("1.00x").count(), 2, "each variant: {text}");
    assert!(text.contains("hit: everything is cached"), "{text}");
    let svg = fs::read_to_string(place.out("speed.svg")).unwrap();
    assert!(svg.contains("hit") && svg.contains("bound") && !svg.contains("hsl"), "{svg}");
    let options = ["compare", "small.toml", "--policies", "none,lru", "--format", "json"];
    let comparison: Value = sim(&place, &options).succeeds().json();
    assert_eq!(comparison["runs"].as_array().unwrap().len(), 4);
    assert_eq!(comparison["speed_ups"].as_array().unwrap().len(), 4);
    assert_eq!((&comparison["format"], &comparison["speed_ups"][0]), (&1.into(), &1.0.into()));
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
        (&["run", "small"][..], &["no file `small`", "is it `small.toml`?"][..]),
        (&["run", "/dev/zero"], &["too long for a scenario"]),
        (&["run", "small.toml", "--plot", "x.png"], &["SVG, not png", "`x.svg`"]),
        (&["compare", "small.toml", "--policies", "none,lru,none"], &["`none` is there twice"]),
        (&["compare", "small.toml", "--policies", "none", "lru"], &["commas", "none,lru"]),
        (&["reproduce", "--page", "no.md"], &["no.md", "<!-- begin train"]),
        (&["reproduce", "figure-8"], &["figure-8", "figure-7"]),
        (&["run", "nothing"], &["no scenario and no file `nothing`", "one-job"]),
        (&["run", "."], &["`.` is a directory"]),
        (&["run", "binary.toml"], &["`binary.toml` is no text", "docs/scenarios.md"]),
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

/// What goes wrong is told, marked in the picture, and in the JSON; where nothing was counted there is a dash.
#[test]
fn faults_and_empty_counts_are_shown() {
    let place = place();
    let fault = "[[fault]]\nat = \"200ms\"\njob = \"trainer-2\"\nfor = \"100ms\"\n";
    fs::write(place.out("fault.toml"), SMALL.to_owned() + fault).unwrap();
    let options = ["run", "fault.toml", "--variant", "half", "--plot", "fault.svg"];
    let text = sim(&place, &options).succeeds().stdout;
    let saying = "trainer-2 was killed, and comes back 0.1 s later";
    assert!(text.contains(saying), "{text}");
    assert!(fs::read_to_string(place.out("fault.svg")).unwrap().contains(saying));
    fs::write(place.out("late.toml"), "warm_up = \"100s\"\n".to_owned() + SMALL).unwrap();
    let options = ["compare", "late.toml", "--policies", "none,lru", "--plot", "late.svg"];
    let text = sim(&place, &options).succeeds().stdout;
    let svg = fs::read_to_string(place.out("late.svg")).unwrap();
    let json = sim(&place, &["run", "late.toml", "--format", "json"]).succeeds().stdout;
    for shown in [&text, &svg, &json] {
        assert!(!shown.contains("NaN") && !shown.contains("inf"), "{shown}");
    }
    assert!(text.contains("nothing was counted"), "{text}");
}
