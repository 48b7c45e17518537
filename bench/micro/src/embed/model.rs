//! A synthetic recommendation model: its embedding tables and the keys of its requests.
//!
//! 26 tables with the proportions of Criteo's and rows of 36 numbers. Keys follow Zipf's law.
//! Popular rows are scattered over their table, as hashed ids are, so reading whole pages does not
//! help.

use std::{
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
};

use forebay_embeddings::{Bags, Source};

/// Numbers in a row.
pub const DIMENSION: usize = 36;
/// Bytes of a row.
pub const ROW_BYTES: usize = 4 * DIMENSION;

/// Rows of Criteo's tables.
const CARDINALITIES: [u64; 26] = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194, 27,
    14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];

/// Embedding tables.
pub struct Model {
    pub rows: Vec<u64>,
}

impl Model {
    /// Tables with about `rows` rows together.
    pub fn new(rows: u64) -> Self {
        let all: u64 = CARDINALITIES.iter().sum();
        let scaled =
            |table: &u64| u64::try_from(u128::from(*table) * u128::from(rows) / u128::from(all));
        let scaled = CARDINALITIES.iter().map(|table| scaled(table).expect("smaller").max(3));
        Self { rows: scaled.collect() }
    }

    pub fn bytes(&self) -> u64 {
        self.rows.iter().sum::<u64>() * ROW_BYTES as u64
    }

    /// Writes all tables into one file and drops it from the page cache. Cached pages would stay,
    /// whatever the memory limit of a later reader.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut at = 0;
        let entries = self.rows.iter().enumerate().map(|(table, rows)| {
            let start = at;
            at += rows * ROW_BYTES as u64;
            let shape = format!("[{rows},{DIMENSION}]");
            let tensor = r#""dtype":"F32","shape""#;
            format!(r#""C{}":{{{tensor}:{shape},"data_offsets":[{start},{at}]}}"#, table + 1)
        });
        let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        let mut random = fastrand::Rng::with_seed(1);
        let mut row = [0.0_f32; DIMENSION];
        for _ in 0..self.rows.iter().sum::<u64>() {
            row.fill_with(|| random.f32());
            file.write_all(row.map(f32::to_le_bytes).as_flattened())?;
        }
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
    }

    pub fn sources(&self, path: &Path) -> Vec<Source> {
        (1..=self.rows.len()).map(|table| Source::file(path).tensor(format!("C{table}"))).collect()
    }

    /// One key per table and sample.
    pub fn draw(&self, samples: usize, random: &mut fastrand::Rng) -> Vec<Vec<i64>> {
        let keys = |rows: &u64| (0..samples).map(|_| zipf(*rows, random)).collect();
        self.rows.iter().map(keys).collect()
    }
}

/// Keys in the form that lookups take.
pub fn bags(keys: &[Vec<i64>]) -> Vec<Bags<'_>> {
    keys.iter().map(|keys| Bags::single(keys)).collect()
}

/// A row number by Zipf's law: the ranks are scattered over the rows.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank below the rows"
)]
fn zipf(rows: u64, random: &mut fastrand::Rng) -> i64 {
    let rank = (random.f64() * (rows as f64).ln()).exp() as u64 - 1;
    let scattered = u128::from(rank) * 0x9e37_79b9_7f4a_7c15 % u128::from(rows);
    i64::try_from(scattered).expect("below the rows")
}
