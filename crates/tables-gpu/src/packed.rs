//! Columns as kernels read them: numbers of as few bits as the chunk needs, above a reference.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, PrimitiveArray, StringArray,
};
use datafusion::arrow::compute::{cast, concat};
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, DurationMicrosecondType,
    DurationMillisecondType, DurationNanosecondType, DurationSecondType, Float32Type, Float64Type,
    Int8Type, Int16Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use datafusion::error::Result;

use crate::floats::{self, encode, float_of, ordered};
use crate::texts::{Dictionary, Seen, TextsMax};

/// Maximum number of rows of a chunk.
pub(crate) const CHUNK_ROWS: usize = 1 << 18;
/// Maximum bytes of the texts of all rows of a chunk.
const TEXT_BYTES_OF_CHUNK_MAX: usize = 256 << 20;
/// Maximum bytes of a text that is searched on a device. The host would search longer ones.
const SEARCHED_BYTES_MAX: usize = 4096;
/// Rows of a tile: kernels read all rows of the last one, and ignore those that a chunk does not have.
pub(crate) const TILE_ROWS: usize = 2048;
/// Threads of a warp.
const LANES: usize = 32;
/// Rows that a thread reads at once. Row `i` of a thread is `i` times 32 rows behind its first.
const ROWS_OF_LANE: usize = 8;
/// Numbers have a multiple of this many bits, so that those of a thread are whole words.
pub(crate) const WIDTH_UNIT: u32 = 4;

/// Why a column cannot be packed.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Unpackable {
    #[error("columns of type {0} are not kept on GPUs")]
    Type(DataType),
    #[error("numbers of more than 64 bits")]
    Wide,
    #[error("more than {0}")]
    Texts(TextsMax),
    #[error("more than {} MiB of texts in {CHUNK_ROWS} rows", TEXT_BYTES_OF_CHUNK_MAX >> 20)]
    LongTexts,
    #[error("{0}")]
    NoMemory(String),
    #[error("the load has ended")]
    Ended,
    #[error("a text of more than {SEARCHED_BYTES_MAX} bytes")]
    LongText,
}

/// Returns whether values of a type can be packed.
pub(crate) fn is_packable(data_type: &DataType) -> bool {
    is_number(data_type) || is_text(data_type)
}

/// Returns whether values of a type are numbers for kernels.
pub(crate) fn is_number(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Boolean
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::UInt8
            | DataType::UInt16
            | DataType::UInt32
            | DataType::UInt64
            | DataType::Float32
            | DataType::Float64
            | DataType::Date32
            | DataType::Timestamp(..)
            | DataType::Duration(_)
            | DataType::Decimal128(..)
    )
}

/// Returns whether values of a type are packed as the numbers of the texts of their file.
pub(crate) fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
    )
}

/// The rows of one column that are packed next.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    numbers: Vec<i64>,
    valid: Vec<bool>,
    has_nulls: bool,
    /// Whether the numbers are those of floats, and whether these have 32 bits.
    are_floats: Option<bool>,
    seen: Seen,
    /// The texts of the rows, whose numbers are those of the rows.
    of_rows: Vec<StringArray>,
}

/// Packed rows of one column.
#[derive(Debug, PartialEq)]
pub(crate) struct Packed {
    /// The numbers, and the bits that tell which rows have a value, if some have none.
    ///
    /// 256 rows are a group. Each of the 32 threads that read it has eight rows, 32 rows apart, whose bits follow each
    /// other in `width / 4` words; these are 32 words apart, so that the threads of a warp read words that follow each
    /// other.
    pub(crate) words: Vec<u32>,
    /// Index of the first word of these bits.
    pub(crate) valid: Option<usize>,
    /// Number of rows.
    pub(crate) rows: usize,
    /// Smallest and largest value; `None` if all are NULL. Of floats, the integers that order as they do.
    pub(crate) range: Option<(i64, i64)>,
    /// What is added to a packed number.
    pub(crate) reference: i64,
    /// Of floats, the exponent of the power of ten that divides numbers, or [`floats::BITS`]; 0 of others.
    pub(crate) exponent: u32,
    /// Bits of a number, a multiple of four.
    pub(crate) width: u32,
    /// The texts of the rows, if the numbers are those of the rows, from 0 on.
    pub(crate) texts: Option<StringArray>,
}

/// What the chunks of a column share while they are packed.
#[derive(Debug, Default)]
pub(crate) struct Packing {
    /// The most bits that a number needed so far.
    width: AtomicU32,
    /// The largest exponent that floats needed so far.
    exponent: AtomicU32,
}

impl Packer {
    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.numbers.len()
    }

    /// Appends values. Texts get numbers; one without a number gets the next.
    ///
    /// # Errors
    /// If a value cannot be packed.
    pub(crate) fn push(&mut self, values: &ArrayRef, texts: &Dictionary) -> Result<(), Unpackable> {
        let data_type = values.data_type();
        if is_text(data_type) {
            return self.push_texts(values, texts);
        }
        match data_type {
            DataType::Boolean => self.push_booleans(values.as_boolean()),
            DataType::Int8 => self.push_numbers::<Int8Type>(values),
            DataType::Int16 => self.push_numbers::<Int16Type>(values),
            DataType::Int32 => self.push_numbers::<Int32Type>(values),
            DataType::Int64 => self.push_numbers::<Int64Type>(values),
            DataType::UInt8 => self.push_numbers::<UInt8Type>(values),
            DataType::UInt16 => self.push_numbers::<UInt16Type>(values),
            DataType::UInt32 => self.push_numbers::<UInt32Type>(values),
            DataType::UInt64 => {
                for value in values.as_primitive::<UInt64Type>() {
                    let number = value.map(i64::try_from).transpose();
                    self.push_one(number.map_err(|_| Unpackable::Wide)?);
                }
            }
            DataType::Float32 => self.push_floats::<Float32Type>(values, true),
            DataType::Float64 => self.push_floats::<Float64Type>(values, false),
            DataType::Date32 => self.push_numbers::<Date32Type>(values),
            DataType::Timestamp(TimeUnit::Second, _) => {
                self.push_numbers::<TimestampSecondType>(values);
            }
            DataType::Timestamp(TimeUnit::Millisecond, _) => {
                self.push_numbers::<TimestampMillisecondType>(values);
            }
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                self.push_numbers::<TimestampMicrosecondType>(values);
            }
            DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                self.push_numbers::<TimestampNanosecondType>(values);
            }
            DataType::Duration(unit) => match unit {
                TimeUnit::Second => self.push_numbers::<DurationSecondType>(values),
                TimeUnit::Millisecond => self.push_numbers::<DurationMillisecondType>(values),
                TimeUnit::Microsecond => self.push_numbers::<DurationMicrosecondType>(values),
                TimeUnit::Nanosecond => self.push_numbers::<DurationNanosecondType>(values),
            },
            DataType::Decimal128(..) => {
                let values: &PrimitiveArray<Decimal128Type> = values.as_primitive();
                for value in values {
                    let number = value.map(i64::try_from).transpose();
                    self.push_one(number.map_err(|_| Unpackable::Wide)?);
                }
            }
            other => return Err(Unpackable::Type(other.clone())),
        }
        Ok(())
    }

    fn push_one(&mut self, value: Option<i64>) {
        self.numbers.push(value.unwrap_or_default());
        self.valid.push(value.is_some());
        self.has_nulls |= value.is_none();
    }

    fn push_booleans(&mut self, values: &BooleanArray) {
        for value in values {
            self.push_one(value.map(i64::from));
        }
    }

    fn push_numbers<T: ArrowPrimitiveType<Native: Into<i64>>>(&mut self, values: &ArrayRef) {
        let values = values.as_primitive::<T>();
        if values.null_count() > 0 {
            for value in values {
                self.push_one(value.map(Into::into));
            }
            return;
        }
        let numbers = values.values().iter().map(|value| (*value).into());
        self.numbers.extend(numbers);
        self.valid.resize(self.numbers.len(), true);
    }

    fn push_floats<T: ArrowPrimitiveType<Native: Into<f64>>>(
        &mut self,
        values: &ArrayRef,
        are_single: bool,
    ) {
        self.are_floats = Some(are_single);
        for value in values.as_primitive::<T>() {
            self.push_one(value.map(|it| ordered(it.into())));
        }
    }

    fn push_texts(&mut self, values: &ArrayRef, texts: &Dictionary) -> Result<(), Unpackable> {
        let unpackable = |_| Unpackable::Type(values.data_type().clone());
        let views = cast(values, &DataType::Utf8View).map_err(unpackable)?;
        let mut seen = std::mem::take(&mut self.seen);
        for number in seen.numbers(&views, texts)? {
            self.push_one(number.map(i64::from));
        }
        self.seen = seen;
        Ok(())
    }

    /// Appends texts. The number of each is that of its row. Returns their bytes.
    ///
    /// # Errors
    /// If they are no texts, or are too many bytes.
    pub(crate) fn push_rows(&mut self, values: &ArrayRef) -> Result<usize, Unpackable> {
        let unpackable = |_| Unpackable::Type(values.data_type().clone());
        let texts = cast(values, &DataType::Utf8).map_err(unpackable)?;
        let texts = texts.as_string::<i32>();
        let held: usize = self.of_rows.iter().map(|it| it.value_data().len()).sum();
        let first = self.numbers.len() as i64;
        self.numbers.extend(first..first + texts.len() as i64);
        self.valid.resize(self.numbers.len(), true);
        if held + texts.value_data().len() > TEXT_BYTES_OF_CHUNK_MAX {
            return Err(Unpackable::LongTexts);
        }
        self.of_rows.push(texts.clone());
        Ok(texts.value_data().len() + size_of_val(&**texts.offsets()))
    }

    /// Returns the texts so far, and forgets them.
    ///
    /// # Errors
    /// If one is too long to be searched on a device.
    pub(crate) fn take_texts(&mut self) -> Result<StringArray, Unpackable> {
        let of_rows = std::mem::take(self).of_rows;
        let of_rows: Vec<&dyn Array> = of_rows.iter().map(|it| it as _).collect();
        // Fewer bytes than offsets can tell.
        let texts = concat(&of_rows).map_err(|_| Unpackable::LongTexts)?;
        let texts = texts.as_string::<i32>();
        match texts.offsets().lengths().all(|it| it <= SEARCHED_BYTES_MAX) {
            true => Ok(texts.clone()),
            false => Err(Unpackable::LongText),
        }
    }

    /// Packs the rows so far, and forgets them. Numbers have at least as many bits as those of chunks before, and
    /// floats their exponent: chunks that are alike are read faster.
    pub(crate) fn pack(&mut self, packing: &Packing) -> Packed {
        let mut numbers = std::mem::take(&mut self.numbers);
        let valid = std::mem::take(&mut self.valid);
        let has_nulls = std::mem::take(&mut self.has_nulls);
        let of_rows = std::mem::take(&mut self.of_rows);
        let of_rows: Vec<&dyn Array> = of_rows.iter().map(|it| it as _).collect();
        // Fewer bytes than offsets can tell.
        let texts = concat(&of_rows).ok().map(|it| it.as_string().clone());
        let range = range_of(&numbers, &valid);
        let exponent = self.are_floats.map_or(0, |are_single| {
            let first = packing.exponent.load(Ordering::Relaxed);
            let exponent = encode(&mut numbers, &valid, first, are_single);
            if exponent != floats::BITS {
                packing.exponent.fetch_max(exponent, Ordering::Relaxed);
            }
            exponent
        });
        let packed_range = match self.are_floats {
            Some(_) => range_of(&numbers, &valid),
            None => range,
        };
        let (min, max) = packed_range.unwrap_or((0, 0));
        let needed = u64::BITS - max.wrapping_sub(min).cast_unsigned().leading_zeros();
        let needed = needed.next_multiple_of(WIDTH_UNIT);
        let width = needed.max(packing.width.fetch_max(needed, Ordering::Relaxed));
        let mut words = packed(&numbers, min, width, &valid);
        let valid = has_nulls.then(|| {
            let first = words.len();
            words.extend(valid.chunks(32).map(|bits| {
                let bits = bits.iter().enumerate();
                bits.fold(0, |word, (bit, valid)| word | u32::from(*valid) << bit)
            }));
            words.resize(first + words_of(valid.len(), width).1, 0);
            first
        });
        Packed {
            words,
            valid,
            rows: numbers.len(),
            range,
            reference: min,
            exponent,
            width,
            texts,
        }
    }
}

/// Returns the smallest and the largest of the numbers that are valid.
fn range_of(numbers: &[i64], valid: &[bool]) -> Option<(i64, i64)> {
    let values = numbers.iter().zip(valid);
    let present = values.filter_map(|(number, valid)| valid.then_some(*number));
    present.fold(None, |range: Option<(i64, i64)>, value| {
        let (min, max) = range.unwrap_or((value, value));
        Some((min.min(value), max.max(value)))
    })
}

/// Returns the number of words of packed numbers, and of the bits that tell which rows have a value.
pub(crate) fn words_of(rows: usize, width: u32) -> (usize, usize) {
    let rows = rows.next_multiple_of(TILE_ROWS);
    (rows / 32 * width as usize, rows / 32)
}

/// Returns numbers above a reference as packed words, as [`Packed::words`] tells.
fn packed(numbers: &[i64], reference: i64, width: u32, valid: &[bool]) -> Vec<u32> {
    let group_rows = LANES * ROWS_OF_LANE;
    let words_of_lane = (width / WIDTH_UNIT) as usize;
    let mut words = vec![0; words_of(numbers.len(), width).0];
    let above: Vec<u64> = numbers
        .iter()
        .zip(valid)
        .map(|(number, valid)| match valid {
            true => number.wrapping_sub(reference).cast_unsigned(),
            false => 0,
        })
        .collect();
    let of_group = above.chunks(group_rows);
    for (above, words) in of_group.zip(words.chunks_mut((words_of_lane * LANES).max(1))) {
        for lane in 0..LANES.min(above.len()) {
            let (mut bits, mut held, mut word) = (0_u128, 0, lane);
            for number in above[lane..].iter().step_by(LANES) {
                bits |= u128::from(*number) << held;
                held += width;
                while held >= 32 {
                    words[word] = bits as u32;
                    bits >>= 32;
                    held -= 32;
                    word += LANES;
                }
            }
            // Rows behind the last are left out.
            if held > 0 {
                words[word] = bits as u32;
            }
        }
    }
    words
}

/// Returns numbers as an array of a type that [`is_number`]; floats of the integers that order as they do.
///
/// # Errors
/// If a number is no value of the type.
pub(crate) fn array_of(numbers: Vec<Option<i64>>, data_type: &DataType) -> Result<ArrayRef> {
    let array: ArrayRef = match data_type {
        DataType::Boolean => {
            let values = numbers.into_iter().map(|it| it.map(|it| it != 0));
            Arc::new(values.collect::<BooleanArray>())
        }
        DataType::Decimal128(precision, scale) => {
            let values = numbers.into_iter().map(|it| it.map(i128::from));
            let values: PrimitiveArray<Decimal128Type> = values.collect();
            Arc::new(values.with_precision_and_scale(*precision, *scale)?)
        }
        DataType::Float32 | DataType::Float64 => {
            let floats = numbers.into_iter().map(|it| it.map(float_of));
            Arc::new(floats.collect::<PrimitiveArray<Float64Type>>())
        }
        DataType::Date32 => {
            let days: PrimitiveArray<Int32Type> = numbers
                .into_iter()
                .map(|it| it.and_then(|it| i32::try_from(it).ok()))
                .collect();
            Arc::new(days.reinterpret_cast::<Date32Type>())
        }
        _ => Arc::new(PrimitiveArray::<Int64Type>::from(numbers)),
    };
    Ok(cast(&array, data_type)?)
}

/// Returns integers divided by a power of ten as an array of a type of floats.
///
/// # Errors
/// If the type is another.
pub(crate) fn decimals_of(
    numbers: Vec<Option<i64>>,
    exponent: u32,
    data_type: &DataType,
) -> Result<ArrayRef> {
    let floats = numbers.into_iter();
    let floats = floats.map(|it| it.map(|it| ordered(floats::decimal(it, exponent))));
    array_of(floats.collect(), data_type)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::compute::take;

    use super::*;

    /// Reads a row as kernels do.
    fn read(packed: &Packed, row: usize) -> Option<i64> {
        if let Some(first) = packed.valid
            && packed.words[first + row / 32] >> (row % 32) & 1 == 0
        {
            return None;
        }
        let (width, group) = (packed.width as usize, row / 256);
        let bit = row % 256 / LANES * width;
        let first = group * width * 8 + bit / 32 * LANES + row % LANES;
        let word = |index: usize| packed.words.get(first + index * LANES).copied();
        let word = |index| u128::from(word(index).unwrap_or_default());
        let bits = word(0) | word(1) << 32 | word(2) << 64;
        let mask = (1_u128 << width) - 1;
        let above = (bits >> (bit % 32) & mask) as u64;
        Some(packed.reference.wrapping_add(above.cast_signed()))
    }

    fn round_trip(values: &[Option<i64>], width: u32) {
        let array: ArrayRef = Arc::new(PrimitiveArray::<Int64Type>::from(values.to_vec()));
        let mut packer = Packer::default();
        packer
            .push(&array, &Dictionary::default())
            .expect("numbers");
        let packed = packer.pack(&Packing::default());
        let width = width.next_multiple_of(WIDTH_UNIT);
        assert_eq!((packed.width, packed.rows), (width, values.len()));
        let read: Vec<_> = (0..values.len()).map(|row| read(&packed, row)).collect();
        assert_eq!(read, values);
        assert_eq!(packer.rows(), 0);
    }

    #[test]
    fn numbers_of_every_width_are_read_as_they_were() {
        let mut random = fastrand::Rng::with_seed(1);
        for width in 0..=64 {
            let max = u64::MAX.checked_shr(64 - width).unwrap_or(0);
            for rows in [1, 31, 32, 33, 257, 2049] {
                let mut numbers: Vec<_> = (0..rows).map(|_| random.u64(..) & max).collect();
                numbers[0] = 0;
                let top = numbers.len() - 1;
                numbers[top] = max;
                let numbers = numbers.iter().map(|it| i64::MIN.wrapping_add_unsigned(*it));
                let mut values: Vec<_> = numbers.map(Some).collect();
                round_trip(&values, if rows == 1 { 0 } else { width });
                if rows > 2 {
                    values[1] = None;
                    round_trip(&values, width);
                }
            }
        }
        round_trip(&[None, None], 0);
        round_trip(&[Some(i64::MIN), Some(i64::MAX)], 64);
    }

    #[test]
    fn chunks_have_at_least_the_bits_of_the_first() {
        let packing = Packing::default();
        let bits = |numbers: Vec<i64>| {
            let array: ArrayRef = Arc::new(PrimitiveArray::<Int64Type>::from(numbers));
            let mut packer = Packer::default();
            packer
                .push(&array, &Dictionary::default())
                .expect("numbers");
            let packed = packer.pack(&packing);
            (packed.width, read(&packed, 0), read(&packed, 1))
        };
        assert_eq!(bits(vec![5, 100]), (8, Some(5), Some(100)));
        assert_eq!(bits(vec![5, 6]), (8, Some(5), Some(6)));
        assert_eq!(bits(vec![5, 1005]), (12, Some(5), Some(1005)));
    }

    /// The bits that tell which rows of a slice have a value may begin within a byte, and so may booleans.
    #[test]
    fn slices_are_packed_as_copies_of_their_rows() {
        let some = |row: i64| (row % 7 != 3).then_some(row);
        let values = || (0..90).map(some);
        let texts = values().map(|it| it.map(|row| format!("text {}", row % 9)));
        let arrays: [ArrayRef; 6] = [
            Arc::new(values().collect::<PrimitiveArray<Int64Type>>()),
            Arc::new(PrimitiveArray::<Int32Type>::from_iter_values(0..90)),
            Arc::new(
                values()
                    .map(|it| it.map(|row| row % 5 == 0))
                    .collect::<BooleanArray>(),
            ),
            Arc::new(
                values()
                    .map(|it| it.map(|row| row as f64 / 4.0))
                    .collect::<PrimitiveArray<Float64Type>>(),
            ),
            Arc::new(
                values()
                    .map(|it| it.map(i128::from))
                    .collect::<PrimitiveArray<Decimal128Type>>(),
            ),
            Arc::new(texts.collect::<StringArray>()),
        ];
        let packed = |values: &ArrayRef, are_rows: bool| {
            let mut packer = Packer::default();
            let pushed = match are_rows {
                true => packer.push_rows(values).map(drop),
                false => packer.push(values, &Dictionary::default()),
            };
            pushed.expect("values");
            packer.pack(&Packing::default())
        };
        for array in &arrays {
            for (first, rows) in [(0, 90), (3, 40), (8, 33), (13, 77), (67, 1)] {
                let slice = array.slice(first, rows);
                let numbers = first as u64..(first + rows) as u64;
                let numbers = PrimitiveArray::<UInt64Type>::from_iter_values(numbers);
                let copy = take(array, &numbers, None).expect("rows");
                for are_rows in [false, is_text(array.data_type())] {
                    let of_slice = packed(&slice, are_rows);
                    let data_type = array.data_type();
                    assert_eq!(of_slice, packed(&copy, are_rows), "{data_type} {first}");
                }
            }
        }
        let slice = packed(&arrays[0].slice(13, 40), false);
        let read: Vec<_> = (0..40).map(|row| read(&slice, row)).collect();
        assert_eq!(read, (13..53).map(some).collect::<Vec<_>>());
    }

    #[test]
    fn texts_have_the_numbers_of_their_first_rows() {
        let texts = Dictionary::default();
        let mut packer = Packer::default();
        let rows = [Some("b"), Some("a"), None, Some("b"), Some("")];
        let array: ArrayRef = Arc::new(StringArray::from(rows.to_vec()));
        packer.push(&array, &texts).expect("few texts");
        let packed = packer.pack(&Packing::default());
        let read: Vec<_> = (0..rows.len()).map(|row| read(&packed, row)).collect();
        assert_eq!(read, [Some(0), Some(1), None, Some(0), Some(2)]);
        let texts = texts.take_texts().expect("few buffers");
        let known = texts.array().expect("few buffers");
        let known: Vec<_> = known.iter().collect();
        assert_eq!(known, [None, Some("b"), Some("a"), Some("")]);
    }

    #[test]
    fn what_cannot_be_packed_is_told() {
        let push = |array: ArrayRef| Packer::default().push(&array, &Dictionary::default());
        let wide = PrimitiveArray::<Decimal128Type>::from(vec![i128::from(i64::MAX) + 1]);
        assert_eq!(push(Arc::new(wide)), Err(Unpackable::Wide));
        let many = (0..=TextsMax::FEW.count).map(|number| Some(number.to_string()));
        let many: StringArray = many.collect();
        assert_eq!(push(Arc::new(many)), Err(Unpackable::Texts(TextsMax::FEW)));
        let many = (0..=TextsMax::MANY.count).map(|number| Some(number.to_string()));
        let many: ArrayRef = Arc::new(many.collect::<StringArray>());
        let texts = Dictionary::new(TextsMax::MANY, 2, None);
        let pushed = Packer::default().push(&many.slice(1, TextsMax::MANY.count), &texts);
        assert_eq!(pushed, Ok(()));
        let pushed = Packer::default().push(&many, &texts);
        assert_eq!(pushed, Err(Unpackable::Texts(TextsMax::MANY)));
        let bytes = datafusion::arrow::array::BinaryArray::from(vec![&b"x"[..]]);
        assert_eq!(
            push(Arc::new(bytes)),
            Err(Unpackable::Type(DataType::Binary))
        );
    }
}
