//! A page with generated sections, each written by another command.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use forebay_sim::Section;

/// A page, split around one of its sections.
pub struct GeneratedPage {
    path: PathBuf,
    before: String,
    after: String,
}

impl GeneratedPage {
    /// Finds the section between the lines `<!-- begin NAME … -->` and `<!-- end NAME -->`.
    pub fn read(path: &Path, name: &str) -> anyhow::Result<Self> {
        let shown = path.display();
        let [begin, end] = [format!("<!-- begin {name} "), format!("<!-- end {name} -->")];
        let text = fs::read_to_string(path).with_context(|| {
            format!("cannot read `{shown}`; name a page with the lines `{begin}-->` and `{end}`")
        })?;
        let begins = text.find(&begin).and_then(|at| Some(at + text[at..].find('\n')? + 1));
        let ends = text.find(&end);
        let (Some(begins), Some(ends)) = (begins, ends.filter(|at| begins <= Some(*at))) else {
            bail!("`{shown}` has no section `{name}`; add the lines `{begin}-->` and `{end}`");
        };
        let [before, after] = [&text[..begins], &text[ends..]].map(str::to_owned);
        Ok(Self { path: path.to_owned(), before, after })
    }

    /// Replaces the section, and writes its pictures to a directory with the name of the page.
    pub fn write(&self, section: &Section) -> anyhow::Result<()> {
        let folder = self.path.with_extension("");
        let shown = folder.display();
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the directory `{shown}`"))?;
        for (name, svg) in &section.pictures {
            let path = folder.join(name);
            fs::write(&path, svg).with_context(|| format!("cannot write `{}`", path.display()))?;
        }
        let page = format!("{}\n{}\n{}", self.before, section.text.trim_end(), self.after);
        fs::write(&self.path, page)
            .with_context(|| format!("cannot write `{}`", self.path.display()))
    }
}
