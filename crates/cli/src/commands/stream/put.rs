//! `forebay stream put`: a file or standard input becomes a stream.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use arrow_array::RecordBatchReader;
use arrow_ipc::reader::{FileReader, StreamReader};
use forebay_core::{
    ByteSize,
    streams::{Lifetime, catalogue::StreamInfo},
    units::parse_duration,
};
use forebay_streams::{CreateOptions, FullPolicy, Writer, arrow::BatchWriter};
use indicatif::ProgressBar;

use super::StoreArgs;
use crate::output::{self, Format, Verdict};

pub const EXAMPLES: &str = "\
Examples:
  forebay stream put /nvme/spill tokens tokens.bin --capacity 50GB
  forebay stream put /nvme/spill table table.arrow --arrow --lease 720min
  zstd -dc dump.zst | forebay stream put /nvme/spill dump
  forebay stream put tls://node:7070 tokens tokens.bin";

/// The first bytes of an Arrow file; a stream begins otherwise.
const ARROW_FILE: &[u8] = b"ARROW1";

/// What to write.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// The name of the stream.
    name: String,
    /// Read this file [default: standard input].
    file: Option<PathBuf>,
    /// Create the store with this capacity, or change its capacity. Not for a node.
    #[arg(long, value_name = "SIZE")]
    capacity: Option<ByteSize>,
    /// Read Arrow IPC, a file or a stream, and write its record batches.
    #[arg(long)]
    arrow: bool,
    /// Remove the stream after this time [default: it is kept].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    lease: Option<Duration>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    let opened = file.map(open).transpose()?;
    let store = args.store.open(args.capacity)?;
    let lifetime = args.lease.map_or(Lifetime::Kept, Lifetime::Lease);
    let options = CreateOptions { lifetime, full: FullPolicy::Error };
    let writer = store.create(&args.name, options)?;
    let bar = output::progress("writing");
    if let Some((_, length)) = &opened {
        output::progress_total(&bar, *length);
    }
    let info = match opened {
        Some((file, _)) if args.arrow => put_file(writer, file, &bar),
        None if args.arrow => put_batches(writer, stream_reader(io::stdin(), &bar)?),
        Some((file, _)) => put_bytes(writer, file, &bar),
        None => put_bytes(writer, io::stdin(), &bar),
    };
    bar.finish_and_clear();
    let input = file.map_or_else(|| "standard input".into(), |file| file.display().to_string());
    let info = info.with_context(|| format!("write stream `{}` from {input}", args.name))?;
    match args.format {
        Format::Json => output::json(&super::list::ListedStream::of(&info))?,
        Format::Text => {
            let (blocks, bytes) = (output::count(info.blocks, "block"), ByteSize(info.bytes));
            output::data(&format!("{}: {bytes} in {blocks}\n", info.name))?;
        }
    }
    Ok(Verdict::Yes)
}

/// A file and its length.
fn open(path: &Path) -> anyhow::Result<(File, u64)> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("open `{shown}`"))?;
    let metadata = file.metadata().with_context(|| format!("open `{shown}`"))?;
    ensure!(!metadata.is_dir(), "`{shown}` is a directory: name a file, or pipe an archive");
    Ok((file, metadata.len()))
}

/// Bytes, in blocks of the store's length, read into the memory that is written.
fn put_bytes(
    mut writer: Writer,
    mut input: impl Read,
    bar: &ProgressBar,
) -> anyhow::Result<StreamInfo> {
    let length = usize::try_from(writer.block_length())?;
    loop {
        let mut block = writer.reserve(length)?;
        let mut filled = 0;
        while filled < length {
            match input.read(&mut block.bytes_mut()[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("read"),
            }
        }
        if filled > 0 {
            writer.commit(block, filled)?;
            bar.inc(filled as u64);
        }
        if filled < length {
            return Ok(writer.seal()?);
        }
    }
}

fn put_file(writer: Writer, mut file: File, bar: &ProgressBar) -> anyhow::Result<StreamInfo> {
    let mut start = [0; ARROW_FILE.len()];
    let is_file = file.read_exact(&mut start).is_ok() && start == ARROW_FILE;
    file.seek(SeekFrom::Start(0)).context("read")?;
    if !is_file {
        return put_batches(writer, stream_reader(file, bar)?);
    }
    let reader = FileReader::try_new(BufReader::new(bar.wrap_read(file)), None);
    put_batches(writer, reader.context("read Arrow")?)
}

fn stream_reader<R: Read>(input: R, bar: &ProgressBar) -> anyhow::Result<impl RecordBatchReader> {
    let input = BufReader::new(bar.wrap_read(input));
    StreamReader::try_new(input, None).context("read Arrow; without --arrow it is written as bytes")
}

fn put_batches(writer: Writer, batches: impl RecordBatchReader) -> anyhow::Result<StreamInfo> {
    let mut writer = BatchWriter::new(writer, batches.schema())?;
    for batch in batches {
        writer.append(&batch.context("read Arrow")?)?;
    }
    Ok(writer.seal()?)
}
