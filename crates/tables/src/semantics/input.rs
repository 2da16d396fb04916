//! Casts of texts to bytes and arrays, which read the texts as PostgreSQL does.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{ArrayRef, AsArray, BinaryArray, ListArray, StringArray};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::ScalarUDF;

use super::arithmetic::each;
use super::native::native;
use crate::bytea::bytea_of_text;
use crate::error::{Code, SqlError};
use crate::rewrite::array_items;

/// Returns the function that reads the texts before a cast; `None` if DataFusion reads them right.
pub(super) fn of_cast(from: &DataType, to: &DataType) -> Option<Arc<ScalarUDF>> {
    static BYTES: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native(
            "bytea",
            1,
            |_| Ok(DataType::Binary),
            |arguments| each(&arguments.args[0], bytes),
        )
    });
    static LISTS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native(
            "array_of_text",
            1,
            |_| Ok(DataType::List(item())),
            |arguments| each(&arguments.args[0], lists),
        )
    });
    if !matches!(
        from,
        DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8
    ) {
        return None;
    }
    match to {
        DataType::Binary | DataType::BinaryView | DataType::LargeBinary => Some(Arc::clone(&BYTES)),
        DataType::List(to) if !to.data_type().is_nested() => Some(Arc::clone(&LISTS)),
        _ => None,
    }
}

fn item() -> Arc<Field> {
    Arc::new(Field::new_list_field(DataType::Utf8, true))
}

fn failed(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn bytes(texts: &ArrayRef) -> Result<ArrayRef> {
    let texts = cast(texts, &DataType::Utf8)?;
    let texts = texts.as_string::<i32>().iter();
    let values = texts.map(|text| text.map(bytea_of_text).transpose().map_err(failed));
    let values: Vec<Option<Vec<u8>>> = values.collect::<Result<_>>()?;
    Ok(Arc::new(BinaryArray::from_iter(values)))
}

fn lists(texts: &ArrayRef) -> Result<ArrayRef> {
    let texts = cast(texts, &DataType::Utf8)?;
    let texts = texts.as_string::<i32>();
    let (mut items, mut lengths) = (Vec::new(), Vec::new());
    for text in texts {
        let found = match text {
            None => Vec::new(),
            Some(text) => array_items(text).ok_or_else(|| malformed(text))?,
        };
        lengths.push(found.len());
        items.extend(found);
    }
    let values: ArrayRef = Arc::new(StringArray::from(items));
    let nulls = NullBuffer::from_iter(texts.iter().map(|text| text.is_some()));
    let offsets = OffsetBuffer::from_lengths(lengths);
    let list = ListArray::try_new(item(), offsets, values, Some(nulls))?;
    Ok(Arc::new(list))
}

fn malformed(text: &str) -> DataFusionError {
    let message = format!("malformed array literal: \"{text}\"");
    failed(SqlError::new(Code::InvalidTextRepresentation, message))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::Array;

    use super::*;

    #[test]
    fn texts_become_lists() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![
            Some("{a,\"b,c\",NULL}"),
            None,
            Some("{}"),
        ]));
        let found = lists(&texts).expect("arrays");
        let lists = found.as_list::<i32>();
        assert_eq!(lists.value_length(0), 3);
        assert_eq!(lists.value(0).as_string::<i32>().value(1), "b,c");
        assert!(lists.value(0).is_null(2) && lists.is_null(1));
        assert_eq!(lists.value_length(2), 0);
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["{a"]));
        super::lists(&texts).expect_err("malformed");
    }
}
