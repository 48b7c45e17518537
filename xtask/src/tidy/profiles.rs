//! Rule `profiles`: `[profile.dist]` is fully optimised, and our crates check their arithmetic.
//!
//! A profile inherits the overrides of single packages. So `dist` keeps every low `opt-level` of
//! `release` that it does not reset, without a warning from cargo.

use std::collections::BTreeMap;

use super::{Violation, tree::Tree};

pub const REMEDY: &str = "add `[profile.dist.package.NAME] opt-level = 3` to Cargo.toml, or set \
                          `overflow-checks = true` in `[profile.release]`";

const MANIFEST: &str = "Cargo.toml";
const RELEASE: &str = "profile.release";
const DIST: &str = "profile.dist";

pub fn check(tree: &Tree) -> Vec<Violation> {
    let Some(manifest) = tree.file(MANIFEST) else { return Vec::new() };
    let tables = tables(&manifest.text);
    let setting = |table: &str, key: &str| tables.get(table)?.1.get(key).copied();
    let mut found = Vec::new();
    for (table, (line, settings)) in &tables {
        let package = table.strip_prefix(RELEASE).and_then(|rest| rest.strip_prefix(".package."));
        let Some(package) = package else { continue };
        let is_low = settings.get("opt-level").is_some_and(|level| *level != "3");
        if is_low && setting(&format!("{DIST}.package.{package}"), "opt-level") != Some("3") {
            let message = format!("`dist` inherits a low opt-level of `{package}`");
            found.push(Violation::at(MANIFEST, *line, message));
        }
    }
    for profile in [RELEASE, DIST] {
        let own = setting(profile, "overflow-checks");
        let is_inherited = profile == DIST && own.is_none();
        if own != Some("true") && !is_inherited {
            found.push(Violation::of(MANIFEST, format!("no overflow checks in `{profile}`")));
        }
    }
    found
}

/// The tables of a manifest: name, line and settings. Enough TOML for profiles.
fn tables(text: &str) -> BTreeMap<String, (usize, BTreeMap<&str, &str>)> {
    let mut tables: BTreeMap<String, (usize, BTreeMap<&str, &str>)> = BTreeMap::new();
    let mut current = String::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            current = name.replace('"', "");
            tables.entry(current.clone()).or_insert((at + 1, BTreeMap::new()));
        } else if let Some((key, value)) = line.split_once('=')
            && let Some((_, settings)) = tables.get_mut(&current)
        {
            settings.insert(key.trim(), value.trim());
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(manifest: &str) -> Vec<String> {
        check(&Tree::of(&[(MANIFEST, manifest)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn low_levels_that_are_inherited_are_refused() {
        let manifest = "[profile.release]\noverflow-checks = true\n\
                        [profile.release.package.forebay-a]\nopt-level = 2\n";
        let message = "Cargo.toml:3: `dist` inherits a low opt-level of `forebay-a`";
        assert_eq!(found(manifest), [message]);
        let reset = format!("{manifest}[profile.dist.package.\"forebay-a\"]\nopt-level = 3\n");
        assert_eq!(found(&reset), [""; 0]);
    }

    #[test]
    fn profiles_without_overflow_checks_are_refused() {
        let message = "Cargo.toml: no overflow checks in `profile.release`";
        assert_eq!(found("[profile.release]\nopt-level = 1\n"), [message]);
        let manifest = "[profile.release]\noverflow-checks = true\n\
                        [profile.dist]\noverflow-checks = false\n";
        assert_eq!(found(manifest), ["Cargo.toml: no overflow checks in `profile.dist`"]);
    }
}
