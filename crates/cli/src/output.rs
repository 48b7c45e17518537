//! The only place that prints: data to standard output, everything else to standard error.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _, Write as _},
    path::Path,
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// How finely a bar over a share moves.
const SHARE_STEPS: u64 = 1000;

/// What a command found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Done, or as it should be.
    Yes,
    /// Not as it should be.
    No,
    /// It will not work.
    Failed,
}

/// For people or for scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For scripts.
    Json,
}

/// Prints data. A reader that has gone away (`| head`) is not an error.
pub fn data(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("print"),
    }
}

/// Prints data for scripts.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    data(&(serde_json::to_string_pretty(value).context("print as JSON")? + "\n"))
}

/// Says something beside the data.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Says something that only matters to a person who is watching.
pub fn aside(text: &str) {
    if io::stderr().is_terminal() {
        note(text);
    }
}

/// What changes the level of logs, once logging has begun.
static LOG_AT: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// Logs go to standard error: for people, or with `FOREBAY_LOG_FORMAT=json` for machines.
pub fn begin_logging() -> anyhow::Result<()> {
    let filter = match std::env::var("FOREBAY_LOG").ok().filter(|text| !text.is_empty()) {
        None => level("info"),
        Some(text) => wanted(&text)?,
    };
    let logs = tracing_subscriber::fmt().with_writer(io::stderr).with_env_filter(filter);
    let is_json = std::env::var("FOREBAY_LOG_FORMAT").is_ok_and(|format| format == "json");
    // Changing it fails only if nobody logs any more.
    let set: Box<dyn Fn(EnvFilter) + Send + Sync> = if is_json {
        let logs = logs.json().with_filter_reloading();
        let handle = logs.reload_handle();
        logs.init();
        Box::new(move |filter| drop(handle.reload(filter)))
    } else {
        let logs = logs.with_filter_reloading();
        let handle = logs.reload_handle();
        logs.init();
        Box::new(move |filter| drop(handle.reload(filter)))
    };
    assert!(LOG_AT.set(set).is_ok(), "logging begins once");
    Ok(())
}

/// A level, or levels of several parts with commas in between, as the log's own library writes them.
fn wanted(text: &str) -> anyhow::Result<EnvFilter> {
    let is_level = |text: &str| !text.is_empty() && text.parse::<LevelFilter>().is_ok();
    let parts = text.split(',').map(str::trim);
    let is_known =
        |part: &str| is_level(part) || part.rsplit_once('=').is_some_and(|(_, of)| is_level(of));
    if !parts.clone().all(is_known) {
        bail!(
            "FOREBAY_LOG is `{text}`; use error, warn, info, debug, trace or off, or PART=LEVEL,…"
        );
    }
    text.parse().context("FOREBAY_LOG")
}

/// Logs at another level from now on, unless the environment says at which.
pub fn log_at(name: &str) {
    if std::env::var_os("FOREBAY_LOG").is_none()
        && let Some(set) = LOG_AT.get()
    {
        set(level(name));
    }
}

/// Our own logs at a level, and warnings of others.
fn level(name: &str) -> EnvFilter {
    EnvFilter::new(format!("warn,forebay={name},s3s=off"))
}

/// A chain of errors as one line.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        // Many errors repeat their cause in their own text.
        if !line.contains(&text) {
            let separator = if line.is_empty() { "" } else { ": " };
            let _ = write!(line, "{separator}{text}");
        }
    }
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    // A server's message or a file's name may hold what a terminal would obey.
    line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Ends the process because its arguments make no sense (or ask for help, which is no error).
pub fn refuse(error: &clap::Error) -> ! {
    use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand as HelpInstead;
    if !error.use_stderr() || error.kind() == HelpInstead {
        error.exit();
    }
    let text = error.render().to_string();
    // One line, like every other error; how to use the command is what --help says.
    let said = text.split("\n\n").map(str::trim);
    let said = said.filter(|text| !text.starts_with("Usage:") && !text.starts_with("For more"));
    let line = said.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    note(&format!("{line} (see --help)"));
    std::process::exit(2)
}

/// Ends the process because somebody asked, in a line of its own.
pub fn end_interrupted() -> ! {
    let clear = if io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    note(&format!("{clear}interrupted"));
    std::process::exit(130)
}

/// A table: the first column to the left, the others to the right.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, cell) in cells.enumerate() {
            let width = widths[column];
            let _ = match column {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&mut header.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// "1 blob", "2 blobs".
pub fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A bar for work whose size may become known later; silent unless a person is watching.
pub fn progress(what: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{spinner} {prefix} {decimal_bytes} ({decimal_bytes_per_sec}) {msg}";
    let bar = ProgressBar::new_spinner().with_prefix(what);
    bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Several bars at once; silent unless a person is watching.
pub fn several_bars() -> MultiProgress {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    MultiProgress::with_draw_target(target)
}

/// One of several bars, over so many items.
pub fn item_bar(what: &str, items: u64) -> ProgressBar {
    let style = "{prefix:16} [{wide_bar}] {pos}/{len} items, {rate:>7}";
    let style = ProgressStyle::with_template(style).expect("a valid template").with_key(
        "rate",
        |state: &ProgressState, line: &mut dyn std::fmt::Write| {
            let _ = write!(line, "{:.0}/s", state.per_sec());
        },
    );
    ProgressBar::new(items).with_prefix(what.to_owned()).with_style(style.progress_chars("=> "))
}

/// A line below several bars, which says how things stand.
pub fn status_line() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg}").expect("a valid template");
    ProgressBar::new_spinner().with_style(style)
}

/// A bar over work of which only the share that is done is known; silent unless a person is watching.
pub fn share_bar(what: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{prefix:>40} [{wide_bar}] {percent} %, {eta} left";
    let style = ProgressStyle::with_template(style).expect("a valid template");
    ProgressBar::new(SHARE_STEPS)
        .with_prefix(what.to_owned())
        .with_style(style.progress_chars("=> "))
}

/// Moves such a bar.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the steps")]
pub fn set_share(bar: &ProgressBar, share: f64) {
    bar.set_position((share * SHARE_STEPS as f64) as u64);
}

/// Refuses a place for a result before a long computation, not after it; nor must a result replace what
/// it is made from.
pub fn check_plot(plot: &Path, source: &Path) -> anyhow::Result<()> {
    let shown = plot.display();
    if plot == Path::new("-") {
        bail!(
            "--plot: a picture goes into a file, not to standard output; name one, such as `hits.svg`"
        );
    }
    if plot.is_dir() {
        bail!("--plot: `{shown}` is a directory; name a file in it");
    }
    let folder = plot.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("--plot: there is no directory `{}`; make it first", folder.display());
    }
    if let (Ok(plot), Ok(source)) = (plot.canonicalize(), source.canonicalize())
        && plot == source
    {
        bail!("--plot: `{shown}` is what is to be read; name another file");
    }
    let extension = plot.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if !extension.is_empty() && !extension.eq_ignore_ascii_case("svg") {
        let named = plot.with_extension("svg");
        bail!("--plot: pictures are SVG, not {extension}; name it `{}`", named.display());
    }
    Ok(())
}

/// Turns the spinner into a bar, for the size is known now.
pub fn progress_total(bar: &ProgressBar, total: u64) {
    let style = "{spinner} {prefix} [{wide_bar}] {decimal_bytes}/{decimal_total_bytes} ({decimal_bytes_per_sec}) {msg}, {eta} left";
    bar.set_style(
        ProgressStyle::with_template(style).expect("a valid template").progress_chars("=> "),
    );
    bar.set_length(total);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["bcd".to_owned(), "20".to_owned()]];
        assert_eq!(table(&["x", "n"], &rows), "x     n\na     1\nbcd  20\n");
    }

    #[test]
    fn what_is_logged_is_a_level_or_refused() {
        for good in ["debug", "WARN", "off", "info,forebay_flash=trace"] {
            assert!(wanted(good).is_ok(), "{good}");
        }
        for bad in ["loud", "info,loud", "forebay=loud", ","] {
            let refused = wanted(bad).unwrap_err().to_string();
            assert!(refused.contains("use error, warn"), "{refused}");
        }
    }

    #[test]
    fn a_chain_of_errors_is_one_line_without_repetition() {
        let inner = io::Error::other("no\nspace");
        let error = anyhow::Error::new(inner).context("write `x`: no\nspace");
        assert_eq!(one_line(&error), "write `x`: no space");
    }
}
