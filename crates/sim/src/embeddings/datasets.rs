//! Trace formats, and the columns of well-known data sets that make grouped lookups.

use std::{path::Path, str::FromStr};

use hashbrown::HashMap;

use super::{
    columns::{self, Layout},
    file::{self, TraceError},
    single,
    trace::{Trace, TraceBuilder},
};

/// Format of a trace file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One column per table, with a header line.
    Columns,
    /// `nycflights13`: the features of a scheduled flight.
    Flights,
    /// KDD Cup 1999: 41 fields of a connection, one table each.
    Kdd99,
    /// `MovieLens` ratings in time order, with the genres of films as a bag from `movies.csv` in
    /// the same directory.
    MovieLens,
    /// Big-endian 32-bit keys, one per request.
    Numbers32,
    /// Big-endian 64-bit keys, one per request.
    Numbers64,
    /// The ARC paper's page ranges.
    Pages,
}

/// Columns of a scheduled flight. Later measurements (delays, air times) are no features of a
/// request.
const FLIGHT_TABLES: &[&str] = &[
    "month",
    "day",
    "sched_dep_time",
    "sched_arr_time",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "hour",
];

const KDD_HEADER: &[&str] = &[
    "duration",
    "protocol_type",
    "service",
    "flag",
    "src_bytes",
    "dst_bytes",
    "land",
    "wrong_fragment",
    "urgent",
    "hot",
    "num_failed_logins",
    "logged_in",
    "num_compromised",
    "root_shell",
    "su_attempted",
    "num_root",
    "num_file_creations",
    "num_shells",
    "num_access_files",
    "num_outbound_cmds",
    "is_host_login",
    "is_guest_login",
    "count",
    "srv_count",
    "serror_rate",
    "srv_serror_rate",
    "rerror_rate",
    "srv_rerror_rate",
    "same_srv_rate",
    "diff_srv_rate",
    "srv_diff_host_rate",
    "dst_host_count",
    "dst_host_srv_count",
    "dst_host_same_srv_rate",
    "dst_host_diff_srv_rate",
    "dst_host_same_src_port_rate",
    "dst_host_srv_diff_host_rate",
    "dst_host_serror_rate",
    "dst_host_srv_serror_rate",
    "dst_host_rerror_rate",
    "dst_host_srv_rerror_rate",
    "label",
];

impl Format {
    /// Every format.
    pub const ALL: &[Format] = &[
        Self::Columns,
        Self::Flights,
        Self::Kdd99,
        Self::MovieLens,
        Self::Numbers32,
        Self::Numbers64,
        Self::Pages,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Columns => "csv",
            Self::Flights => "nycflights",
            Self::Kdd99 => "kdd99",
            Self::MovieLens => "movielens",
            Self::Numbers32 => "u32",
            Self::Numbers64 => "i64",
            Self::Pages => "pages",
        }
    }

    /// The format that a file name suggests.
    pub fn of(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        match name.as_str() {
            name if name.contains("nycflights") => Self::Flights,
            name if name.contains("kddcup") => Self::Kdd99,
            name if name.contains("ratings") => Self::MovieLens,
            name if name.contains(".lis") => Self::Pages,
            name if name.contains("scarab") => Self::Numbers64,
            name if name.contains(".trace") => Self::Numbers32,
            _ => Self::Columns,
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().copied().find(|format| format.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|format| format.name()).collect();
            format!("there is no trace format `{text}`; there are {}", names.join(", "))
        })
    }
}

/// Reads a trace. The file name decides the format.
pub fn load(path: &Path) -> Result<Trace, TraceError> {
    load_as(path, Format::of(path))
}

/// Reads a trace of a known format.
pub fn load_as(path: &Path, format: Format) -> Result<Trace, TraceError> {
    parse_as(path, file::read(path)?, format)
}

/// Parses the bytes of a file, compressed or not; `path` is for errors and for files beside it.
pub fn parse_as(path: &Path, packed: Vec<u8>, format: Format) -> Result<Trace, TraceError> {
    let bytes = file::unpacked(path, packed)?;
    let columns = |name: &str, layout| columns::parse(path, name, &bytes, layout);
    match format {
        Format::Columns => columns(&stem(path), Layout { header: None, tables: &[] }),
        Format::Flights => columns("nycflights13", Layout { header: None, tables: FLIGHT_TABLES }),
        Format::Kdd99 => {
            let tables = &KDD_HEADER[..KDD_HEADER.len() - 1]; // not the label
            columns("kddcup99", Layout { header: Some(KDD_HEADER), tables })
        }
        Format::MovieLens => parse_ratings(path, &bytes),
        Format::Numbers32 => single::parse_numbers(path, &stem(path), &bytes, 4),
        Format::Numbers64 => single::parse_numbers(path, &stem(path), &bytes, 8),
        Format::Pages => single::parse_pages(path, &stem(path), &bytes),
    }
}

fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// One rating: time, user and film.
type Rating = (u64, Box<[u8]>, Box<[u8]>);

fn parse_ratings(path: &Path, bytes: &[u8]) -> Result<Trace, TraceError> {
    let mut ratings = rows(path, bytes, |fields| {
        let [user, film, _, time] = fields else { return Err("a rating has 4 values".to_owned()) };
        let time = std::str::from_utf8(time).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let time = time.ok_or("the timestamp is no number")?;
        Ok::<Rating, String>((time, (*user).into(), (*film).into()))
    })?;
    ratings.sort_by_key(|rating| rating.0); // stable: equal times keep the file's order
    let films = films_beside(path)?;

    let mut builder = TraceBuilder::new("movielens");
    let [user_table, film_table, genre_table] =
        ["user", "movie", "genres"].map(|name| builder.table(name));
    for (_, user, film) in &ratings {
        builder.key(user_table, user);
        builder.key(film_table, film);
        let genres = films.get(film).map_or(&[][..], |genres| genres);
        for genre in genres.split(|byte| *byte == b'|').filter(|genre| !genre.is_empty()) {
            builder.key(genre_table, genre);
        }
        builder.end_request();
    }
    let trace = builder.build();
    if trace.is_empty() {
        let problem = "there are no ratings; add lines below the header".to_owned();
        return Err(TraceError::Content { path: path.to_owned(), problem });
    }
    Ok(trace)
}

/// Genres by film.
type Genres = HashMap<Box<[u8]>, Box<[u8]>>;

/// Genres by film, from a file beside the ratings; empty without one.
fn films_beside(ratings: &Path) -> Result<Genres, TraceError> {
    let folder = ratings.parent().unwrap_or(Path::new(""));
    let candidates = ["mls_movies.csv", "movies.csv"].map(|name| folder.join(name));
    let Some(path) = candidates.into_iter().find(|path| path.exists()) else {
        return Ok(HashMap::new());
    };
    let bytes = file::unpacked(&path, file::read(&path)?)?;
    let films = rows(&path, &bytes, |fields| {
        let [film, _, genres] = fields else { return Err("a film has 3 values".to_owned()) };
        Ok(((*film).into(), (*genres).into()))
    })?;
    Ok(films.into_iter().collect())
}

/// Parses the lines after the header.
fn rows<T>(
    path: &Path,
    bytes: &[u8],
    parse: impl Fn(&[&[u8]]) -> Result<T, String>,
) -> Result<Vec<T>, TraceError> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(bytes);
    let mut rows = Vec::new();
    for record in reader.byte_records() {
        let line = rows.len() as u64 + 2;
        let error = |line, problem| TraceError::Line { path: path.to_owned(), line, problem };
        let record = record.map_err(|problem| error(line, problem.to_string()))?;
        let line = record.position().map_or(line, csv::Position::line);
        let fields: Vec<&[u8]> = record.iter().collect();
        rows.push(parse(&fields).map_err(|problem| error(line, problem))?);
    }
    Ok(rows)
}
