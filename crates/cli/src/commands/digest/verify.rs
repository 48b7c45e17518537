//! `forebay digest verify`: is the digest sound, and does the origin still hold what it says?

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Write as _,
    path::PathBuf,
    time::Instant,
};

use anyhow::ensure;
use forebay_core::{
    BlobOrdinal, ByteSize, Namespace,
    digest::{
        Digest, DigestError, Part, PartView,
        plan::{BlobPlan, Layout},
    },
};
use forebay_origin::{Options, Origin, OriginError, any_version, any_version_from};
use futures::StreamExt as _;
use indicatif::ProgressBar;
use serde::Serialize;

use super::{build::rate, hash};
use crate::{
    output::{self, Format, Verdict},
    reach::{Reach, namespace, namespace_name},
    stop::{self, Interrupted},
};

pub const EXAMPLES: &str = "\
Examples:
  forebay digest verify train.digest                  read everything again
  forebay digest verify train.digest --sample 1000    read a thousand blobs, chosen at random
  forebay digest verify train.digest --sample 0       check the file alone
  forebay digest verify train.digest --listing        compare names and versions, read nothing

Objects that have come to the origin since are looked for with --listing only.";

/// A report names so many objects of each kind, and counts the rest.
const NAMED_MAX: usize = 20;

/// What to verify.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The digest.
    file: PathBuf,
    /// Read only so many blobs, chosen at random; 0 checks the file alone.
    #[arg(long, value_name = "N")]
    sample: Option<u64>,
    /// Compare what the origin lists instead of reading it: a request for every thousand objects. Objects
    /// that were left out with --exclude count as new.
    #[arg(long, conflicts_with_all = ["sample", "origin"])]
    listing: bool,
    /// Decides which blobs are sampled.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Look for the objects there, instead of where the digest was built.
    #[arg(long, value_name = "URL")]
    origin: Option<String>,
    /// Key file of the digest's namespace.
    #[arg(long, value_name = "FILE")]
    namespace: Option<PathBuf>,
    /// How to report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    reach: Reach,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Blobs that were read.
    pub blobs_checked: u64,
    /// Their bytes.
    pub bytes_checked: u64,
    /// Objects whose content is another. In a pack, all of its objects are suspects.
    pub changed: Vec<String>,
    /// Objects that are gone.
    pub vanished: Vec<String>,
    /// Objects that are new; only a listing tells.
    pub added: Vec<String>,
    /// How many blobs were written again with the same content: fine, but reads that insist on the
    /// version in the digest will be refused.
    pub rewritten: u64,
    /// How long it took.
    pub seconds: f64,
    /// Whether the origin holds what the digest says.
    pub sound: bool,
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let file = forebay_digest::open_unchecked(&args.file)?;
    file.check()?;
    let digest = &file.digest;
    let summary = digest.summary();
    let report = if args.sample == Some(0) {
        Report { sound: true, ..Report::default() }
    } else if args.listing {
        compare(digest, &args.reach.options()).await?
    } else {
        let namespace = namespace(args.namespace.as_ref())?;
        let remedy = match (summary.namespace.as_str(), &args.namespace) {
            ("public", _) => "leave --namespace out",
            (_, None) => "name its key file with --namespace",
            (_, Some(_)) => "name its own key file",
        };
        ensure!(
            namespace_name(&namespace) == summary.namespace,
            "the digest is of namespace {}, but the key is of {}; {remedy}",
            summary.namespace,
            namespace_name(&namespace)
        );
        let url = args.origin.as_ref().unwrap_or(&summary.origin);
        let blobs = Chosen::new(summary.blobs, args.sample, args.seed);
        let (options, progress) = (args.reach.options(), output::progress("verifying"));
        let asked = stop::asked()?;
        let report = tokio::select! {
            () = asked => Err(Interrupted("stopped before everything was verified").into()),
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
    /// All of so many.
    All(u64),
    /// These, in order.
    Sample(Vec<u64>),
}

impl Chosen {
    fn new(blobs: u64, sample: Option<u64>, seed: u64) -> Self {
        let Some(sample) = sample.filter(|sample| *sample < blobs) else {
            return Self::All(blobs);
        };
        // Floyd's way to draw without repetition.
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

/// Reads these blobs again and compares.
pub async fn verify(
    digest: &Digest,
    namespace: &Namespace,
    url: &str,
    options: &Options,
    blobs: &Chosen,
    progress: &ProgressBar,
) -> anyhow::Result<Report> {
    let started = Instant::now();
    let origin = Origin::new(url, options)?;
    // Versions mean something only where the digest was built.
    let elsewhere = url != digest.summary().origin;
    let layout = digest.summary().layout.parse().map_err(anyhow::Error::msg)?;
    let plans = blobs.iter().map(|blob| {
        let plan = plan(digest, blob)?;
        Ok(if elsewhere { without_versions(&plan, layout) } else { plan })
    });
    let rows = hash::hashed::<DigestError>(&origin, namespace, futures::stream::iter(plans));
    // Rows come in the order of their plans.
    let mut rows = std::pin::pin!(rows.zip(futures::stream::iter(blobs.iter())));
    let mut report = Report::default();
    while let Some(((plan, address), blob)) = rows.next().await {
        let wanted = digest.blob(blob)?.address;
        let mut address = address?;
        if matches!(address, Err(OriginError::Changed { .. })) {
            // Another version; it may still hold the same bytes.
            let unconditional = without_versions(&plan, layout);
            let again = futures::stream::once(async { Ok::<_, DigestError>(unconditional) });
            let again = hash::hashed(&origin, namespace, again).collect::<Vec<_>>().await.remove(0);
            address = again.1?;
            report.rewritten += u64::from(matches!(address, Ok(address) if address == wanted));
        }
        match address {
            Ok(address) if address == wanted => {}
            Ok(_) => report.changed.extend(plan.parts.iter().map(|part| part.object.clone())),
            Err(OriginError::Changed { object }) => report.changed.push(object),
            Err(OriginError::Vanished { object }) => report.vanished.push(object),
            Err(error) => return Err(error.into()),
        }
        report.blobs_checked += 1;
        report.bytes_checked += plan.length();
        progress.inc(plan.length());
    }
    // An object may hold many blobs.
    report.changed.dedup();
    report.vanished.dedup();
    report.seconds = started.elapsed().as_secs_f64();
    report.sound = report.changed.is_empty() && report.vanished.is_empty();
    Ok(report)
}

/// Compares what the origin lists with what the digest says.
pub async fn compare(digest: &Digest, options: &Options) -> anyhow::Result<Report> {
    let started = Instant::now();
    let mut known = HashMap::new();
    for blob in digest.blobs() {
        for part in blob?.parts() {
            let part = part?;
            known.insert(part.object, part.version);
        }
    }
    let mut report = Report::default();
    let mut listing = Origin::new(&digest.summary().origin, options)?.list();
    while let Some(listed) = listing.next().await {
        let listed = listed?;
        match known.remove(listed.object.as_str()) {
            Some(version) if version == listed.version => {}
            Some(_) => report.changed.push(listed.object),
            None => report.added.push(listed.object),
        }
    }
    report.vanished = known.into_keys().map(str::to_owned).collect();
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

fn describe(report: &Report, file_only: bool, listing: bool) -> String {
    if file_only {
        return "the digest is sound; the origin was not read\n".to_owned();
    }
    let mut text = String::new();
    if !listing {
        let _ = writeln!(
            text,
            "{} blobs read, {} in {:.1} s, {}/s",
            report.blobs_checked,
            ByteSize(report.bytes_checked),
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
            "{} blobs were written again with the same content; build the digest again to learn their versions",
            report.rewritten
        );
    }
    text.push_str(if report.sound {
        "the digest is sound, and the origin holds what it says\n"
    } else {
        "the origin no longer holds what the digest says; build it again\n"
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
