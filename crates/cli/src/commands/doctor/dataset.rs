//! A dataset: whether its digest can be read, and its origin be reached with what this user has.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use forebay_core::{BlobOrdinal, digest::Digest};
use forebay_origin::{Options, Origin, OriginError, clock};

use super::{Finding, failed, ok, warning};
use crate::{
    digest::verify,
    output::{self, count},
};

/// S3 refuses signatures that are older or newer than a quarter of an hour; before that it is time to look.
const SKEW_MAX: Duration = Duration::from_mins(15);
const SKEW_WORRYING: Duration = Duration::from_mins(2);
/// Listing more objects than this takes longer than one waits for a doctor.
const LISTED_MAX: u64 = 200_000;

/// All that can be seen without fetching more than a byte and a listing.
pub async fn look(path: &Path, options: &Options) -> Vec<Finding> {
    let file = match forebay_digest::open(path) {
        Ok(file) => file,
        Err(error) => {
            let remedy = "build it again with `forebay digest build`";
            return vec![failed("digest", output::one_line(&error.into()), remedy)];
        }
    };
    let digest = &file.digest;
    let summary = digest.summary();
    let found = format!("{} in {}", count(summary.items, "item"), count(summary.blobs, "blob"));
    let mut findings = vec![ok("digest", found)];
    match reach(digest, options).await {
        Ok(()) => {
            findings.push(ok("origin", format!("`{}` can be read", summary.origin)));
            if summary.blobs <= LISTED_MAX {
                findings.push(objects(digest, options).await);
            }
        }
        Err(error) => {
            let remedy = "the message names it; `forebay digest verify` looks at every object";
            findings.push(failed("origin", output::one_line(&error.into()), remedy));
        }
    }
    if let Ok(Some(there)) = clock(&summary.origin, options).await {
        findings.push(compare(there, SystemTime::now()));
    }
    findings
}

/// Whether the origin lists what the digest says.
async fn objects(digest: &Digest, options: &Options) -> Finding {
    const AREA: &str = "objects";
    let remedy =
        "`forebay digest verify --listing` names them; `forebay digest build` takes them in";
    match verify::compare(digest, options).await {
        Ok(report) if report.sound => ok(AREA, "as they were when the digest was built".to_owned()),
        Ok(report) => {
            let of = [
                (&report.changed, "changed"),
                (&report.vanished, "vanished"),
                (&report.added, "added"),
            ];
            let told = of.iter().filter(|(objects, _)| !objects.is_empty());
            let told: Vec<_> =
                told.map(|(objects, how)| format!("{} {how}", objects.len())).collect();
            let found = format!("{} since the digest was built", told.join(", "));
            // What has come since does no harm to those who read the rest.
            let unread = report.changed.len() + report.vanished.len();
            if unread > 0 { failed(AREA, found, remedy) } else { warning(AREA, found, remedy) }
        }
        Err(error) => {
            warning(AREA, output::one_line(&error), "they could not be listed; the rest was read")
        }
    }
}

/// Reads one byte of the first blob that has any.
async fn reach(digest: &Digest, options: &Options) -> Result<(), OriginError> {
    let origin = Origin::new(&digest.summary().origin, options)?;
    for blob in 0..digest.summary().blobs {
        let Ok(row) = digest.blob(BlobOrdinal::new(blob)) else { continue };
        let mut parts = row.parts().filter_map(Result::ok);
        if let Some(part) = parts.find(|part| part.length > 0) {
            let range = part.offset..part.offset + 1;
            return origin.read(part.object, part.version, range).await.map(drop);
        }
    }
    Ok(())
}

fn compare(there: SystemTime, here: SystemTime) -> Finding {
    let apart = here.duration_since(there).unwrap_or_else(|early| early.duration());
    let found = format!("{} s from the origin's", apart.as_secs());
    let remedy = "set the clock (timedatectl, chronyc); S3 refuses signatures beyond 15 min";
    match apart {
        apart if apart >= SKEW_MAX => failed("clock", found, remedy),
        apart if apart >= SKEW_WORRYING => warning("clock", found, remedy),
        _ => ok("clock", found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn clocks_are_compared_both_ways() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let state = |seconds: i64| {
            let apart = Duration::from_secs(seconds.unsigned_abs());
            compare(if seconds < 0 { now - apart } else { now + apart }, now).state
        };
        assert_eq!([0, 60, -60].map(state), [State::Ok; 3]);
        assert_eq!([200, -200].map(state), [State::Warning; 2]);
        assert_eq!([1000, -1000].map(state), [State::Failed; 2]);
    }
}
