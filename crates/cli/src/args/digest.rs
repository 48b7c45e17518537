//! The argument `DIGEST`: a digest file, or the URL of a dataset that was read before.
//!
//! `forebay.Dataset("s3://...")` keeps the digests of URLs in the user's cache directory. They are
//! found by the URL of their origin, which every digest has.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, bail};
use forebay_digest::DigestFile;
use forebay_origin::Location;

/// Digests of the user's cache directory that are looked at.
const KEPT_MAX: usize = 10_000;

/// A digest file, or the URL or directory of a dataset.
#[derive(Debug, Clone)]
pub struct DigestArg(String);

impl FromStr for DigestArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("it is empty; give a digest or a URL".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for DigestArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl DigestArg {
    /// Opens the digest.
    pub fn open(&self) -> anyhow::Result<DigestFile> {
        Ok(forebay_digest::open(&self.path()?)?)
    }

    /// The path of the digest file.
    pub fn path(&self) -> anyhow::Result<PathBuf> {
        if !self.0.contains("://") && !Path::new(&self.0).is_dir() {
            return Ok(PathBuf::from(&self.0));
        }
        let url = canonical(&self.0)?;
        let found: Vec<KeptDigest> =
            kept_digests()?.into_iter().filter(|kept| kept.url() == url).collect();
        match &found[..] {
            [] => bail!(
                "there is no digest of `{url}` in `{}`; build one with `forebay digest build {url} \
                 -o x.digest` and name that, or read the URL once with forebay.Dataset",
                kept_directory()?.display()
            ),
            [one] => Ok(one.path.clone()),
            several => {
                let paths: Vec<String> =
                    several.iter().map(|kept| format!("`{}`", kept.path.display())).collect();
                bail!("`{url}` has several digests; name one of {}", paths.join(", "))
            }
        }
    }
}

/// A digest in the user's cache directory.
#[derive(Debug)]
pub struct KeptDigest {
    /// The file.
    pub path: PathBuf,
    /// Its content.
    pub file: DigestFile,
}

impl KeptDigest {
    /// The URL of the dataset.
    pub fn url(&self) -> String {
        let origin = &self.file.digest.summary().origin;
        canonical(origin).unwrap_or_else(|_| origin.clone())
    }
}

/// The digests of URLs in the user's cache directory, by path. Files that cannot be opened are left
/// out: another process may be writing them.
pub fn kept_digests() -> anyhow::Result<Vec<KeptDigest>> {
    let Ok(entries) = fs::read_dir(kept_directory()?) else { return Ok(Vec::new()) };
    let mut paths: Vec<PathBuf> = entries
        .take(KEPT_MAX)
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "digest"))
        .collect();
    paths.sort_unstable();
    let open = |path: PathBuf| Some(KeptDigest { file: forebay_digest::open(&path).ok()?, path });
    Ok(paths.into_iter().filter_map(open).collect())
}

/// The directory of the digests of URLs.
fn kept_directory() -> anyhow::Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").filter(|directory| !directory.is_empty());
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = cache.map(PathBuf::from).or_else(home);
    Ok(cache.context("HOME is not set; set it, or name a digest file")?.join("forebay/digests"))
}

/// A URL in the form that digests have.
fn canonical(url: &str) -> anyhow::Result<String> {
    Ok(match Location::parse(url)? {
        Location::Local(path) => Location::Local(std::path::absolute(path)?),
        other => other,
    }
    .url()
    .trim_end_matches('/')
    .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_url_are_the_same() {
        let same = ["s3://bucket/train", "s3://bucket/train/", "s3a://bucket//train"];
        assert!(same.iter().all(|url| canonical(url).unwrap() == "s3://bucket/train"));
        assert_eq!(canonical("file:///data/x/").unwrap(), canonical("/data/x").unwrap());
        assert_ne!(canonical("s3://bucket/train").unwrap(), canonical("s3://bucket").unwrap());
        assert!(canonical("s3://key:secret@bucket").is_err());
    }
}
