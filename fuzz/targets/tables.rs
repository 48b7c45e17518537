//! Headers of embedding table files, which may be untrusted: refused, or a table within its file.
#![no_main]

use forebay_embeddings::format::{Dtype, Layout, Npy, npy, safetensors};
use forebay_fuzz::seed;
use libfuzzer_sys::fuzz_target;

/// Bytes before the header: the format, and the file's length. The length is separate from the
/// header's bytes, so that a header may describe more than the file has.
const PREFIX: usize = 9;

fn checked(layout: &Layout, file: u64) {
    let end = u128::from(layout.offset) + u128::from(layout.rows) * u128::from(layout.row_bytes());
    assert!(end <= u128::from(file), "{layout:?} in {file} bytes");
    assert!(layout.row_bytes() > 0);
}

fn seeded(name: &str, which: u8, file: u64, header: &[u8]) {
    seed(name, &[&[which][..], &file.to_le_bytes(), header].concat());
}

fuzz_target!(
    init: {
        let header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }\n";
        let length = u16::try_from(header.len()).expect("short").to_le_bytes();
        let bytes = [b"\x93NUMPY\x01\x00", &length[..], header].concat();
        seeded("npy", 0, bytes.len() as u64 + 24, &bytes);
        let header = concat!(
            r#"{"__metadata__":{"a":"b"},"#,
            r#""t":{"dtype":"F16","shape":[3,2],"data_offsets":[0,12]}}"#,
        );
        seeded("safetensors", 1, 8 + header.len() as u64 + 12, header.as_bytes());
        seeded("raw", 2, 120, &[0, 3, 0, 0, 0, 0, 0, 0, 0]);
    },
    |data: &[u8]| {
        let Some((prefix, bytes)) = data.split_at_checked(PREFIX) else { return };
        let file = u64::from_le_bytes(prefix[1..].try_into().expect("eight bytes"));
        match prefix[0] % 3 {
            0 => match npy(bytes, file) {
                Ok(Npy::Table(layout)) => checked(&layout, file),
                Ok(Npy::Needs(more)) => assert!(more > bytes.len() && more as u64 <= file),
                Err(error) => assert!(!error.to_string().is_empty()),
            },
            1 => match safetensors(bytes, file) {
                Ok(tensors) => tensors
                    .iter()
                    .filter_map(|tensor| tensor.table.as_ref())
                    .for_each(|layout| checked(layout, file)),
                Err(error) => assert!(!error.to_string().is_empty()),
            },
            _ => {
                let Some((dtype, dimension)) = bytes.split_first() else { return };
                let Some(dimension) = dimension.first_chunk::<8>() else { return };
                let dtype = Dtype::ALL[usize::from(*dtype) % Dtype::ALL.len()];
                let dimension = u64::from_le_bytes(*dimension);
                if let Ok(layout) = Layout::raw(dtype, dimension, 0, file) {
                    checked(&layout, file);
                }
            }
        }
    }
);
