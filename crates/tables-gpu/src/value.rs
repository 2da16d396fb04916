//! Values in generated code.

use datafusion::arrow::datatypes::DataType;

/// The largest number of 128 bits that kernels hold: that of a decimal of 38 digits.
const HUGE_MAX: i128 = 10_i128.pow(38) - 1;

/// How a kernel holds a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Bool,
    Small,
    Large,
    Huge,
    Float,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Bool => "bool",
            Kind::Small => "i32",
            Kind::Large => "i64",
            Kind::Huge => "i128",
            Kind::Float => "double",
        }
    }

    /// Returns the narrowest kind of integer for a range; `None` if none is wide enough.
    pub(crate) fn of(min: i128, max: i128) -> Option<Kind> {
        let fits = |low: i128, high: i128| min >= low && max <= high;
        if fits(i32::MIN.into(), i32::MAX.into()) {
            Some(Kind::Small)
        } else if fits(i64::MIN.into(), i64::MAX.into()) {
            Some(Kind::Large)
        } else {
            fits(-HUGE_MAX, HUGE_MAX).then_some(Kind::Huge)
        }
    }
}

/// A value in generated code.
#[derive(Debug, Clone)]
pub(crate) struct Value {
    /// Name of the variable, or a constant.
    pub(crate) text: String,
    pub(crate) kind: Kind,
    /// Name of the variable that tells whether the value is not NULL; `None` if it never is.
    pub(crate) valid: Option<String>,
    /// Bounds of the value; of a float, of the integer that orders as it does.
    pub(crate) min: i128,
    pub(crate) max: i128,
}

impl Value {
    /// Returns the largest absolute value of a number.
    pub(crate) fn largest(&self) -> u128 {
        self.min.unsigned_abs().max(self.max.unsigned_abs())
    }

    /// Returns the value in a kind at least as wide.
    pub(crate) fn widened(&self, kind: Kind) -> String {
        match self.kind == kind {
            true => self.text.clone(),
            false => format!("static_cast<{}>({})", kind.name(), self.text),
        }
    }
}

/// Returns the value of a condition.
pub(crate) fn condition(text: String, valid: Option<String>) -> Value {
    Value {
        text,
        kind: Kind::Bool,
        valid,
        min: 0,
        max: 1,
    }
}

/// Returns the smallest and the largest number of a type.
pub(crate) fn bounds_of(data_type: &DataType) -> Option<(i128, i128)> {
    Some(match data_type {
        DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        DataType::Int32 => (i32::MIN.into(), i32::MAX.into()),
        DataType::Int64 => (i64::MIN.into(), i64::MAX.into()),
        DataType::UInt8 => (0, u8::MAX.into()),
        DataType::UInt16 => (0, u16::MAX.into()),
        DataType::UInt32 => (0, u32::MAX.into()),
        DataType::UInt64 => (0, u64::MAX.into()),
        DataType::Decimal128(precision, _) => {
            let end = 10_i128.checked_pow((*precision).into())?;
            (1 - end, end - 1)
        }
        _ => return None,
    })
}
