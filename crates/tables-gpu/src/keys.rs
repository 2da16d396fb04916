//! Keys of groups in generated code: the number of a key's value in a row, and the values by number.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Scalar};
use datafusion::arrow::compute::kernels::cmp::eq;
use datafusion::arrow::compute::{cast, concat};
use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;

use crate::comments::sql;
use crate::constants::{self, is_constant};
use crate::domain::{ALL_VALUES_MAX, Domain, Table};
use crate::expression::Code;
use crate::fingerprint::WIDE_GROUPS;
use crate::floats::is_float;
use crate::groups::{HASHED_KEYS_MAX, Key, Marked, RowTexts, Values};
use crate::packed::is_number;
use crate::reason::Reason;
use crate::slice::KeyColumn;
use crate::value::{Kind, Value};

type Result<T> = std::result::Result<T, Reason>;

/// A key that other keys determine, in generated code.
pub(crate) struct DeterminedKey {
    /// The number of its value.
    pub(crate) number: String,
    /// The upper half of a number of 128 bits.
    pub(crate) upper: Option<String>,
    /// The values by number.
    pub(crate) values: Values,
    /// What tells whether there is a value, if NULL has no number.
    pub(crate) valid: Option<String>,
}

/// A key of groups over columns of a join.
struct KeyOfJoin {
    /// The number of its value, in the code of the rows that are joined.
    number: String,
    /// The same in the code that stores a row of the join.
    stored: String,
    values: Values,
    /// The number for rows without a match.
    unmatched: Option<usize>,
}

impl Code<'_, '_> {
    /// Declares the number of the value of the fragment's key of this index. The values of keys of joins are marked by
    /// the bits from the word `first` on.
    ///
    /// # Errors
    /// Why kernels cannot compute it.
    pub(crate) fn group_key(
        &mut self,
        (index, expr): (usize, &Arc<dyn PhysicalExpr>),
        first: usize,
    ) -> Result<(String, Key)> {
        let count = self.draft.uses.constant(0)?;
        let Some(join) = self.draft.join_of(expr) else {
            let (number, values) = match self.key(expr) {
                Ok(numbered) => numbered,
                Err(reason) => self.key_of_range(expr, false, reason)?,
            };
            check_different(expr, &values)?;
            let column = self.column_of(expr, &values);
            let key = Key::new(values, count);
            return Ok((number, Key { column, ..key }));
        };
        let of_join = match self.key_of_join(join, expr) {
            Ok(of_join) => of_join,
            Err(reason) => {
                let (number, values) = self.key_of_range(expr, false, reason)?;
                return Ok((number, Key::new(values, count)));
            }
        };
        check_different(expr, &of_join.values)?;
        let draft = &mut self.draft.joins[join];
        let mark = (of_join.stored, 2 * draft.uses.constant(first as i128)?);
        draft.marks.push(mark);
        let table = self.draft.uses.table(Table::Key(index))?;
        let new = format!(
            "static_cast<i32>(read_word(table_of<{table}>(f, c) + {}, is_wanted))",
            of_join.number
        );
        let key = Key {
            values: of_join.values,
            count,
            marked: Some(Marked {
                first,
                table,
                unmatched: of_join.unmatched,
            }),
            column: None,
        };
        let number = self.declare(Kind::Small, &new);
        self.note(&number, || format!("number of {}", sql(expr)));
        Ok((number, key))
    }

    /// Returns a key as a column whose numbers tell those of its values; `None` if it is none.
    fn column_of(&self, expr: &Arc<dyn PhysicalExpr>, values: &Values) -> Option<KeyColumn> {
        let Values::Range {
            first,
            step: 1,
            has_null,
            exponent: None,
            ..
        } = values
        else {
            return None;
        };
        // The number of NULL is before the others.
        let first = first.checked_sub(i64::from(*has_null))?;
        self.draft.rows.key_column(expr, first, values.len() as u64)
    }

    /// Declares the number of the value of a key that other keys determine.
    ///
    /// # Errors
    /// Why kernels cannot compute it.
    pub(crate) fn determined_key(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        (is_of_list, is_wide): (bool, bool),
    ) -> Result<DeterminedKey> {
        // Such a number needs no constant, of which wide rows would need too many.
        if is_wide && let Ok(wide) = self.wide_key(expr, true) {
            return Ok(wide);
        }
        // Numbers need no table.
        let of_range = self.key_of_range(expr, true, Reason::new(""));
        let numbered = of_range.or_else(|_| self.key(expr));
        let numbered = numbered.map(|(number, values)| DeterminedKey {
            number,
            upper: None,
            values,
            valid: None,
        });
        numbered.or_else(|reason| self.wide_key(expr, is_of_list).map_err(|_| reason))
    }

    /// Declares the number of a key of which all numbers of 64 bits, or of 128, may be values: that of a float orders
    /// as it does.
    fn wide_key(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        is_of_list: bool,
    ) -> Result<DeterminedKey> {
        let data_type = self.data_type(expr)?;
        let mut value = self.value(expr)?;
        if value.kind == Kind::Float {
            // The key of a group is 0 instead of -0, and one NaN for all.
            let is_same = value.largest_float().is_some() && !value.may_be_negative_zero();
            if !is_of_list && !is_same {
                return Err(Reason::new("a key that may be -0, infinite or NaN"));
            }
            value = self.bits_of(&value);
        }
        let upper = match (value.kind, &data_type) {
            (Kind::Huge, DataType::Decimal128(..)) => Some(format!("{} >> 64", value.text)),
            (Kind::Huge, _) => return Err(Reason::new("numbers of more than 64 bits")),
            _ => None,
        };
        let kind = value.kind.max(Kind::Large);
        Ok(DeterminedKey {
            number: value.widened(kind),
            upper,
            values: Values::Wide(data_type),
            valid: value.valid,
        })
    }

    /// Declares the number of the value of a key of groups. Returns it and the different values by number.
    ///
    /// # Errors
    /// Why kernels cannot compute it.
    fn key(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<(String, Values)> {
        if let Some(join) = self.draft.join_of(expr) {
            let key = self.key_of_join(join, expr)?;
            return Ok((key.number, key.values));
        }
        if let Some(column) = expr.downcast_ref::<Column>()
            && let Some(texts) = self.draft.scanned.texts_of_rows(column.index())
        {
            return self.key_of_row(column.index(), texts);
        }
        if is_constant(expr) {
            let value = constants::value(expr).and_then(|it| it.to_array());
            let number = self.declare(Kind::Small, "0");
            return Ok((number, Values::Array(value.map_err(Reason::of)?)));
        }
        let domain = Domain::of_key(expr, self.draft.scanned)?;
        let (number, values) = match domain.of_column(expr) {
            Some(values) => (self.number_in(&domain)?, values),
            None => {
                let (table, values) = domain.keys(expr)?;
                (self.looked_up(&domain, table)?, values)
            }
        };
        self.note(&number, || format!("number of {}", sql(expr)));
        Ok((number, Values::Array(values)))
    }

    /// Declares the number of a row, which is that of its text.
    fn key_of_row(&mut self, column: usize, texts: RowTexts) -> Result<(String, Values)> {
        if texts.rows() > i32::MAX as u64 {
            return Err(Reason::new("texts of more than 2^31 rows"));
        }
        // These columns all have the numbers of rows, of which kernels read one.
        let column = *self.draft.of_rows.get_or_insert(column);
        let mut number = self.number(column)?.text;
        if let [_, _, ..] = texts.firsts() {
            let firsts = texts.firsts().iter().map(|first| vec![*first as u32]);
            let table = self.draft.uses.table(Table::File(firsts.collect()))?;
            number = format!(
                "{number} + static_cast<i32>(read_word(table_of<{table}>(f, c), is_wanted))"
            );
        }
        Ok((self.declare(Kind::Small, &number), Values::Rows(texts)))
    }

    fn key_of_join(&mut self, join: usize, expr: &Arc<dyn PhysicalExpr>) -> Result<KeyOfJoin> {
        let of_row = self.over_join(join, expr)?;
        let (stored, out, values) = self.stored(join, |code| {
            let (text, values) = code.key(&of_row)?;
            let bits = u32::BITS - (values.len().max(1) as u32 - 1).leading_zeros();
            let wide = format!("static_cast<u64>({text})");
            Ok((text, (bits > 0).then(|| code.out(wide, bits)), values))
        })?;
        let number = match out {
            Some(out) => format!("static_cast<i32>(out<{join}, {out}>(joined))"),
            None => "0".to_owned(),
        };
        let Some(matched) = self.matched(join) else {
            return Ok(KeyOfJoin {
                number: self.declare(Kind::Small, &number),
                stored,
                values,
                unmatched: None,
            });
        };
        let Values::Array(values) = values else {
            return Err(Reason::new(format!("{expr} of rows without a match")));
        };
        let (values, unmatched) = with(&values, self.unmatched(expr)?)?;
        let number = format!("{matched} ? {number} : {unmatched}");
        Ok(KeyOfJoin {
            number: self.declare(Kind::Small, &number),
            stored,
            values: Values::Array(values),
            unmatched: Some(unmatched),
        })
    }

    /// Returns the type of an expression, which kernels need not know.
    ///
    /// # Errors
    /// If it has none.
    pub(crate) fn type_of(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<DataType> {
        let data_type = expr.data_type(&self.draft.scanned.schema);
        data_type.map_err(Reason::of)
    }

    /// Declares the numbers of a key of a join that is a text: of the rows that are joined, and of the other rows.
    /// Texts are equal if these are.
    ///
    /// # Errors
    /// Why kernels cannot compute it.
    pub(crate) fn texts_of_join(
        &mut self,
        join: usize,
        key: &Arc<dyn PhysicalExpr>,
        of_row: &Arc<dyn PhysicalExpr>,
    ) -> Result<(Value, Value)> {
        if self.draft.join_of(key).is_some() {
            return Err(Reason::new("a join by a text of another join"));
        }
        let (number, others) = self.stored(join, |code| code.key(of_row))?;
        let Values::Array(others) = others else {
            return Err(Reason::new(format!(
                "{of_row} has too many different values"
            )));
        };
        if others.len() > ALL_VALUES_MAX {
            let text = format!("a join by {of_row}, which has too many different values");
            return Err(Reason::new(text));
        }
        let null = (0..others.len()).find(|index| others.is_null(*index));
        let others = cast(&others, &DataType::Utf8View).map_err(Reason::of)?;
        let others = others.as_string_view();
        let valid = null.map(|null| {
            let is_some = format!("{number} != {null}");
            self.stored(join, |code| Ok(code.declare(Kind::Bool, &is_some)))
        });
        let number_of = |text: String, valid| Value {
            text,
            kind: Kind::Small,
            valid,
            min: 0,
            max: others.len().max(1) as i128 - 1,
        };
        let of_row = number_of(number, valid.transpose()?);
        let known = others.iter().enumerate();
        let known: HashMap<_, _> = known
            .filter_map(|(index, text)| Some((text?, index as u32 + 1)))
            .collect();
        let domain = Domain::of(key, self.draft.scanned)?;
        let (mut table, own) = domain.keys(key)?;
        let own = cast(&own, &DataType::Utf8View).map_err(Reason::of)?;
        // 0 for a text that the other rows do not have.
        let numbers = own.as_string_view().iter();
        let numbers = numbers.map(|text| text.and_then(|it| known.get(it)).copied().unwrap_or(0));
        table.renumber(&numbers.collect::<Vec<_>>());
        let found = self.looked_up(&domain, table)?;
        let valid = self.declare(Kind::Bool, &format!("{found} != 0"));
        let number = self.declare(Kind::Small, &format!("{found} - 1"));
        Ok((number_of(number, Some(valid)), of_row))
    }

    /// Declares the number of a key that is a condition: 0 for NULL, 1 for false, 2 for true.
    fn key_of_condition(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<(String, Values)> {
        let value = self.condition(expr)?;
        let number = format!("1 + static_cast<i32>({})", value.text);
        let number = match &value.valid {
            Some(valid) => format!("{valid} ? {number} : 0"),
            None => number,
        };
        let values = BooleanArray::from(vec![None, Some(false), Some(true)]);
        let number = self.declare(Kind::Small, &number);
        self.note(&number, || format!("number of {}", sql(expr)));
        Ok((number, Values::Array(Arc::new(values))))
    }

    /// Declares the number of a key among all numbers between the smallest and the largest. Returns it and the values
    /// by number.
    ///
    /// # Errors
    /// The reason `other` if the key has no numbers; if there are too many, this or [`WIDE_GROUPS`].
    fn key_of_range(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        is_determined: bool,
        other: Reason,
    ) -> Result<(String, Values)> {
        let data_type = expr.data_type(&self.draft.scanned.schema);
        let Some(data_type) = data_type.ok().filter(is_number) else {
            return Err(other);
        };
        if data_type == DataType::Boolean {
            return self.key_of_condition(expr).map_err(|_| other);
        }
        if let Some(months) = self.key_of_months(expr) {
            return months.map_err(|_| other);
        }
        let (value, exponent) = match is_float(&data_type) {
            true => self.float_key(expr)?,
            false => (self.value(expr).ok(), None),
        };
        let Some(value) = value.filter(|it| it.kind <= Kind::Huge) else {
            return Err(other);
        };
        if value.kind == Kind::Huge {
            return match is_determined {
                true => Err(other),
                false => self.key_of_halves(expr, data_type),
            };
        }
        // Fingerprints have room for more.
        let (most, other) = match is_determined {
            true => (i64::MAX as u64 - 1, other),
            false => (HASHED_KEYS_MAX, Reason::new(WIDE_GROUPS)),
        };
        let step = self.step_of_values(expr);
        let (step, by_step) = step.map_or((1, String::new()), |(step, text)| {
            (step, format!(" / static_cast<u64>({text})"))
        });
        let count = usize::try_from((value.max - value.min) / i128::from(step) + 1);
        let (Ok(count), Ok(first)) = (count, i64::try_from(value.min)) else {
            return Err(other);
        };
        if count as u64 > most {
            return Err(other);
        }
        // The number of NULL is before the others.
        let kind = kind_of_numbers(count as u64);
        let constant = 2 * self.draft.uses.constant(first.into())?;
        let distance = format!(
            "static_cast<{}>((static_cast<u64>({}) - f.constants[{constant}]){by_step})",
            kind.name(),
            value.widened(Kind::Large)
        );
        let number = match &value.valid {
            Some(valid) => format!("{valid} ? {distance} + 1 : 0"),
            None => distance,
        };
        let values = Values::Range {
            first,
            step,
            count,
            has_null: value.valid.is_some(),
            data_type,
            exponent,
        };
        let number = self.declare(kind, &number);
        self.note(&number, || format!("number of {}", sql(expr)));
        Ok((number, values))
    }

    /// Declares the number of a decimal of more than 64 bits among all combinations of its upper and lower halves.
    /// Returns it and the values by number.
    ///
    /// # Errors
    /// If there are too many combinations, or the key is no decimal.
    fn key_of_halves(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        data_type: DataType,
    ) -> Result<(String, Values)> {
        if !matches!(data_type, DataType::Decimal128(..)) {
            return Err(Reason::new("groups by numbers of more than 64 bits"));
        }
        let too_many = || Reason::new(WIDE_GROUPS);
        let halves = self.both_halves(expr)?;
        let counts = halves.each_ref().map(|it| it.max - it.min + 1);
        let [Ok(upper), Ok(lower)] = counts.map(u64::try_from) else {
            return Err(too_many());
        };
        let count = upper.checked_mul(lower);
        let count = count.filter(|it| *it < HASHED_KEYS_MAX);
        let count = count.ok_or_else(too_many)?;
        let mut number = String::new();
        for (half, count) in halves.iter().zip([upper, lower]) {
            // A half that all rows share does not tell them apart.
            if count == 1 {
                continue;
            }
            let first = 2 * self.draft.uses.constant(half.min)?;
            let large = half.widened(Kind::Large);
            let distance = format!("(static_cast<u64>({large}) - f.constants[{first}])");
            number = match number.is_empty() {
                true => distance,
                false => {
                    let count = 2 * self.draft.uses.constant(count.into())?;
                    format!("{number} * f.constants[{count}] + {distance}")
                }
            };
        }
        if number.is_empty() {
            number.push('0');
        }
        let kind = kind_of_numbers(count);
        let number = format!("static_cast<{}>({number})", kind.name());
        // The number of NULL is before the others.
        let number = match &halves[0].valid {
            Some(valid) => format!("{valid} ? {number} + 1 : 0"),
            None => number,
        };
        let number = self.declare(kind, &number);
        self.note(&number, || format!("number of {}", sql(expr)));
        let values = Values::Halves {
            firsts: halves.each_ref().map(|it| it.min as i64),
            counts: [upper, lower],
            has_null: halves[0].valid.is_some(),
            data_type,
        };
        Ok((number, values))
    }
}

/// Returns the kind of the numbers of this many values and of NULL.
fn kind_of_numbers(count: u64) -> Kind {
    match count < i32::MAX as u64 {
        true => Kind::Small,
        false => Kind::Large,
    }
}

/// Checks that values have one number each. Texts of rows may be equal.
pub(crate) fn check_different(expr: &Arc<dyn PhysicalExpr>, values: &Values) -> Result<()> {
    match values {
        Values::Rows(_) => Err(Reason::new(format!("{expr} has too many different values"))),
        Values::Array(_) | Values::Range { .. } | Values::Halves { .. } | Values::Wide(_) => Ok(()),
    }
}

/// Returns different values with another one among them, and its index.
fn with(values: &ArrayRef, another: ArrayRef) -> Result<(ArrayRef, usize)> {
    let known = match another.is_null(0) {
        true => (0..values.len()).find(|index| values.is_null(*index)),
        false => {
            let are_equal = eq(values, &Scalar::new(&another)).map_err(Reason::of)?;
            are_equal.iter().position(|it| it == Some(true))
        }
    };
    if let Some(known) = known {
        return Ok((Arc::clone(values), known));
    }
    let all = concat(&[values.as_ref(), another.as_ref()]).map_err(Reason::of)?;
    Ok((all, values.len()))
}
