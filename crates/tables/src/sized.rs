//! Functions whose values can be long: what they return is limited, and taken from the account.
//!
//! A function estimates the bytes that it will return for each row. It computes few bytes at once. Many bytes are
//! computed in parts, and taken from the account before; a value that is too long is refused. Operators that can do
//! with fewer rows at a time ask for few bytes (see [`limited_to`]).

mod size;

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{Array, Int64Array};
use datafusion::arrow::compute::kernels::concat_elements::concat_elements_dyn;
use datafusion::arrow::compute::{cast, concat};
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::Transformed;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature,
};
use datafusion::scalar::ScalarValue;
use forebay_memory::{Account, Share};

use self::size::{Argument, Rows, Size};
use crate::error::{Code, SqlError};
use crate::lengths::array_bytes;
use crate::semantics::native::native;
use crate::{memory, stop};

/// Maximum bytes that are computed at once, outside of the account.
pub(crate) const PART_BYTES: usize = 32 << 20;
/// Maximum bytes of a value, as in PostgreSQL.
const VALUE_BYTES_MAX: usize = 1 << 30;
/// Maximum bytes that a function returns for one batch of rows: offsets in an array have 31 bits.
const RESULT_BYTES_MAX: usize = i32::MAX as usize - VALUE_BYTES_MAX / 2;
/// Bytes of a batch whose texts are found in time that grows with their sum.
const FOUND_BYTES: usize = 1 << 20;
/// Maximum bytes of a text that `levenshtein` takes, as in PostgreSQL.
const COMPARED_BYTES_MAX: usize = 255;

/// Maximum bytes of a type all of whose values, NULL too, have as many.
const FIXED_BYTES_MAX: usize = 64 << 10;

thread_local! {
    /// Maximum bytes that a function may return now.
    static LIMIT_BYTES: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Runs `work`, in which functions that would return more than `bytes` fail with an error of which [`is_limit`] is
/// true.
pub(crate) fn limited_to<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    struct Reset(usize);
    impl Drop for Reset {
        fn drop(&mut self) {
            LIMIT_BYTES.set(self.0);
        }
    }
    let _reset = Reset(LIMIT_BYTES.replace(bytes));
    work()
}

/// Returns whether an error says that a limit was exceeded.
pub(crate) fn is_limit(error: &DataFusionError) -> bool {
    let DataFusionError::External(inner) = error.find_root() else {
        return false;
    };
    let ours = inner.downcast_ref::<SqlError>();
    ours.is_some_and(|error| error.code == Code::LimitExceeded)
}

/// Functions whose result can be far longer than their arguments, and those that are slow.
const FUNCTIONS: [(&str, Size); 16] = [
    ("array_repeat", Size::Times),
    ("array_replace", Size::ItemsReplaced),
    ("array_replace_all", Size::ItemsReplaced),
    ("array_replace_n", Size::ItemsReplaced),
    ("array_resize", Size::Items),
    ("array_to_string", Size::Joined),
    ("concat_ws", Size::Between),
    ("generate_series", Size::Range),
    ("levenshtein", Size::Compared),
    ("lpad", Size::Length),
    ("range", Size::Range),
    ("regexp_replace", Size::Matched),
    ("repeat", Size::Times),
    ("replace", Size::Replaced),
    ("rpad", Size::Length),
    ("strpos", Size::Found),
];

/// Functions that return their arguments, or are planned as something else.
const PASSING: [&str; 14] = [
    "arrow_field",
    "cast_to_type",
    "coalesce",
    "get_field",
    "greatest",
    "ifnull",
    "least",
    "named_struct",
    "nullif",
    "nvl",
    "nvl2",
    "opaque",
    "struct",
    "try_cast_to_type",
];

/// Functions that cast to a type of Arrow, which PostgreSQL lacks.
const CASTS: [&str; 2] = ["arrow_cast", "arrow_try_cast"];

/// Limits functions.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    memory: Account,
}

impl Limits {
    /// Returns limits of functions that take memory from an account.
    pub(crate) fn new(memory: &Account) -> Limits {
        Limits {
            memory: memory.clone(),
        }
    }

    /// Limits the outermost function or `||` of an expression whose types fit.
    pub(crate) fn limit(&self, expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
        Ok(match expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right })
                if op == Operator::StringConcat
                    && left.get_type(schema)? == right.get_type(schema)? =>
            {
                let function = self.limited(concatenation(), Size::Arguments);
                Transformed::yes(function.call(vec![*left, *right]))
            }
            Expr::ScalarFunction(call) if CASTS.contains(&call.func.name()) => {
                let call = Expr::ScalarFunction(call);
                let data_type = call.get_type(schema)?;
                if fixed_bytes(&data_type) > FIXED_BYTES_MAX {
                    let error = SqlError::unsupported(format!("a cast to {data_type}"));
                    return Err(DataFusionError::External(Box::new(error)));
                }
                Transformed::no(call)
            }
            Expr::ScalarFunction(mut call) => {
                let size = match size_of(&call.func) {
                    None if call.args.iter().all(is_constant) => None,
                    None => {
                        let returns = Expr::ScalarFunction(call.clone()).get_type(schema)?;
                        may_be_long(&returns).then_some(Size::Arguments)
                    }
                    known => known,
                };
                let is_done =
                    call.func.inner().is::<Limited>() || PASSING.contains(&call.func.name());
                match size.filter(|_| !is_done) {
                    Some(size) => {
                        call.func = Arc::new(self.limited(Arc::clone(&call.func), size));
                        Transformed::yes(Expr::ScalarFunction(call))
                    }
                    None => Transformed::no(Expr::ScalarFunction(call)),
                }
            }
            other => Transformed::no(other),
        })
    }

    fn limited(&self, function: Arc<ScalarUDF>, size: Size) -> ScalarUDF {
        ScalarUDF::new_from_impl(Limited {
            function,
            size,
            memory: self.memory.clone(),
        })
    }
}

fn size_of(function: &ScalarUDF) -> Option<Size> {
    let mut known = FUNCTIONS.iter();
    let found = known.find(|(name, _)| *name == function.name());
    found.map(|(_, size)| *size)
}

/// Returns whether an expression is a constant of the statement's text.
fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Cast(cast) => matches!(*cast.expr, Expr::Literal(..)),
        other => matches!(other, Expr::Literal(..)),
    }
}

/// Returns whether values of a type differ in length.
pub(crate) fn may_be_long(data_type: &DataType) -> bool {
    data_type.is_nested() || data_type.is_string() || data_type.is_binary()
}

/// Returns the bytes that each value of a type has at least.
fn fixed_bytes(data_type: &DataType) -> usize {
    let items = |count: i32, item: usize| usize::try_from(count).unwrap_or(0).saturating_mul(item);
    match data_type {
        DataType::FixedSizeBinary(count) => items(*count, 1),
        DataType::FixedSizeList(item, count) => items(*count, fixed_bytes(item.data_type()).max(1)),
        DataType::List(item) | DataType::LargeList(item) => fixed_bytes(item.data_type()),
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|field| fixed_bytes(field.data_type()));
            fields.fold(0, usize::saturating_add)
        }
        _ => 1,
    }
}

/// A function with a limit.
#[derive(Debug)]
pub(crate) struct Limited {
    function: Arc<ScalarUDF>,
    size: Size,
    memory: Account,
}

impl PartialEq for Limited {
    fn eq(&self, other: &Limited) -> bool {
        self.function == other.function
    }
}

impl Eq for Limited {}

impl Hash for Limited {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.hash(state);
    }
}

impl ScalarUDFImpl for Limited {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn aliases(&self) -> &[String] {
        self.function.aliases()
    }

    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        self.function.inner().schema_name(arguments)
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.function.return_type(types)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        self.function.inner().return_field_from_args(arguments)
    }

    fn is_strict(&self) -> bool {
        self.function.inner().is_strict()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.inner().coerce_types(types)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        stop::check()?;
        let rows = Rows::of(&arguments);
        let bytes = self.size.bytes(&arguments.args, rows);
        match self.size {
            Size::Compared => check_compared(&arguments.args)?,
            Size::Found if bytes > FOUND_BYTES => return found(&arguments, rows),
            _ => {}
        }
        let limit = LIMIT_BYTES.get();
        if bytes > limit {
            return Err(self.exceeded(bytes, rows.count, limit));
        }
        match bytes > PART_BYTES {
            true => self.invoke_in_parts(&arguments, rows),
            false => self.function.inner().invoke_with_args(arguments),
        }
    }
}

impl Limited {
    /// Computes many bytes for few rows at a time.
    fn invoke_in_parts(&self, arguments: &ScalarFunctionArgs, rows: Rows) -> Result<ColumnarValue> {
        let (kept, mut parts, mut from, mut made) = (self.memory.share(), Vec::new(), 0, 0);
        while from < rows.count {
            stop::check()?;
            let (part, bytes) = self.size.part(&arguments.args, rows, from);
            if bytes > VALUE_BYTES_MAX && self.size != Size::Arguments {
                return Err(self.exceeded(bytes, part.count, VALUE_BYTES_MAX));
            }
            let work = self.memory.share();
            if bytes > PART_BYTES {
                self.take(&work, bytes.saturating_mul(self.size.work_factor()))?;
            }
            let value = self
                .function
                .inner()
                .invoke_with_args(part.of_arguments(arguments))?;
            if let ColumnarValue::Scalar(value) = &value
                && rows.are_one
            {
                self.check_value(value.size(), 1)?;
                return Ok(ColumnarValue::Scalar(value.clone()));
            }
            let values = value.into_array(part.count)?;
            drop(work);
            let bytes = array_bytes(&values);
            self.check_value(bytes, part.count)?;
            made += bytes;
            if made > RESULT_BYTES_MAX && rows.count > 1 {
                return Err(self.exceeded(made, rows.count, RESULT_BYTES_MAX));
            }
            self.take(&kept, bytes)?;
            parts.push(values);
            from += part.count;
        }
        if let [values] = &*parts {
            return Ok(ColumnarValue::Array(Arc::clone(values)));
        }
        self.take(&kept, made)?;
        let parts: Vec<&dyn Array> = parts.iter().map(|part| &**part).collect();
        Ok(ColumnarValue::Array(concat(&parts)?))
    }

    fn take(&self, share: &Share, bytes: usize) -> Result<()> {
        memory::grow(share, bytes)
    }

    fn check_value(&self, bytes: usize, rows: usize) -> Result<()> {
        match rows == 1 && bytes > VALUE_BYTES_MAX {
            true => Err(self.exceeded(bytes, rows, VALUE_BYTES_MAX)),
            false => Ok(()),
        }
    }

    fn exceeded(&self, bytes: usize, rows: usize, limit: usize) -> DataFusionError {
        let name = self.name();
        let message =
            format!("{name} would return {bytes} bytes for {rows} rows, {limit} are allowed");
        DataFusionError::External(Box::new(SqlError::new(Code::LimitExceeded, message)))
    }
}

fn check_compared(arguments: &[ColumnarValue]) -> Result<()> {
    let is_long = arguments
        .iter()
        .any(|value| longest_text(value) > COMPARED_BYTES_MAX);
    if !is_long {
        return Ok(());
    }
    let message =
        format!("levenshtein argument exceeds maximum length of {COMPARED_BYTES_MAX} bytes");
    let error = SqlError::new(Code::InvalidParameterValue, message);
    Err(DataFusionError::External(Box::new(error)))
}

fn longest_text(value: &ColumnarValue) -> usize {
    let value_of = Argument::new(value);
    let rows = match value {
        ColumnarValue::Array(values) => values.len(),
        ColumnarValue::Scalar(_) => 1,
    };
    (0..rows)
        .map(|row| value_of.text(row).len())
        .max()
        .unwrap_or(0)
}

/// Returns where the second text is in the first, in characters from 1 on, or 0. DataFusion's function takes the
/// product of their lengths.
fn found(arguments: &ScalarFunctionArgs, rows: Rows) -> Result<ColumnarValue> {
    let values: Vec<Argument> = arguments.args.iter().map(Argument::new).collect();
    let is_null = |row: usize| {
        arguments.args.iter().any(|value| match value {
            ColumnarValue::Array(values) => values.is_null(row),
            ColumnarValue::Scalar(value) => value.is_null(),
        })
    };
    let position = |row: usize| {
        let (text, wanted) = (values[0].text(row), values[1].text(row));
        let characters = |at: usize| text[..at].chars().count() as i64 + 1;
        text.find(wanted).map_or(0, characters)
    };
    let positions = (0..rows.count).map(|row| (!is_null(row)).then(|| position(row)));
    let positions: Int64Array = positions.collect();
    let positions = cast(&positions, arguments.return_field.data_type())?;
    match rows.are_one {
        true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(
            &positions, 0,
        )?)),
        false => Ok(ColumnarValue::Array(positions)),
    }
}

/// Returns the function of `||`.
fn concatenation() -> Arc<ScalarUDF> {
    static JOINED: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        native(
            "||",
            2,
            |types| Ok(types[0].clone()),
            |arguments| {
                let are_one = Rows::of(&arguments).are_one;
                let sides = ColumnarValue::values_to_arrays(&arguments.args)?;
                let joined = concat_elements_dyn(&sides[0], &sides[1])?;
                match are_one {
                    true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(
                        &joined, 0,
                    )?)),
                    false => Ok(ColumnarValue::Array(joined)),
                }
            },
        )
    });
    Arc::clone(&JOINED)
}
