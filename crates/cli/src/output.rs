//! Output: data to standard output, everything else to standard error. No other module prints.
//!
//! **Invariant:** no control character from outside reaches a terminal
//! ([`forebay_core::util::printable`]).

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use forebay_core::util::printable::{printable, printable_json, printable_lines};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;

/// Resolution of a bar over a share.
const SHARE_STEPS: u64 = 1000;

/// Result of a command, which decides its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Done, or the answer is yes: exit code 0.
    Yes,
    /// The answer is no: exit code 1.
    No,
    /// A check failed: exit code 2.
    Failed,
}

/// Format of the data on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Text for a terminal.
    #[default]
    Text,
    /// JSON for scripts.
    Json,
}

/// Prints data. A closed pipe (`| head`) is not an error.
pub fn data(text: &str) -> anyhow::Result<()> {
    raw(&printable_lines(text))
}

/// Prints control sequences of forebay's own. Text between them has to be printable.
pub fn raw(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot print"),
    }
}

/// Prints data as JSON.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("cannot print as JSON")?;
    raw(&(printable_json(&text) + "\n"))
}

/// Prints a line to standard error.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable_lines(text));
}

/// Prints a line to standard error, if that is a terminal.
pub fn aside(text: &str) {
    if io::stderr().is_terminal() {
        note(text);
    }
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
    let mut line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    // Errors of many crates end with the kernel's text; the remedy is the same for all.
    if line.contains("cannot read") && line.ends_with("Permission denied (os error 13)") {
        line.push_str("; allow this user to read it");
    }
    printable(&line).into_owned()
}

/// Exits after a usage error: one line, exit code 2. Also prints help and version, exit code 0.
pub fn exit_with_usage_error(error: &clap::Error) -> ! {
    use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand as HelpInstead;
    if !error.use_stderr() || error.kind() == HelpInstead {
        error.exit();
    }
    note(&usage_error(&error.render().to_string()));
    std::process::exit(2)
}

/// The text of a usage error as one line, as every other error. The usage is in --help.
fn usage_error(text: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for paragraph in text.split("\n\n").map(str::trim) {
        // The tip would pass a misspelt option as a value.
        let dropped = ["Usage:", "For more", "tip: to pass"];
        if dropped.iter().any(|start| paragraph.starts_with(start)) {
            continue;
        }
        let words = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        parts.push(words.trim_start_matches("tip: ").to_owned());
    }
    format!("{} (see --help)", parts.join("; "))
}

/// Exits after a signal: exit code 130.
pub fn exit_interrupted() -> ! {
    let clear = if io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    let _ = writeln!(io::stderr(), "{clear}interrupted");
    std::process::exit(130)
}

/// A table: the first column is aligned to the left, the others to the right.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let one_line = |row: &Vec<String>| row.iter().map(|cell| printable(cell).into()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(one_line).collect();
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
    for row in &rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// "1 blob", "2 blobs".
pub fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A spinner for work of unknown size, hidden unless standard error is a terminal.
/// [`progress_total`] makes it a bar.
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

/// A group of bars, hidden unless standard error is a terminal.
pub fn bar_group() -> MultiProgress {
    MultiProgress::with_draw_target(draw_target())
}

/// Standard error, if that is a terminal.
pub fn draw_target() -> ProgressDrawTarget {
    if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    }
}

/// A bar over a number of items, for a [`bar_group`].
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

/// A line of text below a [`bar_group`].
pub fn status_line() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg}").expect("a valid template");
    ProgressBar::new_spinner().with_style(style)
}

/// A bar over the share of work that is done, hidden unless standard error is a terminal.
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

/// Moves a [`share_bar`].
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the steps")]
pub fn set_share(bar: &ProgressBar, share: f64) {
    bar.set_position((share * SHARE_STEPS as f64) as u64);
}

/// Checks the path of a plot before a long computation. A plot must not replace its own source.
pub fn check_plot_path(plot: &Path, source: &Path) -> anyhow::Result<()> {
    let shown = plot.display();
    if plot == Path::new("-") {
        bail!(
            "--plot: a plot goes into a file, not to standard output; name one, such as `hits.svg`"
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
        bail!("--plot: `{shown}` is the file to read; name another file");
    }
    let extension = plot.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if !extension.is_empty() && !extension.eq_ignore_ascii_case("svg") {
        let named = plot.with_extension("svg");
        bail!("--plot: the format is SVG, not {extension}; name it `{}`", named.display());
    }
    Ok(())
}

/// Makes a [`progress`] spinner a bar, once the size is known.
pub fn progress_total(bar: &ProgressBar, total: u64) {
    let style = "{spinner} {prefix} [{wide_bar}] {decimal_bytes}/{decimal_total_bytes} \
                 ({decimal_bytes_per_sec}) {msg}, {eta} left";
    bar.set_style(
        ProgressStyle::with_template(style).expect("a valid template").progress_chars("=> "),
    );
    bar.set_length(total);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_table_are_aligned() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["bcd".to_owned(), "20".to_owned()]];
        assert_eq!(table(&["x", "n"], &rows), "x     n\na     1\nbcd  20\n");
    }

    #[test]
    fn a_cell_stays_on_its_line() {
        let rows = [vec!["a\nb\u{1b}".to_owned(), "1".to_owned()]];
        let text = table(&["x", "n"], &rows);
        assert_eq!(text.lines().last(), Some("a\\u{a}b\\u{1b}  1"));
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn a_usage_error_is_one_line_of_facts_and_useful_tips() {
        let line = usage_error(
            "error: invalid value 'lrv' for '--policy <NAME>'\n  [possible values: lru, mru]\n\n  \
             tip: a similar value exists: 'lru'\n\nFor more information, try '--help'.\n",
        );
        assert_eq!(
            line,
            "error: invalid value 'lrv' for '--policy <NAME>' [possible values: lru, mru]; a \
             similar value exists: 'lru' (see --help)"
        );
        let line = usage_error(
            "error: unexpected argument '--x' found\n\n  tip: to pass '--x' as a value, use '-- \
             --x'\n\nUsage: forebay status [OPTIONS]\n",
        );
        assert_eq!(line, "error: unexpected argument '--x' found (see --help)");
    }

    #[test]
    fn a_file_that_may_not_be_read_has_a_remedy() {
        let denied = io::Error::from_raw_os_error(13);
        let line = one_line(&anyhow::Error::new(denied).context("cannot read `x`"));
        assert_eq!(
            line,
            "cannot read `x`: Permission denied (os error 13); allow this user to read it"
        );
    }

    #[test]
    fn a_chain_of_errors_is_one_line_without_repetition() {
        let inner = io::Error::other("no\nspace");
        let error = anyhow::Error::new(inner).context("write `x`: no\nspace");
        assert_eq!(one_line(&error), "write `x`: no space");
    }
}
