//! The synthetic dataset of the demo, with the same bytes in every run.

use std::{fs, path::Path};

use anyhow::ensure;
use forebay_core::ByteSize;

/// Lengths of items, typical of photographs for training.
const LENGTHS: std::ops::Range<u64> = 50_000..150_000;
const SEED: u64 = 20;

/// A dataset that was written.
pub struct Written {
    pub objects: u64,
    pub bytes: u64,
}

/// Writes files of varying length in ten classes.
pub fn write(root: &Path, size: ByteSize) -> anyhow::Result<Written> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut written = Written { objects: 0, bytes: 0 };
    let mut content = Vec::new();
    while written.bytes < size.0 {
        let class = root.join(format!("class {}", written.objects % 10));
        if written.objects < 10 {
            fs::create_dir_all(&class)?;
        }
        let length = random.u64(LENGTHS);
        content.resize(usize::try_from(length)?, 0);
        random.fill(&mut content);
        fs::write(class.join(format!("item {:06}.bin", written.objects)), &content)?;
        written.objects += 1;
        written.bytes += length;
    }
    ensure!(written.objects > 0, "--size is 0B; try --size 64MiB");
    Ok(written)
}
