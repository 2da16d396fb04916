//! Bytes of values.

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::ColumnarValue;

/// Bytes that an item of another type counts.
const ITEM_BYTES: usize = 16;

/// Returns about the bytes of the columns of a batch.
pub(crate) fn batch_bytes(batch: &RecordBatch) -> usize {
    let columns = batch.columns().iter();
    columns.fold(0, |sum, column| sum.saturating_add(array_bytes(column)))
}

/// Returns about the bytes of an array's values. A part of an array counts its own values alone.
pub(crate) fn array_bytes(array: &dyn Array) -> usize {
    let own = match array.data_type() {
        DataType::Utf8 => span(array.as_string::<i32>().value_offsets()).1,
        DataType::LargeUtf8 => span(array.as_string::<i64>().value_offsets()).1,
        DataType::Binary => span(array.as_binary::<i32>().value_offsets()).1,
        DataType::LargeBinary => span(array.as_binary::<i64>().value_offsets()).1,
        DataType::Utf8View => array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => array.as_binary_view().total_buffer_bytes_used(),
        DataType::Struct(_) => {
            let columns = array.as_struct().columns().iter();
            columns.map(|column| array_bytes(column)).sum()
        }
        other => match other.primitive_width() {
            Some(bytes) => return bytes * array.len(),
            None => items(array).map_or(0, |items| array_bytes(&*items)),
        },
    };
    own.saturating_add(array.len() * ITEM_BYTES)
}

/// Returns the number of values in the lists of an array, those of lists in lists included; that of rows if it has no
/// lists.
pub(crate) fn leaves(array: &dyn Array) -> usize {
    items(array).map_or(array.len(), |items| leaves(&*items))
}

/// Returns the items of all lists of an array; `None` if it has no lists.
fn items(array: &dyn Array) -> Option<std::sync::Arc<dyn Array>> {
    let (values, (from, count)) = match array.data_type() {
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            (lists.values(), span(lists.value_offsets()))
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            (lists.values(), span(lists.value_offsets()))
        }
        DataType::FixedSizeList(..) => {
            let values = array.as_fixed_size_list().values();
            (values, (0, values.len()))
        }
        DataType::Map(..) => {
            let maps = array.as_map();
            let (from, count) = span(maps.value_offsets());
            return Some(std::sync::Arc::new(maps.entries().slice(from, count)));
        }
        _ => return None,
    };
    Some(values.slice(from, count))
}

/// Returns where offsets begin, and how many items they span.
fn span<O: Copy + TryInto<usize>>(offsets: &[O]) -> (usize, usize) {
    let at = |offset: Option<&O>| offset.and_then(|offset| (*offset).try_into().ok());
    let from: usize = at(offsets.first()).unwrap_or(0);
    (from, at(offsets.last()).unwrap_or(from) - from)
}

/// Returns the bytes of an argument in all of `rows` together.
pub(crate) fn value_bytes(value: &ColumnarValue, rows: usize) -> usize {
    match value {
        ColumnarValue::Array(array) => array_bytes(array),
        ColumnarValue::Scalar(value) => value.size().saturating_mul(rows),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int64Array, ListArray, StringArray, StringViewArray};
    use datafusion::arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn parts_count_their_own_values() {
        let long = "x".repeat(1_000);
        let texts: [ArrayRef; 2] = [
            Arc::new(StringArray::from(vec![&*long, "a", &long])),
            Arc::new(StringViewArray::from(vec![&*long, "a", &long])),
        ];
        for texts in texts {
            assert!((2_000..2_100).contains(&array_bytes(&texts)));
            assert!(array_bytes(&texts.slice(1, 1)) < 100);
        }
        assert_eq!(array_bytes(&Int64Array::from(vec![1, 2, 3])), 24);
    }

    #[test]
    fn lists_count_their_items() {
        let list = |count| Some(vec![Some(7); count]);
        let rows = [list(1_000), None, list(2), list(0)];
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(rows);
        assert_eq!(leaves(&lists), 1_002);
        assert_eq!(leaves(&lists.slice(1, 3)), 2);
        assert_eq!(array_bytes(&lists.slice(1, 3)), 8 + 3 * ITEM_BYTES);
    }
}
