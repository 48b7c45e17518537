//! Rule `map`: every crate and every folder that a reader meets first is on the map.
//!
//! `crates/README.md` has one sentence per crate. `ARCHITECTURE.md` names every crate, every
//! top-level folder, and the folders of the largest packages.

use super::{Violation, tree::Tree};

pub const REMEDY: &str = "add one sentence about it to the page, with its name in backticks or \
                          followed by `/`";

const CRATES: &str = "crates";
const LIST: &str = "crates/README.md";
const MAP: &str = "ARCHITECTURE.md";

/// Packages whose folders are on the map.
const MAPPED: [&str; 3] = ["crates/core/src", "crates/node/src", "python/forebay"];

pub fn check(tree: &Tree) -> Vec<Violation> {
    let is_crate = |name: &&str| tree.file(&format!("{CRATES}/{name}/Cargo.toml")).is_some();
    let crates: Vec<&str> = tree.folders(CRATES).into_iter().filter(is_crate).collect();
    let mut folders: Vec<String> = tree.folders("").into_iter().map(str::to_owned).collect();
    for package in MAPPED {
        folders.extend(tree.folders(package).iter().map(|name| format!("{package}/{name}")));
    }

    let mut violations = missing(tree, LIST, crates.iter().copied());
    violations.extend(missing(tree, MAP, crates.into_iter()));
    violations.extend(missing(tree, MAP, folders.iter().map(String::as_str)));
    violations
}

/// The entries that a page does not name.
fn missing<'a>(tree: &Tree, page: &str, entries: impl Iterator<Item = &'a str>) -> Vec<Violation> {
    let Some(file) = tree.file(page) else {
        return vec![Violation::of(page, "this page is missing")];
    };
    let unnamed = entries.filter(|entry| !names(&file.text, entry));
    unnamed.map(|entry| Violation::of(page, format!("`{entry}` is not named"))).collect()
}

/// Whether a text names a folder: the last part of its path as a whole word, with a backtick or a
/// slash on one side.
fn names(text: &str, entry: &str) -> bool {
    let name = entry.rsplit('/').next().unwrap_or(entry);
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + name.len()..].chars().next();
        let is_part = |char: Option<char>| {
            char.is_some_and(|char| char.is_alphanumeric() || char == '_' || char == '-')
        };
        let is_mark = |char: Option<char>| matches!(char, Some('`' | '/'));
        !is_part(before) && !is_part(after) && (is_mark(before) || is_mark(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 4] = [
        ("crates/core/Cargo.toml", ""),
        ("crates/core/src/train/mod.rs", ""),
        ("crates/wire/Cargo.toml", ""),
        ("python/forebay/_data/x.py", ""),
    ];

    fn found(list: &str, map: &str) -> Vec<String> {
        let files = [&FILES[..], &[(LIST, list), (MAP, map)]].concat();
        check(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_not_on_the_map_is_refused() {
        let map = "`crates/core` and `python/` train well, see trains/ and s_data/";
        assert_eq!(
            found("`core`: decides.", map),
            [
                "crates/README.md: `wire` is not named",
                "ARCHITECTURE.md: `wire` is not named",
                "ARCHITECTURE.md: `crates/core/src/train` is not named",
                "ARCHITECTURE.md: `python/forebay/_data` is not named",
            ]
        );
    }

    #[test]
    fn a_complete_map_is_accepted() {
        let map = "`crates/core` (train/) and `crates/wire`\n├─ python/\n└─ _data/";
        assert_eq!(found("`core` and `wire`", map), [""; 0]);
    }

    #[test]
    fn a_page_that_is_missing_is_refused() {
        let found = check(&Tree::of(&FILES));
        assert_eq!(found[0], Violation::of(LIST, "this page is missing"));
    }
}
