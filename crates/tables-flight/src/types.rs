//! The types of columns as they are sent, and batches of a size that is good to send.
//!
//! Views, dictionaries and run-end encodings are sent as plain arrays: not all clients read them, and a batch of views
//! can refer to much more memory than its rows need.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch, RecordBatchOptions,
};
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use forebay_tables::{Code, SqlError};

/// Bytes of the values of a part, unless it is a single row. Clients take messages of 4 MiB by default.
pub(crate) const PART_BYTES_MAX: usize = 2 << 20;

/// Returns the columns as they are sent. All may be null: a plan and its batches do not always agree in that.
pub(crate) fn sent(columns: &Schema) -> SchemaRef {
    let fields = columns.fields().iter();
    let fields = fields.map(|field| sent_field(field).as_ref().clone().with_nullable(true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn sent_field(field: &FieldRef) -> FieldRef {
    let data_type = sent_type(field.data_type());
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

fn sent_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) => sent_type(values),
        DataType::RunEndEncoded(_, values) => sent_type(values.data_type()),
        DataType::List(item) | DataType::ListView(item) => DataType::List(sent_field(item)),
        DataType::LargeList(item) | DataType::LargeListView(item) => {
            DataType::LargeList(sent_field(item))
        }
        DataType::FixedSizeList(item, count) => DataType::FixedSizeList(sent_field(item), *count),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(sent_field).collect()),
        DataType::Map(entries, sorted) => DataType::Map(sent_field(entries), *sorted),
        other => other.clone(),
    }
}

/// Returns rows as `columns` describes them.
///
/// # Errors
/// If the columns are others, as those of a table that changed since they were described.
pub(crate) fn as_sent(rows: &RecordBatch, columns: &SchemaRef) -> Result<RecordBatch, SqlError> {
    let changed = |error: &dyn std::fmt::Display| {
        let message = format!("cached plan must not change result type: {error}");
        SqlError::new(Code::FeatureNotSupported, message)
    };
    if rows.num_columns() != columns.fields().len() {
        return Err(changed(&"the number of columns differs"));
    }
    // A value that does not fit is an error, not null.
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let arrays = rows.columns().iter().zip(columns.fields());
    let arrays = arrays.map(
        |(array, field)| match array.data_type() == field.data_type() {
            true => Ok(Arc::clone(array)),
            false => cast_with_options(array, field.data_type(), &options),
        },
    );
    let arrays: Vec<ArrayRef> = arrays
        .collect::<Result<_, _>>()
        .map_err(|error| changed(&error))?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    let sent = RecordBatch::try_new_with_options(Arc::clone(columns), arrays, &options);
    sent.map_err(|error| changed(&error))
}

/// Adds the rows to `parts` in parts of at most [`PART_BYTES_MAX`], the last part first.
pub(crate) fn divide(rows: RecordBatch, parts: &mut Vec<RecordBatch>) {
    let count = rows.num_rows();
    if count > 1 && bytes(&rows) > PART_BYTES_MAX {
        let half = count / 2;
        divide(rows.slice(half, count - half), parts);
        divide(rows.slice(0, half), parts);
    } else if count > 0 {
        parts.push(rows);
    }
}

/// Returns about the bytes of the rows as they are sent.
pub(crate) fn bytes(rows: &RecordBatch) -> usize {
    rows.columns().iter().map(array_bytes).sum()
}

fn array_bytes(array: &ArrayRef) -> usize {
    let count = array.len();
    match array.data_type() {
        DataType::Utf8View => array.as_string_view().total_bytes_len() + 4 * count,
        DataType::BinaryView => array.as_binary_view().total_bytes_len() + 4 * count,
        DataType::Utf8 => offset_bytes(array.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => offset_bytes(array.as_string::<i64>().value_offsets()),
        DataType::Binary => offset_bytes(array.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => offset_bytes(array.as_binary::<i64>().value_offsets()),
        DataType::FixedSizeBinary(width) => count * usize::try_from(*width).unwrap_or(0),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            item_bytes(list.values(), list.value_offsets())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            item_bytes(list.values(), list.value_offsets())
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let entries: ArrayRef = Arc::new(map.entries().clone());
            item_bytes(&entries, map.value_offsets())
        }
        DataType::FixedSizeList(..) => array_bytes(array.as_fixed_size_list().values()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(array_bytes).sum(),
        DataType::Dictionary(..) => {
            let values = array.as_any_dictionary().values();
            array_bytes(values) / values.len().max(1) * count
        }
        other => count * other.primitive_width().unwrap_or(1),
    }
}

fn offset_bytes<O: OffsetSizeTrait>(offsets: &[O]) -> usize {
    let (first, last) = ends(offsets);
    last - first + size_of_val(offsets)
}

fn item_bytes<O: OffsetSizeTrait>(items: &ArrayRef, offsets: &[O]) -> usize {
    let (first, last) = ends(offsets);
    array_bytes(&items.slice(first, last - first)) + size_of_val(offsets)
}

/// Returns the first and the last offset.
fn ends<O: OffsetSizeTrait>(offsets: &[O]) -> (usize, usize) {
    let end = |offset: Option<&O>| offset.map_or(0, |offset| offset.as_usize());
    (end(offsets.first()), end(offsets.last()))
}

/// Returns a column that may be null.
pub(crate) fn nullable(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{
        DictionaryArray, Int32Array, Int64Array, ListArray, StringViewArray, StructArray,
    };
    use datafusion::arrow::datatypes::{Int32Type, Int64Type};

    fn batch(arrays: Vec<ArrayRef>) -> RecordBatch {
        let arrays = arrays.into_iter().enumerate();
        let columns = arrays.map(|(index, array)| (index.to_string(), array));
        RecordBatch::try_from_iter(columns).expect("columns of the same length")
    }

    #[test]
    fn views_and_dictionaries_are_sent_as_plain_arrays() {
        let views: ArrayRef = Arc::new(StringViewArray::from(vec![
            Some("a long text, not inline"),
            None,
        ]));
        let keys = Int32Array::from(vec![0, 1]);
        let dictionary = DictionaryArray::<Int32Type>::new(keys, Arc::clone(&views));
        let field = Arc::new(nullable("text", DataType::Utf8View));
        let structure = StructArray::from(vec![(field, Arc::clone(&views))]);
        let rows = batch(vec![views, Arc::new(dictionary), Arc::new(structure)]);
        let columns = sent(&rows.schema());
        let types: Vec<String> = columns
            .fields()
            .iter()
            .map(|field| field.data_type().to_string())
            .collect();
        assert_eq!(types[..2], ["Utf8", "Utf8"]);
        assert!(!types[2].contains("View"), "{types:?}");
        let rows = as_sent(&rows, &columns).expect("the same rows");
        let texts = rows.column(1).as_string::<i32>();
        assert!(texts.value(0).starts_with("a long") && texts.is_null(1));
        let fewer = Arc::new(Schema::empty());
        as_sent(&rows, &fewer).expect_err("other columns");
    }

    #[test]
    fn parts_are_small_and_in_order() {
        let long = "x".repeat(PART_BYTES_MAX / 4);
        // One buffer, to which all views refer.
        let one = StringViewArray::from(vec![long.as_str()]);
        let shared =
            DictionaryArray::<Int32Type>::new(Int32Array::from(vec![0; 64]), Arc::new(one));
        let views = datafusion::arrow::compute::cast(&shared, &DataType::Utf8View).expect("views");
        let lists = (0..64).map(|_| Some(vec![Some(1i64); 100]));
        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
        let numbers = Int64Array::from_iter_values(0..64);
        let rows = batch(vec![
            Arc::new(numbers),
            Arc::new(shared),
            views,
            Arc::new(lists),
        ]);
        let mut parts = Vec::new();
        divide(rows, &mut parts);
        assert!(parts.len() >= 32, "{}", parts.len());
        parts.reverse();
        let numbers = parts
            .iter()
            .flat_map(|part| part.column(0).as_primitive::<Int64Type>().values().to_vec());
        assert!(numbers.eq(0..64));
        assert!(parts.iter().all(|part| bytes(part) <= PART_BYTES_MAX));
    }
}
