//! Parameters: record batches of a client to the values of a statement's parameters.

use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::{FlightData, error::FlightError};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{
    DECIMAL_DEFAULT_SCALE, DECIMAL128_MAX_PRECISION, DataType, Schema, SchemaRef,
};
use datafusion::arrow::ipc::root_as_message;
use datafusion::scalar::ScalarValue;
use forebay_tables::{Code, SqlError};
use futures_util::{StreamExt, TryStreamExt, stream};
use tonic::Status;

use crate::error::{malformed, plain, unsupported};

/// Maximum number of rows of parameters of a call.
const ROWS_MAX: usize = 1_000_000;

/// Rows of parameters.
#[derive(Debug)]
pub(crate) struct Parameters {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Parameters {
    /// Decodes the messages of a client; `None` if they have no columns.
    ///
    /// # Errors
    /// If they are malformed, of a type that no parameter has, or too many.
    pub(crate) async fn decode(messages: Vec<FlightData>) -> Result<Option<Parameters>, Status> {
        let messages = messages.into_iter();
        let messages: Vec<_> = messages
            .filter(|data| !data.data_header.is_empty())
            .collect();
        if messages.is_empty() {
            return Ok(None);
        }
        messages.iter().try_for_each(check_plain)?;
        let messages = stream::iter(messages.into_iter().map(Ok::<_, FlightError>));
        let mut decoded = FlightRecordBatchStream::new_from_flight_data(messages);
        let batches: Vec<RecordBatch> = decoded.by_ref().try_collect().await.map_err(malformed)?;
        let Some(schema) = decoded.schema().cloned() else {
            return Err(malformed("parameters without a schema"));
        };
        for field in schema.fields() {
            check_type(field.data_type())?;
        }
        let counts = batches.iter().map(RecordBatch::num_rows);
        if counts.fold(0, usize::saturating_add) > ROWS_MAX {
            let message = format!("more than {ROWS_MAX} rows of parameters");
            return Err(plain(SqlError::new(Code::LimitExceeded, message)));
        }
        let has_columns = !schema.fields().is_empty();
        Ok(has_columns.then_some(Parameters { schema, batches }))
    }

    pub(crate) fn row_count(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Returns the types with which the statement is planned; `None` where the server chooses. A text can be a value of
    /// any type, as in PostgreSQL.
    pub(crate) fn declared(&self) -> Vec<Option<DataType>> {
        declared(&self.schema)
    }

    /// Returns the rows, of which each has a value for each of `types`.
    ///
    /// # Errors
    /// If a row has fewer or more.
    pub(crate) fn rows(
        &self,
        types: &[Option<DataType>],
    ) -> Result<impl Iterator<Item = Result<Vec<ScalarValue>, SqlError>>, SqlError> {
        let (given, wanted) = (self.schema.fields().len(), types.len());
        if given != wanted {
            let message =
                format!("{given} parameters are bound, but the statement requires {wanted}");
            return Err(SqlError::new(Code::ProtocolViolation, message));
        }
        let batches = self.batches.iter();
        let rows = batches.flat_map(|batch| (0..batch.num_rows()).map(move |index| (batch, index)));
        Ok(rows.map(move |(batch, index)| {
            let columns = batch.columns().iter().zip(types);
            let values = columns.map(|(array, wanted)| {
                let value = ScalarValue::try_from_array(array, index)?;
                as_wanted(value, wanted.as_ref())
            });
            values.collect()
        }))
    }
}

fn declared(schema: &Schema) -> Vec<Option<DataType>> {
    let types = schema.fields().iter().map(|field| match field.data_type() {
        DataType::Dictionary(_, values) => (**values).clone(),
        other => other.clone(),
    });
    let declared = types.map(|data_type| match data_type {
        DataType::Null | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => None,
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => Some(DataType::Decimal128(
            DECIMAL128_MAX_PRECISION,
            DECIMAL_DEFAULT_SCALE,
        )),
        other => Some(other),
    });
    declared.collect()
}

/// Casts a value to the type of its parameter. A decimal keeps its digits.
fn as_wanted(value: ScalarValue, wanted: Option<&DataType>) -> Result<ScalarValue, SqlError> {
    let given = value.data_type();
    let keeps = |wanted: &&DataType| {
        **wanted == given || (given.is_decimal() && wanted.is_decimal() && !value.is_null())
    };
    match wanted {
        Some(wanted) if !keeps(&wanted) => Ok(value.cast_to(wanted)?),
        None if given == DataType::Null => Ok(ScalarValue::Utf8(None)),
        _ => Ok(value),
    }
}

/// Refuses compressed messages, which claim how long they are when decompressed.
fn check_plain(data: &FlightData) -> Result<(), Status> {
    let message = root_as_message(&data.data_header).map_err(malformed)?;
    let dictionary = message.header_as_dictionary_batch();
    let batch = message
        .header_as_record_batch()
        .or_else(|| dictionary?.data());
    match batch.and_then(|batch| batch.compression()) {
        Some(_) => Err(unsupported("compression of parameters")),
        None => Ok(()),
    }
}

/// Refuses types that no parameter has, of which some can claim any number of values in few bytes.
fn check_type(data_type: &DataType) -> Result<(), Status> {
    let is_known = match data_type {
        DataType::List(item) | DataType::LargeList(item) => is_plain(item.data_type()),
        DataType::Dictionary(_, values) => is_plain(values),
        other => *other == DataType::Null || is_plain(other),
    };
    match is_known {
        true => Ok(()),
        false => Err(unsupported(&format!("a parameter of type {data_type}"))),
    }
}

fn is_plain(data_type: &DataType) -> bool {
    let is_text = data_type.is_string() || data_type.is_binary();
    is_text || data_type.is_primitive() || *data_type == DataType::Boolean
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow_flight::utils::batches_to_flight_data;
    use datafusion::arrow::array::{
        ArrayRef, Decimal128Array, Int64Array, NullArray, StringArray, StructArray,
    };
    use futures_util::FutureExt;

    fn decoded(arrays: Vec<ArrayRef>) -> Result<Option<Parameters>, Status> {
        let arrays = arrays.into_iter().enumerate();
        let columns = arrays.map(|(index, array)| (index.to_string(), array));
        let batch = RecordBatch::try_from_iter(columns).expect("columns of the same length");
        let messages = batches_to_flight_data(&batch.schema(), vec![batch]).expect("messages");
        let decoded = Parameters::decode(messages).now_or_never();
        decoded.expect("all messages are there")
    }

    #[test]
    fn values_have_the_types_of_their_parameters() {
        let decimal = Decimal128Array::from(vec![Some(1005), None]);
        let decimal = decimal.with_precision_and_scale(4, 3).expect("in range");
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![1, 2])),
            Arc::new(StringArray::from(vec!["2020-01-01", "1999-12-31"])),
            Arc::new(decimal),
            Arc::new(NullArray::new(2)),
        ];
        let parameters = decoded(arrays).expect("well formed").expect("parameters");
        let numeric = DataType::Decimal128(38, 10);
        let declared = parameters.declared();
        assert_eq!(
            declared,
            [Some(DataType::Int64), None, Some(numeric.clone()), None]
        );
        let types = [None, Some(DataType::Date32), Some(numeric), None];
        let rows: Result<Vec<_>, _> = parameters.rows(&types).expect("as many").collect();
        let rows = rows.expect("values");
        assert_eq!(
            rows[0],
            [
                ScalarValue::Int64(Some(1)),
                ScalarValue::Date32(Some(18_262)),
                ScalarValue::Decimal128(Some(1005), 4, 3),
                ScalarValue::Utf8(None),
            ]
        );
        assert_eq!(rows[1][2], ScalarValue::Decimal128(None, 38, 10));
        assert!(parameters.rows(&types[1..]).is_err());
        let wrong = [Some(DataType::Int32), Some(DataType::Int32), None, None];
        let rows: Result<Vec<_>, _> = parameters.rows(&wrong).expect("as many").collect();
        assert_eq!(
            rows.expect_err("no number").code,
            Code::InvalidTextRepresentation
        );
    }

    #[test]
    fn what_is_no_parameter_is_refused() {
        let none = Parameters::decode(Vec::new()).now_or_never();
        assert!(none.expect("at once").expect("nothing").is_none());
        let field = Arc::new(crate::types::nullable("a", DataType::Null));
        let nulls: ArrayRef = Arc::new(NullArray::new(1));
        let structure: ArrayRef = Arc::new(StructArray::from(vec![(field, nulls)]));
        decoded(vec![structure]).expect_err("a structure");
        let many: ArrayRef = Arc::new(NullArray::new(ROWS_MAX + 1));
        decoded(vec![many]).expect_err("too many rows");
        let garbage = FlightData::new().with_data_header(vec![7; 100]);
        let decoded = Parameters::decode(vec![garbage]).now_or_never();
        decoded.expect("at once").expect_err("garbage");
    }
}
