//! The values of a column, with the Arrow type resolved once.

use std::ops::Range;

use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::array::types::*;
use datafusion::arrow::array::{
    AnyDictionaryArray, Array, ArrayRef, ArrowPrimitiveType, AsArray, BinaryArray, BinaryViewArray,
    FixedSizeBinaryArray, LargeBinaryArray, LargeStringArray, OffsetSizeTrait, StringArray,
    StringViewArray, UInt64Array,
};
use datafusion::arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use datafusion::arrow::compute::take;
use datafusion::arrow::datatypes::{
    ArrowNativeType, DataType, IntervalMonthDayNano, IntervalUnit, TimeUnit, i256,
};
use forebay_tables::{Code, SqlError};

use super::calendar::micros_of;
use super::nested::{List, Map, Record, Union};

/// A column: values, and which of them are null.
#[derive(Debug)]
pub(super) struct Column {
    /// The values.
    pub(super) values: Values,
    nulls: Option<NullBuffer>,
}

/// The values of a column.
///
/// Small integers are widened to the type that clients see. The value of a null row is never read.
#[derive(Debug)]
pub(super) enum Values {
    /// Nulls alone.
    Null,
    Boolean(BooleanBuffer),
    Int16(ScalarBuffer<i16>),
    Int32(ScalarBuffer<i32>),
    Int64(ScalarBuffer<i64>),
    UInt64(ScalarBuffer<u64>),
    Float32(ScalarBuffer<f32>),
    Float64(ScalarBuffer<f64>),
    /// Unscaled integers, and the scale.
    Decimal(ScalarBuffer<i128>, i8),
    /// Unscaled integers, and the scale.
    WideDecimal(ScalarBuffer<i256>, i8),
    Text(StringArray),
    LargeText(LargeStringArray),
    TextView(StringViewArray),
    Bytes(BinaryArray),
    LargeBytes(LargeBinaryArray),
    BytesView(BinaryViewArray),
    FixedBytes(FixedSizeBinaryArray),
    /// Days since 1970.
    Date(ScalarBuffer<i32>),
    /// Milliseconds since 1970.
    DateMillis(ScalarBuffer<i64>),
    Time(Ticks),
    Timestamp(Ticks),
    /// Times in UTC, and the time zone of texts.
    TimestampTz(Ticks, Tz),
    Interval(ScalarBuffer<IntervalMonthDayNano>),
    Duration(Ticks),
    List(Box<List>),
    Record(Record),
    Map(Box<Map>),
    Union(Union),
    /// The row of each value in another column: a dictionary or runs.
    Indexed(Vec<usize>, Box<Column>),
}

/// Counts of a unit of time.
#[derive(Debug)]
pub(super) struct Ticks {
    counts: ScalarBuffer<i64>,
    unit: TimeUnit,
}

impl Ticks {
    /// Returns the microseconds of a row.
    ///
    /// # Errors
    /// If 64 bits do not hold them.
    pub(super) fn micros(&self, row: usize) -> Result<i64, SqlError> {
        micros_of(self.counts[row], self.unit).ok_or_else(|| out_of_range("time"))
    }
}

/// Returns the error of a value that PostgreSQL's type `name` cannot hold.
pub(super) fn out_of_range(name: &str) -> SqlError {
    SqlError::new(Code::NumericValueOutOfRange, format!("{name} out of range"))
}

impl Column {
    /// Resolves the type of `array`. Times with a time zone are printed in `zone`.
    ///
    /// Cost: constant for most types; linear for small integers, dictionaries and nested types.
    pub(super) fn new(array: &dyn Array, zone: Tz) -> Result<Column, SqlError> {
        Ok(Column {
            nulls: array.logical_nulls().filter(|nulls| nulls.null_count() > 0),
            values: Values::new(array, zone)?,
        })
    }

    /// Returns whether the value of a row is null.
    pub(super) fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }
}

impl Values {
    fn new(array: &dyn Array, zone: Tz) -> Result<Values, SqlError> {
        Ok(match array.data_type() {
            DataType::Null => Values::Null,
            DataType::Boolean => Values::Boolean(array.as_boolean().values().clone()),
            DataType::Int8 => Values::Int16(widened::<Int8Type, _>(array)),
            DataType::Int16 => Values::Int16(buffer::<Int16Type>(array)),
            DataType::Int32 => Values::Int32(buffer::<Int32Type>(array)),
            DataType::Int64 => Values::Int64(buffer::<Int64Type>(array)),
            DataType::UInt8 => Values::Int16(widened::<UInt8Type, _>(array)),
            DataType::UInt16 => Values::Int32(widened::<UInt16Type, _>(array)),
            DataType::UInt32 => Values::Int64(widened::<UInt32Type, _>(array)),
            DataType::UInt64 => Values::UInt64(buffer::<UInt64Type>(array)),
            DataType::Float16 => Values::Float32(widened::<Float16Type, _>(array)),
            DataType::Float32 => Values::Float32(buffer::<Float32Type>(array)),
            DataType::Float64 => Values::Float64(buffer::<Float64Type>(array)),
            DataType::Utf8 => Values::Text(array.as_string().clone()),
            DataType::LargeUtf8 => Values::LargeText(array.as_string().clone()),
            DataType::Utf8View => Values::TextView(array.as_string_view().clone()),
            DataType::Binary => Values::Bytes(array.as_binary().clone()),
            DataType::LargeBinary => Values::LargeBytes(array.as_binary().clone()),
            DataType::BinaryView => Values::BytesView(array.as_binary_view().clone()),
            DataType::FixedSizeBinary(_) => {
                Values::FixedBytes(array.as_fixed_size_binary().clone())
            }
            DataType::Dictionary(..) => dictionary(array.as_any_dictionary(), zone)?,
            DataType::RunEndEncoded(ends, _) => runs(array, ends.data_type(), zone)?,
            other if other.is_nested() => nested(array, zone)?,
            _ => decimal_or_temporal(array, zone)?,
        })
    }
}

/// Returns the values of a primitive array.
fn buffer<T: ArrowPrimitiveType>(array: &dyn Array) -> ScalarBuffer<T::Native> {
    array.as_primitive::<T>().values().clone()
}

/// Returns the values of a primitive array as a wider type.
fn widened<T, N>(array: &dyn Array) -> ScalarBuffer<N>
where
    T: ArrowPrimitiveType,
    N: ArrowNativeType + From<T::Native>,
{
    let values = array.as_primitive::<T>().values();
    values.iter().map(|value| N::from(*value)).collect()
}

fn decimal_or_temporal(array: &dyn Array, zone: Tz) -> Result<Values, SqlError> {
    Ok(match array.data_type() {
        DataType::Decimal32(_, scale) => {
            Values::Decimal(widened::<Decimal32Type, _>(array), *scale)
        }
        DataType::Decimal64(_, scale) => {
            Values::Decimal(widened::<Decimal64Type, _>(array), *scale)
        }
        DataType::Decimal128(_, scale) => Values::Decimal(buffer::<Decimal128Type>(array), *scale),
        DataType::Decimal256(_, scale) => {
            Values::WideDecimal(buffer::<Decimal256Type>(array), *scale)
        }
        DataType::Date32 => Values::Date(buffer::<Date32Type>(array)),
        DataType::Date64 => Values::DateMillis(buffer::<Date64Type>(array)),
        DataType::Time32(unit) | DataType::Time64(unit) => Values::Time(times(array, *unit)),
        DataType::Timestamp(unit, None) => Values::Timestamp(timestamps(array, *unit)),
        DataType::Timestamp(unit, Some(_)) => Values::TimestampTz(timestamps(array, *unit), zone),
        DataType::Duration(unit) => Values::Duration(durations(array, *unit)),
        DataType::Interval(unit) => Values::Interval(intervals(array, *unit)),
        other => return Err(SqlError::unsupported(format!("a result of type {other}"))),
    })
}

fn times(array: &dyn Array, unit: TimeUnit) -> Ticks {
    let counts = match unit {
        TimeUnit::Second => widened::<Time32SecondType, _>(array),
        TimeUnit::Millisecond => widened::<Time32MillisecondType, _>(array),
        TimeUnit::Microsecond => buffer::<Time64MicrosecondType>(array),
        TimeUnit::Nanosecond => buffer::<Time64NanosecondType>(array),
    };
    Ticks { counts, unit }
}

fn timestamps(array: &dyn Array, unit: TimeUnit) -> Ticks {
    let counts = match unit {
        TimeUnit::Second => buffer::<TimestampSecondType>(array),
        TimeUnit::Millisecond => buffer::<TimestampMillisecondType>(array),
        TimeUnit::Microsecond => buffer::<TimestampMicrosecondType>(array),
        TimeUnit::Nanosecond => buffer::<TimestampNanosecondType>(array),
    };
    Ticks { counts, unit }
}

fn durations(array: &dyn Array, unit: TimeUnit) -> Ticks {
    let counts = match unit {
        TimeUnit::Second => buffer::<DurationSecondType>(array),
        TimeUnit::Millisecond => buffer::<DurationMillisecondType>(array),
        TimeUnit::Microsecond => buffer::<DurationMicrosecondType>(array),
        TimeUnit::Nanosecond => buffer::<DurationNanosecondType>(array),
    };
    Ticks { counts, unit }
}

/// Returns intervals of any unit as the widest one.
fn intervals(array: &dyn Array, unit: IntervalUnit) -> ScalarBuffer<IntervalMonthDayNano> {
    let wide = IntervalMonthDayNano::new;
    match unit {
        IntervalUnit::MonthDayNano => buffer::<IntervalMonthDayNanoType>(array),
        IntervalUnit::YearMonth => {
            let months = buffer::<IntervalYearMonthType>(array);
            months.iter().map(|months| wide(*months, 0, 0)).collect()
        }
        IntervalUnit::DayTime => {
            let values = buffer::<IntervalDayTimeType>(array);
            let nanos = |millis: i32| i64::from(millis) * 1_000_000;
            let values = values.iter();
            values
                .map(|value| wide(0, value.days, nanos(value.milliseconds)))
                .collect()
        }
    }
}

fn dictionary(array: &dyn AnyDictionaryArray, zone: Tz) -> Result<Values, SqlError> {
    match array.values().is_empty() {
        true => Ok(Values::Null),
        false => indexed(array.normalized_keys(), array.values(), zone),
    }
}

fn runs(array: &dyn Array, ends: &DataType, zone: Tz) -> Result<Values, SqlError> {
    let rows: Vec<u64> = (0..array.len()).map(u64::usize_as).collect();
    let indices = match ends {
        DataType::Int16 => array.as_run::<Int16Type>().get_physical_indices(&rows),
        DataType::Int32 => array.as_run::<Int32Type>().get_physical_indices(&rows),
        _ => array.as_run::<Int64Type>().get_physical_indices(&rows),
    };
    let indices = indices.map_err(|error| SqlError::new(Code::InternalError, error.to_string()))?;
    indexed(indices, array.as_any_ree().values(), zone)
}

/// Returns the values at `indices`. Nested values are copied, as lists look at the values of their elements.
fn indexed(indices: Vec<usize>, values: &ArrayRef, zone: Tz) -> Result<Values, SqlError> {
    if !values.data_type().is_nested() {
        return Ok(Values::Indexed(
            indices,
            Box::new(Column::new(values, zone)?),
        ));
    }
    let indices = indices.into_iter().map(u64::usize_as);
    let taken = take(values, &UInt64Array::from_iter_values(indices), None);
    let taken = taken.map_err(|error| SqlError::new(Code::InternalError, error.to_string()))?;
    Values::new(&taken, zone)
}

fn nested(array: &dyn Array, zone: Tz) -> Result<Values, SqlError> {
    let element = |values: &ArrayRef| Column::new(values, zone);
    let list = |rows, values: &ArrayRef| {
        Ok::<_, SqlError>(List::of_rows(rows, element(values)?, values.data_type()))
    };
    Ok(match array.data_type() {
        DataType::List(_) => list(offset_rows::<i32>(array), array.as_list::<i32>().values())?,
        DataType::LargeList(_) => list(offset_rows::<i64>(array), array.as_list::<i64>().values())?,
        DataType::ListView(_) => list(
            view_rows::<i32>(array),
            array.as_list_view::<i32>().values(),
        )?,
        DataType::LargeListView(_) => list(
            view_rows::<i64>(array),
            array.as_list_view::<i64>().values(),
        )?,
        DataType::FixedSizeList(_, size) => {
            let rows = fixed_rows(size.as_usize(), array.len());
            list(rows, array.as_fixed_size_list().values())?
        }
        DataType::Struct(fields) => Values::Record(Record::new(fields, array.as_struct(), zone)?),
        DataType::Map(..) => Values::Map(Box::new(Map::new(array.as_map(), zone)?)),
        _ => Values::Union(Union::new(array.as_union(), zone)?),
    })
}

/// Returns the elements of each row between two offsets.
pub(super) fn ranges<O: OffsetSizeTrait>(offsets: &[O]) -> Vec<Range<usize>> {
    let range = |pair: &[O]| pair[0].as_usize()..pair[1].as_usize();
    offsets.windows(2).map(range).collect()
}

fn offset_rows<O: OffsetSizeTrait>(array: &dyn Array) -> Vec<Range<usize>> {
    ranges(array.as_list::<O>().value_offsets())
}

fn view_rows<O: OffsetSizeTrait>(array: &dyn Array) -> Vec<Range<usize>> {
    let array = array.as_list_view::<O>();
    let starts = array.value_offsets().iter().map(|start| start.as_usize());
    let sizes = array.value_sizes().iter().map(|size| size.as_usize());
    starts
        .zip(sizes)
        .map(|(start, size)| start..start + size)
        .collect()
}

fn fixed_rows(size: usize, count: usize) -> Vec<Range<usize>> {
    (0..count).map(|row| row * size..(row + 1) * size).collect()
}
