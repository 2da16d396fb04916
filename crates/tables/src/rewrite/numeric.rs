//! Constants that are cast to `numeric` without a precision, as in `1::numeric`.
//!
//! DataFusion takes ten decimals for each, of which a product of a few has more than a decimal holds.

use datafusion::sql::sqlparser::ast::{DataType, ExactNumberInfo, Expr, UnaryOperator, Value};

/// Maximum digits of a number.
const DIGITS_MAX: usize = 38;

/// Gives a cast of a constant the precision and scale of the constant.
pub(super) fn measure(expr: &Expr, data_type: &mut DataType) {
    let (DataType::Numeric(info) | DataType::Decimal(info)) = data_type else {
        return;
    };
    if *info == ExactNumberInfo::None
        && let Some((precision, scale)) = digits(expr)
    {
        *info = ExactNumberInfo::PrecisionAndScale(precision, scale);
    }
}

/// Returns the number of a constant's digits, and how many of them are decimals; `None` if it is no plain number.
fn digits(expr: &Expr) -> Option<(u64, i64)> {
    let text = match expr {
        Expr::Nested(inner)
        | Expr::UnaryOp {
            op: UnaryOperator::Minus | UnaryOperator::Plus,
            expr: inner,
        } => return digits(inner),
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) | Value::SingleQuotedString(text) => text.trim(),
            _ => return None,
        },
        _ => return None,
    };
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let count = whole.trim_start_matches('0').len() + decimals.len();
    let is_number = whole.len() + decimals.len() > 0 && are_digits(whole) && are_digits(decimals);
    let fits = is_number && count <= DIGITS_MAX;
    fits.then(|| {
        (
            count.max(1) as u64,
            i64::try_from(decimals.len()).unwrap_or(0),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_tell_their_digits() {
        for (text, expected) in [
            ("1", Some((1, 0))),
            ("0", Some((1, 0))),
            ("0.05", Some((2, 2))),
            ("100.00", Some((5, 2))),
            ("-12.5", Some((3, 1))),
            ("1e5", None),
            ("NaN", None),
            ("", None),
        ] {
            let value = Expr::value(Value::SingleQuotedString(text.to_owned()));
            assert_eq!(digits(&value), expected, "{text}");
        }
    }
}
