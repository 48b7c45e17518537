//! The dataset of the demonstration: made on the spot, the same bytes every time.

use std::{fs, path::Path};

use anyhow::ensure;
use forebay_core::ByteSize;

/// As photographs are, prepared for training.
const LENGTHS: std::ops::Range<u64> = 50_000..150_000;
const SEED: u64 = 20;

/// What was made.
pub struct Made {
    pub objects: u64,
    pub bytes: u64,
}

/// Files of varying length in ten classes.
pub fn make(root: &Path, size: ByteSize) -> anyhow::Result<Made> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut made = Made { objects: 0, bytes: 0 };
    let mut content = Vec::new();
    while made.bytes < size.0 {
        let class = root.join(format!("class {}", made.objects % 10));
        if made.objects < 10 {
            fs::create_dir_all(&class)?;
        }
        let length = random.u64(LENGTHS);
        content.resize(usize::try_from(length)?, 0);
        random.fill(&mut content);
        fs::write(class.join(format!("item {:06}.bin", made.objects)), &content)?;
        made.objects += 1;
        made.bytes += length;
    }
    ensure!(made.objects > 0, "a dataset of nothing shows nothing; try --size 64MiB");
    Ok(made)
}
