//! Rule `heads`: every Rust module begins with `//!`, every Python module with a docstring.

use super::{
    Violation,
    tree::{Tree, extension},
};

pub const REMEDY: &str = "begin the file with a head: the thing in the first sentence, then the \
                          idea, then the trade-off";

pub fn check(tree: &Tree) -> Vec<Violation> {
    let files = tree.with_extension(&["rs", "py"]);
    let headless = files.filter(|file| match extension(&file.path) {
        "rs" => !has_rust_head(&file.text),
        _ => !has_python_head(&file.text),
    });
    headless.map(|file| Violation::at(&file.path, 1, "no module head")).collect()
}

/// Attributes of the file may come first.
fn has_rust_head(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.find(|line| {
        let is_comment = line.starts_with("//") && !line.starts_with("//!");
        !is_comment && !line.starts_with("#!")
    });
    first.is_some_and(|line| line.len() > "//!".len() && line.starts_with("//!"))
}

/// Comments may come first.
fn has_python_head(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let first = lines.find(|line| !line.starts_with('#'));
    first.is_some_and(|line| line.trim_start_matches(['r', 'R']).starts_with("\"\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_without_a_head_are_refused() {
        let tree = Tree::of(&[
            ("a.rs", "use std::fs;\n"),
            ("b.rs", "/// Of the item.\nstruct B;\n"),
            ("c.py", "import os\n"),
            ("d.py", ""),
        ]);
        let paths: Vec<String> = check(&tree).into_iter().map(|one| one.path).collect();
        assert_eq!(paths, ["a.rs", "b.rs", "c.py", "d.py"]);
    }

    #[test]
    fn a_head_may_follow_comments_and_attributes() {
        let tree = Tree::of(&[
            ("a.rs", "//! Claims: leases on missing blobs.\n"),
            ("b.rs", "// SPDX: x\n#![no_std]\n\n//! Head.\n"),
            ("c.py", "#!/usr/bin/env python3\n\"\"\"Head.\"\"\"\n"),
            ("d.py", "r\"\"\"Head.\"\"\"\n"),
        ]);
        assert_eq!(check(&tree), []);
    }
}
