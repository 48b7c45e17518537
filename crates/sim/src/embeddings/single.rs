//! Single-key traces: block, page and web traces as used to compare general caches.
//!
//! One table and one key per request, so every hit is perfect. They serve to check the classic
//! policies against other implementations.

use std::path::Path;

use super::{
    file::TraceError,
    trace::{Trace, TraceBuilder},
};

/// Big-endian numbers of a fixed width, one per request (Caffeine's binary traces).
pub(super) fn parse_numbers(
    path: &Path,
    name: &str,
    bytes: &[u8],
    width: usize,
) -> Result<Trace, TraceError> {
    if bytes.is_empty() || !bytes.len().is_multiple_of(width) {
        let problem = format!("{} bytes are no whole number of {width}-byte keys", bytes.len());
        return Err(TraceError::Content { path: path.to_owned(), problem });
    }
    let mut builder = TraceBuilder::new(name);
    let table = builder.table("key");
    for key in bytes.chunks_exact(width) {
        builder.key(table, key);
        builder.end_request();
    }
    Ok(builder.build())
}

/// `start count ignored ignored` per line: `count` pages from `start` (the ARC paper's traces).
pub(super) fn parse_pages(path: &Path, name: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    let mut builder = TraceBuilder::new(name);
    let table = builder.table("page");
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let error = |problem: &str| TraceError::Line {
            path: path.to_owned(),
            line: index as u64 + 1,
            problem: format!("{problem}; a line is `start count ignored ignored`"),
        };
        let text = std::str::from_utf8(line).map_err(|_| error("the line is not UTF-8"))?;
        let mut fields = text.split_ascii_whitespace();
        let mut number = |what: &str| {
            let field = fields.next().ok_or_else(|| error(&format!("the {what} is missing")))?;
            field
                .parse::<u64>()
                .map_err(|_| error(&format!("the {what} `{}` is no number", field.escape_debug())))
        };
        let (start, count) = (number("start")?, number("count")?);
        if count > 1 << 20 {
            return Err(error(&format!("a count of {count} pages is above the limit of 1048576")));
        }
        for page in start..start.saturating_add(count) {
            builder.key(table, &page.to_le_bytes());
            builder.end_request();
        }
    }
    let trace = builder.build();
    if trace.is_empty() {
        let problem = "there are no requests; add lines".to_owned();
        return Err(TraceError::Content { path: path.to_owned(), problem });
    }
    Ok(trace)
}
