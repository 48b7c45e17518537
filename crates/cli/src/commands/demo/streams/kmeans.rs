//! k-means: a few iterations of Lloyd's algorithm over points that are read once per pass.

use std::path::Path;

use anyhow::Context as _;

/// Numbers of a point.
const DIMENSIONS: usize = 16;
/// Bytes of a point: numbers of 4 bytes, lowest byte first.
const POINT: usize = 4 * DIMENSIONS;
/// Clusters that are looked for, and that the points have.
const CLUSTERS: usize = 4;
const SEED: u64 = 11;

type Point = [f32; DIMENSIONS];

/// The state between two passes.
#[derive(Debug, Default)]
pub struct KMeans {
    centres: Vec<Point>,
    sums: [[f64; DIMENSIONS]; CLUSTERS],
    counts: [u64; CLUSTERS],
    /// Sum of the squared distances to the nearest centre.
    distances: f64,
}

impl KMeans {
    /// Assigns the points of a block to their nearest centres. The first points are the first
    /// centres.
    pub fn on_block(&mut self, block: &[u8]) {
        for bytes in block.as_chunks::<POINT>().0 {
            let point = decode(bytes);
            if self.centres.len() < CLUSTERS {
                self.centres.push(point);
            }
            let mut nearest = (0, f32::INFINITY);
            for (cluster, centre) in self.centres.iter().enumerate() {
                let squares = point.iter().zip(centre).map(|(x, y)| (x - y) * (x - y));
                let distance: f32 = squares.sum();
                if distance < nearest.1 {
                    nearest = (cluster, distance);
                }
            }
            for (sum, x) in self.sums[nearest.0].iter_mut().zip(point) {
                *sum += f64::from(x);
            }
            self.counts[nearest.0] += 1;
            self.distances += f64::from(nearest.1);
        }
    }

    /// Moves the centres to the means of their points. Returns the mean squared distance.
    pub fn on_pass(&mut self) -> f64 {
        let points = self.counts.iter().sum::<u64>().max(1) as f64;
        let distance = self.distances / points;
        for ((centre, sum), count) in self.centres.iter_mut().zip(self.sums).zip(self.counts) {
            if count > 0 {
                #[expect(clippy::cast_possible_truncation, reason = "points have this precision")]
                let mean = sum.map(|sum| (sum / count as f64) as f32);
                *centre = mean;
            }
        }
        *self = Self { centres: std::mem::take(&mut self.centres), ..Self::default() };
        distance
    }
}

fn decode(bytes: &[u8; POINT]) -> Point {
    let mut point = [0.0; DIMENSIONS];
    for (x, bytes) in point.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *x = f32::from_le_bytes(*bytes);
    }
    point
}

/// Blocks of random points around their clusters, the same in every run.
pub fn blocks(length: usize, count: u64) -> impl Iterator<Item = Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let centres: Vec<Point> =
        (0..CLUSTERS).map(|_| std::array::from_fn(|_| 8.0 * random.f32())).collect();
    (0..count).map(move |_| {
        let mut block = Vec::with_capacity(length);
        while block.len() + POINT <= length {
            let centre = centres[random.usize(..CLUSTERS)];
            for x in centre {
                // The sum of three is near to a normal distribution, and cheap.
                let noise = random.f32() + random.f32() + random.f32() - 1.5;
                block.extend((x + noise).to_le_bytes());
            }
        }
        block
    })
}

/// Writes blocks to a file, and makes them durable.
pub fn write(
    path: &Path,
    blocks: impl Iterator<Item = anyhow::Result<Vec<u8>>>,
) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).context("cannot write the points")?;
    for block in blocks {
        file.write_all(&block?).context("cannot write the points")?;
    }
    // Pages that are not written yet cannot be dropped from the page cache.
    file.sync_all().context("cannot write the points")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn centres_come_nearer_to_their_points_and_depend_on_nothing_else() {
        let run = |length: usize, count| {
            let mut kmeans = KMeans::default();
            let mut distances = Vec::new();
            for _ in 0..4 {
                blocks(length, count).for_each(|block| kmeans.on_block(&block));
                distances.push(kmeans.on_pass());
            }
            distances
        };
        let distances = run(64 << 10, 4);
        assert!(distances.is_sorted_by(|a, b| a >= b) && distances[3] < distances[0]);
        // How the points are cut into blocks does not matter.
        assert_eq!(distances, run(32 << 10, 8));
    }
}
