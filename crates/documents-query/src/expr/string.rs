//! String operators.

use bson::raw::RawBsonRef;

use super::function::{Function, any, between, exactly, named};
use super::value::ArrayWriter;
use super::{Value, check_bytes, convert, evaluation};
use crate::error::{Code, Error};
use crate::number::Number;

pub(super) const FUNCTIONS: &[Function] = &[
    any("$concat", concat),
    exactly("$toLower", 1, |operands| {
        Ok(convert::text_or_empty(&operands[0], "$toLower")?
            .to_ascii_lowercase()
            .into())
    }),
    exactly("$toUpper", 1, |operands| {
        Ok(convert::text_or_empty(&operands[0], "$toUpper")?
            .to_ascii_uppercase()
            .into())
    }),
    exactly("$strLenBytes", 1, |operands| {
        length(operands, "$strLenBytes", Code::Location34473, str::len)
    }),
    exactly("$strLenCP", 1, |operands| {
        length(operands, "$strLenCP", Code::Location34471, |text| {
            text.chars().count()
        })
    }),
    exactly("$strcasecmp", 2, compare_ignoring_case),
    exactly("$substrCP", 3, substring_of_characters),
    exactly("$substrBytes", 3, substring_of_bytes),
    exactly("$substr", 3, substring_of_bytes),
    exactly("$split", 2, split),
    between("$indexOfCP", 2, 4, index_of_character),
    named("$trim", &["input", "chars"], |operands| {
        trim(operands, "$trim", true, true)
    }),
    named("$ltrim", &["input", "chars"], |operands| {
        trim(operands, "$ltrim", true, false)
    }),
    named("$rtrim", &["input", "chars"], |operands| {
        trim(operands, "$rtrim", false, true)
    }),
    named(
        "$replaceOne",
        &["input", "find", "replacement"],
        |operands| replace(operands, "$replaceOne", 1),
    ),
    named(
        "$replaceAll",
        &["input", "find", "replacement"],
        |operands| replace(operands, "$replaceAll", usize::MAX),
    ),
];

fn concat<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let mut text = String::with_capacity(operands.iter().map(Value::bytes).sum());
    for operand in operands {
        match operand.get() {
            _ if operand.is_nullish() => return Ok(Value::NULL),
            Some(RawBsonRef::String(part)) => text.push_str(part),
            _ => {
                return Err(Error::new(
                    Code::Location16702,
                    format!("$concat only supports strings, not {}", operand.type_name()),
                ));
            }
        }
    }
    Ok(text.into())
}

fn length<'a>(
    operands: &[Value<'a>],
    name: &str,
    code: Code,
    length: fn(&str) -> usize,
) -> Result<Value<'a>, Error> {
    match operands[0].as_text() {
        Some(text) => Ok((length(text) as i32).into()),
        None => {
            let message = format!(
                "{name} requires a string argument, found: {}",
                operands[0].type_name()
            );
            Err(Error::new(code, message))
        }
    }
}

fn compare_ignoring_case<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let left = convert::text_or_empty(&operands[0], "$strcasecmp")?;
    let right = convert::text_or_empty(&operands[1], "$strcasecmp")?;
    let upper = |byte: u8| byte.to_ascii_uppercase();
    let order = left.bytes().map(upper).cmp(right.bytes().map(upper));
    Ok((order as i32).into())
}

/// Converts an operand that must be a non-negative integer.
fn count(operand: &Value<'_>, codes: [Code; 3], what: &str) -> Result<usize, Error> {
    let Some(number) = operand.get().and_then(Number::of) else {
        return Err(Error::new(
            codes[0],
            format!(
                "{what} must be a numeric type (is BSON type {})",
                operand.type_name()
            ),
        ));
    };
    match number.to_i64_exact().map(i32::try_from) {
        Some(Ok(number @ 0..)) => Ok(number as usize),
        Some(Ok(_)) => Err(Error::new(codes[2], format!("{what} must be non-negative"))),
        _ => Err(Error::new(
            codes[1],
            format!("{what} cannot be represented as a 32-bit integral value"),
        )),
    }
}

fn substring_of_characters<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let text = convert::text_or_empty(&operands[0], "$substrCP")?;
    let start = count(
        &operands[1],
        [
            Code::Location34450,
            Code::Location34451,
            Code::Location34455,
        ],
        "$substrCP: starting index",
    )?;
    let length = count(
        &operands[2],
        [
            Code::Location34452,
            Code::Location34453,
            Code::Location34454,
        ],
        "$substrCP: length",
    )?;
    Ok(text
        .chars()
        .skip(start)
        .take(length)
        .collect::<String>()
        .into())
}

/// Implements `$substrBytes`. Cutting a character in two is an error. A negative length means the rest of the string.
fn substring_of_bytes<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    let text = convert::text_or_empty(&operands[0], "$substrBytes")?;
    let integer = |operand: &Value<'_>, code, role: &str| {
        let number = operand
            .get()
            .and_then(Number::of)
            .map(Number::to_i64_truncated);
        number.ok_or_else(|| {
            Error::new(
                code,
                format!(
                    "$substrBytes:  {role} must be a numeric type (is BSON type {})",
                    operand.type_name()
                ),
            )
        })
    };
    let start = integer(&operands[1], Code::Location16034, "starting index")?;
    let length = integer(&operands[2], Code::Location16035, "length")?;
    let Ok(start) = usize::try_from(start) else {
        return Err(Error::new(
            Code::Location50752,
            format!("$substrBytes: starting index must be non-negative (got: {start})"),
        ));
    };
    let start = start.min(text.len());
    let end = usize::try_from(length).map_or(text.len(), |length| {
        start.saturating_add(length).min(text.len())
    });
    match text.get(start..end) {
        Some(part) => Ok(part.to_owned().into()),
        None if !text.is_char_boundary(start) => Err(Error::new(
            Code::Location28656,
            "$substrBytes:  Invalid range, starting index is a UTF-8 continuation byte.",
        )),
        None => Err(Error::new(
            Code::Location28657,
            "$substrBytes:  Invalid range, ending index is in the middle of a UTF-8 character.",
        )),
    }
}

fn split<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    if operands.iter().any(Value::is_nullish) {
        return Ok(Value::NULL);
    }
    let need = |index: usize, code, which: &str| {
        let found: &Value<'_> = &operands[index];
        let message = || {
            format!(
                "$split requires an expression that evaluates to a string as a {which} argument, found: {}",
                found.type_name()
            )
        };
        found.as_text().ok_or_else(|| Error::new(code, message()))
    };
    let text = need(0, Code::Location40085, "first")?;
    let separator = need(1, Code::Location40086, "second")?;
    if separator.is_empty() {
        return Err(Error::new(
            Code::Location40087,
            "$split requires a non-empty separator",
        ));
    }
    let mut parts = ArrayWriter::new();
    for (index, part) in text.split(separator).enumerate() {
        evaluation::check_element(index)?;
        parts.push(RawBsonRef::String(part))?;
    }
    Ok(Value::Owned(parts.finish()))
}

fn index_of_character<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    if operands[0].is_nullish() {
        return Ok(Value::NULL);
    }
    let Some(text) = operands[0].as_text() else {
        let message = format!(
            "$indexOfCP requires a string as the first argument, found: {}",
            operands[0].type_name()
        );
        return Err(Error::new(Code::Location40093, message));
    };
    let Some(wanted) = operands[1].as_text() else {
        let message = format!(
            "$indexOfCP requires a string as the second argument, found: {}",
            operands[1].type_name()
        );
        return Err(Error::new(Code::Location40094, message));
    };
    let bound = |index: usize, role: &str| match operands.get(index) {
        None => Ok(None),
        Some(operand) => {
            let codes = [
                Code::Location40096,
                Code::Location40096,
                Code::Location40097,
            ];
            count(operand, codes, &format!("$indexOfCP {role} index")).map(Some)
        }
    };
    let start = bound(2, "starting")?.unwrap_or(0);
    let end = bound(3, "ending")?.unwrap_or(usize::MAX);
    let last = end.saturating_sub(wanted.chars().count());
    let offsets = text.char_indices().map(|(offset, _)| offset);
    let places = offsets.chain([text.len()]).enumerate().skip(start);
    for (position, offset) in places.take_while(|(position, _)| *position <= last) {
        evaluation::check_element(position)?;
        if text[offset..].starts_with(wanted) && wanted.chars().count() <= end {
            return Ok((position as i32).into());
        }
    }
    Ok((-1).into())
}

fn trim<'a>(
    operands: &[Value<'a>],
    name: &str,
    start: bool,
    end: bool,
) -> Result<Value<'a>, Error> {
    if operands[0].is_nullish() {
        return Ok(Value::NULL);
    }
    let Some(mut text) = operands[0].as_text() else {
        let shown = crate::display::value(operands[0].or_null());
        let message = format!(
            "{name} requires its input to be a string, got {shown} (of type {}) instead.",
            operands[0].type_name()
        );
        return Err(Error::new(Code::Location50699, message));
    };
    let Some(cut) = trim_characters(&operands[1], name)? else {
        return Ok(Value::NULL);
    };
    if start {
        text = text.trim_start_matches(|c| cut.contains(c));
    }
    if end {
        text = text.trim_end_matches(|c| cut.contains(c));
    }
    Ok(text.to_owned().into())
}

/// Returns the characters to trim: white space by default, `None` if `chars` is null.
fn trim_characters<'v>(chars: &'v Value<'_>, name: &str) -> Result<Option<&'v str>, Error> {
    const WHITE_SPACE: &str = "\0 \t\n\u{b}\u{c}\r\u{a0}\u{1680}\u{2000}\u{2001}\u{2002}\u{2003}\u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}";
    match chars {
        Value::Missing => Ok(Some(WHITE_SPACE)),
        chars if chars.is_nullish() => Ok(None),
        chars => match chars.as_text() {
            Some(text) => Ok(Some(text)),
            None => {
                let shown = crate::display::value(chars.or_null());
                let message = format!(
                    "{name} requires 'chars' to be a string, got {shown} (of type {}) instead.",
                    chars.type_name()
                );
                Err(Error::new(Code::Location50700, message))
            }
        },
    }
}

fn replace<'a>(operands: &[Value<'a>], name: &str, count: usize) -> Result<Value<'a>, Error> {
    const ROLES: [(&str, Code); 3] = [
        ("input", Code::Location51746),
        ("find", Code::Location51745),
        ("replacement", Code::Location51744),
    ];
    let mut texts = [""; 3];
    let mut null = false;
    for (index, (role, code)) in ROLES.iter().enumerate() {
        match operands[index].as_text() {
            Some(text) => texts[index] = text,
            None if operands[index].is_nullish() => null = true,
            None => {
                let shown = crate::display::value(operands[index].or_null());
                return Err(Error::new(
                    *code,
                    format!("{name} requires that '{role}' be a string, found: {shown}"),
                ));
            }
        }
    }
    if null {
        return Ok(Value::NULL);
    }
    let [input, find, replacement] = texts;
    let grows = replacement.len().saturating_sub(find.len());
    if grows > 0 {
        let replaced = input.matches(find).take(count).count();
        check_bytes(input.len().saturating_add(replaced.saturating_mul(grows)))?;
    }
    Ok(input.replacen(find, replacement, count).into())
}
