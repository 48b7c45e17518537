//! The jobs. Each reads all rows once per pass, in order.

use clap::ValueEnum;

/// Numbers of a row: a label of -1 or 1, and the features.
pub const COLUMNS: usize = 1 + FEATURES;
const FEATURES: usize = 16;
const CLUSTERS: usize = 4;
/// Step of the gradient descents, and weight of the machine's margin.
const STEP: f64 = 0.5;
const REGULARISATION: f64 = 1e-4;

type Features = [f64; FEATURES];

/// A job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Logistic regression by gradient descent.
    Logistic,
    /// Lloyd's algorithm.
    Kmeans,
    /// A linear support vector machine by subgradient descent.
    Svm,
}

/// The state of a job.
#[derive(Debug)]
pub enum Workload {
    Linear {
        is_svm: bool,
        weights: Box<Features>,
        gradient: Box<Features>,
        loss: f64,
        rows: u64,
    },
    Clusters {
        centres: Vec<Features>,
        sums: Box<[Features; CLUSTERS]>,
        counts: [u64; CLUSTERS],
        loss: f64,
    },
}

impl Workload {
    pub fn new(kind: Kind) -> Self {
        let zero = [0.0; FEATURES];
        match kind {
            Kind::Logistic | Kind::Svm => Self::Linear {
                is_svm: kind == Kind::Svm,
                weights: Box::new(zero),
                gradient: Box::new(zero),
                loss: 0.0,
                rows: 0,
            },
            Kind::Kmeans => Self::Clusters {
                centres: Vec::new(),
                sums: Box::new([zero; CLUSTERS]),
                counts: [0; CLUSTERS],
                loss: 0.0,
            },
        }
    }

    /// Computes on a row.
    pub fn on_row(&mut self, row: &[f64; COLUMNS]) {
        let (label, features) = (row[0], row.last_chunk::<FEATURES>().expect("all but the label"));
        match self {
            Self::Linear { is_svm, weights, gradient, loss, rows } => {
                let margin = label * dot(weights, features);
                let slope = if *is_svm {
                    *loss += (1.0 - margin).max(0.0);
                    if margin < 1.0 { -label } else { 0.0 }
                } else {
                    *loss += (-margin).exp().ln_1p();
                    -label / (1.0 + margin.exp())
                };
                for (sum, feature) in gradient.iter_mut().zip(features) {
                    *sum += slope * feature;
                }
                *rows += 1;
            }
            Self::Clusters { centres, sums, counts, loss } => {
                if centres.len() < CLUSTERS {
                    centres.push(*features);
                }
                let mut nearest = (0, f64::INFINITY);
                for (cluster, centre) in centres.iter().enumerate() {
                    let squares = features.iter().zip(centre).map(|(x, y)| (x - y) * (x - y));
                    let distance: f64 = squares.sum();
                    if distance < nearest.1 {
                        nearest = (cluster, distance);
                    }
                }
                for (sum, feature) in sums[nearest.0].iter_mut().zip(features) {
                    *sum += feature;
                }
                counts[nearest.0] += 1;
                *loss += nearest.1;
            }
        }
    }

    /// Ends a pass. Returns the mean loss of the pass.
    pub fn on_pass(&mut self) -> f64 {
        match self {
            Self::Linear { is_svm, weights, gradient, loss, rows } => {
                let count = (*rows).max(1) as f64;
                let decay = if *is_svm { 1.0 - STEP * REGULARISATION } else { 1.0 };
                for (weight, sum) in weights.iter_mut().zip(*std::mem::take(gradient)) {
                    *weight = decay * *weight - STEP * sum / count;
                }
                *rows = 0;
                std::mem::take(loss) / count
            }
            Self::Clusters { centres, sums, counts, loss } => {
                let rows = counts.iter().sum::<u64>().max(1) as f64;
                let means = (*std::mem::take(sums)).into_iter().zip(std::mem::take(counts));
                for (centre, (sum, count)) in centres.iter_mut().zip(means) {
                    if count > 0 {
                        *centre = sum.map(|sum| sum / count as f64);
                    }
                }
                std::mem::take(loss) / rows
            }
        }
    }
}

fn dot(a: &Features, b: &Features) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}
