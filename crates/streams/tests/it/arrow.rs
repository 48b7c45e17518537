//! Record batches: every type comes back equal, and reading copies nothing.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int32Array, Int64Array,
    ListArray, NullArray, RecordBatch, StringArray, StructArray, types::Int32Type,
};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Schema};
use forebay_core::ByteSize;
use forebay_streams::{
    CreateOptions, OpenOptions, Store, StoreConfig,
    arrow::{BatchError, BatchReader, BatchWriter, BlockDecoder},
};

fn store(directory: &tempfile::TempDir) -> Store {
    StoreConfig::new(directory.path().join("store"), ByteSize::mib(65)).open().unwrap()
}

fn batch(rows: usize, seed: u64) -> RecordBatch {
    let mut random = fastrand::Rng::with_seed(seed);
    let floats: Float64Array = (0..rows).map(|_| Some(random.f64())).collect();
    let nulls: Int64Array = (0..rows).map(|_| random.bool().then(|| random.i64(..))).collect();
    let texts: StringArray =
        (0..rows).map(|row| (row % 7 > 0).then(|| "x".repeat(random.usize(..20)))).collect();
    let flags: BooleanArray = (0..rows).map(|_| Some(random.bool())).collect();
    let words = ["red", "green", "blue"];
    let colours: DictionaryArray<Int32Type> =
        (0..rows).map(|_| Some(words[random.usize(..3)])).collect();
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(
        (0..rows)
            .map(|row| (row % 5 > 0).then(|| (0..random.i32(..4)).map(Some).collect::<Vec<_>>())),
    );
    let inner = Int32Array::from_iter_values((0..).take(rows));
    let field = Arc::new(Field::new("inner", DataType::Int32, false));
    let structs = StructArray::from(vec![(field, Arc::new(inner) as ArrayRef)]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("floats", Arc::new(floats)),
        ("nulls", Arc::new(nulls)),
        ("texts", Arc::new(texts)),
        ("flags", Arc::new(flags)),
        ("colours", Arc::new(colours)),
        ("lists", Arc::new(lists)),
        ("structs", Arc::new(structs)),
        ("nothing", Arc::new(NullArray::new(rows))),
    ];
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), true))
        .collect();
    let arrays = columns.into_iter().map(|(_, column)| column).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

#[test]
fn batches_of_every_type_come_back_equal_and_are_views_of_the_slots() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    let batches: Vec<_> =
        [1000, 0, 1, 50_000].into_iter().zip(0..).map(|(n, s)| batch(n, s)).collect();
    let writer = store.create("table", CreateOptions::default()).unwrap();
    let mut writer = BatchWriter::new(writer, batches[0].schema()).unwrap();
    for batch in &batches {
        writer.append(batch).unwrap();
    }
    writer.seal().unwrap();
    for in_flight in [1, 4] {
        let options = OpenOptions { in_flight, ..OpenOptions::default() };
        let reader = BatchReader::new(store.open("table", options).unwrap()).unwrap();
        assert_eq!(reader.schema(), batches[0].schema());
        let memory = store.read_memory();
        let mut found = Vec::new();
        for batch in reader {
            let batch = batch.unwrap();
            let floats = batch.column(0).as_any().downcast_ref::<Float64Array>().unwrap();
            let first = floats.values().as_ptr() as usize;
            assert!(batch.num_rows() == 0 || memory.contains(&first), "a value was copied");
            found.push(batch.clone());
            // Some batches are held for a while.
            if found.len() > 2 {
                assert_eq!(found.remove(0).num_columns(), 8);
            }
        }
    }
    let reader = BatchReader::new(store.open("table", OpenOptions::default()).unwrap()).unwrap();
    let found: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
    assert_eq!(found, batches);
}

/// A batch that is longer than a block is split by rows; the rows come back in order.
#[test]
fn long_batches_are_split_by_rows() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    let rows = 2_000_000_i64;
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let batch = RecordBatch::try_from_iter([("number", numbers)]).unwrap();
    let writer = store.create("long", CreateOptions::default()).unwrap();
    let mut writer = BatchWriter::new(writer, batch.schema()).unwrap();
    writer.append(&batch).unwrap();
    assert!(writer.seal().unwrap().blocks >= 4);
    let mut next = 0;
    for batch in BatchReader::new(store.open("long", OpenOptions::default()).unwrap()).unwrap() {
        let batch = batch.unwrap();
        let numbers = batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap();
        let count = i64::try_from(numbers.len()).unwrap();
        assert!(numbers.values().iter().copied().eq(next..next + count));
        next += count;
    }
    assert_eq!(next, rows);
    assert_eq!(store.facts().outside_slots, ByteSize(0));
}

#[test]
fn another_schema_and_streams_of_bytes_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    let writer = store.create("empty", CreateOptions::default()).unwrap();
    let mut writer = BatchWriter::new(writer, batch(0, 0).schema()).unwrap();
    let other: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let other = RecordBatch::try_from_iter([("other", other)]).unwrap();
    let error = writer.append(&other).unwrap_err();
    assert!(matches!(error, BatchError::Schema { .. }), "{error}");
    writer.seal().unwrap();
    let mut reader =
        BatchReader::new(store.open("empty", OpenOptions::default()).unwrap()).unwrap();
    assert_eq!(reader.schema(), batch(0, 0).schema());
    assert!(reader.next().is_none(), "a schema without batches");
    for (name, bytes) in [("bytes", &b"not arrow at all"[..]), ("none", b"")] {
        let mut writer = store.create(name, CreateOptions::default()).unwrap();
        writer.append(bytes).unwrap();
        writer.seal().unwrap();
        let reader = store.open(name, OpenOptions::default()).unwrap();
        let error = BatchReader::new(reader).unwrap_err();
        assert!(matches!(error, BatchError::NotArrow { block: 0, .. }), "{error}");
    }
}

/// Promise 1: a block with other bytes is refused or read as it is, and never a panic. The blocks
/// of a stream are verified, but a stream of bytes can be opened as Arrow.
#[test]
fn changed_blocks_are_refused_or_valid() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(&directory);
    let writer = store.create("table", CreateOptions::default()).unwrap();
    let mut writer = BatchWriter::new(writer, batch(0, 0).schema()).unwrap();
    writer.append(&batch(20, 1)).unwrap();
    writer.seal().unwrap();
    let block = store.open("table", OpenOptions::default()).unwrap().next().unwrap().unwrap();
    let mut valid = 0;
    for seed in 0..3000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = block.to_vec();
        for _ in 0..random.u32(1..4) {
            let at = random.usize(..bytes.len());
            bytes[at] ^= 1 << random.u8(..8);
        }
        if random.bool() {
            bytes.truncate(random.usize(..bytes.len()));
        }
        let bytes = Buffer::from_slice_ref(&bytes);
        let Some(Ok((mut decoder, batches))) = BlockDecoder::begin(&bytes) else { continue };
        for column in batches.iter().flat_map(RecordBatch::columns) {
            column.to_data().validate_full().unwrap();
        }
        let _ = decoder.decode(&bytes);
        valid += 1;
    }
    assert!(valid > 100, "most changes are in values: {valid}");
}
