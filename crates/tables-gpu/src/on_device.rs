//! Groups as columns on the device: what another fragment reads without a way over the host.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type, Schema};
use forebay_device::cuda::Program;

use crate::arguments::CONSTANTS_MAX;
use crate::column::Chunk;
use crate::columns::{Columns, Resident};
use crate::engine::{KernelLaunch, Launch, Memory};
use crate::floats::is_float;
use crate::fragment::Fragment;
use crate::giving_way::Need;
use crate::groups::{Groups, Values};
use crate::launches::InMemory;
use crate::packed::{TILE_ROWS, is_number, is_text};
use crate::program::{Compiled, Output, Total};
use crate::ranks::Selected;
use crate::reason::Reason;
use crate::texts::Texts;

type Result<T> = std::result::Result<T, Reason>;

/// A column of groups in generated code.
struct Code {
    /// The number of the group's value, of 64 bits.
    value: String,
    /// Whether it is not NULL; `None` if it never is.
    valid: Option<String>,
    min: i128,
    max: i128,
    texts: Arc<Texts>,
}

/// Where a column is.
struct Placed {
    /// Index of its first word, and of the first with bits that tell which groups have a value.
    first: usize,
    valid: Option<usize>,
    /// Bits of a number: 32 or 64.
    width: u32,
    range: (i64, i64),
    texts: Arc<Texts>,
}

/// The kernel that writes groups as columns.
pub(crate) struct ToColumns {
    kernel: KernelLaunch,
    placed: Vec<Placed>,
    rows: usize,
    /// Number of words of all columns.
    words: usize,
}

/// Columns that the kernel writes.
pub(crate) struct Written {
    memory: Memory,
    placed: Vec<Placed>,
    rows: usize,
}

/// Constants and tables of the kernel while its code is written.
struct Parameters {
    constants: Vec<i128>,
    tables: Vec<u32>,
}

impl Parameters {
    /// Adds a number. Returns its code.
    fn constant(&mut self, number: i128) -> String {
        self.constants.push(number);
        format!("f.constants[{}]", 2 * (self.constants.len() - 1))
    }
}

impl ToColumns {
    /// Writes the kernel for these columns of the result of a fragment, over the groups that are selected.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn new(
        (fragment, compiled, groups): (&Fragment, &Compiled, &Groups),
        (schema, wanted): (&Schema, &[usize]),
        (selected, totals): (Selected, &InMemory),
    ) -> Result<ToColumns> {
        let mut with = Parameters {
            constants: compiled.selecting.constants(selected),
            tables: Vec::new(),
        };
        let rows = selected.count as usize;
        let padded = rows.next_multiple_of(TILE_ROWS);
        let (mut placed, mut words, mut writes) = (Vec::new(), 0, String::new());
        for column in wanted {
            let data_type = schema.field(*column).data_type();
            let code = code((fragment, compiled, groups), *column, data_type, &mut with)?;
            let range = (i64::try_from(code.min), i64::try_from(code.max));
            let (Ok(min), Ok(max)) = range else {
                return Err(Reason::new("numbers of more than 64 bits"));
            };
            let width = match max.wrapping_sub(min).cast_unsigned() {
                0..=0xFFFF_FFFF => 32,
                _ => 64,
            };
            let first = words;
            words += padded / 32 * width as usize;
            let valid = code.valid.as_ref().map(|_| words);
            words += valid.map_or(0, |_| padded / 32);
            let at = with.constant(first as i128);
            let bits = with.constant(valid.unwrap_or(0) as i128);
            let minimum = with.constant(min.into());
            let is_valid = code.valid.as_deref().unwrap_or("true");
            let _ = writeln!(
                writes,
                "put<{width}, {}>(f, to, {at}, {bits}, {is_valid}, static_cast<u64>({}) - {minimum});",
                code.valid.is_some(),
                code.value
            );
            placed.push(Placed {
                first,
                valid,
                width,
                range: (min, max),
                texts: code.texts,
            });
        }
        if with.constants.len() > CONSTANTS_MAX {
            return Err(Reason::new("many columns of groups that are grouped again"));
        }
        let spec = compiled.selecting.writing_as(&writes);
        let kernel = KernelLaunch {
            groups: groups.count as u32,
            totals: Some(totals.address),
            own_keys: totals.keys,
            own_slice: totals.slice,
            are_groups_read: true,
            shared_bytes: 16,
            tables: with.tables,
            ..KernelLaunch::new(Program::new(spec), with.constants)
        };
        Ok(ToColumns {
            kernel,
            placed,
            rows,
            words,
        })
    }

    /// Returns the bytes of the columns.
    pub(crate) fn bytes(&self) -> u64 {
        4 * self.words as u64
    }

    /// Returns the launch that writes the columns to memory of their bytes, and where they are.
    pub(crate) fn launch(
        self,
        totals: &InMemory,
        memory: &Memory,
        waits: bool,
    ) -> (Launch, Written) {
        let bytes = self.bytes();
        let kernel = KernelLaunch {
            own_words: vec![memory.address],
            ..self.kernel
        };
        let launch = Launch {
            kernels: vec![kernel],
            zeroed: Some((memory.clone(), bytes)),
            results_bytes: 8,
            memory: vec![totals.memory.clone(), memory.clone()],
            ..Launch::new(waits)
        };
        let written = Written {
            memory: memory.clone(),
            placed: self.placed,
            rows: self.rows,
        };
        (launch, written)
    }
}

impl Written {
    /// Returns the columns in the memory that the kernel has written, by their index in the result.
    ///
    /// # Errors
    /// If there is no room for what tells where they are.
    pub(crate) async fn resident(
        self,
        wanted: &[usize],
        (columns, used): (&Columns, u64),
    ) -> Result<Resident> {
        let mut all = HashMap::new();
        for (index, placed) in wanted.iter().zip(self.placed) {
            let chunk = Chunk::at(
                self.memory.at_word(placed.first),
                self.rows as u32,
                placed.valid.map(|first| self.memory.at_word(first)),
                (placed.range, placed.width),
            );
            // There is no chunk without rows.
            let chunks = (self.rows > 0).then_some(chunk).into_iter().collect();
            let column = columns
                .column(chunks, placed.texts, Need::Query(used))
                .await?;
            all.insert(*index, Arc::new(column));
        }
        Ok(Resident { files: vec![all] })
    }
}

/// Returns the code of a column of the result of a fragment.
fn code(
    (fragment, compiled, groups): (&Fragment, &Compiled, &Groups),
    column: usize,
    data_type: &DataType,
    with: &mut Parameters,
) -> Result<Code> {
    if is_float(data_type) {
        return Err(Reason::new("floats of groups that are grouped again"));
    }
    if let Some(aggregate) = column.checked_sub(fragment.keys.len()) {
        let [state] = compiled.outputs[aggregate].as_slice() else {
            return Err(Reason::new("an average of groups that are grouped again"));
        };
        let is_known = &state.data_type == data_type;
        let mut code = of_total(&state.output, &compiled.totals, state.bounds);
        if let (Some(values), Some(total)) = (&state.values, &mut code) {
            let of_number = of_value(values, total.value.clone(), data_type, with)?;
            total.texts = of_number.texts;
        }
        return code
            .filter(|_| is_known)
            .ok_or_else(|| Reason::new("totals of 128 bits of groups that are grouped again"));
    }
    if let Some(determined) = compiled.determined.get(&column) {
        if determined.upper.is_some() {
            return Err(Reason::new("numbers of more than 64 bits"));
        }
        let word = compiled.totals[determined.slot].word;
        if let Values::Wide(_) = &determined.values {
            let valid = determined.valid.map(|slot| compiled.totals[slot].word);
            return Ok(Code {
                value: format!("group[{word}]"),
                valid: valid.map(|word| format!("group[{word}] != 0")),
                min: i64::MIN.into(),
                max: i64::MAX.into(),
                texts: Arc::default(),
            });
        }
        return of_value(
            &determined.values,
            format!("group[{word}]"),
            data_type,
            with,
        );
    }
    let before = (0..column)
        .filter(|key| !compiled.determined.contains_key(key))
        .count();
    let counts = groups.keys.iter().map(|it| it.len().max(1) as i128);
    let behind: i128 = counts.clone().skip(before + 1).product();
    let values = groups
        .keys
        .get(before)
        .ok_or_else(|| Reason::new("a key without values"))?;
    let (behind, count) = (
        with.constant(behind),
        with.constant(values.len().max(1) as i128),
    );
    of_value(
        values,
        format!("(number / {behind} % {count})"),
        data_type,
        with,
    )
}

/// Returns the code of a value of a key by its number.
fn of_value(
    values: &Values,
    number: String,
    data_type: &DataType,
    with: &mut Parameters,
) -> Result<Code> {
    match values {
        Values::Range {
            first,
            step,
            count,
            has_null,
            ..
        } => {
            let step = i128::from(*step);
            let null = if *has_null { step } else { 0 };
            let low = with.constant(i128::from(*first) - null);
            let distance = match step {
                1 => number.clone(),
                _ => format!("{number} * {}", with.constant(step)),
            };
            Ok(Code {
                value: format!("({low} + {distance})"),
                valid: has_null.then(|| format!("{number} != 0")),
                min: (*first).into(),
                max: i128::from(*first) + step * (*count as i128 - 1).max(0),
                texts: Arc::default(),
            })
        }
        Values::Array(array) => of_array(array, number, data_type, with),
        Values::Halves { .. } => Err(Reason::new("numbers of more than 64 bits")),
        Values::Rows(_) | Values::Wide(_) => Err(Reason::new(
            "texts of rows of groups that are grouped again",
        )),
    }
}

/// Returns the code of a value of a key by its number among these values.
fn of_array(
    array: &ArrayRef,
    number: String,
    data_type: &DataType,
    with: &mut Parameters,
) -> Result<Code> {
    let null = array.logical_nulls();
    let null = null.and_then(|it| (0..it.len()).find(|at| it.is_null(*at)));
    let valid = null.map(|null| {
        let null = with.constant(null as i128);
        format!("{number} != {null}")
    });
    if is_text(data_type) {
        let texts = cast(array, &DataType::Utf8View).map_err(Reason::of)?;
        return Ok(Code {
            value: number,
            valid,
            min: 0,
            max: (array.len() as i128 - 1).max(0),
            texts: Arc::new(Texts::of(texts.as_string_view())),
        });
    }
    if !is_number(data_type) || matches!(data_type, DataType::Decimal128(..)) {
        return Err(Reason::new(format!("keys of type {data_type}")));
    }
    let numbers = cast(array, &DataType::Int64).map_err(Reason::of)?;
    if numbers.null_count() != array.logical_null_count() {
        return Err(Reason::new("numbers of more than 64 bits"));
    }
    let numbers = numbers.as_primitive::<Int64Type>();
    let first = with_table(numbers.values(), &mut with.tables);
    let first = with.constant(first);
    let known = || numbers.iter().flatten().map(i128::from);
    Ok(Code {
        value: format!("from_table(f, {first} + 2 * {number})"),
        valid,
        min: known().min().unwrap_or(0),
        max: known().max().unwrap_or(0),
        texts: Arc::default(),
    })
}

/// Adds numbers of 64 bits to the tables. Returns the index of the first word.
fn with_table(numbers: &[i64], tables: &mut Vec<u32>) -> i128 {
    let first = tables.len() as i128;
    tables.extend(
        numbers
            .iter()
            .flat_map(|it| [*it as u32, (*it >> 32) as u32]),
    );
    first
}

/// Returns the code of a total of a group; `None` if it has 128 bits.
fn of_total(output: &Output, totals: &[Total], (min, max): (i128, i128)) -> Option<Code> {
    let word = |slot: usize| format!("group[{}]", totals[slot].word);
    let (value, slot, rows) = match *output {
        Output::Count(slot) | Output::Unsigned(slot) => (word(slot), slot, None),
        Output::Sum(slot, rows) => (word(slot), slot, Some(rows)),
        Output::Max(slot, rows) => (format!("plain({})", word(slot)), slot, Some(rows)),
        Output::Min(slot, rows) => (format!("plain(~{})", word(slot)), slot, Some(rows)),
        Output::Parts { .. } | Output::Some(_) | Output::Float(_) => return None,
    };
    let code = Code {
        value,
        valid: rows.map(|rows| format!("{} != 0", word(rows))),
        min,
        max,
        texts: Arc::default(),
    };
    (!totals[slot].is_wide).then_some(code)
}
