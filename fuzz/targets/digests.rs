//! Digest files, which may be untrusted: refused, or read to the last row without a panic.
//!
//! Under `cfg(fuzzing)` the checksum of the metadata is not compared: a fuzzer cannot guess a hash,
//! and the code behind the check must be safe without it.
#![no_main]

use bytes::Bytes;
use forebay_core::{ItemOrdinal, Namespace, dataset::hash_tree::verify_slice};
use forebay_digest::Digest;
use forebay_fuzz::{digest_bytes, seed};
use libfuzzer_sys::fuzz_target;

/// Most rows that are read: a header may state any number.
const ROWS: usize = 64;

fuzz_target!(
    init: {
        seed("plain", &digest_bytes(false, false));
        seed("columns", &digest_bytes(true, false));
        seed("trees", &digest_bytes(false, true));
        seed("columns-trees", &digest_bytes(true, true));
    },
    |data: &[u8]| {
        let Ok(digest) = Digest::open(Bytes::copy_from_slice(data)) else { return };
        for row in digest.blobs().take(ROWS).flatten() {
            let _ = row.parts().take(ROWS).collect::<Vec<_>>();
            let _ = row.items().take(ROWS).collect::<Vec<_>>();
            if let Ok(Some(tree)) = row.tree() {
                let namespace = Namespace::public();
                let _ = verify_slice(&namespace, &row.address, &tree, 0, &data[..data.len() / 2]);
            }
        }
        for item in (0..digest.summary().items).take(ROWS) {
            let _ = digest.item(ItemOrdinal::new(item));
        }
        for (name, _) in digest.columns() {
            let _ = digest.column(name);
        }
        if digest.summary().blobs < 10_000 {
            let _ = forebay_digest::proof_of(&digest, &[7; 32]);
            let _ = digest.check();
        }
    }
);
