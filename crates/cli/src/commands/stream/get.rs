//! `forebay stream get` and `cat`: a stream becomes a file or standard output.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use anyhow::{Context as _, ensure};
use forebay_core::ByteSize;
use forebay_streams::OpenOptions;

use super::{StoreArgs, StreamPlace};
use crate::output::{self, Verdict};

pub const GET_EXAMPLES: &str = "\
Examples:
  forebay stream get /nvme/spill tokens tokens.bin
  forebay stream get /nvme/spill table table.arrows --consume
  forebay stream get tls://node:7070 tokens tokens.bin";

pub const CAT_EXAMPLES: &str = "\
Examples:
  forebay stream cat /nvme/spill tokens | sha256sum
  forebay stream cat /nvme/spill table | \\
    python -c 'import sys, pyarrow as pa; print(pa.ipc.open_stream(sys.stdin.buffer).read_all())'";

/// What to read.
#[derive(Debug, clap::Args)]
struct Source {
    #[command(flatten)]
    store: StoreArgs,
    /// The name of the stream.
    name: String,
    /// Read ahead this number of blocks. A node decides by itself.
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
    /// Remove the stream while it is read.
    #[arg(long)]
    consume: bool,
}

/// A stream and the file to write.
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    #[command(flatten)]
    source: Source,
    /// Write this file.
    file: PathBuf,
    /// Replace the file if it exists.
    #[arg(long)]
    force: bool,
}

/// A stream.
#[derive(Debug, clap::Args)]
pub struct CatArgs {
    #[command(flatten)]
    source: Source,
}

pub fn get(args: &GetArgs) -> anyhow::Result<Verdict> {
    let (path, shown) = (&args.file, args.file.display());
    ensure!(!path.is_dir(), "`{shown}` is a directory; name a file in it");
    ensure!(args.force || !path.exists(), "`{shown}` exists; name another file, or use --force");
    let store = args.source.store.open(None)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| ".".as_ref());
    let mut file = tempfile::NamedTempFile::new_in(folder)
        .with_context(|| format!("write in the directory `{}`", folder.display()))?;
    let bytes = copy(&store, &args.source, file.as_file_mut())?;
    file.persist(path).with_context(|| format!("write `{shown}`"))?;
    output::aside(&format!("{bytes} written to {shown}"));
    Ok(Verdict::Yes)
}

pub fn cat(args: &CatArgs) -> anyhow::Result<Verdict> {
    let store = args.source.store.open(None)?;
    match copy(&store, &args.source, &mut io::stdout().lock()) {
        // A closed pipe (`| head`) is not an error.
        Err(error) if is_closed_pipe(&error) => Ok(Verdict::Yes),
        copied => copied.map(|_| Verdict::Yes),
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn copy(store: &StreamPlace, source: &Source, out: &mut impl Write) -> anyhow::Result<ByteSize> {
    let Source { name, depth, consume, .. } = source;
    let total = store.list()?.into_iter().find(|info| info.name.as_str() == name);
    let options = OpenOptions { depth: *depth, consume: *consume, ..OpenOptions::default() };
    let reader = store.read(name, options)?;
    let bar = output::progress("reading");
    output::progress_total(&bar, total.map_or(0, |info| info.bytes));
    let mut bytes = 0;
    for block in reader.blocks() {
        let block = block?;
        out.write_all(&block).context("write")?;
        bytes += block.len() as u64;
        bar.inc(block.len() as u64);
    }
    out.flush().context("write")?;
    bar.finish_and_clear();
    Ok(ByteSize(bytes))
}
