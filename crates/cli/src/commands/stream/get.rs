//! `forebay stream get` and `cat`: a stream becomes a file or standard output.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
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
    let existing = fs::metadata(path).ok();
    let bytes = if existing.as_ref().is_some_and(|existing| !existing.is_file()) {
        // A device or a pipe stays what it is.
        let file = File::options().write(true).open(path);
        copy(&store, &args.source, &mut file.with_context(|| format!("open `{shown}`"))?)?
    } else {
        let target = resolve_links(path)?;
        let permissions = existing.map(|existing| existing.permissions());
        replace(&target, permissions, |file| copy(&store, &args.source, file))?
    };
    output::aside(&format!("{bytes} written to {shown}"));
    Ok(Verdict::Yes)
}

/// The file that a chain of symbolic links names, whether it exists or not.
fn resolve_links(path: &Path) -> anyhow::Result<PathBuf> {
    /// The kernel's limit.
    const LINKS_MAX: usize = 40;
    let mut target = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&target) {
            // An absolute link replaces the folder.
            Ok(next) => target = folder_of(&target).join(next),
            Err(_) => return Ok(target),
        }
    }
    bail!("`{}` is a chain of more than {LINKS_MAX} links; name a file", path.display())
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or_else(|| ".".as_ref())
}

/// Writes a file that appears when all of it is written. It has these permissions, or, if it is
/// new, those of the umask.
fn replace<T>(
    path: &Path,
    permissions: Option<Permissions>,
    write: impl FnOnce(&mut File) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let folder = folder_of(path);
    let mut builder = tempfile::Builder::new();
    // `open` applies the umask.
    builder.permissions(permissions.clone().unwrap_or_else(|| Permissions::from_mode(0o666)));
    let mut file = builder
        .tempfile_in(folder)
        .with_context(|| format!("write in the directory `{}`", folder.display()))?;
    if let Some(permissions) = permissions {
        let shown = path.display();
        let set = file.as_file().set_permissions(permissions);
        set.with_context(|| format!("set the permissions of `{shown}`"))?;
    }
    let written = write(file.as_file_mut())?;
    file.persist(path).with_context(|| format!("write `{}`", path.display()))?;
    Ok(written)
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
