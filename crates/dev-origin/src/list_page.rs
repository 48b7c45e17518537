//! One page of a listing, in S3's order: by the bytes of the whole key.
//!
//! A plain directory walk has another order (`a.b` < `a/b` < `a0`). It becomes S3's if each
//! directory sorts its entries with a `/` after the names of its subdirectories. So a page reads
//! only the directories on its path, and starts in the one that the prefix names.

use std::{
    fs, io,
    ops::ControlFlow::{self, Break, Continue},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use crate::tree::{Version, key_problem};

#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    pub prefix: &'a str,
    /// Keys with this after the prefix are rolled up into one common prefix. Empty for none.
    pub delimiter: &'a str,
    /// Only keys after this one are listed.
    pub after: &'a str,
    pub max_keys: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Object(String, Version),
    CommonPrefix(String),
}

impl Item {
    pub fn name(&self) -> &str {
        match self {
            Item::Object(name, _) | Item::CommonPrefix(name) => name,
        }
    }
}

#[derive(Debug, Default)]
pub struct Page {
    pub items: Vec<Item>,
    /// Whether more items follow the last one.
    pub truncated: bool,
}

/// Reads one page. Blocks.
pub fn page(bucket: &Path, query: Query<'_>) -> io::Result<Page> {
    let mut walk = Walk { query, page: Page::default(), ancestors: Vec::new() };
    if query.max_keys == 0 {
        return Ok(walk.page);
    }
    let start = query.prefix.rfind('/').map_or("", |slash| &query.prefix[..=slash]);
    if !start.is_empty() && key_problem(start).is_some() {
        return Ok(walk.page); // No key has this prefix.
    }
    match walk.directory(&bucket.join(start), start) {
        Ok(_) => Ok(walk.page),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(walk.page),
            _ => Err(error),
        },
    }
}

struct Walk<'a> {
    query: Query<'a>,
    page: Page,
    /// Device and inode of each directory on the path, because symbolic links may form cycles.
    ancestors: Vec<(u64, u64)>,
}

impl Walk<'_> {
    fn directory(&mut self, path: &Path, key: &str) -> io::Result<ControlFlow<()>> {
        let metadata = fs::metadata(path)?;
        let identity = (metadata.dev(), metadata.ino());
        if self.ancestors.contains(&identity) {
            return Ok(Continue(()));
        }
        let names = sorted_names(path)?;
        if names.is_empty() && !key.is_empty() {
            return Ok(self.object(key, || Some(Version::of(&metadata))));
        }
        self.ancestors.push(identity);
        let flow = self.entries(path, key, &names);
        self.ancestors.pop();
        flow
    }

    fn entries(&mut self, path: &Path, key: &str, names: &[String]) -> io::Result<ControlFlow<()>> {
        let Query { prefix, after, .. } = self.query;
        for name in names {
            let entry = format!("{key}{name}");
            let is_directory = name.ends_with('/');
            let is_on_path = is_directory && prefix.starts_with(&entry);
            if !entry.starts_with(prefix) && !is_on_path {
                continue;
            }
            let flow = if !is_directory {
                self.object(&entry, || {
                    let metadata = fs::metadata(path.join(name)).ok()?;
                    metadata.is_file().then(|| Version::of(&metadata))
                })
            } else if *entry < *after && !after.starts_with(&entry) {
                Continue(()) // All keys below it come before `after`, too.
            } else if self.query.delimiter == "/"
                && let Some(rolled_up) = self.rolled_up(&entry)
                && (!after.starts_with(&entry) || *after == *rolled_up)
            {
                self.common_prefix(rolled_up) // Its entries are not needed.
            } else {
                match self.directory(&path.join(name), &entry) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Continue(()),
                    flow => flow?,
                }
            };
            if flow.is_break() {
                return Ok(Break(()));
            }
        }
        Ok(Continue(()))
    }

    fn object(&mut self, key: &str, version: impl FnOnce() -> Option<Version>) -> ControlFlow<()> {
        if *key <= *self.query.after || !key.starts_with(self.query.prefix) {
            return Continue(());
        }
        if let Some(rolled_up) = self.rolled_up(key) {
            return self.common_prefix(rolled_up);
        }
        match version() {
            Some(version) => self.push(Item::Object(key.to_owned(), version)),
            None => Continue(()), // Deleted in the meantime, or not a file.
        }
    }

    /// The common prefix that a key, or all keys of a directory, are rolled up into.
    fn rolled_up<'key>(&self, key: &'key str) -> Option<&'key str> {
        let Query { prefix, delimiter, .. } = self.query;
        let position = key.strip_prefix(prefix)?.find(delimiter).filter(|_| !delimiter.is_empty());
        Some(&key[..prefix.len() + position? + delimiter.len()])
    }

    fn common_prefix(&mut self, name: &str) -> ControlFlow<()> {
        let is_repeated =
            matches!(self.page.items.last(), Some(Item::CommonPrefix(last)) if last == name);
        if is_repeated || *name == *self.query.after {
            return Continue(());
        }
        self.push(Item::CommonPrefix(name.to_owned()))
    }

    fn push(&mut self, item: Item) -> ControlFlow<()> {
        if self.page.items.len() == self.query.max_keys {
            self.page.truncated = true;
            return Break(());
        }
        self.page.items.push(item);
        Continue(())
    }
}

/// The names in a directory. Names that are not UTF-8 cannot be keys and are skipped.
fn sorted_names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let Ok(mut name) = entry.file_name().into_string() else { continue };
        let file_type = entry.file_type()?;
        let is_directory = file_type.is_dir()
            || (file_type.is_symlink() && fs::metadata(entry.path()).is_ok_and(|m| m.is_dir()));
        if is_directory {
            name.push('/');
        }
        names.push(name);
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// S3's definition of a listing, without directories, pages or shortcuts.
    fn model(keys: &BTreeSet<String>, query: Query<'_>) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for key in keys.iter().filter(|key| ***key > *query.after) {
            let Some(rest) = key.strip_prefix(query.prefix) else { continue };
            let rolled_up = rest.find(query.delimiter).filter(|_| !query.delimiter.is_empty());
            let name = rolled_up.map_or(key.clone(), |position| {
                key[..query.prefix.len() + position + query.delimiter.len()].to_owned()
            });
            if name != query.after && names.last() != Some(&name) {
                names.push(name);
            }
        }
        names
    }

    fn random_tree(random: &mut fastrand::Rng, root: &Path) -> BTreeSet<String> {
        let mut keys = BTreeSet::new();
        for _ in 0..60 {
            let mut segment = || -> String {
                let length = random.usize(1..3);
                (0..length).filter_map(|_| random.choice(['a', '.', '-', '0', 'ü'])).collect()
            };
            let segments: Vec<String> = match keys.len() % 3 {
                0 => vec![segment()],
                1 => vec![segment(), segment()],
                _ => vec![segment(), segment(), segment()],
            };
            let key = segments.join("/");
            let path = root.join(&key);
            // A key that is a directory, or below a file, cannot exist here.
            if key_problem(&key).is_none()
                && fs::create_dir_all(path.parent().unwrap()).is_ok()
                && fs::write(&path, "").is_ok()
            {
                keys.insert(key);
            }
        }
        keys
    }

    #[test]
    fn every_listing_equals_the_model_page_by_page() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let root = tempfile::tempdir().unwrap();
            let keys = random_tree(&mut random, root.path());
            let names: Vec<&String> = keys.iter().collect();
            for _ in 0..100 {
                let some_prefix = |random: &mut fastrand::Rng| {
                    let key = random.choice(&names).unwrap();
                    let ends: Vec<usize> = key.char_indices().map(|(end, _)| end).collect();
                    key[..*random.choice(&ends).unwrap()].to_owned()
                };
                let (prefix, after) = (some_prefix(&mut random), some_prefix(&mut random));
                let query = Query {
                    prefix: &prefix,
                    delimiter: random.choice(["", "/", "/", ".", "a/"]).unwrap(),
                    after: if random.bool() { "" } else { &after },
                    max_keys: random.usize(1..6),
                };
                let mut listed: Vec<String> = Vec::new();
                let mut after = query.after.to_owned();
                loop {
                    let page = page(root.path(), Query { after: &after, ..query }).unwrap();
                    assert!(page.items.len() <= query.max_keys);
                    listed.extend(page.items.iter().map(|item| item.name().to_owned()));
                    if !page.truncated {
                        break;
                    }
                    listed.last().unwrap().clone_into(&mut after);
                }
                assert_eq!(listed, model(&keys, query), "seed {seed}, {query:?}");
            }
        }
    }

    #[test]
    fn cycles_of_links_are_walked_once_and_hostile_prefixes_match_nothing() {
        let root = tempfile::tempdir().unwrap();
        let bucket = root.path().join("bucket");
        fs::create_dir_all(bucket.join("a/b")).unwrap();
        fs::write(bucket.join("a/b/file"), "").unwrap();
        fs::write(root.path().join("outside"), "").unwrap();
        std::os::unix::fs::symlink(&bucket, bucket.join("a/b/up")).unwrap();
        std::os::unix::fs::symlink("nowhere", bucket.join("dangling")).unwrap();
        let list = |prefix| {
            let query = Query { prefix, delimiter: "", after: "", max_keys: 1000 };
            let page = page(&bucket, query).unwrap();
            page.items.iter().map(|item| item.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(list(""), ["a/b/file"]);
        assert_eq!(list("a/b/file"), ["a/b/file"]);
        for prefix in ["../", "a/../", "/", "a//", "./", "none/", "a/b/file/"] {
            assert_eq!(list(prefix), [""; 0], "{prefix}");
        }
    }
}
