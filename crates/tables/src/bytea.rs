//! Texts of `bytea`.

use crate::error::{Code, SqlError};

/// Reads a text in the format `hex` (`\x01ff`) or `escape` (`abc\001\\`).
///
/// # Errors
/// If the text is malformed.
pub fn bytea_of_text(text: &str) -> Result<Vec<u8>, SqlError> {
    match text.strip_prefix("\\x") {
        Some(digits) => of_hex(digits),
        None => of_escapes(text).ok_or_else(|| invalid("invalid input syntax for type bytea")),
    }
}

fn invalid(message: impl Into<String>) -> SqlError {
    SqlError::new(Code::InvalidTextRepresentation, message)
}

/// Reads pairs of hexadecimal digits, with white space between pairs.
fn of_hex(text: &str) -> Result<Vec<u8>, SqlError> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut letters = text.chars();
    let digit = |letter: char| {
        letter
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
            .ok_or_else(|| invalid(format!("invalid hexadecimal digit: \"{letter}\"")))
    };
    while let Some(letter) = letters.next() {
        if matches!(letter, ' ' | '\n' | '\t' | '\r') {
            continue;
        }
        let high = digit(letter)?;
        let low = letters.next();
        let low = low.ok_or_else(|| invalid("invalid hexadecimal data: odd number of digits"))?;
        bytes.push(high << 4 | digit(low)?);
    }
    Ok(bytes)
}

/// Reads bytes of which some are `\\` or a backslash and three octal digits.
fn of_escapes(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let (byte, after) = match (byte, after) {
            (b'\\', [b'\\', after @ ..]) => (b'\\', after),
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    after @ ..,
                ],
            ) => ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), after),
            (b'\\', _) => return None,
            plain => plain,
        };
        bytes.push(byte);
        rest = after;
    }
    Some(bytes)
}
