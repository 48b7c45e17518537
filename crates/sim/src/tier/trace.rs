//! Recorded traces: the policies on block, page, web and object traces, without specifications.
//!
//! All objects have the same size, and the size of the cache is a number of objects. This is how
//! caches are usually compared, and how these policies are checked against other implementations.
//! Every request counts; there is no warm-up.
//!
//! Traces have no buckets and no jobs. Requests are untagged, and 256 objects that were first
//! requested one after the other make a bucket. (Keys may be hashes, so neighbouring keys mean
//! nothing.) In a trace without times, 1 ms passes per request. A time that goes back is counted
//! and replaced by the time before.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use forebay_core::{
    ByteSize,
    tier::{Bucket, FlashModel, PolicyKind, Request, Segment, Settings},
};
use hashbrown::HashMap;
use serde::Serialize;

use crate::{
    belady,
    embeddings::{CacheShare, Format, TraceError, parse_as, read, unpacked},
};

/// Objects per bucket.
const BUCKET: u32 = 256;
/// Length of an object. Any length will do.
const OBJECT: u32 = 1;

/// The requests of a trace in time order.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    /// Name of the trace.
    pub name: String,
    /// Time and object number of each request.
    all: Vec<(Duration, u32)>,
    objects: usize,
    /// Requests whose time was before that of an earlier one.
    pub went_back: u64,
}

/// Result of one policy with one cache size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceRow {
    /// The policy.
    pub policy: PolicyKind,
    /// Cache size as a share of the objects.
    pub share: CacheShare,
    /// Cache size in objects.
    pub capacity: u64,
    /// Hits.
    pub hits: u64,
    /// All requests.
    pub requests: u64,
    /// Hits of the optimum.
    pub optimum_hits: u64,
    /// Written objects.
    pub writes: u64,
    /// Millions of requests decided per second, on this machine in this run.
    pub million_per_second: f64,
}

impl TraceRow {
    /// Share of requests that hit.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.requests.max(1) as f64
    }

    /// Hits as a share of the optimum's.
    pub fn of_optimum(&self) -> f64 {
        super::outcome::ratio(self.hits as f64, self.optimum_hits as f64)
    }
}

/// Collects requests.
#[derive(Debug, Default)]
struct Builder {
    numbers: HashMap<u64, u32>,
    trace: Requests,
}

impl Builder {
    fn new(name: &str) -> Self {
        Self { trace: Requests { name: name.to_owned(), ..Requests::default() }, ..Self::default() }
    }

    fn request(&mut self, at: Option<Duration>, key: u64) {
        let untimed = Duration::from_millis(self.trace.all.len() as u64);
        let last = self.trace.all.last().map_or(Duration::ZERO, |(at, _)| *at);
        let at = at.unwrap_or(untimed);
        self.trace.went_back += u64::from(at < last);
        let next = u32::try_from(self.numbers.len()).expect("fewer than 2^32 objects");
        let number = *self.numbers.entry(key).or_insert(next);
        self.trace.objects = self.numbers.len();
        self.trace.all.push((at.max(last), number));
    }
}

impl Requests {
    /// Reads a trace. Without a format, the file name decides.
    pub fn load(path: &Path, format: Option<TraceFormat>) -> Result<Self, TraceError> {
        Self::parse(path, read(path)?, format.unwrap_or_else(|| TraceFormat::of(path)))
    }

    /// Parses the bytes of a file, compressed or not; `path` gives the name of the trace and of the
    /// file in errors.
    pub fn parse(path: &Path, packed: Vec<u8>, format: TraceFormat) -> Result<Self, TraceError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.split('.').next().unwrap_or_default();
        match format {
            TraceFormat::OracleGeneral => oracle_general(path, name, &unpacked(path, packed)?),
            TraceFormat::Csv => csv(path, name, &unpacked(path, packed)?),
            TraceFormat::Numbers32 => single(path, name, packed, Format::Numbers32),
            TraceFormat::Numbers64 => single(path, name, packed, Format::Numbers64),
            TraceFormat::Pages => single(path, name, packed, Format::Pages),
        }
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Number of objects.
    pub fn objects(&self) -> usize {
        self.objects
    }

    /// Number of objects in a share of them, at least one.
    pub fn capacity(&self, share: CacheShare) -> u64 {
        share.of(self.objects() as u64)
    }

    /// Hits of the optimum with this cache size.
    pub fn optimum(&self, share: CacheShare) -> u64 {
        let keys: Vec<u32> = self.all.iter().map(|(_, number)| *number).collect();
        belady::hits(&keys, self.capacity(share))
    }

    /// Replays all requests under a policy.
    pub fn replay(&self, policy: PolicyKind, share: CacheShare, optimum_hits: u64) -> TraceRow {
        let capacity = self.capacity(share);
        // Objects are evicted one by one, as caches are usually compared.
        let regions = u32::try_from(capacity).expect("fewer than 2^32 objects");
        let (segment, region) = (ByteSize(u64::from(OBJECT)), ByteSize(u64::from(OBJECT)));
        let mut settings = Settings { segment, region, ..Settings::new(ByteSize::ZERO, regions) };
        settings.history.segments_max =
            settings.history.segments_max.min(2 * self.objects.max(512));
        let (mut instance, mut flash) = (policy.build(&settings), FlashModel::new(&settings));
        let (mut hits, mut writes) = (0, 0);
        let started = Instant::now();
        for (at, number) in &self.all {
            let (segment, bucket) = (Segment(u64::from(*number)), Bucket(number / BUCKET));
            let request = Request::whole(segment, bucket, None, OBJECT);
            let (decision, written) = flash.read(&mut *instance, *at, &request);
            hits += u64::from(decision.is_hit());
            writes += written.segments;
        }
        let millions = self.len() as f64 / 1e6;
        TraceRow {
            policy,
            share,
            capacity,
            hits,
            requests: self.len() as u64,
            optimum_hits,
            writes,
            million_per_second: millions / started.elapsed().as_secs_f64().max(1e-9),
        }
    }
}

/// Format of a trace file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// libCacheSim's: 24 bytes per request, little-endian: time (u32 seconds), key (u64), size
    /// (u32), next request (i64).
    OracleGeneral,
    /// A header line with a column `key` (or `id`, `obj_id`, `object`), and optionally `time` in
    /// seconds.
    Csv,
    /// Big-endian 32-bit keys.
    Numbers32,
    /// Big-endian 64-bit keys.
    Numbers64,
    /// The ARC paper's page ranges.
    Pages,
}

impl TraceFormat {
    /// Every format, with its name.
    pub const ALL: [(&str, Self); 5] = [
        ("oracle-general", Self::OracleGeneral),
        ("csv", Self::Csv),
        ("u32", Self::Numbers32),
        ("i64", Self::Numbers64),
        ("pages", Self::Pages),
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        let (name, _) =
            Self::ALL.iter().find(|(_, format)| *format == self).expect("every format is listed");
        name
    }

    /// The format that a file name suggests.
    pub fn of(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        if name.contains("oraclegeneral") {
            return Self::OracleGeneral;
        }
        match Format::of(path) {
            Format::Numbers32 => Self::Numbers32,
            Format::Numbers64 => Self::Numbers64,
            Format::Pages => Self::Pages,
            _ => Self::Csv,
        }
    }
}

fn content(path: &Path, problem: String) -> TraceError {
    TraceError::Content { path: path.to_owned(), problem }
}

fn oracle_general(path: &Path, name: &str, bytes: &[u8]) -> Result<Requests, TraceError> {
    const RECORD: usize = 24;
    if bytes.is_empty() || !bytes.len().is_multiple_of(RECORD) {
        let whole = bytes.len() / RECORD;
        let problem = format!(
            "{} bytes are no whole number of {RECORD}-byte records; the file was cut off after \
             {whole} records, or has another format (--trace-format)",
            bytes.len()
        );
        return Err(content(path, problem));
    }
    let mut builder = Builder::new(name);
    for record in bytes.chunks_exact(RECORD) {
        let time = u32::from_le_bytes(record[..4].try_into().expect("four bytes"));
        let key = u64::from_le_bytes(record[4..12].try_into().expect("eight bytes"));
        builder.request(Some(Duration::from_secs(time.into())), key);
    }
    Ok(builder.trace)
}

fn csv(path: &Path, name: &str, bytes: &[u8]) -> Result<Requests, TraceError> {
    let at_line =
        |line: u64, problem: String| TraceError::Line { path: path.to_owned(), line, problem };
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(bytes);
    let header = reader.byte_headers().map_err(|error| at_line(1, error.to_string()))?.clone();
    let column = |names: &[&str]| {
        let found =
            |field: &[u8]| names.iter().any(|name| field.eq_ignore_ascii_case(name.as_bytes()));
        header.iter().position(found)
    };
    let Some(key_column) = column(&["key", "id", "obj_id", "object"]) else {
        let problem = "no column is called `key`, `id`, `obj_id` or `object`; add a header line";
        return Err(at_line(1, problem.to_owned()));
    };
    let time_column = column(&["time", "timestamp"]);
    let mut builder = Builder::new(name);
    let mut names: HashMap<Box<[u8]>, u64> = HashMap::new();
    for record in reader.byte_records() {
        let line = builder.trace.len() as u64 + 2;
        let record = record.map_err(|error| at_line(line, error.to_string()))?;
        let line = record.position().map_or(line, csv::Position::line);
        let text = |column: usize| std::str::from_utf8(&record[column]).unwrap_or_default();
        let time = match time_column {
            Some(column) => {
                let seconds = text(column).parse::<f64>().ok();
                let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                Some(time.ok_or_else(|| {
                    at_line(
                        line,
                        format!(
                            "`{}` is no time; write seconds, such as 1.5",
                            text(column).escape_debug()
                        ),
                    )
                })?)
            }
            None => None,
        };
        // Keys that are not numbers are numbered in order of appearance.
        let key = text(key_column).parse::<u64>().unwrap_or_else(|_| {
            let next = names.len() as u64;
            *names.entry(record[key_column].into()).or_insert(next)
        });
        builder.request(time, key);
    }
    if builder.trace.is_empty() {
        return Err(content(path, "there are no requests; add lines below the header".to_owned()));
    }
    Ok(builder.trace)
}

/// The formats shared with the embedding simulator.
fn single(
    path: &Path,
    name: &str,
    packed: Vec<u8>,
    format: Format,
) -> Result<Requests, TraceError> {
    let trace = parse_as(path, packed, format)?;
    let mut builder = Builder::new(name);
    for keys in trace.requests() {
        for key in keys {
            builder.request(None, key.row());
        }
    }
    Ok(builder.trace)
}
