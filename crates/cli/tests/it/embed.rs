//! `forebay embed`: simulations of policies, generated traces, and files of tables.

use std::fs;

use serde_json::Value;

use crate::harness::{Forebay, Sandbox};

/// A trace of 100 requests to two tables. Every other request is for the same two rows.
fn with_trace() -> Sandbox {
    let sandbox = Sandbox::new();
    let lines = (0..100).map(|at| match at % 2 {
        0 => "u,f\n".to_owned(),
        _ => format!("u{at},f{at}\n"),
    });
    fs::write(sandbox.out("own.csv"), format!("user,film\n{}", lines.collect::<String>())).unwrap();
    sandbox
}

fn sim(sandbox: &Sandbox, options: &[&str]) -> Forebay {
    sandbox.forebay(["embed", "sim"].iter().chain(options))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn figures_in_json_add_up() {
    let options = ["own.csv", "--policy", "lru,group,lru", "--cache", "10%,50%", "--replay"];
    let report =
        sim(&with_trace(), &[&options[..], &["--format", "json"]].concat()).succeeds().json();
    assert_eq!((number(&report["requests"]), number(&report["keys"])), (100, 200));
    assert_eq!((number(&report["tables"]), number(&report["working_set_rows"])), (2, 102));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "two policies, though one was named twice, at two sizes");
    for row in rows {
        for (tally, requests) in [("single", 80), ("replay", 100)] {
            let of = |name: &str| number(&row[tally][name]);
            assert_eq!((of("requests"), of("keys")), (requests, 2 * requests), "{row}");
            assert!(2 * of("perfect") <= of("hits") && of("hits") <= of("keys"), "{row}");
        }
        let bounds = report["bounds"].as_array().unwrap();
        let bound = bounds.iter().find(|bound| bound["share"] == row["share"]).unwrap();
        assert!(number(&row["single"]["perfect"]) <= number(&bound["infinite"]["perfect"]));
    }
    assert_eq!(number(&rows[0]["capacity_rows"]), 10);
    assert_eq!(
        number(&rows[0]["single"]["perfect"]),
        40,
        "LRU keeps the rows of every other request"
    );
}

#[test]
fn text_is_a_table_and_a_plot_is_svg() {
    let sandbox = with_trace();
    let text =
        sim(&sandbox, &["own.csv", "--plot", "hits.svg", "--requests", "50"]).succeeds().stdout;
    for part in ["own: 50 requests, 100 keys in 2 tables", "POLICY", "lru", "ev-lfu", "-- static"] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    let svg = fs::read_to_string(sandbox.out("hits.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("group"), "{svg}");
    let text = sim(&sandbox, &["own.csv", "--policy", "all", "--no-bounds"]).succeeds().stdout;
    assert!(text.contains("w-tinylfu") && !text.contains("-- static"), "{text}");
    let text = sim(&sandbox, &["own.csv", "--cost", "--cache", "5%"]).succeeds().stdout;
    assert!(text.contains("x LRU") && text.lines().count() == 4, "{text}");
}

#[test]
fn the_synthetic_trace_is_marked_and_follows_its_seed() {
    let sandbox = Sandbox::new();
    let run = |seed: &str| {
        let options = ["synthetic-criteo", "--requests", "200", "--cache", "5%", "--seed", seed];
        sim(&sandbox, &options).succeeds().stdout
    };
    assert!(run("1").contains("SYNTHETIC"));
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn generated_traces_are_listed_and_run_alone_or_in_groups() {
    let sandbox = Sandbox::new();
    let listed = sandbox.forebay(["embed", "traces", "--format", "json"]).succeeds().json();
    let text = sandbox.forebay(["embed", "traces"]).succeeds().stdout;
    let listed = listed.as_array().unwrap();
    assert!(listed.iter().all(|trace| text.contains(trace["name"].as_str().unwrap())), "{text}");
    let short = ["--requests", "300", "--cache", "5%", "--policy", "lru,group"];
    let text = sim(&sandbox, &[&["made:shift-all"][..], &short].concat()).succeeds().stdout;
    assert!(text.contains("made:shift-all (SYNTHETIC): 300 requests"), "{text}");
    let text = sim(&sandbox, &[&["made:all"][..], &short].concat()).succeeds().stdout;
    for trace in listed.iter().filter(|trace| trace["name"] != "synthetic-criteo") {
        assert!(text.contains(trace["name"].as_str().unwrap()), "{trace} is not in {text}");
    }
    let held_out = sim(&sandbox, &[&["made:held-out"][..], &short].concat()).succeeds().stdout;
    assert!(held_out.contains("held out: ") && !held_out.contains("tuned on: "), "{held_out}");
}

#[test]
fn bundles_and_the_gain_of_prefetching_are_shown() {
    let own = with_trace();
    let sandbox = Sandbox::new();
    let options = ["synthetic-criteo", "--requests", "20000", "--cache", "5%", "--policy", "group"];
    let ahead = ["--prefetch", "C3", "--bundles", "--no-bounds"];
    let text = sim(&sandbox, &[&options[..], &ahead].concat()).succeeds().stdout;
    for part in ["one request ahead", "and the keys that they imply", "C3 -> C12 -> C21 -> C16"] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    let text = sim(&own, &["own.csv", "--policy", "lru", "--bundles"]).succeeds().stdout;
    assert!(text.contains("no bundles"), "{text}");
}

#[test]
fn every_policy_is_listed_with_a_line() {
    let sandbox = with_trace();
    let text = sandbox.forebay(["embed", "policies"]).succeeds().stdout;
    let listed = sandbox.forebay(["embed", "policies", "--format", "json"]).succeeds().json();
    for policy in listed.as_array().unwrap() {
        let [name, about] = ["name", "about"].map(|field| policy[field].as_str().unwrap());
        assert!(text.contains(name) && about.ends_with('.'), "{policy}");
        sim(&sandbox, &["own.csv", "--policy", name, "--cache", "5%", "--no-bounds"]).succeeds();
    }
}

#[test]
fn invalid_options_are_rejected_with_the_remedy() {
    let sandbox = with_trace();
    fs::write(sandbox.out("short.csv"), "user,film\n1,2\n3\n").unwrap();
    fs::write(sandbox.out("twice.csv"), "a\u{1b}[31m,a\u{1b}[31m\n1,2\n").unwrap();
    fs::write(sandbox.out("bars.csv"), "user;film\n1;2\n").unwrap();
    fs::write(sandbox.out("odd.trace"), "12345").unwrap();
    fs::write(sandbox.out("torn.csv.gz"), [0x1f, 0x8b, 8, 0]).unwrap();
    for (options, expected) in [
        (&["own.csv", "--policy", "lru,mru"][..], &["no policy `mru`", "there are fifo, lru"][..]),
        (&["own.csv", "--policy", ""], &["no policy ``"]),
        (&["own.csv", "--cache", "5%,120%"], &["`120%` is no cache size", "such as 5%"]),
        (&["own.csv", "--cache", "5"], &["`5` is no cache size", "such as 5%"]),
        (&["own.csv", "--trace-format", "tsv"], &["no trace format `tsv`", "csv, nycflights"]),
        (&["own.csv", "--requests", "0"], &["--requests", "1.."]),
        (&["own.csv", "--prefetch", "user,item"], &["no table `item`", "it has user, film"]),
        (&["own.csv", "--cost", "--bundles"], &["--cost", "--bundles"]),
        (&["own.csv", "--cost", "--replay"], &["--cost", "--replay"]),
        (&["short.csv"], &["short.csv, line 3", "1 values", "2 columns", "--trace-format"]),
        (&["twice.csv"], &["twice.csv", "two columns are named", "a name of its own"]),
        (&["odd.trace"], &["odd.trace", "4-byte keys", "read as u32", "--trace-format"]),
        (&["torn.csv.gz"], &["cannot unpack `torn.csv.gz`"]),
        (&["."], &[".", "neither a file nor a pipe"]),
        (&["missing.csv"], &["no file `missing.csv`", "or `synthetic-criteo`"]),
        (&["synthetic-criteo", "--trace-format", "csv"], &["--trace-format is for files"]),
        (&["made:zipf", "--trace-format", "csv"], &["--trace-format is for files"]),
        (&["made:nothing"], &["no made trace `nothing`", "shift-all", "held-out"]),
        (&["made:all", "--replay"], &["--replay is for one trace", "`made:all` is several"]),
        (&["made:tuning", "--policy", "lru,arc", "--requests", "50"], &["compare `group`"]),
        (&["bars.csv"], &["bars.csv", "one name with `;` in it", "by commas"]),
        (&["own.csv", "--plot", "-"], &["not to standard output", "name one"]),
        (&["own.csv", "--plot", "."], &["`.` is a directory", "name a file in it"]),
        (&["own.csv", "--plot", "no/x.svg"], &["no directory `no`", "make it first"]),
        (&["own.csv", "--plot", "own.csv"], &["is the file to read", "another file"]),
    ] {
        sim(&sandbox, options).refuses(expected);
    }
}

/// Two tables and a bias, as a `.safetensors` file.
fn model() -> Vec<u8> {
    let header = r#"{"users":{"dtype":"F32","shape":[10,4],"data_offsets":[0,160]},
        "films":{"dtype":"F16","shape":[3,2],"data_offsets":[160,172]},
        "bias":{"dtype":"F32","shape":[1],"data_offsets":[172,176]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 176]].concat()
}

#[test]
fn a_file_of_tables_is_inspected() {
    let sandbox = with_trace();
    fs::write(sandbox.out("model.safetensors"), model()).unwrap();
    let inspect = |options: &[&str]| sandbox.forebay(["embed", "inspect"].iter().chain(options));
    let text = inspect(&["model.safetensors"]).succeeds().stdout;
    assert!(
        text.contains("2 tables") && text.contains("10 x 4") && text.contains("16 B"),
        "{text}"
    );
    let json = inspect(&["model.safetensors", "--format", "json"]).succeeds().json();
    let tensors = json["tensors"].as_array().unwrap();
    let tables = tensors.iter().filter(|tensor| tensor["table"] == true).count();
    assert_eq!((json["format"].as_str(), tensors.len(), tables), (Some("safetensors"), 3, 2));
    assert_eq!(number(&tensors[1]["offset"]), model().len() as u64 - 16);

    fs::write(sandbox.out("rows"), [0; 120]).unwrap();
    let rows = ["rows", "--dtype", "float16", "--dimension", "5", "--format", "json"];
    let json = inspect(&rows).succeeds().json();
    assert_eq!(json["tensors"][0]["shape"], serde_json::json!([12, 5]));

    fs::write(sandbox.out("torn.safetensors"), &model()[..300]).unwrap();
    for (options, expected) in [
        (&["rows"][..], &["`rows` is neither", "dtype and dimension"][..]),
        (&["rows", "--dtype", "float16"], &["--dimension"]),
        (&["rows", "--dtype", "int2", "--dimension", "5"], &["int2", "float32, float64"]),
        (&["rows", "--dtype", "float32", "--dimension", "7"], &["`rows` is 120 bytes long", "28"]),
        (&["torn.safetensors"], &["torn.safetensors", "cut off", "copy it again"]),
        (&["missing"], &["no file `missing`"]),
        (
            &["model.safetensors", "--dtype", "float32", "--dimension", "2"],
            &["has a header", "leave out dtype"],
        ),
    ] {
        inspect(options).refuses(expected);
    }
}

#[test]
fn a_plan_counts_bookkeeping_and_finds_the_memory_for_a_goal() {
    let sandbox = with_trace();
    let plan = |options: &[&str]| {
        let trace = ["embed", "plan", "made:zipf", "--requests", "5000", "--dimension", "64"];
        sandbox.forebay(trace.iter().chain(options))
    };
    let sizes = ["--memory", "200KiB,800KiB", "--format", "json"];
    let json = plan(&sizes).succeeds().json();
    let plans = json.as_array().unwrap();
    for (plan, memory) in plans.iter().zip([200 << 10, 800 << 10]) {
        let books = &plan["bookkeeping"];
        let books = ["directory", "ghosts", "tuning"].map(|kind| number(&books[kind]));
        let used = number(&plan["row_bytes"]) + books.iter().sum::<u64>();
        assert!(used <= memory && number(&plan["memory"]) == memory, "{plan}");
        assert!(used > memory / 2, "most of it is used: {plan}");
    }
    let perfect = |plan: &Value| number(&plan["hits"]["perfect"]);
    assert!(perfect(&plans[0]) < perfect(&plans[1]), "{json}");

    let goal = plan(&["--perfect", "2%", "--format", "json"]).succeeds().json();
    let (perfect, requests) = (perfect(&goal[0]), number(&goal[0]["hits"]["requests"]));
    assert!(perfect * 50 >= requests, "{goal}");
    assert!(plan(&["--perfect", "2%"]).succeeds().stdout.contains("DIRECTORY"));
    for (options, expected) in [
        (&["--memory", "1KiB"][..], &["`--memory 1 KiB` is too little", "give more"][..]),
        (&["--perfect", "100%"], &["100% of perfect hits is out of reach", "ask for less"]),
        (&["--perfect", "0%"], &["0%"]),
        (&[], &["--memory", "--perfect"]),
    ] {
        plan(options).refuses(expected);
    }
}

#[test]
fn an_inspection_shows_how_memory_divides() {
    let sandbox = with_trace();
    fs::write(sandbox.out("rows"), vec![0; 144 * 50_000]).unwrap();
    let options = ["rows", "--dtype", "float32", "--dimension", "36", "--memory"];
    let inspect =
        |more: &[&str]| sandbox.forebay(["embed", "inspect"].iter().chain(&options).chain(more));
    let json = inspect(&["2MB", "--format", "json"]).succeeds().json();
    let of = |kind: &str| number(&json["division"][kind]);
    let books = of("directory_bytes") + of("ghost_bytes");
    assert!(books <= 48 * of("rows"), "{json}");
    let all = of("row_bytes") + books + of("tuning_bytes") + of("pinned_bytes");
    assert!((1_900_000..=2_000_000).contains(&all), "{all} of {json}");
    assert!(inspect(&["2MB"]).succeeds().stdout.contains("bytes of bookkeeping per row"));
    inspect(&["1kB"]).refuses(&["`memory` = 1000 is too little", "give at least"]);
}

#[test]
fn a_reproduction_replaces_its_section_of_a_page() {
    let sandbox = with_trace();
    let run = |options: &[&str]| {
        let arguments = ["embed", "reproduce", "own.csv", "--requests", "300"];
        sandbox.forebay(arguments.iter().chain(options))
    };
    let text = run(&[]).succeeds().stdout;
    for part in ["Figure 5.1", "Experiment 4", "`own` (real, 100 requests, 2 tables)", "| group |"]
    {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    fs::write(
        sandbox.out("page.md"),
        "before\n<!-- begin embeddings -->\nold\n<!-- end embeddings -->\nafter\n",
    )
    .unwrap();
    run(&["--page", "page.md"]).succeeds();
    let page = fs::read_to_string(sandbox.out("page.md")).unwrap();
    assert!(page.starts_with("before\n") && page.ends_with("after\n") && !page.contains("\nold\n"));
    let lines = page.lines().filter(|line| !line.starts_with("!["));
    let text_lines = lines.map(|line| format!("{line}\n")).collect::<String>();
    assert!(text_lines.contains(text.trim()), "the same text: {page}");
    assert!(!text.contains("NaN") && !text.contains("inf,"), "{text}");
    assert!(sandbox.out("page/evstore-figure-7-3.svg").exists());
    fs::write(sandbox.out("other.md"), "no place\n").unwrap();
    run(&["--page", "other.md"]).refuses(&["no section `embeddings`", "begin embeddings"]);
}
