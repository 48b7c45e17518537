//! Rule `columns`: lines of at most 100 columns in `.rs`, `.py` and `.md`.
//!
//! What cannot be wrapped is excepted: tables, URLs and link targets, raw strings, directives to
//! linters, output of commands in Markdown, and generated pages.

use super::{
    Violation,
    tree::{File, Kind, Line, Tree, extension},
};

pub const REMEDY: &str = "wrap the line; in Rust, continue a string literal with `\\`";

const COLUMNS_MAX: usize = 100;

pub fn check(tree: &Tree) -> Vec<Violation> {
    tree.with_extension(&["rs", "py", "md"]).flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Violation> {
    let mut raw = RawString::default();
    let is_rust = extension(&file.path) == "rs";
    let mut violations = Vec::new();
    for line in file.lines() {
        let is_raw = is_rust && raw.covers(line.text);
        let columns = columns(line.text);
        if columns > COLUMNS_MAX && !is_raw && !is_excepted(&line) {
            violations.push(Violation::at(&file.path, line.number, format!("{columns} columns")));
        }
    }
    violations
}

fn is_excepted(line: &Line) -> bool {
    matches!(line.kind, Kind::Output | Kind::Generated) || is_table(line.text)
}

/// Whether this is a row of a Markdown table, on a page or in a doc comment.
fn is_table(line: &str) -> bool {
    let text = line.trim_start();
    let text = text.strip_prefix("///").or_else(|| text.strip_prefix("//!")).unwrap_or(text);
    text.trim_start().starts_with('|')
}

/// The width of a line without URLs, link targets and directives.
fn columns(line: &str) -> usize {
    let all = line.chars().count();
    if all <= COLUMNS_MAX {
        return all;
    }
    let line = without_directive(line);
    let urls = urls(line).map(|url| url.chars().count()).sum::<usize>();
    line.chars().count() - urls
}

/// A line of Python without a directive to ruff or mypy at its end.
fn without_directive(line: &str) -> &str {
    let directives = ["# noqa", "# type: ignore"];
    let start = directives.iter().filter_map(|directive| line.find(directive)).min();
    start.map_or(line, |at| line[..at].trim_end())
}

/// URLs, and what stands between `](` and `)`.
fn urls(line: &str) -> impl Iterator<Item = &str> {
    let ends = |char: char| char.is_whitespace() || matches!(char, ')' | '>' | '"' | '`');
    let starts = line.match_indices("](").map(|(at, mark)| at + mark.len()).chain(
        line.match_indices("://").filter_map(move |(at, _)| {
            let scheme = line[..at].trim_end_matches(|char: char| char.is_ascii_alphanumeric());
            (!scheme.ends_with("](")).then_some(scheme.len())
        }),
    );
    starts.map(move |at| &line[at..at + line[at..].find(ends).unwrap_or(line.len() - at)])
}

/// Follows raw string literals over the lines of a Rust file: their text is data.
#[derive(Debug, Default)]
struct RawString {
    /// What ends the literal that is open.
    end: Option<String>,
}

impl RawString {
    /// Whether some of this line is in a raw string that spans lines.
    fn covers(&mut self, line: &str) -> bool {
        let was_open = self.end.is_some();
        let mut rest = line;
        loop {
            match &self.end {
                Some(end) => match rest.find(end.as_str()) {
                    Some(at) => {
                        rest = &rest[at + end.len()..];
                        self.end = None;
                    }
                    None => return true,
                },
                None => match start_of_raw(rest) {
                    Some((after, hashes)) => {
                        rest = &rest[after..];
                        self.end = Some(format!("\"{}", "#".repeat(hashes)));
                    }
                    None => return was_open,
                },
            }
        }
    }
}

/// Where the text of the first raw string starts, and its number of `#`.
fn start_of_raw(text: &str) -> Option<(usize, usize)> {
    text.match_indices('r').find_map(|(at, _)| {
        let before = text[..at].chars().next_back();
        let hashes = text[at + 1..].bytes().take_while(|byte| *byte == b'#').count();
        let is_literal = text[at + 1 + hashes..].starts_with('"')
            && before.is_none_or(|char| !char.is_alphanumeric() && char != '_')
            || before == Some('b') && text[at + 1 + hashes..].starts_with('"');
        is_literal.then_some((at + hashes + 2, hashes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        let violations = check(&Tree::of(&[(path, text)]));
        violations.into_iter().filter_map(|violation| violation.line).collect()
    }

    #[test]
    fn long_lines_are_refused() {
        let long = format!("short\n// {}\n", "x".repeat(98));
        assert_eq!(found("a.rs", &long), [2]);
        assert_eq!(found("a.py", &long), [2]);
        assert_eq!(found("a.md", &long), [2]);
        assert_eq!(found("a.toml", &long), [0; 0]);
        let exact = format!("// {}", "ü".repeat(97));
        assert_eq!(found("a.rs", &exact), [0; 0], "columns, not bytes");
    }

    #[test]
    fn what_cannot_be_wrapped_is_excepted() {
        let x = "x".repeat(100);
        assert_eq!(found("a.md", &format!("| {x} | y |")), [0; 0]);
        assert_eq!(found("a.rs", &format!("    //! | {x} | y |")), [0; 0]);
        assert_eq!(found("a.md", &format!("see https://host/{x} for more")), [0; 0]);
        assert_eq!(found("a.md", &format!("see [this]({x}.md), {x}")), [1], "the rest is too long");
        assert_eq!(found("a.md", &format!("see [this]({x}.md) and [that](https://h/{x})")), [0; 0]);
        let directive = format!("{}  # type: ignore[misc]", "x".repeat(90));
        assert_eq!(found("a.py", &directive), [0; 0]);
        assert_eq!(found("a.md", &format!("```console\n$ {x} y\n```\n{x} y")), [4]);
        assert_eq!(found("a.md", &format!("```python\n{x} = y\n```")), [2]);
        assert_eq!(found("a.md", &format!("Generated by `cargo xtask docs`.\n{x} y")), [0; 0]);
    }

    #[test]
    fn raw_strings_over_several_lines_are_data() {
        let x = "x".repeat(100);
        assert_eq!(found("a.rs", &format!("let a = r#\"\n{x} y\n\"#;\n// {x}")), [4]);
        assert_eq!(found("a.rs", &format!("let a = r\"{x}\";\n// {x}")), [1, 2]);
        assert_eq!(found("a.rs", &format!("for\"{x}\";\n// {x}")), [1, 2]);
    }
}
