//! `forebay sim` for training jobs, as text and as JSON.

use std::fs;

use serde_json::Value;

use crate::harness::{Forebay, Sandbox};

/// Two jobs on a small dataset, with two variants.
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

fn with_scenario() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::write(sandbox.out("small.toml"), SMALL).unwrap();
    sandbox
}

fn sim(sandbox: &Sandbox, options: &[&str]) -> Forebay {
    sandbox.forebay(["sim"].iter().chain(options))
}

#[test]
fn scenarios_are_listed_and_each_is_a_file() {
    let sandbox = Sandbox::new();
    let text = sim(&sandbox, &["list"]).succeeds().stdout;
    let listed = sim(&sandbox, &["list", "--format", "json"]).succeeds().json();
    for scenario in listed.as_array().unwrap() {
        let [name, about] = ["name", "about"].map(|field| scenario[field].as_str().unwrap());
        assert!(text.contains(name) && text.contains(about), "{name}");
        for variant in scenario["variants"].as_array().unwrap() {
            assert!(text.contains(variant.as_str().unwrap()), "{name}, {variant}");
        }
    }
    assert!(sim(&sandbox, &["--help"]).succeeds().stdout.contains("Examples:"));
}

#[test]
fn a_run_is_printed_as_text_and_as_json() {
    let sandbox = with_scenario();
    let text = sim(&sandbox, &["run", "small.toml"]).succeeds().stdout;
    for part in ["small, half under lru, seed 0", "small, most", "trainer x 2", "MS/BATCH"] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    let options =
        ["run", "small.toml", "--policy", "none", "--variant", "most", "--format", "json"];
    let runs = sim(&sandbox, &options).succeeds().json();
    assert_eq!(runs["format"], 1);
    let [run] = &runs["runs"].as_array().unwrap()[..] else { panic!("one variant was requested") };
    assert_eq!(run["policy"], "none");
    assert_eq!(run["origin_bytes"], 2 * 2 * 50_000_000_u64, "two jobs, two epochs");
    assert_eq!(run["item_reads"], 20_000);
}

#[test]
fn the_same_seed_gives_the_same_result() {
    let sandbox = with_scenario();
    let run = |seed: &str| {
        sim(&sandbox, &["run", "small.toml", "--seed", seed, "--format", "json"]).succeeds().stdout
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn policies_are_compared_with_the_first() {
    let sandbox = with_scenario();
    let options = ["compare", "small.toml", "--policy", "none,hit", "--plot", "speed.svg"];
    let text = sim(&sandbox, &options).succeeds().stdout;
    assert_eq!(text.matches("1.00x").count(), 2, "each variant: {text}");
    assert!(text.contains("hit: everything is cached"), "{text}");
    let svg = fs::read_to_string(sandbox.out("speed.svg")).unwrap();
    assert!(svg.contains("hit") && svg.contains("bound") && !svg.contains("hsl"), "{svg}");
    let options = ["compare", "small.toml", "--policy", "none,lru", "--format", "json"];
    let comparison: Value = sim(&sandbox, &options).succeeds().json();
    assert_eq!(comparison["runs"].as_array().unwrap().len(), 4);
    assert_eq!(comparison["speed_ups"].as_array().unwrap().len(), 4);
    assert_eq!((&comparison["format"], &comparison["speed_ups"][0]), (&1.into(), &1.0.into()));
}

#[test]
fn plots_show_stages_and_chunks() {
    let sandbox = with_scenario();
    sim(&sandbox, &["run", "small.toml", "--policy", "quiver", "--plot", "run.svg"]).succeeds();
    let svg = fs::read_to_string(sandbox.out("run.svg")).unwrap();
    for part in ["chunks of photos in the cache", "20 mini-batches of trainer-1", "transform"] {
        assert!(svg.contains(part), "`{part}` is not in the plot");
    }
}

#[test]
fn invalid_options_are_rejected_with_the_remedy() {
    let sandbox = with_scenario();
    fs::write(sandbox.out("bad.toml"), SMALL.replace("50MB", "50")).unwrap();
    fs::write(sandbox.out("binary.toml"), [0xff, 0xfe]).unwrap();
    for (options, expected) in [
        (&["run", "small"][..], &["no file `small`", "did you mean `small.toml`?"][..]),
        (&["run", "/dev/zero"], &["too long for a scenario"]),
        (&["run", "small.toml", "--plot", "x.png"], &["SVG, not png", "`x.svg`"]),
        (&["compare", "small.toml", "--policy", "none,lru,none"], &["`none` is named twice"]),
        (&["compare", "small.toml", "--policy", "none", "lru"], &["commas", "none,lru"]),
        (&["reproduce", "--page", "no.md"], &["no.md", "<!-- begin train"]),
        (&["reproduce", "figure-8"], &["figure-8", "figure-7"]),
        (&["run", "nothing"], &["no scenario and no file `nothing`", "one-job"]),
        (&["run", "."], &["`.` is a directory"]),
        (
            &["run", "binary.toml"],
            &["`binary.toml` is not UTF-8 text", "docs/reference/scenarios.md"],
        ),
        (&["run", "bad.toml"], &["bad.toml, line 9", "`size`", "unit is missing", "15GB"]),
        (&["run", "small.toml", "--policy", "mru"], &["mru", "quiver"]),
        (&["run", "small.toml", "--variant", "x"], &["no variant `x`", "half, most"]),
        (&["run", "faults", "--variant", "x"], &["`faults` has no variants"]),
        (&["compare", "small.toml", "--policy", "lru,mru"], &["mru", "forebay"]),
        (&["run", "small.toml", "--plot", "no/x.svg"], &["no directory `no`", "make it first"]),
        (&["run", "small.toml", "--plot", "small.toml"], &["is the file to read"]),
    ] {
        sim(&sandbox, options).refuses(expected);
    }
}

/// Faults are in the text, the plot and the JSON. A missing figure is a dash.
#[test]
fn faults_and_missing_figures_are_shown() {
    let sandbox = with_scenario();
    let fault = "[[fault]]\nat = \"200ms\"\njob = \"trainer-2\"\nfor = \"100ms\"\n";
    fs::write(sandbox.out("fault.toml"), SMALL.to_owned() + fault).unwrap();
    let options = ["run", "fault.toml", "--variant", "half", "--plot", "fault.svg"];
    let text = sim(&sandbox, &options).succeeds().stdout;
    let expected = "trainer-2 was killed; it restarts 0.1 s later";
    assert!(text.contains(expected), "{text}");
    assert!(fs::read_to_string(sandbox.out("fault.svg")).unwrap().contains(expected));
    fs::write(sandbox.out("late.toml"), "warm_up = \"100s\"\n".to_owned() + SMALL).unwrap();
    let options = ["compare", "late.toml", "--policy", "none,lru", "--plot", "late.svg"];
    let text = sim(&sandbox, &options).succeeds().stdout;
    let svg = fs::read_to_string(sandbox.out("late.svg")).unwrap();
    let json = sim(&sandbox, &["run", "late.toml", "--format", "json"]).succeeds().stdout;
    for shown in [&text, &svg, &json] {
        assert!(!shown.contains("NaN") && !shown.contains("inf"), "{shown}");
    }
    assert!(text.contains("no batch was counted"), "{text}");
}
