//! Compaction: a slice of an array is written without the bytes that it does not show.
//!
//! The encoder truncates most arrays to their slice. It writes the data buffers of views whole, so
//! that a thousand slices of one array would become a thousand copies of it. Views in structs and
//! lists are compacted too.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, GenericByteViewArray, GenericListArray, OffsetSizeTrait, RecordBatch,
    RecordBatchOptions, StructArray,
    cast::AsArray as _,
    types::{BinaryViewType, ByteViewType, StringViewType},
};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType};

/// The batch, without bytes that no view shows.
pub fn compact(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    if !batch.columns().iter().any(|column| has_views(column.data_type())) {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter().map(compact_array).collect::<Result<_, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns, &options)
}

fn has_views(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View | DataType::BinaryView => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_views(field.data_type())),
        DataType::List(field) | DataType::LargeList(field) => has_views(field.data_type()),
        _ => false,
    }
}

fn compact_array(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if !has_views(array.data_type()) {
        return Ok(Arc::clone(array));
    }
    Ok(match array.data_type() {
        DataType::Utf8View => compact_views(array.as_byte_view::<StringViewType>()),
        DataType::BinaryView => compact_views(array.as_byte_view::<BinaryViewType>()),
        DataType::Struct(_) => {
            let (fields, columns, nulls) = array.as_struct().clone().into_parts();
            let columns = columns.iter().map(compact_array).collect::<Result<_, _>>()?;
            let rows = array.len();
            Arc::new(StructArray::try_new_with_length(fields, columns, nulls, rows)?)
        }
        DataType::List(_) => compact_list(array.as_list::<i32>())?,
        DataType::LargeList(_) => compact_list(array.as_list::<i64>())?,
        _ => unreachable!("no other type has views, see `has_views`"),
    })
}

fn compact_views<T: ByteViewType>(array: &GenericByteViewArray<T>) -> ArrayRef {
    let held: usize = array.data_buffers().iter().map(Buffer::len).sum();
    let is_compact = held <= 2 * array.total_buffer_bytes_used();
    Arc::new(if is_compact { array.clone() } else { array.gc() })
}

fn compact_list<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> Result<ArrayRef, ArrowError> {
    let (field, offsets, values, nulls) = list.clone().into_parts();
    let (start, end) = (offsets[0], offsets[offsets.len() - 1]);
    let values = values.slice(start.as_usize(), (end - start).as_usize());
    let offsets: ScalarBuffer<O> = offsets.iter().map(|offset| *offset - start).collect();
    let values = compact_array(&values)?;
    let list = GenericListArray::try_new(field, OffsetBuffer::new(offsets), values, nulls)?;
    Ok(Arc::new(list))
}
