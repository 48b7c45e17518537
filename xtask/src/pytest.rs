//! `cargo xtask pytest`: the tests of the Python package, several files at once.
//!
//! Every file runs in a pytest of its own. `pytest-xdist` is no alternative: its workers have
//! threads, and these tests fork the process that they run in. Starting PyTorch once per file costs
//! two seconds of processor time each, which is less than what overlapping gains, because the tests
//! mostly wait for other processes and for deadlines.
//!
//! The files that took longest in the last run start first. Without a last run, the known slow ones
//! do, then the largest ones.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, mpsc},
    thread,
    time::Instant,
};

use crate::{
    Outcome,
    environments::TRAIN,
    paths::{PACKAGE, root, target},
    schedule::{closing, execute, number},
    stages::tests_at_once,
};

/// Seconds that each file took in the last run, by name.
type Times = BTreeMap<String, f64>;

/// The results that pytest counts.
const RESULTS: [&str; 5] = ["passed", "failed", "error", "skipped", "xfailed"];

/// Files that take minutes although they are short; a name that no longer exists does no harm.
const SLOW: [&str; 2] = ["test_origin_bytes.py", "test_node_loss.py"];

/// What pytest exits with if no test of a file was selected.
const NOTHING_SELECTED: i32 = 5;

struct Done {
    file: String,
    passed: bool,
    lines: Vec<String>,
    seconds: f64,
}

/// Runs the tests with these options of pytest, for example `-k sharing`.
pub fn run(options: &[&str]) -> Outcome {
    let folder = root().join(PACKAGE).join("tests");
    let times = target().join("pytest-times.json");
    let last: Times = fs::read(&times)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    let files = in_order(files(&folder)?, &last);
    let python = TRAIN.python();
    let begun = Instant::now();
    let done = at_once(&files, tests_at_once(), |file| {
        let mut pytest = Command::new(&python);
        pytest.args(["-m", "pytest", "-q", "-ra"]).args(options).arg(folder.join(file));
        pytest
    });
    print!("{}", summary(&done, begun.elapsed().as_secs_f64()));
    let took: Times = done.iter().map(|one| (one.file.clone(), one.seconds)).collect();
    // Only the order of the next run depends on it.
    let _ = fs::write(&times, serde_json::to_vec(&took).unwrap_or_default());
    let failed = done.iter().filter(|one| !one.passed).count();
    if failed == 0 { Ok(()) } else { Err(format!("{failed} files have tests that failed")) }
}

/// The test files in a folder, with their sizes.
fn files(folder: &Path) -> Result<Vec<(String, u64)>, String> {
    let problem = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(problem)? {
        let entry = entry.map_err(problem)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_python = PathBuf::from(&name).extension().is_some_and(|kind| kind == "py");
        if name.starts_with("test_") && is_python {
            files.push((name, entry.metadata().map_err(problem)?.len()));
        }
    }
    Ok(files)
}

/// The longest first, so that none of them starts when the others are done.
fn in_order(mut files: Vec<(String, u64)>, last: &Times) -> Vec<String> {
    files.sort_by(|(a, a_size), (b, b_size)| {
        // A file without a time is new: it starts before the known ones.
        let [a_time, b_time] = [a, b].map(|name| last.get(name).copied().unwrap_or(f64::INFINITY));
        let [a_slow, b_slow] = [a, b].map(|name| SLOW.contains(&name.as_str()));
        b_time.total_cmp(&a_time).then(b_slow.cmp(&a_slow)).then(b_size.cmp(a_size)).then(a.cmp(b))
    });
    files.into_iter().map(|(name, _)| name).collect()
}

/// Runs a command per file, up to `count` at once, and prints the output of each when it ends.
fn at_once(files: &[String], count: usize, command: impl Fn(&str) -> Command + Sync) -> Vec<Done> {
    let queue = Mutex::new(files.iter());
    let (report, reports) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..count {
            let (report, queue, command) = (report.clone(), &queue, &command);
            scope.spawn(move || {
                loop {
                    let next = queue.lock().expect("no thread panics with the lock").next();
                    let Some(file) = next else { return };
                    let begun = Instant::now();
                    let (code, lines) = execute(&mut command(file), false);
                    let passed = matches!(code, Some(0 | NOTHING_SELECTED));
                    let seconds = begun.elapsed().as_secs_f64();
                    // The receiver outlives every thread here.
                    let _ = report.send(Done { file: file.clone(), passed, lines, seconds });
                }
            });
        }
        drop(report);
        let show = |done: Done| {
            println!("--- {}\n{}", done.file, done.lines.join("\n"));
            done
        };
        reports.iter().map(show).collect()
    })
}

/// The failed tests once more, and one line in the form of pytest's own.
fn summary(done: &[Done], seconds: f64) -> String {
    let lines = || done.iter().flat_map(|one| &one.lines);
    let is_failure = |line: &&String| line.starts_with("FAILED ") || line.starts_with("ERROR ");
    let mut text: String = lines().filter(is_failure).map(|line| format!("{line}\n")).collect();
    for one in done.iter().filter(|one| !one.passed && closing(&one.lines).is_none()) {
        text += &format!("FAILED {}: pytest ended early\n", one.file);
    }
    let ends: Vec<String> = done.iter().filter_map(|one| closing(&one.lines)).collect();
    let counts = RESULTS.map(|word| {
        let count: u64 = ends.iter().map(|end| number(end, word)).sum();
        (count > 0).then(|| format!("{count} {word}"))
    });
    let counts: Vec<String> = counts.into_iter().flatten().collect();
    text + &format!("{} in {seconds:.1}s, {} files\n", counts.join(", "), done.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_files_start_first() {
        let files = [("a", 10), ("b", 30), ("c", 20), (SLOW[0], 1), ("new", 5)];
        let mut files = files.map(|(name, size)| (name.to_owned(), size)).to_vec();
        assert_eq!(in_order(files.clone(), &Times::new()), [SLOW[0], "b", "c", "a", "new"]);
        files.remove(3);
        let last = [("a", 9.0), ("b", 1.0), ("c", 2.0)].map(|(name, time)| (name.to_owned(), time));
        assert_eq!(in_order(files, &last.into()), ["new", "a", "c", "b"]);
    }

    #[test]
    fn results_of_all_files_are_added_up() {
        let scripts = [
            ("test_a.py", "echo '2 passed, 1 skipped in 0.1s'"),
            (
                "test_b.py",
                "echo 'FAILED test_b.py::test_x - no'; echo '1 failed, 3 passed in 2s'; exit 1",
            ),
            ("test_c.py", "exit 5"),
            ("test_d.py", "kill -KILL $$"),
        ];
        let files = scripts.map(|(file, _)| file.to_owned());
        let mut done = at_once(&files, 2, |file| {
            let (_, script) = scripts.iter().find(|(name, _)| *name == file).unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        });
        done.sort_by(|a, b| a.file.cmp(&b.file));
        let passed: Vec<bool> = done.iter().map(|one| one.passed).collect();
        assert_eq!(passed, [true, false, true, false]);
        assert_eq!(
            summary(&done, 4.0),
            "FAILED test_b.py::test_x - no\nFAILED test_d.py: pytest ended early\n5 passed, 1 \
             failed, 1 skipped in 4.0s, 4 files\n"
        );
    }
}
