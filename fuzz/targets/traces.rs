//! Traces of embedding lookups, compressed and plain, in every format.
#![no_main]

use std::path::Path;

use forebay_fuzz::seed;
use forebay_sim::embeddings::{Format, parse_as};
use libfuzzer_sys::fuzz_target;

/// `user,item` and two lines, compressed by gzip, xz, zstd and zip.
const PACKED: [(&str, &[u8]); 4] = [
    (
        "gzip",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x2b\x2d\x4e\x2d\xd2\xc9\x2c\x49\xcd\xe5\
          \x32\xd4\x31\xe2\x32\xd6\x31\xe1\x02\x00\x7b\x64\x24\x83\x12\x00\x00\x00",
    ),
    (
        "xz",
        b"\xfd\x37\x7a\x58\x5a\x00\x00\x01\x69\x22\xde\x36\x02\x00\x21\x01\x16\x00\x00\x00\
          \x74\x2f\xe5\xa3\x01\x00\x11\x75\x73\x65\x72\x2c\x69\x74\x65\x6d\x0a\x31\x2c\x32\
          \x0a\x33\x2c\x34\x0a\x00\x00\x00\x7b\x64\x24\x83\x00\x01\x26\x12\x47\x47\xe1\x10\
          \x90\x42\x99\x0d\x01\x00\x00\x00\x00\x01\x59\x5a",
    ),
    (
        "zstd",
        b"\x28\xb5\x2f\xfd\x00\x58\x91\x00\x00\x75\x73\x65\x72\x2c\x69\x74\x65\x6d\x0a\x31\
          \x2c\x32\x0a\x33\x2c\x34\x0a",
    ),
    (
        "zip",
        b"\x50\x4b\x03\x04\x14\x00\x00\x00\x00\x00\x00\x00\x21\x00\x7b\x64\x24\x83\x12\x00\
          \x00\x00\x12\x00\x00\x00\x05\x00\x00\x00\x74\x2e\x63\x73\x76\x75\x73\x65\x72\x2c\
          \x69\x74\x65\x6d\x0a\x31\x2c\x32\x0a\x33\x2c\x34\x0a\x50\x4b\x01\x02\x14\x03\x14\
          \x00\x00\x00\x00\x00\x00\x00\x21\x00\x7b\x64\x24\x83\x12\x00\x00\x00\x12\x00\x00\
          \x00\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x01\x00\x00\x00\x00\x74\
          \x2e\x63\x73\x76\x50\x4b\x05\x06\x00\x00\x00\x00\x01\x00\x01\x00\x33\x00\x00\x00\
          \x35\x00\x00\x00\x00\x00",
    ),
];

fuzz_target!(
    init: {
        for (at, format) in (0_u8..).zip(Format::ALL) {
            let name = format.name();
            let text: &[u8] = match format {
                Format::Pages => b"12 3 0 0\n7 1 0 0\n",
                Format::MovieLens => b"userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n",
                Format::Numbers32 | Format::Numbers64 => b"12345678abcdefgh",
                _ => b"user,item\n1,Comedy|Drama\n2,NA\n",
            };
            seed(name, &[&[at][..], text].concat());
        }
        for (name, packed) in PACKED {
            seed(name, &[&[0][..], packed].concat());
        }
    },
    |data: &[u8]| {
        let Some((format, packed)) = data.split_first() else { return };
        let format = Format::ALL[usize::from(*format) % Format::ALL.len()];
        if let Ok(trace) = parse_as(Path::new("trace"), packed.to_vec(), format) {
            let keys: usize = trace.requests().map(<[_]>::len).sum();
            assert_eq!(keys, trace.key_count());
        }
    }
);
