//! The files of the repository, as rules see them.
//!
//! A [`Tree`] can be built from memory, so that every rule has a fixture without files.

use std::{collections::BTreeSet, fs, io, path::Path};

/// Directories that hold nothing that was written by hand.
const SKIPPED: [&str; 4] = ["target", "__pycache__", "_bin", "node_modules"];

/// Files whose text rules read. Others are known by their path alone.
const TEXT: [&str; 4] = ["rs", "py", "md", "toml"];

/// Every file below the root of the repository, sorted by path.
#[derive(Debug, Default)]
pub struct Tree {
    files: Vec<File>,
}

/// A file: its path relative to the root, with `/`, and its text.
#[derive(Debug)]
pub struct File {
    pub path: String,
    pub text: String,
}

/// One line of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Counted from 1.
    pub number: usize,
    pub text: &'a str,
    pub kind: Kind,
}

/// Where a line comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Written by hand.
    Written,
    /// In a code fence of a Markdown page, in a language.
    Code,
    /// In a code fence that shows the output of a command.
    Output,
    /// Written by a command into a Markdown page.
    Generated,
}

impl Tree {
    /// Reads the repository at `root`.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_directory(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// A tree of these paths and texts.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let file =
            |(path, text): &(&str, &str)| File { path: (*path).into(), text: (*text).into() };
        Self { files: files.iter().map(file).collect() }
    }

    fn read_directory(&mut self, directory: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type()?;
            if name.starts_with('.') || SKIPPED.contains(&name.as_str()) {
                continue;
            }
            let path = format!("{prefix}{name}");
            if kind.is_dir() {
                self.read_directory(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() {
                let is_text = TEXT.contains(&extension(&path));
                let text = if is_text { fs::read_to_string(entry.path())? } else { String::new() };
                self.files.push(File { path, text });
            }
        }
        Ok(())
    }

    /// The files with one of these extensions.
    pub fn with_extension(&self, wanted: &[&str]) -> impl Iterator<Item = &File> {
        self.files.iter().filter(move |file| wanted.contains(&extension(&file.path)))
    }

    /// The file at this path.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether there is a file or a folder at this path.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let folder = format!("{path}/");
        path.is_empty()
            || self.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
    }

    /// The names of the folders directly in this folder; `""` is the root.
    pub fn folders(&self, folder: &str) -> BTreeSet<&str> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let below = self.files.iter().filter_map(|file| file.path.strip_prefix(&prefix));
        below.filter_map(|path| Some(path.split_once('/')?.0)).collect()
    }
}

impl File {
    /// The lines, each with its kind.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let is_page = extension(&self.path) == "md";
        let is_generated_page = is_page && self.is_generated();
        let mut fence: Option<(&str, Kind)> = None;
        let mut is_generated = false;
        self.text.lines().enumerate().map(move |(at, text)| {
            let mut kind = Kind::Written;
            if is_page {
                let start = text.trim_start();
                is_generated |= start.starts_with("<!-- begin ");
                kind = match fence {
                    _ if is_generated_page || is_generated => Kind::Generated,
                    Some((mark, kind)) => {
                        let is_end = start.starts_with(mark) && start.trim_end() == mark;
                        fence = if is_end { None } else { fence };
                        kind
                    }
                    None => match ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark)) {
                        Some(mark) => {
                            let kind = kind_of_fence(start.trim_start_matches(mark));
                            fence = Some((mark, kind));
                            kind
                        }
                        None => Kind::Written,
                    },
                };
                is_generated &= !start.starts_with("<!-- end ");
            }
            Line { number: at + 1, text, kind }
        })
    }

    /// Whether a command writes the whole page. Such a page says so in its first ten lines.
    fn is_generated(&self) -> bool {
        let says_so = |line: &str| {
            let line = line.to_lowercase();
            line.contains("written by `") || line.contains("generated by `")
        };
        self.text.lines().take(10).any(says_so)
    }
}

/// The extension of a path, without the dot.
pub fn extension(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(_, extension)| extension)
}

fn kind_of_fence(info: &str) -> Kind {
    let language = info.split(|char: char| !char.is_alphanumeric()).next().unwrap_or_default();
    match language {
        "" | "console" | "text" | "json" | "csv" | "diff" => Kind::Output,
        _ => Kind::Code,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Kind::{Code, Generated, Output, Written},
        *,
    };

    #[test]
    fn lines_know_where_they_come_from() {
        let page = "prose\n```console\n$ ls\n```\n```rust\nfn f() {}\n```\n<!-- begin x (made by \
                    `y`) -->\n```\n<!-- end x -->\nprose";
        let tree = Tree::of(&[("a.md", page)]);
        let kinds: Vec<Kind> = tree.file("a.md").unwrap().lines().map(|line| line.kind).collect();
        assert_eq!(
            kinds,
            [
                Written, Output, Output, Output, Code, Code, Code, Generated, Generated, Generated,
                Written
            ]
        );
    }

    #[test]
    fn folders_are_those_that_hold_files() {
        let tree = Tree::of(&[("a/b/c.rs", ""), ("a/d.rs", ""), ("e.md", ""), ("ab/c", "")]);
        assert_eq!(tree.folders(""), BTreeSet::from(["a", "ab"]));
        assert_eq!(tree.folders("a"), BTreeSet::from(["b"]));
        assert!(tree.has("a/b") && tree.has("a/b/") && tree.has("e.md") && tree.has(""));
        assert!(!tree.has("a/c") && !tree.has("e"));
    }
}
