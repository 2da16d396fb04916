//! Numbers by patterns such as `999,990.00`.

use datafusion::error::Result;

use super::failed;
use crate::error::Code;

/// A place in a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A digit, blank before the number begins.
    Nine,
    /// A digit.
    Zero,
    /// A separator of groups.
    Group,
    /// Any other letter.
    Letter(char),
}

/// Where the sign stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// Before the first digit; a blank if the number is not negative.
    Plain,
    /// `S` before the number.
    First,
    /// `S` after the number.
    Last,
    /// `MI` before or after the number: a minus or a blank.
    MinusFirst,
    MinusLast,
    /// `PR`: in angle brackets if it is negative.
    Brackets,
}

/// A pattern.
#[derive(Debug)]
struct Pattern {
    whole: Vec<Place>,
    fraction: Vec<Place>,
    has_point: bool,
    sign: Sign,
    /// `FM`: without blanks, and without zeros at the end.
    is_short: bool,
}

impl Pattern {
    fn new(text: &str) -> Result<Pattern> {
        let mut pattern = Pattern {
            whole: Vec::new(),
            fraction: Vec::new(),
            has_point: false,
            sign: Sign::Plain,
            is_short: false,
        };
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            let pair = rest.get(..2).unwrap_or("").to_ascii_uppercase();
            let has_digits = !pattern.whole.is_empty() || pattern.has_point;
            let mut length = letter.len_utf8();
            match (&*pair, letter) {
                ("FM", _) => (pattern.is_short, length) = (true, 2),
                ("MI", _) => {
                    length = 2;
                    pattern.sign = match has_digits {
                        true => Sign::MinusLast,
                        false => Sign::MinusFirst,
                    };
                }
                ("PR", _) => (pattern.sign, length) = (Sign::Brackets, 2),
                ("TH" | "RN" | "EE" | "PL" | "SG", _) | (_, 'V' | 'v' | 'L' | 'l') => {
                    let message = format!("the number pattern \"{text}\" is not supported");
                    return Err(failed(Code::FeatureNotSupported, message));
                }
                (_, 'S' | 's') => {
                    pattern.sign = match has_digits {
                        true => Sign::Last,
                        false => Sign::First,
                    };
                }
                (_, '.' | 'D' | 'd') => pattern.has_point = true,
                (_, '9') => pattern.push(Place::Nine),
                (_, '0') => pattern.push(Place::Zero),
                (_, ',' | 'G' | 'g') => pattern.push(Place::Group),
                (_, '"') => {
                    let quoted = &rest[1..];
                    let end = quoted.find('"').unwrap_or(quoted.len());
                    quoted[..end]
                        .chars()
                        .for_each(|letter| pattern.push(Place::Letter(letter)));
                    length = (end + 2).min(rest.len());
                }
                (_, letter) => pattern.push(Place::Letter(letter)),
            }
            rest = &rest[length..];
        }
        Ok(pattern)
    }

    fn push(&mut self, place: Place) {
        match self.has_point {
            true => self.fraction.push(place),
            false => self.whole.push(place),
        }
    }
}

fn digits(places: &[Place]) -> usize {
    let mut count = places.to_vec();
    count.retain(|place| matches!(place, Place::Nine | Place::Zero));
    count.len()
}

/// Returns the text of a number.
pub(super) fn text(number: &str, pattern: &str) -> Result<String> {
    let pattern = Pattern::new(pattern)?;
    let scale = digits(&pattern.fraction);
    let (is_negative, whole, fraction) = rounded(number, scale);
    let is_negative = is_negative && (whole != "0" || fraction.contains(|digit| digit != '0'));
    let room = digits(&pattern.whole);
    let whole = match whole.as_str() {
        "0" if pattern.has_point || room == 0 => "",
        digits => digits,
    };
    let (before, after) = match whole.len() > room {
        true => ("#".repeat(room), "#".repeat(scale)),
        false => (whole.to_owned(), fraction),
    };
    let mut body = of_whole(&pattern, &before, is_negative);
    if pattern.has_point {
        body.push('.');
        body.push_str(&of_fraction(&pattern, &after));
    }
    let sign = if is_negative { "-" } else { "+" };
    let minus = if is_negative { "-" } else { " " };
    let minus = if pattern.is_short {
        minus.trim()
    } else {
        minus
    };
    Ok(match pattern.sign {
        Sign::Last => format!("{body}{sign}"),
        Sign::MinusFirst => format!("{minus}{body}"),
        Sign::MinusLast => format!("{body}{minus}"),
        Sign::Brackets if is_negative => format!("{body}>"),
        Sign::Brackets if !pattern.is_short => format!("{body} "),
        _ => body,
    })
}

/// Returns the digits before the point, with the sign before the first of them.
fn of_whole(pattern: &Pattern, digits: &str, is_negative: bool) -> String {
    let sign = match (pattern.sign, is_negative) {
        (Sign::Plain, true) | (Sign::First, true) => "-",
        (Sign::First, false) => "+",
        (Sign::Brackets, true) => "<",
        (Sign::Plain | Sign::Brackets, false) if !pattern.is_short => " ",
        _ => "",
    };
    let mut text = String::new();
    let mut left = self::digits(&pattern.whole);
    let mut has_begun = false;
    let mut next = digits.chars();
    for place in &pattern.whole {
        let is_digit = matches!(place, Place::Nine | Place::Zero);
        let is_number = is_digit && (left <= digits.len() || *place == Place::Zero || has_begun);
        if is_number && !has_begun {
            text.push_str(sign);
            has_begun = true;
        }
        match place {
            Place::Letter(letter) => text.push(*letter),
            Place::Group if has_begun => text.push(','),
            _ if !has_begun && pattern.is_short => {}
            _ if !has_begun => text.push(' '),
            _ if left <= digits.len() => text.extend(next.next()),
            _ => text.push('0'),
        }
        if is_digit {
            left -= 1;
        }
    }
    if !has_begun {
        text.push_str(sign);
    }
    text
}

/// Returns the digits after the point.
fn of_fraction(pattern: &Pattern, digits: &str) -> String {
    let places = pattern
        .fraction
        .iter()
        .filter(|place| matches!(place, Place::Nine | Place::Zero));
    let zeros = places
        .enumerate()
        .filter(|(_, place)| **place == Place::Zero);
    // Zeros up to the last place that wants one stay.
    let zeros = zeros.last().map_or(0, |(index, _)| index + 1);
    let kept = match pattern.is_short {
        true => digits.trim_end_matches('0').len().max(zeros),
        false => digits.len(),
    };
    let mut next = digits[..kept].chars();
    let mut text = String::new();
    for place in &pattern.fraction {
        match place {
            Place::Letter(letter) => text.push(*letter),
            Place::Group => text.push(','),
            _ => text.extend(next.next()),
        }
    }
    text
}

/// Returns the sign, the digits before the point and those after it, rounded away from zero.
fn rounded(number: &str, scale: usize) -> (bool, String, String) {
    let (is_negative, number) = match number.strip_prefix('-') {
        Some(number) => (true, number),
        None => (false, number),
    };
    let plain = match number.contains(['e', 'E']) {
        true => number
            .parse::<f64>()
            .map_or_else(|_| number.to_owned(), |value| format!("{value:.15}")),
        false => number.to_owned(),
    };
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
    let point = whole.len();
    let is_up = digits
        .get(point + scale)
        .is_some_and(|digit| *digit >= b'5');
    digits.resize(point + scale, b'0');
    let mut carries = is_up;
    for digit in digits.iter_mut().rev() {
        if !carries {
            break;
        }
        carries = *digit == b'9';
        *digit = if carries { b'0' } else { *digit + 1 };
    }
    if carries {
        digits.insert(0, b'1');
    }
    let point = digits.len() - scale;
    let text = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
    let whole = text(&digits[..point]);
    let whole = match whole.trim_start_matches('0') {
        "" => "0".to_owned(),
        whole => whole.to_owned(),
    };
    (is_negative, whole, text(&digits[point..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_postgresql() {
        for (number, pattern, expected) in [
            ("1234.567", "9999.99", " 1234.57"),
            ("1234.567", "FM9,999.00", "1,234.57"),
            ("-5", "999", "  -5"),
            ("5", "000", " 005"),
            ("0", "99", "  0"),
            ("0.5", "99.99", "   .50"),
            ("0.5", "90.99", "  0.50"),
            ("0.1", "FM9.99", ".1"),
            ("1", "FM9.99", "1."),
            ("1234", "99", " ##"),
            ("1234567", "9,999,999", " 1,234,567"),
            ("12", "9,999", "    12"),
            ("-12", "S999", " -12"),
            ("12", "999S", " 12+"),
            ("-12", "999MI", " 12-"),
            ("-12", "999PR", " <12>"),
            ("9.99", "9.9", " #.#"),
        ] {
            assert_eq!(
                text(number, pattern).expect(pattern),
                expected,
                "{number} {pattern}"
            );
        }
    }
}
