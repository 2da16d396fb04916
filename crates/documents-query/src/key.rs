//! Encoding of BSON values as bytes that sort like the values.
//!
//! `memcmp` of two encodings has the same result as [`compare()`](crate::compare()) of the values, and two encodings
//! are identical if and only if the values compare equal: `1`, `1.0` and `NumberLong(1)` have the same key. Encodings
//! are self-delimiting, so concatenated encodings form compound keys. A descending field has the inverted bytes of its
//! ascending encoding. Values cannot be decoded from a key.

use bson::raw::{RawBinaryRef, RawBsonRef, RawDocument};

use crate::compare::{Class, class};
use crate::decimal::{self, Decimal, Digits};
use crate::element::{Elements, array_elements, elements, encode_value, payload_bytes};
use crate::number::Number;

/// The sort direction of one part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Small values first.
    Ascending,
    /// Large values first.
    Descending,
}

/// Marks the end of the elements of a document or an array. Every class byte is larger.
const END: u8 = 0x00;

/// Returns the maximum bytes of the key of one value. Keys escape each zero byte with a second byte.
pub fn bytes_max(value: RawBsonRef<'_>) -> usize {
    BYTES_MIN + 2 * payload_bytes(value)
}

/// Maximum bytes of the key of a number or another value that is always small.
const BYTES_MIN: usize = 32;

/// Returns the ascending key of one value.
pub fn encode(value: RawBsonRef<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(24);
    append(&mut out, value);
    out
}

/// Appends the ascending key of `value`.
///
/// Does not recurse, because stored documents may nest deeper than the stack allows.
pub fn append(out: &mut Vec<u8>, value: RawBsonRef<'_>) {
    out.push(class(value) as u8);
    let mut open = Vec::new();
    open.extend(append_outside(out, value));
    while let Some(Inside { elements, is_named }) = open.last_mut() {
        let Some(element) = elements.next() else {
            out.push(END);
            open.pop();
            continue;
        };
        let value = element.value();
        out.push(class(value) as u8);
        if *is_named {
            append_bytes(out, element.key.as_bytes());
        }
        open.extend(append_outside(out, value));
    }
}

/// The elements of a document or an array that are still to be encoded.
struct Inside<'a> {
    elements: Elements<'a>,
    /// Whether field names are encoded: true for documents, false for arrays.
    is_named: bool,
}

impl<'a> Inside<'a> {
    fn of_document(document: &'a RawDocument) -> Inside<'a> {
        Inside {
            elements: elements(document),
            is_named: true,
        }
    }
}

/// Appends the key of `value` in `direction`.
pub fn append_directed(out: &mut Vec<u8>, value: RawBsonRef<'_>, direction: Direction) {
    let start = out.len();
    append(out, value);
    if direction == Direction::Descending {
        invert(&mut out[start..]);
    }
}

/// Returns the common prefix of the ascending keys of all strings that begin with `prefix`. No other key has this
/// prefix.
pub fn string_prefix(prefix: &str) -> Vec<u8> {
    let mut out = vec![Class::String as u8];
    escape(&mut out, prefix.as_bytes());
    out
}

fn invert(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = !*byte;
    }
}

/// Appends a value's encoding. For a document or an array, omits the elements and returns them.
fn append_outside<'a>(out: &mut Vec<u8>, value: RawBsonRef<'a>) -> Option<Inside<'a>> {
    match value {
        RawBsonRef::Document(document) => return Some(Inside::of_document(document)),
        RawBsonRef::Array(array) => {
            return Some(Inside {
                elements: array_elements(array),
                is_named: false,
            });
        }
        RawBsonRef::JavaScriptCodeWithScope(code) => {
            append_bytes(out, code.code.as_bytes());
            return Some(Inside::of_document(code.scope));
        }
        scalar => append_scalar(out, scalar),
    }
    None
}

fn append_scalar(out: &mut Vec<u8>, value: RawBsonRef<'_>) {
    if let Some(number) = Number::of(value) {
        return append_number(out, number);
    }
    match value {
        RawBsonRef::String(text) | RawBsonRef::Symbol(text) | RawBsonRef::JavaScriptCode(text) => {
            append_bytes(out, text.as_bytes())
        }
        RawBsonRef::Binary(binary) => append_binary(out, binary),
        RawBsonRef::ObjectId(id) => out.extend_from_slice(&id.bytes()),
        RawBsonRef::Boolean(flag) => out.push(u8::from(flag)),
        RawBsonRef::DateTime(date) => append_i64(out, date.timestamp_millis()),
        RawBsonRef::Timestamp(stamp) => {
            out.extend_from_slice(&stamp.time.to_be_bytes());
            out.extend_from_slice(&stamp.increment.to_be_bytes());
        }
        _ => append_rare(out, value),
    }
}

fn append_rare(out: &mut Vec<u8>, value: RawBsonRef<'_>) {
    match value {
        RawBsonRef::RegularExpression(regex) => {
            append_bytes(out, regex.pattern.as_str().as_bytes());
            append_bytes(out, regex.options.as_str().as_bytes());
        }
        RawBsonRef::DbPointer(_) => {
            let bytes = encode_value(value);
            append_length(out, bytes.len());
            out.extend_from_slice(&bytes);
        }
        // The keys of MinKey, MaxKey, null and undefined are only their class byte.
        _ => {}
    }
}

fn append_binary(out: &mut Vec<u8>, binary: RawBinaryRef<'_>) {
    append_length(out, binary.bytes.len());
    out.push(u8::from(binary.subtype));
    out.extend_from_slice(binary.bytes);
}

fn append_length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&(length as u32).to_be_bytes());
}

fn append_i64(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(&((value as u64) ^ (1 << 63)).to_be_bytes());
}

/// Appends bytes with each 0 escaped as `0, 255`, followed by `0, 0` as the end.
fn append_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    escape(out, bytes);
    out.extend_from_slice(&[0, 0]);
}

fn escape(out: &mut Vec<u8>, bytes: &[u8]) {
    for part in bytes.split_inclusive(|byte| *byte == 0) {
        out.extend_from_slice(part);
        if part.last() == Some(&0) {
            out.push(0xFF);
        }
    }
}

/// Appends the largest double that is not above the number. Then appends 0 if that double equals the number; otherwise
/// 1 and the digits of the number.
fn append_number(out: &mut Vec<u8>, number: Number) {
    let floor = floor_f64(number);
    out.extend_from_slice(&ordered_bits(floor).to_be_bytes());
    match rest(number, floor) {
        None => out.push(0),
        Some(digits) => {
            out.push(1);
            append_digits(out, &digits);
        }
    }
}

/// Returns the bits of a double, transformed so that they sort like the doubles. NaN is 0, below minus infinity.
fn ordered_bits(value: f64) -> u64 {
    if value.is_nan() {
        return 0;
    }
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    if bits >> 63 == 1 {
        !bits
    } else {
        bits | 1 << 63
    }
}

fn floor_f64(number: Number) -> f64 {
    match number {
        Number::Double(value) => value,
        Number::Integer(value) => {
            let nearest = value as f64;
            if nearest as i128 > i128::from(value) {
                nearest.next_down()
            } else {
                nearest
            }
        }
        Number::Decimal(value) => {
            let nearest = value.to_f64();
            if decimal::compare_f64(nearest, value).is_gt() {
                nearest.next_down()
            } else {
                nearest
            }
        }
    }
}

/// Returns all digits of `number`, or `None` if it equals `floor`, which is the largest double that is not above it.
fn rest(number: Number, floor: f64) -> Option<Digits> {
    match number {
        Number::Double(_) => None,
        Number::Integer(value) if floor as i128 == i128::from(value) => None,
        Number::Integer(value) => Decimal::from(value).digits(),
        Number::Decimal(value) if decimal::compare_f64(floor, value).is_eq() => None,
        Number::Decimal(value) => value.digits(),
    }
}

fn append_digits(out: &mut Vec<u8>, digits: &Digits) {
    let start = out.len();
    out.extend_from_slice(&((digits.place + 0x4000) as u16).to_be_bytes());
    out.extend_from_slice(digits.digits.as_bytes());
    out.push(END);
    if digits.negative {
        invert(&mut out[start..]);
    }
}
