//! The schedule of `cargo xtask test`: steps that need each other, run side by side where that
//! gains time, all of them reported at the end.
//!
//! A step that fails does not end the run: only the steps that need it are skipped. One heavy step
//! runs at a time (a build or a test suite, which use every core), in the order of the list. Light
//! and network-bound steps run beside it. Tests measure time, so two test suites never overlap.
//!
//! The output of the heavy step is shown as it comes. Reports of the others wait until it ends, so
//! that lines of two steps never mix.

use std::{
    collections::VecDeque,
    io::{self, BufRead as _, BufReader, PipeReader},
    process::Command,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use crate::{Outcome, steps::forget_this_package};

/// A named command.
pub struct Step {
    pub name: &'static str,
    /// Names of the steps that have to pass first. Steps that are not in the schedule count as
    /// passed.
    pub needs: Vec<&'static str>,
    pub load: Load,
    pub command: Command,
}

/// What a step costs the machine, which decides what it may overlap with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Every core: one at a time.
    Heavy,
    /// One core: one for every two cores of the machine, beside a heavy step.
    Light,
    /// Mostly the network: all at once.
    Network,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Passed,
    Failed,
    /// The step that it needs and that did not pass.
    Skipped(&'static str),
}

/// A step that has ended.
#[derive(Debug)]
struct Done {
    name: &'static str,
    end: End,
    took: Duration,
    /// The last lines of its output.
    tail: Vec<String>,
    closing: Option<String>,
}

/// Lines of a failed step that the summary repeats.
const TAIL_LINES: usize = 40;

/// How long a pipe may stay open after its step: a daemon that a test left behind may hold it.
const PIPE_GRACE: Duration = Duration::from_secs(2);

/// Runs every step and prints a summary. Fails if any step did not pass.
pub fn run(steps: Vec<Step>) -> Outcome {
    let begun = Instant::now();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let done = Schedule::new(steps, (cores / 2).max(1)).run();
    eprint!("{}", summary(&done, begun.elapsed()));
    let failed = done.iter().filter(|step| step.end != End::Passed).count();
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} steps did not pass", done.len())) }
}

struct Schedule {
    count: usize,
    started: usize,
    light_max: usize,
    waiting: VecDeque<Step>,
    running: Vec<(&'static str, Load)>,
    done: Vec<Done>,
    /// Reports of other steps that ended while the heavy one runs.
    held: Vec<String>,
}

impl Schedule {
    fn new(steps: Vec<Step>, light_max: usize) -> Self {
        Self {
            count: steps.len(),
            started: 0,
            light_max,
            waiting: steps.into(),
            running: Vec::new(),
            done: Vec::new(),
            held: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<Done> {
        let (report, reports) = mpsc::channel::<(Done, String)>();
        loop {
            while let Some(step) = self.next() {
                self.start(step, &report);
            }
            if self.running.is_empty() {
                // Steps with needs that are met nowhere would wait for ever.
                assert!(self.waiting.is_empty(), "steps need each other in a circle");
                return self.done;
            }
            let (done, output) = reports.recv().expect("a running step reports");
            self.finish(done, output);
        }
    }

    /// The first step that can start now. Steps whose needs did not pass are skipped on the way.
    fn next(&mut self) -> Option<Step> {
        self.skip();
        let at = self.waiting.iter().position(|step| {
            let is_ready = step.needs.iter().all(|need| {
                let is_pending = self.waiting.iter().any(|other| other.name == *need)
                    || self.running.iter().any(|(name, _)| name == need);
                !is_pending
            });
            is_ready && self.has_room(step.load)
        })?;
        self.waiting.remove(at)
    }

    fn skip(&mut self) {
        let failed = |done: &[Done], step: &Step| {
            let is_failed =
                |need: &&&str| done.iter().any(|one| one.name == **need && one.end != End::Passed);
            step.needs.iter().find(is_failed).copied()
        };
        while let Some((at, need)) = (self.waiting.iter().enumerate())
            .find_map(|(at, step)| Some((at, failed(&self.done, step)?)))
        {
            let step = self.waiting.remove(at).expect("it was just found");
            self.done.push(Done {
                name: step.name,
                end: End::Skipped(need),
                took: Duration::ZERO,
                tail: Vec::new(),
                closing: None,
            });
        }
    }

    fn has_room(&self, load: Load) -> bool {
        let running = self.running.iter().filter(|(_, other)| *other == load).count();
        match load {
            Load::Heavy => running == 0,
            Load::Light => running < self.light_max,
            Load::Network => true,
        }
    }

    fn start(&mut self, step: Step, report: &mpsc::Sender<(Done, String)>) {
        self.started += 1;
        self.running.push((step.name, step.load));
        let shown = shown(&step.command);
        let title = format!("==> [{}/{}] {}: {shown}", self.started, self.count, step.name);
        let is_shown = step.load == Load::Heavy;
        if is_shown {
            eprintln!("{title}");
        }
        let report = report.clone();
        thread::spawn(move || {
            let Step { name, mut command, .. } = step;
            let begun = Instant::now();
            let (code, lines) = execute(&mut command, is_shown);
            let end = if code == Some(0) { End::Passed } else { End::Failed };
            let closing = closing(&lines);
            let output = if is_shown {
                String::new()
            } else {
                [&[title], lines.as_slice()].concat().join("\n") + "\n"
            };
            let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].to_vec();
            let done = Done { name, end, took: begun.elapsed(), tail, closing };
            // The receiver outlives every step.
            let _ = report.send((done, output));
        });
    }

    fn finish(&mut self, done: Done, mut output: String) {
        let at = self.running.iter().position(|(name, _)| *name == done.name);
        let (_, load) = self.running.remove(at.expect("it was running"));
        let verb = if done.end == End::Passed { "passed" } else { "FAILED" };
        output += &format!("    {} {verb} in {:.1} s\n", done.name, done.took.as_secs_f64());
        self.done.push(done);
        if load != Load::Heavy && self.running.iter().any(|(_, load)| *load == Load::Heavy) {
            self.held.push(output);
            return;
        }
        eprint!("{output}{}", self.held.concat());
        self.held.clear();
    }
}

/// Runs a command; returns its exit code, which is absent if it was not started or was killed, and
/// its output. What it prints on standard output and on standard error is one sequence of lines.
pub fn execute(command: &mut Command, is_shown: bool) -> (Option<i32>, Vec<String>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let outcome = spawn(command, is_shown, &lines);
    let mut lines = std::mem::take(&mut *lines.lock().expect("no thread panics with the lock"));
    match outcome {
        Ok(code) => (code, lines),
        Err(error) => {
            let program = command.get_program().to_string_lossy();
            lines.push(format!("cannot run {program}: {error}"));
            (None, lines)
        }
    }
}

fn spawn(
    command: &mut Command,
    is_shown: bool,
    lines: &Arc<Mutex<Vec<String>>>,
) -> io::Result<Option<i32>> {
    forget_this_package(command);
    let (reader, writer) = io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer).stdin(std::process::Stdio::null());
    let child = command.spawn();
    // The command holds the writing end, which would keep the pipe open.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut child = child?;
    let reading = thread::spawn({
        let lines = Arc::clone(lines);
        move || read(reader, is_shown, &lines)
    });
    let status = child.wait()?;
    let deadline = Instant::now() + PIPE_GRACE;
    while !reading.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(status.code())
}

fn read(reader: PipeReader, is_shown: bool, lines: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if is_shown {
            eprintln!("{text}");
        }
        lines.lock().expect("no thread panics with the lock").push(text);
        line.clear();
    }
}

fn shown(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// The line in which a test suite says what came of it.
pub fn closing(lines: &[String]) -> Option<String> {
    let plain = |line: &String| without_colors(line).trim_matches(['=', ' ']).to_owned();
    let mut results = lines.iter().map(plain);
    let cargo: Vec<String> =
        results.clone().filter(|line| line.starts_with("test result:")).collect();
    if !cargo.is_empty() {
        let count = |word: &str| -> u64 { cargo.iter().map(|line| number(line, word)).sum() };
        let [passed, failed, ignored] = ["passed", "failed", "ignored"].map(count);
        return Some(format!("{passed} passed, {failed} failed, {ignored} ignored"));
    }
    let is_result = |line: &String| {
        let is_pytest = line.contains(" in ")
            && [" passed", " failed", " error", " skipped"].iter().any(|word| line.contains(word));
        line.starts_with("Summary [") || is_pytest
    };
    results.rfind(is_result)
}

/// The number before a word in a line such as `12 passed; 1 failed`.
pub fn number(line: &str, word: &str) -> u64 {
    let words: Vec<&str> = line.split(|char: char| !char.is_alphanumeric()).collect();
    let at = words.iter().position(|one| *one == word).filter(|at| *at > 0);
    at.and_then(|at| words[at - 1].parse().ok()).unwrap_or(0)
}

/// A line without terminal escapes for colours.
fn without_colors(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

/// What failed with the end of its output, and a table of all steps.
fn summary(done: &[Done], took: Duration) -> String {
    let mut text = String::new();
    for step in done.iter().filter(|step| step.end == End::Failed) {
        text += &format!("\n--- {} failed; its last lines:\n", step.name);
        text += &step.tail.iter().map(|line| format!("{line}\n")).collect::<String>();
    }
    text += &format!("\n{:>8}    {:<8} STEP\n", "TIME", "RESULT");
    for step in done {
        let (result, about) = match &step.end {
            End::Passed => ("passed", step.closing.clone()),
            End::Failed => ("FAILED", step.closing.clone()),
            End::Skipped(need) => ("skipped", Some(format!("needs {need}"))),
        };
        let about = about.map(|about| format!(": {about}")).unwrap_or_default();
        let seconds = step.took.as_secs_f64();
        text += &format!("{seconds:>8.1} s  {result:<8} {}{about}\n", step.name);
    }
    let steps: Duration = done.iter().map(|step| step.took).sum();
    let [wall, steps] = [took, steps].map(|time| time.as_secs_f64());
    text += &format!("{wall:>8.1} s  in all; the steps one by one would take {steps:.1} s\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, needs: &[&'static str], load: Load, script: &str) -> Step {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Step { name, needs: needs.to_vec(), load, command }
    }

    fn ends(steps: Vec<Step>) -> Vec<(&'static str, End)> {
        let done = Schedule::new(steps, 1).run();
        done.into_iter().map(|step| (step.name, step.end)).collect()
    }

    #[test]
    fn the_run_goes_on_after_a_failure_and_skips_what_needs_it() {
        let steps = vec![
            step("build", &[], Load::Heavy, "exit 1"),
            step("tests", &["build"], Load::Heavy, "true"),
            step("report", &["tests"], Load::Light, "true"),
            step("docs", &[], Load::Heavy, "true"),
            step("lint", &["environment, not in this run"], Load::Light, "true"),
        ];
        let mut ends = ends(steps);
        ends.sort_by_key(|(name, _)| *name);
        assert_eq!(
            ends,
            [
                ("build", End::Failed),
                ("docs", End::Passed),
                ("lint", End::Passed),
                ("report", End::Skipped("tests")),
                ("tests", End::Skipped("build")),
            ]
        );
        let steps = vec![step("build", &[], Load::Heavy, "exit 3")];
        assert_eq!(run(steps), Err("1 of 1 steps did not pass".to_owned()));
    }

    #[test]
    fn a_light_step_overlaps_a_heavy_one() {
        let directory = std::env::temp_dir().join(format!("xtask-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let fifo = directory.join("fifo");
        let fifo = fifo.to_str().unwrap();
        // Each end of a FIFO waits for the other to be opened.
        let steps = vec![
            step("heavy", &[], Load::Heavy, &format!("mkfifo {fifo}; echo x > {fifo}")),
            step(
                "light",
                &[],
                Load::Light,
                &format!("until test -p {fifo}; do :; done; cat {fifo}"),
            ),
        ];
        let ends = ends(steps);
        std::fs::remove_dir_all(directory).unwrap();
        assert!(ends.iter().all(|(_, end)| *end == End::Passed), "{ends:?}");
    }

    #[test]
    fn heavy_steps_run_in_order_one_at_a_time() {
        let schedule = Schedule::new(
            vec![
                step("a", &["b"], Load::Heavy, ""),
                step("b", &[], Load::Heavy, ""),
                step("c", &[], Load::Heavy, ""),
            ],
            1,
        );
        assert_eq!(ends_in_order(schedule), ["b", "a", "c"]);
    }

    fn ends_in_order(schedule: Schedule) -> Vec<&'static str> {
        schedule.run().into_iter().map(|step| step.name).collect()
    }

    #[test]
    fn a_daemon_that_keeps_the_pipe_open_does_not_hold_up_the_run() {
        let begun = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "echo done; sleep 20 & exit 0"]);
        let (code, lines) = execute(&mut command, false);
        assert_eq!((code, lines), (Some(0), vec!["done".to_owned()]));
        assert!(begun.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn closing_lines_are_found() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let pytest = "...\n\x1b[32m===== \x1b[1m541 passed\x1b[0m, 3 skipped in 12.1s =====\x1b[0m";
        assert_eq!(closing(&lines(pytest)).unwrap(), "541 passed, 3 skipped in 12.1s");
        let cargo = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\nx\n\
                     test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured";
        assert_eq!(closing(&lines(cargo)).unwrap(), "7 passed, 2 failed, 1 ignored");
        let nextest = "     Summary [   3.2s] 12 tests run: 12 passed, 0 skipped\nbye";
        assert_eq!(
            closing(&lines(nextest)).unwrap(),
            "Summary [   3.2s] 12 tests run: 12 passed, 0 skipped"
        );
        assert_eq!(closing(&lines("All checks passed!")), None);
    }

    #[test]
    fn the_summary_shows_failures_and_times() {
        let done = |name, end| Done {
            name,
            end,
            took: Duration::from_millis(1500),
            tail: vec!["assertion failed".to_owned()],
            closing: Some("1 failed".to_owned()),
        };
        let steps = [done("pytest", End::Failed), done("docs", End::Skipped("build"))];
        assert_eq!(
            summary(&steps, Duration::from_secs(2)),
            "\n--- pytest failed; its last lines:\nassertion failed\n\
             \n    TIME    RESULT   STEP\n     1.5 s  FAILED   pytest: 1 failed\n\
             \x20    1.5 s  skipped  docs: needs build\n\
             \x20    2.0 s  in all; the steps one by one would take 3.0 s\n"
        );
    }
}
