//! The item map of a dataset, for Python; and which items a part or an epoch has.

use std::sync::Arc;

use forebay_client::{self as client, ItemMapError};
use forebay_core::{
    HalfChunk,
    train::sampler::{self, Ending, EpochPlan, GlobalOrder, SelectionError},
};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::{digest::Digest, errors::DigestError as Damaged};

/// The blob and the half-chunk of every item.
#[pyclass(frozen, module = "forebay._native")]
pub struct ItemMap(pub Arc<client::ItemMap>);

#[pymethods]
impl ItemMap {
    /// `identity` is the dataset id in states of an epoch; by default, that of the digest.
    #[new]
    #[pyo3(signature = (digest, identity = None))]
    fn new(py: Python<'_>, digest: &Digest, identity: Option<&str>) -> PyResult<Self> {
        let id = match identity {
            None => digest.digest.summary().dataset,
            Some(id) => id.parse().map_err(|error| PyValueError::new_err(format!("{error}")))?,
        };
        made(py.detach(|| client::ItemMap::identified(&digest.digest, id)))
    }

    /// A part of the dataset: item `i` of it is item `items[i]` here.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn part(&self, py: Python<'_>, items: PyReadonlyArray1<'_, u32>) -> PyResult<Self> {
        let items = items.as_slice()?;
        made(py.detach(|| self.0.part(items)))
    }

    /// The map of an epoch in which items occur by weight.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn weighted(
        &self,
        py: Python<'_>,
        weights: PyReadonlyArray1<'_, f64>,
        seed: u64,
        epoch: u64,
    ) -> PyResult<Self> {
        let weights = weights.as_slice()?;
        made(py.detach(|| self.0.weighted(weights, seed, epoch)))
    }

    /// The same dataset with the length of each item, for batches of like length.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn with_lengths(&self, lengths: Vec<f64>) -> PyResult<Self> {
        let items = self.0.with_lengths(&lengths);
        let items = items.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self(items.into()))
    }

    /// Share of the dataset's bytes in these half-chunks.
    fn share(&self, half_chunks: Vec<u32>) -> f64 {
        let half_chunks: Vec<HalfChunk> = half_chunks.into_iter().map(HalfChunk).collect();
        self.0.share(&half_chunks)
    }
}

/// Ascending items of each part of a random split.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
pub fn split(
    py: Python<'_>,
    items: u32,
    fractions: Vec<f64>,
    seed: u64,
) -> PyResult<Vec<Bound<'_, PyArray1<u32>>>> {
    let parts = py.detach(|| sampler::split(items, &fractions, seed)).map_err(refused)?;
    Ok(parts.into_iter().map(|part| PyArray1::from_vec(py, part)).collect())
}

/// One rank's items of an epoch whose order does not depend on ranks, after the first `start`. With
/// weights, items occur by weight.
#[pyfunction]
#[pyo3(signature = (items, seed, epoch, batch, rank, world, drop_last, start, weights = None))]
#[expect(clippy::too_many_arguments, reason = "Python names them")]
#[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
pub fn global_share<'py>(
    py: Python<'py>,
    items: u32,
    seed: u64,
    epoch: u64,
    batch: u32,
    rank: u32,
    world: u32,
    drop_last: bool,
    start: u64,
    weights: Option<PyReadonlyArray1<'_, f64>>,
) -> PyResult<Bound<'py, PyArray1<u32>>> {
    let weights = weights.as_ref().map(PyReadonlyArray1::as_slice).transpose()?;
    let ending = if drop_last { Ending::DropLast } else { Ending::Pad };
    let plan = EpochPlan { ending, ..EpochPlan::new(seed, epoch, batch).on(rank, world) };
    let share = py.detach(|| -> PyResult<Vec<u32>> {
        let order = match weights {
            None => GlobalOrder::new(0..items, seed, epoch),
            Some(weights) if weights.len() != items as usize => {
                let given = weights.len();
                return Err(refused(SelectionError::Weights { given, items: items.into() }));
            }
            Some(weights) => {
                let counts = sampler::weighted_counts(weights, items, seed, epoch);
                let occurrences = (0_u32..).zip(counts.map_err(refused)?);
                let all =
                    occurrences.flat_map(|(item, count)| std::iter::repeat_n(item, count as usize));
                GlobalOrder::new(all, seed, epoch)
            }
        };
        order.share(&plan, start).map_err(|error| PyValueError::new_err(error.to_string()))
    })?;
    Ok(PyArray1::from_vec(py, share))
}

fn made(items: Result<client::ItemMap, ItemMapError>) -> PyResult<ItemMap> {
    items.map(|items| ItemMap(items.into())).map_err(|error| match error {
        ItemMapError::Digest(error) => {
            Damaged::new_err(format!("this is {error}; build the digest again"))
        }
        other => PyValueError::new_err(other.to_string()),
    })
}

#[expect(clippy::needless_pass_by_value, reason = "a function for `map_err`")]
fn refused(error: SelectionError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
