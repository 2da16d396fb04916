//! Expressions of a plan as C++ of a kernel.
//!
//! Every value but a float is an integer with known bounds, which choose its width: dates, decimals and integers of 32,
//! 64 or 128 bits. What could leave the bounds of its SQL type is left to the CPU, which raises the error.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, Literal,
    NegativeExpr, NotExpr,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::scalar::ScalarValue;

use crate::constants::{self, is_constant};
use crate::domain::Domain;
use crate::draft::Draft;
use crate::floats::is_float;
use crate::halves::Halves;
use crate::ordinal::Ordinal;
use crate::packed::is_number;
use crate::reason::Reason;
use crate::value::{Kind, Value, bounds_of, condition};

type Result<T> = std::result::Result<T, Reason>;

/// The declarations of one function of a kernel.
#[derive(Debug, Clone, Default)]
pub(crate) struct Function {
    pub(crate) lines: Vec<String>,
    /// The comments above it.
    pub(crate) comments: Vec<String>,
    /// The join that it looks up.
    pub(crate) join: Option<usize>,
    /// The columns of the kernel that they read.
    pub(crate) columns: BTreeSet<usize>,
    /// Variables by their declared values.
    pub(crate) known: HashMap<String, String>,
    /// The values of expressions that are declared.
    pub(crate) values: HashMap<Arc<dyn PhysicalExpr>, Value>,
    /// The expressions that are not 0, or are NULL, where the next values are declared.
    pub(crate) nonzero: Vec<Arc<dyn PhysicalExpr>>,
}

/// The code of one function of a kernel.
pub(crate) struct Code<'k, 'a> {
    pub(crate) draft: &'k mut Draft<'a>,
    pub(crate) function: Function,
}

impl<'k, 'a> Code<'k, 'a> {
    pub(crate) fn new(draft: &'k mut Draft<'a>) -> Code<'k, 'a> {
        Code {
            draft,
            function: Function::default(),
        }
    }

    /// Declares a variable, unless there is one of this value.
    pub(crate) fn declare(&mut self, kind: Kind, value: &str) -> String {
        let declared = format!("{} {value}", kind.name());
        if let Some(known) = self.function.known.get(&declared) {
            return known.clone();
        }
        let name = format!("v{}", self.function.known.len());
        self.function
            .lines
            .push(format!("const {} {name} = {value};", kind.name()));
        self.function.known.insert(declared, name.clone());
        name
    }

    /// Declares whether all of these are true; `None` if there are none.
    pub(crate) fn all(&mut self, conditions: &[Option<&String>]) -> Option<String> {
        let mut conditions: Vec<&String> = conditions.iter().copied().flatten().collect();
        conditions.dedup();
        match conditions.as_slice() {
            [] => None,
            [one] => Some((*one).clone()),
            several => {
                let names: Vec<&str> = several.iter().map(|it| it.as_str()).collect();
                Some(self.declare(Kind::Bool, &names.join(" & ")))
            }
        }
    }

    /// Declares the value of an expression.
    ///
    /// # Errors
    /// Why kernels cannot compute it.
    pub(crate) fn value(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Value> {
        if let Some(known) = self.function.values.get(expr) {
            return Ok(known.clone());
        }
        // What the other rows of a join tell is computed for each of them, and not for each row here.
        let of_join = self
            .draft
            .join_of(expr)
            .map(|join| self.of_join(join, expr));
        let value = match of_join {
            Some(Ok(value)) => value,
            Some(Err(reason)) if expr.is::<Column>() => return Err(reason),
            Some(Err(_)) => self.direct(expr)?,
            None => match self.direct(expr) {
                Ok(value) => value,
                Err(reason) => self.by_table(expr, reason)?,
            },
        };
        self.note_value(expr, &value);
        if !expr.is::<Literal>() {
            self.function.values.insert(Arc::clone(expr), value.clone());
        }
        Ok(value)
    }

    /// Declares the value of an expression that is not computed directly: a constant, or a condition by a table over
    /// the values of its column.
    fn by_table(&mut self, expr: &Arc<dyn PhysicalExpr>, reason: Reason) -> Result<Value> {
        if !expr.is::<Literal>()
            && is_constant(expr)
            && let Ok(value) = constants::value(expr)
        {
            return self.direct(&(Arc::new(Literal::new(value)) as _));
        }
        let is_condition = matches!(
            expr.data_type(&self.draft.scanned.schema),
            Ok(DataType::Boolean)
        );
        if !is_condition {
            return Err(reason);
        }
        let Ok(domain) = Domain::of(expr, self.draft.scanned) else {
            return Err(reason);
        };
        let truths = domain.truths(expr)?;
        let word = self.looked_up(&domain, truths)?;
        let truth = self.declare(Kind::Bool, &format!("{word} == 1"));
        let valid = self.declare(Kind::Bool, &format!("{word} != 2"));
        Ok(condition(truth, Some(valid)))
    }

    /// Returns where this row reads a column, and declares whether it has a value.
    pub(crate) fn cursor(&mut self, column: usize) -> Result<(String, Option<String>)> {
        let has_nulls = self.draft.scanned.has_nulls(column);
        let column = self.draft.uses.column(column)?;
        self.function.columns.insert(column);
        let cursor = format!("cursor_of<{column}>(c)");
        let valid = format!("{cursor}.has_value(i, is_wanted)");
        let valid = has_nulls.then(|| self.declare(Kind::Bool, &valid));
        Ok((cursor, valid))
    }

    /// Declares the number of this row in a column: the value, the integer of a decimal, or the number of the text.
    pub(crate) fn number(&mut self, column: usize) -> Result<Value> {
        let scanned = self.draft.scanned;
        if is_float(&scanned.data_type(column)) {
            return self.decimal_column(column, 0);
        }
        let (min, max) = scanned.range(column).unwrap_or((0, 0));
        let (cursor, valid) = self.cursor(column)?;
        let is_narrow = max.wrapping_sub(min).cast_unsigned() <= u64::from(u32::MAX);
        let (min, max) = (i128::from(min), i128::from(max));
        let kind = Kind::of(min, max).unwrap_or(Kind::Huge);
        let value = match (is_narrow, kind) {
            (true, Kind::Small) => format!(
                "static_cast<i32>(static_cast<u32>({cursor}.reference) + {cursor}.narrow(i, is_wanted))"
            ),
            (true, _) => {
                format!("{cursor}.reference + static_cast<i64>({cursor}.narrow(i, is_wanted))")
            }
            (false, _) => format!(
                "static_cast<i64>(static_cast<u64>({cursor}.reference) + {cursor}.wide(i, is_wanted))"
            ),
        };
        let text = self.declare(kind, &value);
        self.note(&text, || scanned.name(column).to_owned());
        Ok(Value {
            text,
            kind,
            valid,
            min,
            max,
        })
    }

    fn direct(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Value> {
        if let Some(time) = self.time(expr) {
            return time;
        }
        if let Some(column) = expr.downcast_ref::<Column>() {
            return self.column(column);
        }
        if let Some(literal) = expr.downcast_ref::<Literal>() {
            return self.literal(literal.value());
        }
        if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
            return self.binary(binary);
        }
        if let Some(ordinal) = expr.downcast_ref::<Ordinal>() {
            return self.ordinal(ordinal);
        }
        if let Some(halves) = expr.downcast_ref::<Halves>() {
            return self.halves(halves);
        }
        if let Some(not) = expr.downcast_ref::<NotExpr>() {
            let inner = self.condition(not.arg())?;
            let text = self.declare(Kind::Bool, &format!("!{}", inner.text));
            return Ok(condition(text, inner.valid));
        }
        if let Some(is_null) = expr.downcast_ref::<IsNullExpr>() {
            return self.is_null(is_null.arg(), true);
        }
        if let Some(is_not_null) = expr.downcast_ref::<IsNotNullExpr>() {
            return self.is_null(is_not_null.arg(), false);
        }
        if let Some(list) = expr.downcast_ref::<InListExpr>() {
            return self.in_list(list);
        }
        if let Some(cast) = expr.downcast_ref::<CastExpr>() {
            return self.cast(cast);
        }
        if let Some(case) = expr.downcast_ref::<CaseExpr>() {
            return self.case(case);
        }
        if let Some(negative) = expr.downcast_ref::<NegativeExpr>() {
            let data_type = self.data_type(negative.arg())?;
            let inner = self.value(negative.arg())?;
            if inner.kind == Kind::Float {
                return self.float_negative(&inner);
            }
            let zero = self.literal(&ScalarValue::Int64(Some(0)))?;
            return self.arithmetic(Operator::Minus, &zero, &inner, &data_type);
        }
        if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() {
            return self.call(call);
        }
        Err(Reason::new(format!("{expr} is not computed on GPUs")))
    }

    /// Declares the result of a function: the arithmetic of integers of the tables server, which raises errors where
    /// it would leave the range of its type.
    fn call(&mut self, call: &ScalarFunctionExpr) -> Result<Value> {
        if let Some(result) = self.float_call(call).or_else(|| self.number_call(call)) {
            return result;
        }
        let op = match call.name() {
            "float_divide" => Operator::Divide,
            "int_plus" => Operator::Plus,
            "int_minus" => Operator::Minus,
            "int_times" => Operator::Multiply,
            name => return Err(Reason::new(format!("{name} is not computed on GPUs"))),
        };
        let [left, right] = call.args() else {
            return Err(Reason::new(format!("{} of several values", call.name())));
        };
        self.check_scales(left, right)?;
        let (left, right) = (self.value(left)?, self.value(right)?);
        match call.return_type() {
            DataType::Float64 => self.float_arithmetic(op, &left, &right),
            data_type => self.arithmetic(op, &left, &right, data_type),
        }
    }

    pub(crate) fn data_type(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<DataType> {
        let data_type = expr
            .data_type(&self.draft.scanned.schema)
            .map_err(Reason::of)?;
        match is_number(&data_type) {
            true => Ok(data_type),
            false => {
                let text = format!("{expr} is of type {data_type}");
                Err(Reason::new(text))
            }
        }
    }

    /// Declares the value of a condition.
    pub(crate) fn condition(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Value> {
        let value = self.value(expr)?;
        match value.kind {
            Kind::Bool => Ok(value),
            // A column, whose values are 0 and 1.
            _ => {
                let text = self.declare(Kind::Bool, &format!("{} != 0", value.text));
                Ok(condition(text, value.valid))
            }
        }
    }

    fn column(&mut self, column: &Column) -> Result<Value> {
        let data_type = self.draft.scanned.data_type(column.index());
        if !is_number(&data_type) {
            let text = format!("the column {} is of type {data_type}", column.name());
            return Err(Reason::new(text));
        }
        match is_float(&data_type) {
            true => self.float_column(column.index()),
            false => self.number(column.index()),
        }
    }

    /// Declares a value of type Float64.
    pub(crate) fn float_value(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Value> {
        match self.data_type(expr)? {
            DataType::Float64 => self.value(expr),
            other => Err(Reason::new(format!("{other} in a computation of floats"))),
        }
    }

    pub(crate) fn literal(&mut self, literal: &ScalarValue) -> Result<Value> {
        use ScalarValue as Scalar;
        let number = match literal {
            Scalar::Boolean(it) => it.map(i128::from),
            Scalar::Int8(it) => it.map(i128::from),
            Scalar::Int16(it) => it.map(i128::from),
            Scalar::Int32(it) | Scalar::Date32(it) => it.map(i128::from),
            Scalar::Int64(it)
            | Scalar::TimestampSecond(it, _)
            | Scalar::TimestampMillisecond(it, _)
            | Scalar::TimestampMicrosecond(it, _)
            | Scalar::TimestampNanosecond(it, _) => it.map(i128::from),
            Scalar::UInt8(it) => it.map(i128::from),
            Scalar::UInt16(it) => it.map(i128::from),
            Scalar::UInt32(it) => it.map(i128::from),
            Scalar::UInt64(it) => it.map(i128::from),
            Scalar::Decimal128(it, ..) => *it,
            Scalar::Float64(Some(float)) => return self.float_literal(*float),
            Scalar::Float32(Some(float)) => return self.float_literal((*float).into()),
            Scalar::Null | Scalar::Float64(None) | Scalar::Float32(None) => None,
            other => {
                let text = format!("constants of type {} are not used", other.data_type());
                return Err(Reason::new(text));
            }
        };
        let Some(number) = number else {
            return Ok(Value {
                text: "0".to_owned(),
                kind: Kind::Small,
                valid: Some("false".to_owned()),
                min: 0,
                max: 0,
            });
        };
        let kind =
            Kind::of(number, number).ok_or_else(|| Reason::new("a constant is too large"))?;
        let low = 2 * self.draft.uses.constant(number)?;
        let text = match kind {
            Kind::Huge => format!(
                "wide_constant(f.constants[{low}], f.constants[{}])",
                low + 1
            ),
            kind => format!("static_cast<{}>(f.constants[{low}])", kind.name()),
        };
        Ok(Value {
            text: self.declare(kind, &text),
            kind,
            valid: None,
            min: number,
            max: number,
        })
    }

    fn binary(&mut self, binary: &BinaryExpr) -> Result<Value> {
        let op = *binary.op();
        match op {
            Operator::And | Operator::Or => {
                let left = self.condition(binary.left())?;
                let right = self.condition(binary.right())?;
                Ok(self.joined(op == Operator::And, &left, &right))
            }
            Operator::Eq
            | Operator::NotEq
            | Operator::Lt
            | Operator::LtEq
            | Operator::Gt
            | Operator::GtEq => {
                self.check_scales(binary.left(), binary.right())?;
                let left = self.value(binary.left())?;
                let right = self.value(binary.right())?;
                Ok(self.compared(op, &left, &right))
            }
            Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => self.distinct(binary),
            Operator::Plus
            | Operator::Minus
            | Operator::Multiply
            | Operator::Divide
            | Operator::Modulo => {
                let schema = &self.draft.scanned.schema;
                let data_type = binary.data_type(schema).map_err(Reason::of)?;
                if is_float(&data_type) {
                    let left = self.float_value(binary.left())?;
                    let right = self.float_value(binary.right())?;
                    return self.float_arithmetic(op, &left, &right);
                }
                if matches!(op, Operator::Divide | Operator::Modulo) {
                    return self.division(binary, &data_type);
                }
                let left = self.scaled(binary.left(), op, &data_type)?;
                let right = self.scaled(binary.right(), op, &data_type)?;
                self.check_product(binary, &data_type)?;
                self.arithmetic(op, &left, &right, &data_type)
            }
            _ => Err(Reason::new(format!("{op} is not computed on GPUs"))),
        }
    }

    /// Checks that the numbers of two expressions compare as their values do.
    pub(crate) fn check_scales(
        &self,
        left: &Arc<dyn PhysicalExpr>,
        right: &Arc<dyn PhysicalExpr>,
    ) -> Result<()> {
        let (left, right) = (self.data_type(left)?, self.data_type(right)?);
        let are_alike = match (&left, &right) {
            (DataType::Decimal128(_, left), DataType::Decimal128(_, right)) => left == right,
            (left, right) => left == right,
        };
        match are_alike {
            true => Ok(()),
            false => {
                let text = format!("{left} and {right} are not compared on GPUs");
                Err(Reason::new(text))
            }
        }
    }

    /// Checks that the scale of a product is the sum of the scales.
    fn check_product(&self, binary: &BinaryExpr, data_type: &DataType) -> Result<()> {
        let DataType::Decimal128(_, scale) = data_type else {
            return Ok(());
        };
        let of = |expr| match self.data_type(expr)? {
            DataType::Decimal128(_, scale) => Ok(scale),
            _ => Ok(0),
        };
        let sum = of(binary.left())? + of(binary.right())?;
        match *binary.op() == Operator::Multiply && sum != *scale {
            true => Err(Reason::new("a product of decimals is rounded")),
            false => Ok(()),
        }
    }

    /// Declares a side of a sum or a product, in the scale of the sum.
    fn scaled(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        op: Operator,
        result: &DataType,
    ) -> Result<Value> {
        let data_type = self.data_type(expr)?;
        let value = self.value(expr)?;
        match (&data_type, result) {
            (DataType::Decimal128(_, own), DataType::Decimal128(_, scale)) => match op {
                Operator::Multiply => Ok(value),
                _ => self.rescaled(&value, i32::from(*scale) - i32::from(*own)),
            },
            (own, result) if own == result && own.is_integer() => Ok(value),
            (own, result) => {
                let text = format!("{own} in a computation of {result}");
                Err(Reason::new(text))
            }
        }
    }

    /// Declares a value times a power of ten.
    pub(crate) fn rescaled(&mut self, value: &Value, digits: i32) -> Result<Value> {
        let factor = u32::try_from(digits)
            .ok()
            .and_then(|it| 10_i128.checked_pow(it));
        let factor = factor.ok_or_else(|| Reason::new("a decimal is rounded"))?;
        if factor == 1 {
            return Ok(value.clone());
        }
        let bounds = (value.min.checked_mul(factor), value.max.checked_mul(factor));
        let (Some(min), Some(max)) = bounds else {
            return Err(Reason::new("a decimal of more than 38 digits"));
        };
        let kind = Kind::of(min, max).ok_or_else(|| Reason::new("a decimal of 38 digits"))?;
        // A column of zeros has small products with any factor.
        let kind = if i64::try_from(factor).is_err() {
            Kind::Huge
        } else {
            kind
        };
        let factor = match kind {
            Kind::Huge => format!(
                "wide_constant({}ull, {}ull)",
                factor as u64,
                (factor >> 64) as u64
            ),
            _ => format!("{factor}ll"),
        };
        let text = format!(
            "{} * static_cast<{}>({factor})",
            value.widened(kind),
            kind.name()
        );
        Ok(Value {
            text: self.declare(kind, &text),
            kind,
            valid: value.valid.clone(),
            min,
            max,
        })
    }

    pub(crate) fn arithmetic(
        &mut self,
        op: Operator,
        left: &Value,
        right: &Value,
        data_type: &DataType,
    ) -> Result<Value> {
        let wide = || Reason::new(format!("{op} may leave the range of {data_type}"));
        let corners = [
            (left.min, right.min),
            (left.min, right.max),
            (left.max, right.min),
            (left.max, right.max),
        ];
        let corners = corners.map(|(left, right)| match op {
            Operator::Plus => left.checked_add(right),
            Operator::Minus => left.checked_sub(right),
            _ => left.checked_mul(right),
        });
        let corners: Option<Vec<i128>> = corners.into_iter().collect();
        let corners = corners.ok_or_else(wide)?;
        let min = corners.iter().copied().min().unwrap_or_default();
        let max = corners.iter().copied().max().unwrap_or_default();
        let (low, high) = bounds_of(data_type).ok_or_else(wide)?;
        if min < low || max > high {
            return Err(wide());
        }
        let kind = Kind::of(min, max).ok_or_else(wide)?;
        let kind = kind.max(left.kind).max(right.kind).max(Kind::Small);
        let sign = match op {
            Operator::Plus => '+',
            Operator::Minus => '-',
            _ => '*',
        };
        let text = format!("{} {sign} {}", left.widened(kind), right.widened(kind));
        Ok(Value {
            text: self.declare(kind, &text),
            kind,
            valid: self.all(&[left.valid.as_ref(), right.valid.as_ref()]),
            min,
            max,
        })
    }

    pub(crate) fn compared(&mut self, op: Operator, left: &Value, right: &Value) -> Value {
        let kind = left.kind.max(right.kind).max(Kind::Small);
        let mut text_of = |value: &Value| match (kind, value.kind) {
            (Kind::Float, Kind::Float) => self.rank_of(value),
            // NULL, of no kind.
            (Kind::Float, _) => value.widened(Kind::Large),
            _ => value.widened(kind),
        };
        let (one, other) = (text_of(left), text_of(right));
        let sign = match op {
            Operator::Eq => "==",
            Operator::NotEq => "!=",
            Operator::Lt => "<",
            Operator::LtEq => "<=",
            Operator::Gt => ">",
            _ => ">=",
        };
        let text = self.declare(Kind::Bool, &format!("{one} {sign} {other}"));
        condition(text, self.all(&[left.valid.as_ref(), right.valid.as_ref()]))
    }

    /// Declares `AND` or `OR` of two conditions: one that is false or true decides, whatever the other is.
    pub(crate) fn joined(&mut self, is_and: bool, left: &Value, right: &Value) -> Value {
        let sign = if is_and { '&' } else { '|' };
        if left.valid.is_none() && right.valid.is_none() {
            let text = format!("{} {sign} {}", left.text, right.text);
            return condition(self.declare(Kind::Bool, &text), None);
        }
        // `a` is true or decides; NULL is neither.
        let known = |value: &Value, is_true: bool| {
            let truth = if is_true { "" } else { "!" };
            match &value.valid {
                Some(valid) => format!("({valid} & {truth}{})", value.text),
                None => format!("{truth}{}", value.text),
            }
        };
        let text = format!("{} {sign} {}", known(left, true), known(right, true));
        let text = self.declare(Kind::Bool, &text);
        let decided = format!("{} | {}", known(left, !is_and), known(right, !is_and));
        let both = self.all(&[left.valid.as_ref(), right.valid.as_ref()]);
        let both = both.unwrap_or_else(|| "true".to_owned());
        let valid = self.declare(Kind::Bool, &format!("{both} | {decided}"));
        condition(text, Some(valid))
    }

    fn is_null(&mut self, inner: &Arc<dyn PhysicalExpr>, is_null: bool) -> Result<Value> {
        let valid = match (inner.downcast_ref::<Column>(), self.draft.join_of(inner)) {
            // The rows of texts that are NULL have numbers, too.
            (Some(column), None) if self.draft.scanned.texts_of_rows(column.index()).is_some() => {
                let text = format!("{inner} has too many different values");
                return Err(Reason::new(text));
            }
            // Of any type.
            (Some(column), None) => self.cursor(column.index())?.1,
            _ => self.value(inner)?.valid,
        };
        let valid = valid.unwrap_or_else(|| "true".to_owned());
        let text = if is_null { format!("!{valid}") } else { valid };
        Ok(condition(self.declare(Kind::Bool, &text), None))
    }

    fn cast(&mut self, cast: &CastExpr) -> Result<Value> {
        let from = self.data_type(cast.expr())?;
        let to = cast.cast_type();
        if *to == DataType::Float64 {
            let value = self.value(cast.expr())?;
            return self.cast_to_float(&value, &from);
        }
        if from == DataType::Float64 {
            let value = self.value(cast.expr())?;
            return self.cast_from_float(&value, to);
        }
        self.cast_of(cast.expr(), to)
    }

    /// Declares one of two values.
    pub(crate) fn chosen(&mut self, is_first: &str, first: &Value, second: &Value) -> Value {
        let kind = first.kind.max(second.kind);
        let text = format!(
            "{is_first} ? {} : {}",
            first.widened(kind),
            second.widened(kind)
        );
        let text = self.declare(kind, &text);
        let valid = match (&first.valid, &second.valid) {
            (None, None) => None,
            (first, second) => {
                let or_true =
                    |valid: &Option<String>| valid.clone().unwrap_or_else(|| "true".to_owned());
                let text = format!("{is_first} ? {} : {}", or_true(first), or_true(second));
                Some(self.declare(Kind::Bool, &text))
            }
        };
        Value {
            text,
            kind,
            valid,
            min: first.min.min(second.min),
            max: first.max.max(second.max),
        }
    }
}
