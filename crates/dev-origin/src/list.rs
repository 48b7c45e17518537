//! Listing in S3's order: by the bytes of the whole key.
//!
//! That is not the order of a directory walk (`a.b` < `a/b` < `a0`), but it becomes one if each
//! directory sorts its entries with a `/` behind the names of its subdirectories. So a page needs
//! only the directories on its way, and starts in the one that the prefix names.

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
    /// Keys with this behind the prefix are rolled up into one common prefix. Empty: none are.
    pub delimiter: &'a str,
    /// Only what comes behind this.
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
    /// Something follows the last item.
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
        return Ok(walk.page); // No key can begin like this.
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
    /// Device and inode of each directory on the way down: symbolic links may form circles.
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
            let on_the_way = is_directory && prefix.starts_with(&entry);
            if !entry.starts_with(prefix) && !on_the_way {
                continue;
            }
            let flow = if !is_directory {
                self.object(&entry, || {
                    let metadata = fs::metadata(path.join(name)).ok()?;
                    metadata.is_file().then(|| Version::of(&metadata))
                })
            } else if *entry < *after && !after.starts_with(&entry) {
                Continue(()) // All below it come before `after`, too.
            } else if self.query.delimiter == "/" && !on_the_way && !is_within(after, &entry) {
                self.common_prefix(&entry)
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
        let Query { prefix, delimiter, after, .. } = self.query;
        if *key <= *after {
            return Continue(());
        }
        let Some(rest) = key.strip_prefix(prefix) else { return Continue(()) };
        if !delimiter.is_empty()
            && let Some(position) = rest.find(delimiter)
        {
            return self.common_prefix(&key[..prefix.len() + position + delimiter.len()]);
        }
        match version() {
            Some(version) => self.push(Item::Object(key.to_owned(), version)),
            None => Continue(()), // Gone in the meantime, or not a file.
        }
    }

    fn common_prefix(&mut self, name: &str) -> ControlFlow<()> {
        let is_known = matches!(self.page.items.last(), Some(Item::CommonPrefix(last)) if last == name);
        if is_known || *name == *self.query.after {
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

/// Strictly below, so that some keys of `directory` come before it and others behind.
fn is_within(name: &str, directory: &str) -> bool {
    name.len() > directory.len() && name.starts_with(directory)
}

/// Names that are not UTF-8 cannot be keys and are left out.
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
