//! `cargo xtask fuzz`: every decoder of untrusted bytes, each for a limited time.

use std::{env, fs, path::Path};

use crate::{
    Outcome,
    steps::{Steps, cargo},
    tools::{Tool, add_to_path},
};

const FUZZ: Tool = Tool { name: "cargo-fuzz", version: "0.13.2" };

/// Run time of each target, without `--seconds`.
const SECONDS: &str = "60";

/// Runs one target, or all of them.
pub fn run(arguments: &[&str]) -> Outcome {
    let (target, seconds) = match arguments {
        [] => (None, SECONDS),
        ["--seconds", seconds] => (None, *seconds),
        [target] => (Some(*target), SECONDS),
        [target, "--seconds", seconds] => (Some(*target), *seconds),
        _ => return Err("usage: cargo xtask fuzz [TARGET] [--seconds N]".to_owned()),
    };
    FUZZ.installed()?;
    let all = targets()?;
    let chosen: Vec<&String> =
        all.iter().filter(|name| target.is_none_or(|target| target == name.as_str())).collect();
    if chosen.is_empty() {
        return Err(format!("there is no such fuzz target; there are {}", all.join(", ")));
    }
    let mut steps = Steps::default();
    let root = env::current_dir().map_err(|error| error.to_string())?;
    for name in chosen {
        // Without a sanitizer a stable compiler suffices; the decoders have no unsafe code.
        let mut fuzz = cargo(&["fuzz", "run", "--release", "--sanitizer", "none", name, "--"]);
        let limit = format!("-max_total_time={seconds}");
        fuzz.args([limit.as_str(), "-max_len=65536", "-timeout=25", "-print_final_stats=1"]);
        fuzz.env("FOREBAY_FUZZ_SEEDS", root.join("fuzz/corpus").join(name));
        add_to_path(&mut fuzz);
        steps.run(&format!("fuzz {name}"), &mut fuzz)?;
    }
    steps.finish();
    Ok(())
}

/// The names of the targets: one per file.
fn targets() -> Result<Vec<String>, String> {
    let entries = fs::read_dir(Path::new("fuzz/targets")).map_err(|error| error.to_string())?;
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| stem(&entry.path())).collect();
    names.sort();
    Ok(names)
}
