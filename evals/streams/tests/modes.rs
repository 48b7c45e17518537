//! The evaluation at a small size, without a memory limit.

use clap::ValueEnum as _;
use forebay_core::ByteSize;
use forebay_evals_streams::{
    data::{self, FLAT_LENGTH, SERIALISED_LENGTH},
    mode::{Mode, Source},
    workload::{Kind, Workload},
};

const BLOCKS: u64 = 3;
const PASSES: usize = 3;

/// The losses of the passes, which depend on the rows and their order.
fn losses(kind: Kind, source: &Source, block_length: usize) -> Vec<f64> {
    let mut workload = Workload::new(kind);
    let pass = |_| {
        let split = source.pass(&mut workload).unwrap();
        assert_eq!(split.bytes, BLOCKS * block_length as u64, "all rows are read");
        workload.on_pass()
    };
    (0..PASSES).map(pass).collect()
}

#[test]
fn every_mode_gives_every_job_the_same_rows() {
    let directory = tempfile::tempdir().unwrap();
    data::write(directory.path(), ByteSize(BLOCKS * FLAT_LENGTH as u64)).unwrap();
    for kind in Kind::value_variants() {
        let mut first: Option<Vec<f64>> = None;
        for mode in Mode::value_variants() {
            let source = Source::open(*mode, directory.path(), ByteSize::mib(48)).unwrap();
            let is_flat = matches!(mode, Mode::Mmap | Mode::Sst);
            let length = if is_flat { FLAT_LENGTH } else { SERIALISED_LENGTH };
            let losses = losses(*kind, &source, length);
            assert!(losses.is_sorted_by(|a, b| a > b), "{kind:?} learns: {losses:?}");
            let first = first.get_or_insert_with(|| losses.clone());
            assert_eq!(*first, losses, "{kind:?} by {mode:?}");
        }
    }
}

#[test]
fn a_truncated_row_is_an_error() {
    assert!(data::decode(&[17, 0, 0, 0, 1, 2, 3]).is_err());
    let rows = data::decode(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(rows, [[0.0]]);
}
