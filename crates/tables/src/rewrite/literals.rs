//! Constants: texts that are cast to arrays and times, and patterns.

use datafusion::sql::sqlparser::ast::{Array, ArrayElemTypeDef, CastKind, DataType, Expr, Value};

/// Gives times the precision that they have in PostgreSQL.
pub(super) fn in_micros(data_type: &mut DataType) {
    if let DataType::Timestamp(precision @ None, _) = data_type {
        *precision = Some(6);
    }
}

/// Spells the hours, minutes and seconds of an interval such as `1 day 02:03:04` out.
pub(super) fn spell_interval(expr: &mut Expr) {
    let Expr::Value(value) = expr else {
        return;
    };
    if let Value::SingleQuotedString(text) = &mut value.value
        && text.contains(':')
    {
        let words = text.split_whitespace().map(spelled);
        *text = words.collect::<Vec<_>>().join(" ");
    }
}

fn spelled(word: &str) -> String {
    let (sign, digits) = match word.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", word.trim_start_matches('+')),
    };
    let mut parts = digits.split(':');
    let (Some(hours), Some(minutes)) = (parts.next(), parts.next()) else {
        return word.to_owned();
    };
    let seconds = parts.next().unwrap_or("0");
    format!("{sign}{hours} hours {sign}{minutes} minutes {sign}{seconds} seconds")
}

/// Returns the array that a text such as `{1,2}` stands for if it is cast to one; `None` if it is none.
pub(super) fn array(expr: &Expr, data_type: &DataType) -> Option<Expr> {
    let DataType::Array(ArrayElemTypeDef::SquareBracket(..)) = data_type else {
        return None;
    };
    let Expr::Value(value) = expr else {
        return None;
    };
    let Value::SingleQuotedString(text) = &value.value else {
        return None;
    };
    let mut rest = text.trim();
    let (array, depth) = items(&mut rest, 0)?;
    if !rest.trim().is_empty() {
        return None;
    }
    let mut data_type = data_type.clone();
    for _ in 1..depth {
        data_type = DataType::Array(ArrayElemTypeDef::SquareBracket(Box::new(data_type), None));
    }
    Some(Expr::Cast {
        kind: CastKind::DoubleColon,
        expr: Box::new(array),
        data_type,
        array: false,
        format: None,
    })
}

/// Maximum dimensions of an array.
const DIMENSIONS_MAX: usize = 6;

/// Reads `{...}`. Returns the array and its number of dimensions.
fn items(rest: &mut &str, depth: usize) -> Option<(Expr, usize)> {
    *rest = rest.trim_start().strip_prefix('{')?;
    let mut elem = Vec::new();
    let mut dimensions = 1;
    loop {
        *rest = rest.trim_start();
        if elem.is_empty()
            && let Some(after) = rest.strip_prefix('}')
        {
            *rest = after;
            break;
        }
        if rest.starts_with('{') && depth + 1 < DIMENSIONS_MAX {
            let (inner, inside) = items(rest, depth + 1)?;
            dimensions = inside + 1;
            elem.push(inner);
        } else {
            elem.push(Expr::value(item(rest)?));
        }
        *rest = rest.trim_start();
        let separator = rest.chars().next()?;
        *rest = &rest[separator.len_utf8()..];
        match separator {
            ',' => {}
            '}' => break,
            _ => return None,
        }
    }
    Some((Expr::Array(Array { elem, named: true }), dimensions))
}

/// Reads an item of an array.
fn item(rest: &mut &str) -> Option<Value> {
    let mut text = String::new();
    if let Some(quoted) = rest.strip_prefix('"') {
        let mut letters = quoted.char_indices();
        loop {
            let (offset, letter) = letters.next()?;
            match letter {
                '"' => {
                    *rest = &quoted[offset + 1..];
                    return Some(Value::SingleQuotedString(text));
                }
                '\\' => text.push(letters.next()?.1),
                letter => text.push(letter),
            }
        }
    }
    let end = rest.find([',', '{', '}', '"', '\\'])?;
    text.push_str(rest[..end].trim_end());
    *rest = &rest[end..];
    match text.as_str() {
        "" => None,
        null if null.eq_ignore_ascii_case("null") => Some(Value::Null),
        _ => Some(Value::SingleQuotedString(text)),
    }
}

/// Makes `.` in a constant pattern match newlines, too.
pub(super) fn match_newlines(pattern: &mut Expr) {
    if let Expr::Value(value) = pattern
        && let Value::SingleQuotedString(text) = &mut value.value
        && text.contains('.')
        && !text.starts_with("(?")
        && !text.starts_with("^(?")
        && !text.starts_with("***")
    {
        text.insert_str(0, "(?s)");
    }
}

/// Returns the regular expression of a pattern of `SIMILAR TO`.
pub(super) fn regex(pattern: &str) -> String {
    let mut regex = String::from("^(?s:");
    let mut letters = pattern.chars();
    let mut is_in_brackets = false;
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => {
                regex.push('\\');
                regex.extend(letters.next());
            }
            ']' => {
                is_in_brackets = false;
                regex.push(letter);
            }
            _ if is_in_brackets => regex.push(letter),
            '[' => {
                is_in_brackets = true;
                regex.push(letter);
            }
            '%' => regex.push_str(".*"),
            '_' => regex.push('.'),
            '(' => regex.push_str("(?:"),
            '.' | '^' | '$' => regex.extend(['\\', letter]),
            letter => regex.push(letter),
        }
    }
    regex.push_str(")$");
    regex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_read() {
        let data_type = DataType::Array(ArrayElemTypeDef::SquareBracket(
            Box::new(DataType::Text),
            None,
        ));
        for (text, expected) in [
            ("{1, 2}", Some("ARRAY['1', '2']::TEXT[]")),
            ("{}", Some("ARRAY[]::TEXT[]")),
            (
                "{a,NULL,\"N,\\\"\"}",
                Some("ARRAY['a', NULL, 'N,\"']::TEXT[]"),
            ),
            ("{{1},{2}}", Some("ARRAY[ARRAY['1'], ARRAY['2']]::TEXT[][]")),
            ("{1", None),
            ("{1,}", None),
            ("1", None),
        ] {
            let value = Expr::value(Value::SingleQuotedString(text.to_owned()));
            let array = array(&value, &data_type).map(|array| array.to_string());
            assert_eq!(array.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn patterns_become_regular_expressions() {
        for (pattern, expected) in [
            ("(a|b)%", "^(?s:(?:a|b).*)$"),
            ("a.c_", "^(?s:a\\.c.)$"),
            ("[%_]\\%", "^(?s:[%_]\\%)$"),
        ] {
            assert_eq!(regex(pattern), expected);
        }
    }
}
