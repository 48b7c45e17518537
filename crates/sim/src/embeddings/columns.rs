//! Comma-separated values as grouped lookups: a column is a table, a line is a request.
//!
//! An empty cell (or `NA`) is no lookup. A cell with bars, such as `Comedy|Drama`, is a bag.

use std::{collections::HashSet, path::Path};

use super::{
    file::TraceError,
    trace::{Trace, TraceBuilder},
};

/// Layout of a file of columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout<'a> {
    /// Column names, if the file has no header line.
    pub header: Option<&'a [&'a str]>,
    /// Columns that become tables; all if empty.
    pub tables: &'a [&'a str],
}

/// Parses uncompressed bytes; `path` is for errors.
pub(super) fn parse(
    path: &Path,
    name: &str,
    bytes: &[u8],
    layout: Layout<'_>,
) -> Result<Trace, TraceError> {
    let content = |problem: String| TraceError::Content { path: path.to_owned(), problem };
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(layout.header.is_none())
        .flexible(true)
        .from_reader(bytes);
    let header: Vec<String> = match layout.header {
        Some(names) => names.iter().map(|name| (*name).to_owned()).collect(),
        None => reader
            .headers()
            .map_err(|error| content(error.to_string()))?
            .iter()
            .map(|name| name.trim().to_owned())
            .collect(),
    };
    if header.iter().all(String::is_empty) {
        return Err(content(
            "there is no header line with the names of the tables; add one".to_owned(),
        ));
    }
    if let [only] = &header[..]
        && let Some(separator) = [';', '\t'].into_iter().find(|other| only.contains(*other))
    {
        let separator = separator.escape_debug();
        return Err(content(format!(
            "the header is one name with `{separator}` in it; separate columns by commas"
        )));
    }
    let mut seen = HashSet::new();
    if let Some(twice) = header.iter().find(|name| !seen.insert(*name)) {
        let twice = twice.escape_debug();
        return Err(content(format!(
            "two columns are named `{twice}`; give each table a name of its own"
        )));
    }
    let columns: Vec<usize> = if layout.tables.is_empty() {
        (0..header.len()).collect()
    } else {
        let find = |name: &&str| {
            let found = header.iter().position(|column| column == name);
            found.ok_or_else(|| {
                let columns = header.join(", ");
                let columns = columns.escape_debug();
                content(format!("there is no column `{name}`; there are {columns}"))
            })
        };
        layout.tables.iter().map(find).collect::<Result<_, _>>()?
    };
    if columns.len() >= usize::from(u16::MAX) {
        return Err(content(format!(
            "there are {} columns; at most 65534 can be tables",
            columns.len()
        )));
    }

    let mut builder = TraceBuilder::new(name);
    for column in &columns {
        builder.table(&header[*column]);
    }
    let mut record = csv::ByteRecord::new();
    loop {
        let line = reader.position().line();
        let line_error =
            |problem: String| TraceError::Line { path: path.to_owned(), line, problem };
        match reader.read_byte_record(&mut record) {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) => return Err(line_error(error.to_string())),
        }
        let line = record.position().map_or(line, csv::Position::line);
        if record.len() != header.len() {
            return Err(TraceError::Line {
                path: path.to_owned(),
                line,
                problem: format!("there are {} values, but {} columns", record.len(), header.len()),
            });
        }
        for (table, column) in columns.iter().enumerate() {
            let cell = record[*column].trim_ascii();
            if cell != b"NA" {
                for value in cell.split(|byte| *byte == b'|').filter(|value| !value.is_empty()) {
                    builder.key(table, value);
                }
            }
        }
        builder.end_request();
    }
    let trace = builder.build();
    if trace.is_empty() {
        return Err(content("there are no requests; add lines below the header".to_owned()));
    }
    Ok(trace)
}
