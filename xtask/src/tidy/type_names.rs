//! Rule `type-names`: a public type name is defined in at most two modules.
//!
//! One word has one meaning. Two modules may share a name, since a protocol has two sides; a third
//! use makes every `use` ambiguous to a reader.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Violation,
    tree::{File, Tree},
};

pub const REMEDY: &str = "rename the type after what it is, or make it private";

const MODULES_MAX: usize = 2;

/// Names that may be used in more modules, with the reason. Every run prints them.
const ALLOWED: [(&str, &str); 13] = [
    ("Args", CLAP),
    ("Command", CLAP),
    ("Config", MODULE),
    ("Counters", MODULE),
    ("Job", MODULE),
    ("Outcome", MODULE),
    ("Policy", MODULE),
    ("Reader", MODULE),
    ("Request", MODULE),
    ("Run", MODULE),
    ("Settings", MODULE),
    ("Source", MODULE),
    ("View", MODULE),
];

const CLAP: &str = "clap's convention: one per command, always named with its module";
const MODULE: &str = "a word of the field that its module qualifies";

/// The exceptions, as every run prints them.
pub fn note() -> String {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, reason) in ALLOWED {
        reasons.entry(reason).or_default().push(name);
    }
    let line = |(reason, names): (&str, Vec<&str>)| format!("{} ({reason})", names.join(", "));
    let lines: Vec<String> = reasons.into_iter().map(line).collect();
    format!("allowed in more than {MODULES_MAX} modules: {}", lines.join("; "))
}

pub fn check(tree: &Tree) -> Vec<Violation> {
    violations(tree, &ALLOWED)
}

fn violations(tree: &Tree, allowed: &[(&str, &str)]) -> Vec<Violation> {
    let mut places: BTreeMap<&str, Vec<(&File, usize)>> = BTreeMap::new();
    for file in tree.with_extension(&["rs"]).filter(|file| is_module(&file.path)) {
        for (at, line) in file.text.lines().enumerate() {
            if let Some(name) = public_type(line) {
                places.entry(name).or_default().push((file, at + 1));
            }
        }
    }
    let mut found = Vec::new();
    for (name, places) in &places {
        let modules: BTreeSet<&str> = places.iter().map(|(file, _)| file.path.as_str()).collect();
        let is_allowed = allowed.iter().any(|(allowed, _)| allowed == name);
        if modules.len() > MODULES_MAX && !is_allowed {
            found.extend(places.iter().map(|(file, line)| {
                let message = format!("`{name}` is a type in {} modules", modules.len());
                Violation::at(&file.path, *line, message)
            }));
        }
    }
    let is_stale = |name: &str| {
        let modules = places.get(name).map_or(0, |places| {
            places.iter().map(|(file, _)| &file.path).collect::<BTreeSet<_>>().len()
        });
        modules <= MODULES_MAX
    };
    let stale = allowed.iter().filter(|(name, _)| is_stale(name));
    found.extend(stale.map(|(name, _)| {
        let message = format!("`{name}` is no longer used often; remove it from the list");
        Violation::of("xtask/src/tidy/type_names.rs", message)
    }));
    found
}

/// Whether a file is part of the product. Tests and tools name their own types.
fn is_module(path: &str) -> bool {
    let is_product = path.starts_with("crates/") || path.starts_with("python/");
    is_product && !path.split('/').any(|part| matches!(part, "tests" | "tests.rs"))
}

/// The type that a line defines, if it is public.
fn public_type(line: &str) -> Option<&str> {
    let line = line.trim_start().strip_prefix("pub ")?;
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let name = ["struct ", "enum ", "trait ", "type ", "union "]
        .iter()
        .find_map(|keyword| line.strip_prefix(keyword))?;
    let end = name.find(|char: char| !char.is_alphanumeric() && char != '_').unwrap_or(name.len());
    // A macro may define a type whose name is its argument.
    (end > 0).then(|| &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 5] = [
        ("crates/a/src/lib.rs", "pub struct Place;\npub(crate) struct Hidden;\n"),
        ("crates/a/src/b.rs", "pub enum Place {}\nstruct Hidden;\npub trait Pair {}\n"),
        ("crates/c/src/lib.rs", "    pub type Place<T> = T;\npub struct Hidden;\n"),
        ("crates/c/src/d.rs", "pub struct Pair<'a>(&'a str);\n"),
        ("crates/c/tests/it/main.rs", "pub struct Pair;\n"),
    ];

    #[test]
    fn a_name_in_three_modules_is_refused() {
        let found: Vec<String> =
            violations(&Tree::of(&FILES), &[]).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "crates/a/src/lib.rs:1: `Place` is a type in 3 modules",
                "crates/a/src/b.rs:1: `Place` is a type in 3 modules",
                "crates/c/src/lib.rs:1: `Place` is a type in 3 modules",
            ]
        );
    }

    #[test]
    fn the_list_of_exceptions_stays_short() {
        let tree = Tree::of(&FILES);
        assert_eq!(violations(&tree, &[("Place", "the reason")]), []);
        let stale = violations(&tree, &[("Place", "the reason"), ("Pair", "none any more")]);
        assert_eq!(stale.len(), 1);
        assert!(stale[0].message.starts_with("`Pair` is no longer used often"));
    }
}
