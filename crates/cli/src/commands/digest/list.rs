//! `forebay digest list`: lists the objects under a URL without reading them.
//!
//! The listing lets a job start at once. It learns the addresses in its first epoch, and writes the
//! digest (`forebay_digest::complete`). `forebay.Dataset` runs this command for a URL.

use std::{path::PathBuf, time::Instant};

use anyhow::{bail, ensure};
use forebay_core::dataset::ListedObject;
use forebay_digest::{LISTED_OBJECTS_MAX, Summary, check_name, open_unchecked, publish_listing};
use forebay_origin::{Origin, OriginError};
use futures::TryStreamExt as _;
use serde::Serialize;

use crate::{
    args::origin::{OriginAccess, namespace},
    output::{self, Format, Verdict, count},
};

pub const EXAMPLES: &str = "\
Examples:
  forebay digest list s3://bucket/train -o train.listing
  forebay digest list s3://bucket/train -o new.listing --from old.digest --format json";

/// What to list.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The URL of the data: s3://, az://, gs://, http(s)://, file://, or a path.
    url: String,
    /// Write the listing to this file.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Cut into as many chunks as this listing or digest of the same data has.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Use the namespace of this key file [default: the public namespace].
    #[arg(long, value_name = "FILE")]
    namespace_key: Option<PathBuf>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    access: OriginAccess,
}

/// Result of a listing.
#[derive(Debug, Serialize)]
struct ListReport {
    /// Path of the listing; `None` if it was not written.
    listing: Option<PathBuf>,
    #[serde(flatten)]
    summary: Option<Summary>,
    /// Objects without a version: they cannot be listed alone, because a change would go unnoticed.
    objects_without_version: u64,
    /// Duration.
    seconds: f64,
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let started = Instant::now();
    ensure!(!args.output.is_dir(), "`{}` is a directory; name a file in it", args.output.display());
    let namespace = namespace(args.namespace_key.as_ref())?;
    let origin = Origin::locate(&args.url, &args.access.options()).await?;
    let objects = objects_of(&origin).await?;
    if objects.is_empty() {
        bail!("there are no objects under `{}`; check the prefix", origin.url());
    }
    let chunks = args.from.as_ref().and_then(|path| open_unchecked(path).ok());
    let chunks = chunks.map(|earlier| u64::from(earlier.digest.chunking().chunks()));
    let without = objects.iter().filter(|object| object.version.is_empty()).count() as u64;
    let summary = if without == 0 {
        Some(publish_listing(&args.output, &namespace, &origin.url(), &objects, chunks)?)
    } else {
        None
    };
    let report = ListReport {
        listing: summary.as_ref().map(|_| args.output),
        summary,
        objects_without_version: without,
        seconds: started.elapsed().as_secs_f64(),
    };
    match args.format {
        Format::Json => output::json(&report)?,
        Format::Text => output::data(&describe(&report))?,
    }
    Ok(if without == 0 { Verdict::Yes } else { Verdict::No })
}

fn describe(report: &ListReport) -> String {
    let ListReport { listing: Some(listing), summary: Some(summary), .. } = report else {
        let objects = count(report.objects_without_version, "object");
        return format!(
            "{objects} without a version (ETag), so that a change would go unnoticed; build a \
             digest instead\n"
        );
    };
    format!(
        "listing  {}\nitems    {}, {}\nchunks   {}\ntime     {:.1} s\n",
        listing.display(),
        summary.items,
        forebay_core::ByteSize(summary.bytes).rounded(),
        summary.chunking.chunks(),
        report.seconds,
    )
}

/// The objects of an origin, in the order of digests.
async fn objects_of(origin: &Origin) -> anyhow::Result<Vec<ListedObject>> {
    let mut objects = Vec::new();
    let mut listing = origin.list();
    loop {
        match listing.try_next().await {
            Ok(Some(_)) if objects.len() == LISTED_OBJECTS_MAX => bail!(
                "more than {LISTED_OBJECTS_MAX} objects; build a digest with `forebay digest build`"
            ),
            Ok(Some(object)) => objects.push(object),
            Ok(None) => break,
            Err(OriginError::Unsorted) => {
                objects = origin.list_sorted().await?;
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    for object in &objects {
        if let Err(problem) = check_name(&object.object) {
            bail!("the origin has {problem}; rename it, or build a digest with --exclude");
        }
    }
    Ok(objects)
}
