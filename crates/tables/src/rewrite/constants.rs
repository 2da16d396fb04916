//! Constants whose text DataFusion reads otherwise than PostgreSQL.

use datafusion::sql::sqlparser::ast::{DataType, Expr, UnaryOperator, Value};

use crate::bytea::bytea_of_text;

/// Returns a text without escapes, which the parser has resolved, as a plain one.
pub(super) fn plain(value: &mut Value) {
    if let Value::EscapedStringLiteral(text) = value {
        *value = Value::SingleQuotedString(std::mem::take(text));
    }
}

/// Prepares a constant for its cast to `data_type`.
pub(super) fn prepare(expr: &mut Expr, data_type: &DataType) {
    let prepared = match data_type {
        DataType::Bytea => bytes(expr),
        DataType::DoublePrecision
        | DataType::Double(_)
        | DataType::Real
        | DataType::Float(_)
        | DataType::Float4
        | DataType::Float8 => number(expr).map(Value::SingleQuotedString),
        _ => None,
    };
    if let Some(value) = prepared {
        *expr = Expr::value(value);
    }
}

/// Returns the bytes of a text, in hexadecimal digits.
fn bytes(expr: &Expr) -> Option<Value> {
    let Expr::Value(value) = expr else {
        return None;
    };
    let Value::SingleQuotedString(text) = &value.value else {
        return None;
    };
    let bytes = bytea_of_text(text).ok()?;
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    Some(Value::HexStringLiteral(digits.collect()))
}

/// Returns the text of a number: DataFusion makes it a decimal, which has not enough digits for `5e-324`.
fn number(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Nested(inner) => number(inner),
        Expr::UnaryOp {
            op: UnaryOperator::Minus,
            expr,
        } => {
            let text = number(expr)?;
            (!text.starts_with('-')).then(|| format!("-{text}"))
        }
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_prepared_for_their_casts() {
        let text = |text: &str| Value::SingleQuotedString(text.to_owned());
        let number = |text: &str| Value::Number(text.to_owned(), false);
        for (value, data_type, expected) in [
            (text("\\x00fF"), DataType::Bytea, "X'00ff'"),
            (text("a\\001"), DataType::Bytea, "X'6101'"),
            (text("\\x0"), DataType::Bytea, "'\\x0'"),
            (number("5e-324"), DataType::DoublePrecision, "'5e-324'"),
            (number("0.1"), DataType::Real, "'0.1'"),
            (number("1"), DataType::Text, "1"),
        ] {
            let mut expr = Expr::value(value);
            prepare(&mut expr, &data_type);
            assert_eq!(expr.to_string(), expected);
        }
    }
}
