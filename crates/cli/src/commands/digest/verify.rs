//! `forebay digest verify`: whether a digest is intact and agrees with its origin.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    path::PathBuf,
    time::Instant,
};

use anyhow::ensure;
use forebay_core::{BlobOrdinal, ByteSize, Namespace, dataset::hash_tree::HashTreeView};
use forebay_digest::{BlobPlan, Digest, DigestError, Layout, Part, PartView};
use forebay_origin::{Options, Origin, OriginError, any_version, any_version_from};
use futures::StreamExt as _;
use indicatif::ProgressBar;
use serde::Serialize;

use super::{build::rate, hash};
use crate::{
    args::origin::{OriginAccess, namespace, namespace_name},
    output::{self, Format, Verdict},
    signals::{self, Interrupted},
};

pub const EXAMPLES: &str = "\
Examples:
  forebay digest verify train.digest                  read all blobs
  forebay digest verify train.digest --sample 1000    read 1,000 random blobs
  forebay digest verify train.digest --sample 0       check the file only
  forebay digest verify train.digest --listing        compare names and versions, read nothing

Only --listing finds objects that were added after the build.";

/// Objects of each kind that the text names. The rest is counted.
const NAMED_MAX: usize = 20;

/// What to verify.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The digest.
    file: PathBuf,
    /// Read only this number of random blobs [default: all]; 0 checks the file only.
    #[arg(long, value_name = "N")]
    sample: Option<u64>,
    /// Compare a listing of the origin instead of reading: one request per 1,000 objects.
    ///
    /// Objects that the build excluded count as added.
    #[arg(long, conflicts_with_all = ["sample", "origin"])]
    listing: bool,
    /// Choose the random blobs with this seed.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Read the data from this URL instead of the origin in the digest.
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// Use this namespace key, if the digest has a private namespace.
    #[arg(long, value_name = "FILE")]
    namespace_key: Option<PathBuf>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    access: OriginAccess,
}

/// Result of a verification.
#[derive(Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Blobs that were read.
    pub blobs_checked: u64,
    /// Their bytes.
    pub bytes_checked: u64,
    /// Objects with other content. Of a changed pack, all objects are named.
    pub changed: Vec<String>,
    /// Objects that no longer exist.
    pub vanished: Vec<String>,
    /// New objects; only found by a listing.
    pub added: Vec<String>,
    /// Blobs that were written again with the same content. Their bytes are right, but conditional
    /// reads of the version in the digest fail.
    pub rewritten: u64,
    /// Duration.
    pub seconds: f64,
    /// Whether the origin agrees with the digest.
    pub sound: bool,
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let file = forebay_digest::open_unchecked(&args.file)?;
    file.check()?;
    let digest = &file.digest;
    let summary = digest.summary();
    let report = if args.sample == Some(0) {
        VerifyReport { sound: true, ..VerifyReport::default() }
    } else if args.listing {
        compare(digest, &args.access.options()).await?
    } else {
        let namespace = namespace(args.namespace_key.as_ref())?;
        let remedy = match (summary.namespace.as_str(), &args.namespace_key) {
            ("public", _) => "leave --namespace-key out",
            (_, None) => "give its key with --namespace-key",
            (_, Some(_)) => "give its own key",
        };
        ensure!(
            namespace_name(&namespace) == summary.namespace,
            "the digest has the namespace {}, not {}; {remedy}",
            summary.namespace,
            namespace_name(&namespace)
        );
        let url = args.origin.as_ref().unwrap_or(&summary.origin);
        let blobs = Chosen::new(summary.blobs, args.sample, args.seed);
        let (options, progress) = (args.access.options(), output::progress("verifying"));
        let stop = signals::stop_requested()?;
        let report = tokio::select! {
            () = stop => Err(Interrupted("interrupted before everything was verified").into()),
            report = verify(digest, &namespace, url, &options, &blobs, &progress) => report,
        };
        progress.finish_and_clear();
        report?
    };
    match args.format {
        Format::Json => output::json(&report)?,
        Format::Text => output::data(&describe(&report, args.sample == Some(0), args.listing))?,
    }
    Ok(if report.sound { Verdict::Yes } else { Verdict::No })
}

/// Which blobs to read.
#[derive(Debug, Clone)]
pub enum Chosen {
    /// All blobs of a dataset of this number of blobs.
    All(u64),
    /// These blobs, in order.
    Sample(Vec<u64>),
}

impl Chosen {
    fn new(blobs: u64, sample: Option<u64>, seed: u64) -> Self {
        let Some(sample) = sample.filter(|sample| *sample < blobs) else {
            return Self::All(blobs);
        };
        // Floyd's algorithm for sampling without replacement.
        let mut random = fastrand::Rng::with_seed(seed);
        let mut chosen = BTreeSet::new();
        for top in blobs - sample..blobs {
            if !chosen.insert(random.u64(0..=top)) {
                chosen.insert(top);
            }
        }
        Self::Sample(chosen.into_iter().collect())
    }

    fn iter(&self) -> Box<dyn Iterator<Item = BlobOrdinal> + Send + '_> {
        match self {
            Self::All(blobs) => Box::new((0..*blobs).map(BlobOrdinal::new)),
            Self::Sample(blobs) => Box::new(blobs.iter().copied().map(BlobOrdinal::new)),
        }
    }
}

/// Reads blobs and compares their addresses with the digest.
pub async fn verify(
    digest: &Digest,
    namespace: &Namespace,
    url: &str,
    options: &Options,
    blobs: &Chosen,
    progress: &ProgressBar,
) -> anyhow::Result<VerifyReport> {
    let started = Instant::now();
    let origin = Origin::new(url, options)?;
    // Versions are those of the origin in the digest.
    let is_mirror = url != digest.summary().origin;
    let layout = digest.summary().layout.parse().map_err(anyhow::Error::msg)?;
    let plans = blobs.iter().map(|blob| {
        let plan = plan(digest, blob)?;
        Ok(if is_mirror { without_versions(&plan, layout) } else { plan }.into())
    });
    let rows = hash::hashed::<DigestError>(&origin, namespace, None, futures::stream::iter(plans));
    // Rows come in the order of their plans.
    let mut rows = std::pin::pin!(rows.zip(futures::stream::iter(blobs.iter())));
    let mut report = VerifyReport::default();
    while let Some(((plan, hashed), blob)) = rows.next().await {
        let row = digest.blob(blob)?;
        let expected = row.address;
        // A tree that belongs to the address belongs to any content with that address.
        let is_of = |tree: HashTreeView<'_>| tree.is_of(namespace, &expected);
        ensure!(
            row.tree()?.is_none_or(is_of),
            "the hash tree of blob {blob} is not that of its address; build the digest again"
        );
        let mut address = hashed?.map(|hashed| hashed.address);
        if matches!(address, Err(OriginError::Changed { .. })) {
            // Another version may have the same bytes.
            let unconditional = without_versions(&plan, layout);
            let again = futures::stream::once(async { Ok::<_, DigestError>(unconditional.into()) });
            let again =
                hash::hashed(&origin, namespace, None, again).collect::<Vec<_>>().await.remove(0);
            address = again.1?.map(|hashed| hashed.address);
            report.rewritten += u64::from(matches!(address, Ok(address) if address == expected));
        }
        match address {
            Ok(address) if address == expected => {}
            Ok(_) => report.changed.extend(plan.parts.iter().map(|part| part.object.clone())),
            Err(OriginError::Changed { object }) => report.changed.push(object),
            Err(OriginError::Vanished { object }) => report.vanished.push(object),
            Err(error) => return Err(error.into()),
        }
        report.blobs_checked += 1;
        report.bytes_checked += plan.length();
        progress.inc(plan.length());
    }
    // An object may have several blobs.
    report.changed.dedup();
    report.vanished.dedup();
    report.seconds = started.elapsed().as_secs_f64();
    report.sound = report.changed.is_empty() && report.vanished.is_empty();
    Ok(report)
}

/// Compares a listing of the origin with the digest.
pub async fn compare(digest: &Digest, options: &Options) -> anyhow::Result<VerifyReport> {
    let started = Instant::now();
    let mut versions = HashMap::new();
    for blob in digest.blobs() {
        for part in blob?.parts() {
            let part = part?;
            versions.insert(part.object, part.version);
        }
    }
    let mut report = VerifyReport::default();
    let mut listing = Origin::new(&digest.summary().origin, options)?.list();
    while let Some(listed) = listing.next().await {
        let listed = listed?;
        match versions.remove(listed.object.as_str()) {
            Some(version) if version == listed.version => {}
            Some(_) => report.changed.push(listed.object),
            None => report.added.push(listed.object),
        }
    }
    report.vanished = versions.into_keys().map(str::to_owned).collect();
    report.vanished.sort_unstable();
    report.seconds = started.elapsed().as_secs_f64();
    report.sound = [&report.changed, &report.vanished, &report.added].iter().all(|o| o.is_empty());
    Ok(report)
}

fn plan(digest: &Digest, blob: BlobOrdinal) -> Result<BlobPlan, DigestError> {
    let owned = |part: Result<PartView<'_>, DigestError>| {
        part.map(|PartView { object, version, offset, length }| Part {
            object: object.to_owned(),
            version: version.to_owned(),
            offset,
            length,
        })
    };
    let parts = digest.blob(blob)?.parts().map(owned).collect::<Result<_, _>>()?;
    Ok(BlobPlan { parts, items: Vec::new() })
}

fn without_versions(plan: &BlobPlan, layout: Layout) -> BlobPlan {
    let mut plan = plan.clone();
    for part in &mut plan.parts {
        let end = part.offset + part.length;
        let any = if layout.takes_whole_objects() { any_version } else { any_version_from };
        part.version = any(end);
    }
    plan
}

fn describe(report: &VerifyReport, file_only: bool, listing: bool) -> String {
    if file_only {
        return "the digest is intact; the origin was not read\n".to_owned();
    }
    let mut text = String::new();
    if !listing {
        let _ = writeln!(
            text,
            "{} blobs read, {} in {:.1} s, {}/s",
            report.blobs_checked,
            ByteSize(report.bytes_checked).rounded(),
            report.seconds,
            rate(report.bytes_checked, report.seconds),
        );
    }
    for (what, objects) in
        [("changed", &report.changed), ("vanished", &report.vanished), ("added", &report.added)]
    {
        for object in objects.iter().take(NAMED_MAX) {
            let _ = writeln!(text, "{what}: {}", object.escape_debug());
        }
        if objects.len() > NAMED_MAX {
            let _ = writeln!(text, "{what}: and {} more", objects.len() - NAMED_MAX);
        }
    }
    if report.rewritten > 0 {
        let _ = writeln!(
            text,
            "{} blobs were written again with the same content; build the digest again to update \
             their versions",
            report.rewritten
        );
    }
    text.push_str(if report.sound {
        "the digest is intact and agrees with the origin\n"
    } else {
        "the origin has changed; build the digest again\n"
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_distinct_and_within_the_dataset() {
        for (blobs, sample) in [(10, 3), (10, 9), (1000, 500), (5, 5), (5, 50)] {
            let chosen: Vec<_> = Chosen::new(blobs, Some(sample), 7).iter().collect();
            let distinct: BTreeSet<_> = chosen.iter().collect();
            assert_eq!(distinct.len() as u64, sample.min(blobs));
            assert_eq!(distinct.len(), chosen.len());
            assert!(chosen.iter().all(|blob| blob.0 < blobs));
        }
    }
}
