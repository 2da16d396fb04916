//! `IN` lists as C++ of a kernel. The elements of short lists are compared one by one. Long lists of numbers are
//! sorted, and kernels search them in a table.

use datafusion::arrow::array::{Array, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Decimal128Type, Int64Type};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{InListExpr, Literal};
use datafusion::scalar::ScalarValue;

use crate::domain::{Domain, Table};
use crate::expression::Code;
use crate::floats::is_float;
use crate::reason::Reason;
use crate::value::{Kind, Value, condition};

type Result<T> = std::result::Result<T, Reason>;

/// Maximum number of elements of a list that is compared one by one.
pub(crate) const COMPARED_MAX: usize = 16;
/// Maximum number of elements of a list that is searched.
const SEARCHED_MAX: usize = 1 << 16;

impl Code<'_, '_> {
    /// Declares whether a value is in a list.
    ///
    /// # Errors
    /// Why kernels cannot tell.
    pub(crate) fn in_list(&mut self, list: &InListExpr) -> Result<Value> {
        let any = match list.len() {
            1..=COMPARED_MAX => self.equal_to_any(list)?,
            _ => self.searched(list)?,
        };
        match list.negated() {
            false => Ok(any),
            true => {
                let text = self.declare(Kind::Bool, &format!("!{}", any.text));
                Ok(condition(text, any.valid))
            }
        }
    }

    fn equal_to_any(&mut self, list: &InListExpr) -> Result<Value> {
        let value = self.value(list.expr())?;
        let mut any: Option<Value> = None;
        for element in list.list() {
            self.check_scales(list.expr(), element)?;
            let element = self.value(element)?;
            // The CPU compares the bits.
            if element.kind == Kind::Float && !element.is_nonzero_float() {
                return Err(Reason::new("a list with 0 or NaN"));
            }
            let equal = self.compared(Operator::Eq, &value, &element);
            any = Some(match any {
                Some(any) => self.joined(false, &any, &equal),
                None => equal,
            });
        }
        any.ok_or_else(|| Reason::new("an empty list"))
    }

    fn searched(&mut self, list: &InListExpr) -> Result<Value> {
        let refused = || {
            let text = format!("a list of {} elements is not compared on GPUs", list.len());
            Reason::new(text)
        };
        // A table over the values of the column is read once for each row.
        let has_domain = Domain::of(list.expr(), self.draft.scanned).is_ok();
        if !(COMPARED_MAX..=SEARCHED_MAX).contains(&list.len()) || has_domain {
            return Err(refused());
        }
        let constants = constants_of(list).ok_or_else(refused)?;
        for (element, constant) in list.list().iter().zip(&constants) {
            if !constant.is_null() {
                self.check_scales(list.expr(), element)?;
            }
        }
        let (nulls, constants): (Vec<_>, Vec<_>) =
            constants.into_iter().partition(ScalarValue::is_null);
        let mut numbers = numbers_of(constants).ok_or_else(refused)?;
        let value = self.value(list.expr())?;
        let kind = value.kind.max(Kind::Small);
        if kind > Kind::Large {
            return Err(refused());
        }
        // Others equal no value.
        numbers.retain(|it| (value.min..=value.max).contains(it));
        numbers.sort_unstable();
        let words = words_of(&numbers, kind);
        let table = self.draft.uses.table(Table::All(words))?;
        let count = 2 * self.draft.uses.constant(numbers.len() as i128)?;
        let text = format!(
            "is_in_list(table_of<{table}>(f, c), static_cast<u32>(f.constants[{count}]), {}, is_wanted)",
            value.widened(kind)
        );
        let found = self.declare(Kind::Bool, &text);
        // A value that is not found may be the one that is NULL.
        let is_known = (!nulls.is_empty()).then_some(&found);
        let valid = self.all(&[value.valid.as_ref(), is_known]);
        Ok(condition(found, valid))
    }
}

/// Returns the elements of a list; `None` if one is no constant.
fn constants_of(list: &InListExpr) -> Option<Vec<ScalarValue>> {
    let elements = list.list().iter();
    let constants = elements.map(|element| {
        let literal = element.downcast_ref::<Literal>();
        literal.map(|it| it.value().clone())
    });
    constants.collect()
}

/// Returns constants of one type as kernels have them, decimals as integers of their scale; `None` if they are no
/// numbers, or floats.
fn numbers_of(constants: Vec<ScalarValue>) -> Option<Vec<i128>> {
    if constants.is_empty() {
        return Some(Vec::new());
    }
    let constants = ScalarValue::iter_to_array(constants).ok()?;
    if is_float(constants.data_type()) {
        return None;
    }
    if let Some(decimals) = constants.as_primitive_opt::<Decimal128Type>() {
        return Some(decimals.values().to_vec());
    }
    let numbers = cast(&constants, &DataType::Int64).ok()?;
    // A number of more than 64 bits becomes NULL.
    let are_whole = numbers.null_count() == 0;
    let numbers = numbers.as_primitive_opt::<Int64Type>()?.values();
    are_whole.then(|| numbers.iter().copied().map(i128::from).collect())
}

/// Returns the words of a list of sorted numbers, as `arithmetic.cuh` reads them.
fn words_of(numbers: &[i128], kind: Kind) -> Vec<u32> {
    let count = if kind == Kind::Large { 2 } else { 1 };
    let words = numbers.iter().flat_map(|number| {
        let words = [*number as u32, (*number >> 32) as u32];
        words.into_iter().take(count)
    });
    let words: Vec<u32> = words.collect();
    match words.is_empty() {
        // A table has at least one word.
        true => vec![0],
        false => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_lists_have_one_word_or_two() {
        let numbers = [-(1 << 40), -2, 7];
        assert_eq!(words_of(&numbers[1..], Kind::Small), [u32::MAX - 1, 7]);
        let wide = [0, u32::MAX - 255, u32::MAX - 1, u32::MAX, 7, 0];
        assert_eq!(words_of(&numbers, Kind::Large), wide);
        assert_eq!(words_of(&[], Kind::Large), [0]);
    }

    #[test]
    fn constants_are_the_numbers_of_kernels() {
        let of = |constants: &[ScalarValue]| numbers_of(constants.to_vec());
        let decimal = |number| ScalarValue::Decimal128(Some(number), 38, 2);
        assert_eq!(of(&[decimal(125), decimal(-1)]), Some(vec![125, -1]));
        assert_eq!(of(&[ScalarValue::Date32(Some(-7))]), Some(vec![-7]));
        assert_eq!(of(&[ScalarValue::UInt64(Some(u64::MAX))]), None);
        assert_eq!(of(&[ScalarValue::Float64(Some(1.0))]), None);
        assert_eq!(of(&[]), Some(vec![]));
    }
}
