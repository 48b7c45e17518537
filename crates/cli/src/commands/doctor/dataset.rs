//! Checks of a dataset: its digest, its origin with the credentials of this user, and the clock.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use forebay_core::BlobOrdinal;
use forebay_digest::Digest;
use forebay_origin::{Options, Origin, OriginError, clock};

use super::{Finding, failed, ok, warning};
use crate::{
    commands::digest::verify,
    output::{self, count},
};

/// S3 rejects signatures that differ by more than 15 minutes from its clock. A warning comes
/// before.
const SKEW_MAX: Duration = Duration::from_mins(15);
const SKEW_WARNING: Duration = Duration::from_mins(2);
/// Largest number of blobs whose objects are listed. A longer listing takes too long here.
const LISTED_MAX: u64 = 200_000;

/// Runs all checks. They read one byte and a listing from the origin.
pub async fn check(path: &Path, options: &Options) -> Vec<Finding> {
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
    match read_byte(digest, options).await {
        Ok(()) => {
            findings.push(ok("origin", format!("`{}` is readable", summary.origin)));
            if summary.blobs <= LISTED_MAX {
                findings.push(objects(digest, options).await);
            }
        }
        Err(error) => {
            let remedy = "the message names it; `forebay digest verify` checks every object";
            findings.push(failed("origin", output::one_line(&error.into()), remedy));
        }
    }
    if let Ok(Some(origin)) = clock(&summary.origin, options).await {
        findings.push(compare_clocks(origin, SystemTime::now()));
    }
    findings
}

/// Whether the listing of the origin agrees with the digest.
async fn objects(digest: &Digest, options: &Options) -> Finding {
    const AREA: &str = "objects";
    let remedy =
        "list them with `forebay digest verify --listing`; update with `forebay digest build`";
    match verify::compare(digest, options).await {
        Ok(report) if report.sound => ok(AREA, "unchanged since the digest was built".to_owned()),
        Ok(report) => {
            let changes = [
                (&report.changed, "changed"),
                (&report.vanished, "vanished"),
                (&report.added, "added"),
            ];
            let changes = changes.iter().filter(|(objects, _)| !objects.is_empty());
            let changes: Vec<_> =
                changes.map(|(objects, how)| format!("{} {how}", objects.len())).collect();
            let found = format!("{} since the digest was built", changes.join(", "));
            // Added objects are not in the digest, so they break no reads.
            let unreadable = report.changed.len() + report.vanished.len();
            if unreadable > 0 { failed(AREA, found, remedy) } else { warning(AREA, found, remedy) }
        }
        Err(error) => warning(AREA, output::one_line(&error), "allow listing; reading works"),
    }
}

/// Reads one byte of the first blob that has any.
async fn read_byte(digest: &Digest, options: &Options) -> Result<(), OriginError> {
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

fn compare_clocks(origin: SystemTime, local: SystemTime) -> Finding {
    let skew = local.duration_since(origin).unwrap_or_else(|early| early.duration());
    let found = format!("{} s from the clock of the origin", skew.as_secs());
    let remedy = "set the clock (timedatectl, chronyc); S3 rejects a skew of 15 min or more";
    match skew {
        skew if skew >= SKEW_MAX => failed("clock", found, remedy),
        skew if skew >= SKEW_WARNING => warning("clock", found, remedy),
        _ => ok("clock", found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::State;

    #[test]
    fn skew_counts_in_both_directions() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let state = |seconds: i64| {
            let skew = Duration::from_secs(seconds.unsigned_abs());
            compare_clocks(if seconds < 0 { now - skew } else { now + skew }, now).state
        };
        assert_eq!([0, 60, -60].map(state), [State::Ok; 3]);
        assert_eq!([200, -200].map(state), [State::Warning; 2]);
        assert_eq!([1000, -1000].map(state), [State::Failed; 2]);
    }
}
