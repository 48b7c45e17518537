//! `forebay digest diff`: how two digests differ, object by object.
//!
//! Both digests are sorted by key, so one merge finds all differences in little memory. An object
//! of several blobs is compared part by part, and reported once.
//!
//! Content is compared by address. The address of a pack covers several objects, so there lengths
//! and versions are compared. Between namespaces, or between packs of different origins, some
//! objects cannot be compared and count as unknown.

use std::{cmp::Ordering, collections::HashSet, fmt::Write as _, iter::Peekable, path::PathBuf};

use forebay_core::Address;
use forebay_digest::{Digest, DigestError, Layout, PartView};
use serde::Serialize;

use crate::output::{self, Format, Verdict};

/// Objects of each kind that the text names. The rest is counted.
const NAMED_MAX: usize = 20;

pub const EXAMPLES: &str = "\
Examples:
  forebay digest diff old.digest new.digest
  forebay digest diff old.digest new.digest --format json | jq .changed";

/// What to compare.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The older digest.
    a: PathBuf,
    /// The newer digest.
    b: PathBuf,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Default, Serialize)]
struct Difference {
    /// Whether both have the same dataset id.
    same_dataset: bool,
    /// Properties of the digests that differ.
    facts: Vec<Fact>,
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<String>,
    unchanged: u64,
    /// Objects that cannot be compared.
    unknown: u64,
}

#[derive(Debug, Serialize)]
struct Fact {
    name: &'static str,
    a: String,
    b: String,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let (a, b) = (forebay_digest::open(&args.a)?, forebay_digest::open(&args.b)?);
    let difference = compare(&a.digest, &b.digest)?;
    match args.format {
        Format::Json => output::json(&difference)?,
        Format::Text => output::data(&describe(&difference))?,
    }
    Ok(if difference.same_dataset { Verdict::Yes } else { Verdict::No })
}

impl Difference {
    /// Names each object once. An object with some parts in both digests (`in_both`) and some in
    /// one of them has changed.
    fn merge_parts(&mut self, in_both: &HashSet<String>) {
        for names in [&mut self.added, &mut self.removed, &mut self.changed] {
            names.dedup();
        }
        let removed: HashSet<&String> = self.removed.iter().collect();
        let added = self.added.iter();
        let added = added.filter(|name| removed.contains(name) || in_both.contains(*name));
        let removed = self.removed.iter().filter(|name| in_both.contains(*name));
        let changed: Vec<String> = added.chain(removed).cloned().collect();
        if !changed.is_empty() {
            self.changed.extend(changed);
            self.changed.sort_unstable();
            self.changed.dedup();
        }
        let changed: HashSet<&String> = self.changed.iter().collect();
        for names in [&mut self.added, &mut self.removed] {
            names.retain(|name| !changed.contains(name));
        }
    }
}

/// A part of an object, with the address of its blob.
struct Object<'a> {
    part: PartView<'a>,
    blob: Address,
    /// Whether the blob has no other part.
    is_only_part: bool,
}

impl Object<'_> {
    /// Whether the content is the same; `None` if it cannot be compared.
    fn same_content(&self, other: &Self, comparable: Comparable) -> Option<bool> {
        if self.part.length != other.part.length {
            return Some(false);
        }
        if comparable.addresses
            && (self.blob == other.blob || self.is_only_part && other.is_only_part)
        {
            return Some(self.blob == other.blob);
        }
        comparable.versions.then_some(self.part.version == other.part.version)
    }
}

/// What can be compared between the digests.
#[derive(Clone, Copy)]
struct Comparable {
    addresses: bool,
    versions: bool,
}

fn objects(digest: &Digest) -> impl Iterator<Item = Result<Object<'_>, DigestError>> {
    digest.blobs().flat_map(|blob| {
        let (parts, problem) = match blob {
            Ok(blob) => {
                let (address, count) = (blob.address, blob.parts().len());
                let parts = blob.parts().map(move |part| {
                    part.map(|part| Object { part, blob: address, is_only_part: count == 1 })
                });
                (Some(parts), None)
            }
            Err(error) => (None, Some(Err(error))),
        };
        parts.into_iter().flatten().chain(problem)
    })
}

fn compare(a: &Digest, b: &Digest) -> Result<Difference, DigestError> {
    let (of_a, of_b) = (a.summary(), b.summary());
    let chunks = |digest: &Digest| digest.chunking().chunks().to_string();
    let columns = |digest: &Digest| {
        digest.columns().iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let facts = [
        ("namespace", of_a.namespace.clone(), of_b.namespace.clone()),
        ("origin", of_a.origin.clone(), of_b.origin.clone()),
        ("layout", of_a.layout.clone(), of_b.layout.clone()),
        ("chunks", chunks(a), chunks(b)),
        ("columns", columns(a), columns(b)),
    ];
    let mut difference = Difference {
        same_dataset: of_a.dataset == of_b.dataset,
        facts: facts
            .into_iter()
            .filter(|(_, a, b)| a != b)
            .map(|(name, a, b)| Fact { name, a, b })
            .collect(),
        ..Difference::default()
    };
    let comparable = Comparable {
        addresses: of_a.namespace == of_b.namespace,
        versions: of_a.origin == of_b.origin,
    };
    let is_whole = |layout: &str| layout.parse().is_ok_and(Layout::takes_whole_objects);
    let has_parts = !is_whole(&of_a.layout) || !is_whole(&of_b.layout);
    let mut in_both = HashSet::new();
    let (mut left, mut right) = (objects(a).peekable(), objects(b).peekable());
    loop {
        let order = match (peek(&mut left)?, peek(&mut right)?) {
            (None, None) => {
                difference.merge_parts(&in_both);
                return Ok(difference);
            }
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.cmp(&right),
        };
        let name = |object: &Object<'_>| object.part.object.to_owned();
        match order {
            Ordering::Less => {
                difference.removed.extend(left.next().transpose()?.as_ref().map(name));
            }
            Ordering::Greater => {
                difference.added.extend(right.next().transpose()?.as_ref().map(name));
            }
            Ordering::Equal => {
                if let (Some(left), Some(right)) =
                    (left.next().transpose()?, right.next().transpose()?)
                {
                    if has_parts && !in_both.contains(right.part.object) {
                        in_both.insert(name(&right));
                    }
                    match left.same_content(&right, comparable) {
                        Some(true) => difference.unchanged += 1,
                        Some(false) => difference.changed.push(name(&right)),
                        None => difference.unknown += 1,
                    }
                }
            }
        }
    }
}

fn peek<'a>(
    objects: &mut Peekable<impl Iterator<Item = Result<Object<'a>, DigestError>>>,
) -> Result<Option<(&'a str, u64)>, DigestError> {
    match objects.next_if(Result::is_err) {
        Some(Err(error)) => Err(error),
        _ => Ok(objects
            .peek()
            .and_then(|object| object.as_ref().ok())
            .map(|object| (object.part.object, object.part.offset))),
    }
}

fn describe(difference: &Difference) -> String {
    let mut text = String::new();
    for Fact { name, a, b } in &difference.facts {
        let shown = |value: &str| if value.is_empty() { "none" } else { value }.to_owned();
        let _ = writeln!(text, "{name}: {} -> {}", shown(a), shown(b));
    }
    let kinds = [("+", &difference.added), ("-", &difference.removed), ("~", &difference.changed)];
    for (sign, objects) in kinds {
        for object in objects.iter().take(NAMED_MAX) {
            let _ = writeln!(text, "{sign} {}", object.escape_debug());
        }
        if objects.len() > NAMED_MAX {
            let _ = writeln!(text, "{sign} and {} more", objects.len() - NAMED_MAX);
        }
    }
    let _ = writeln!(
        text,
        "{} added, {} removed, {} changed, {} unchanged{}: {}",
        difference.added.len(),
        difference.removed.len(),
        difference.changed.len(),
        difference.unchanged,
        match difference.unknown {
            0 => String::new(),
            unknown => format!(", {unknown} not comparable"),
        },
        if difference.same_dataset { "the same dataset" } else { "another dataset" }
    );
    text
}
