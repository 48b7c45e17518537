//! Blocks of record batches: refused, or decoded to batches of the block's schema, which can be
//! validated and written again.
#![no_main]

use std::sync::Arc;

use arrow_array::{Array as _, ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_buffer::Buffer;
use arrow_ipc::{
    MetadataVersion,
    writer::{IpcWriteOptions, StreamEncoder},
};
use forebay_fuzz::seed;
use forebay_streams::arrow::BlockDecoder;
use libfuzzer_sys::fuzz_target;

/// A block with the schema and this batch, as a writer of batches makes it.
fn block(batch: &RecordBatch) -> Option<Vec<u8>> {
    let options = IpcWriteOptions::try_new(64, false, MetadataVersion::V5).ok()?;
    let mut encoder = StreamEncoder::try_new_with_options(batch.schema_ref(), options).ok()?;
    Some(encoder.encode(batch).ok()?.iter().flat_map(|buffer| buffer.to_vec()).collect())
}

/// The bytes at a multiple of 64, as in a reader's slot.
fn aligned(bytes: &[u8]) -> Buffer {
    Buffer::from_slice_ref(bytes)
}

fuzz_target!(
    init: {
        // The decoder contains panics of the library, at which the usual hook would end the run. A
        // panic that it does not contain ends the run all the same.
        std::panic::set_hook(Box::new(|_| {}));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "", "ccc"]));
        let batch = RecordBatch::try_from_iter([("number", numbers), ("text", texts)]);
        seed("batch", &block(&batch.expect("a batch")).expect("a block"));
        seed("bytes", b"not arrow at all");
    },
    |data: &[u8]| {
        let data = aligned(data);
        let Some(Ok((mut decoder, batches))) = BlockDecoder::begin(&data) else { return };
        for batch in &batches {
            assert_eq!(batch.schema(), decoder.schema());
            for column in batch.columns() {
                column.to_data().validate_full().expect("what is handed out is valid");
            }
            let _ = block(batch);
        }
        let _ = decoder.decode(&data);
    }
);
