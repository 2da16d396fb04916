//! Values of `date`, `time`, `timestamp` and `timestamptz`.
//!
//! Arrow's parsers are not used for texts: they lack `BC`, years after 9999, and offsets with seconds, all of which
//! PostgreSQL prints.

use datafusion::arrow::array::timezone::Tz;
use datafusion::common::ScalarValue;
use forebay_tables::{Code, SqlError};
use pgwire::api::Type;

use super::{sql_name, trimmed};
use crate::encode::calendar::{
    DAY_MICROS, Date, SECOND_MICROS, days_of_pg, micros_of_pg, pg_days, pg_micros, utc_of_local,
};

/// Digits of a fraction of a second that count.
const FRACTION_DIGITS: usize = 6;

/// The largest offset from UTC.
const OFFSET_SECONDS_MAX: i64 = 16 * 3600;

/// The zone of a text.
#[derive(Debug, Clone, Copy)]
enum Zone {
    /// That of the session.
    Session,
    /// Seconds ahead of UTC.
    Offset(i64),
    /// A zone of the time zone database.
    Named(Tz),
}

/// What a text says.
struct Moment {
    date: Date,
    /// Microseconds since midnight.
    micros: i64,
    zone: Zone,
}

fn invalid(type_: &Type, text: &str) -> SqlError {
    let message = format!(
        "invalid input syntax for type {}: \"{text}\"",
        sql_name(type_)
    );
    SqlError::new(Code::InvalidDatetimeFormat, message)
}

fn field_out_of_range(text: &str) -> SqlError {
    let message = format!("date/time field value out of range: \"{text}\"");
    SqlError::new(Code::InvalidDatetimeFormat, message)
}

/// Returns the error of a moment that the type does not hold. Only values in text can be shown.
fn out_of_range(type_: &Type, text: Option<&str>) -> SqlError {
    let name = type_.name().trim_end_matches("tz");
    let value = text.map(|text| format!(": \"{text}\"")).unwrap_or_default();
    SqlError::new(
        Code::NumericValueOutOfRange,
        format!("{name} out of range{value}"),
    )
}

fn infinite(type_: &Type) -> SqlError {
    SqlError::unsupported(format!("an infinite {}", type_.name()))
}

/// Reads a `date`. A time and zone after it are ignored.
pub(super) fn date(text: &str) -> Result<ScalarValue, SqlError> {
    let moment = moment(&Type::DATE, text)?;
    let days = moment.date.days().ok_or_else(|| field_out_of_range(text))?;
    let is_valid = pg_days(days).is_some();
    let days = i32::try_from(days).ok().filter(|_| is_valid);
    Ok(ScalarValue::Date32(Some(
        days.ok_or_else(|| out_of_range(&Type::DATE, Some(text)))?,
    )))
}

/// Reads a `time`. A zone after it is ignored.
pub(super) fn time(text: &str) -> Result<ScalarValue, SqlError> {
    let mut cursor = Cursor {
        rest: trimmed(text),
    };
    let micros = cursor.time().ok_or_else(|| invalid(&Type::TIME, text))?;
    let micros = micros.ok_or_else(|| field_out_of_range(text))?;
    cursor
        .zone()
        .filter(|_| cursor.rest.is_empty())
        .ok_or_else(|| invalid(&Type::TIME, text))?;
    time_of_micros(micros, Some(text))
}

fn time_of_micros(micros: i64, text: Option<&str>) -> Result<ScalarValue, SqlError> {
    match (0..DAY_MICROS).contains(&micros) {
        true => Ok(ScalarValue::Time64Microsecond(Some(micros))),
        false => Err(out_of_range(&Type::TIME, text)),
    }
}

/// Reads a `timestamp`. A zone is ignored, as PostgreSQL does.
pub(super) fn timestamp(text: &str) -> Result<ScalarValue, SqlError> {
    let moment = moment(&Type::TIMESTAMP, text)?;
    let micros = moment.local_micros(text, &Type::TIMESTAMP)?;
    scalar(&Type::TIMESTAMP, Some(micros), Some(text))
}

/// Reads a `timestamptz`. One without a zone is in `session`.
pub(super) fn timestamp_in_zone(text: &str, session: Option<Tz>) -> Result<ScalarValue, SqlError> {
    let moment = moment(&Type::TIMESTAMPTZ, text)?;
    let local = moment.local_micros(text, &Type::TIMESTAMPTZ)?;
    let micros = match moment.zone {
        Zone::Session => utc_of_local(local, session),
        Zone::Named(zone) => utc_of_local(local, Some(zone)),
        Zone::Offset(seconds) => local.checked_sub(seconds * SECOND_MICROS),
    };
    scalar(&Type::TIMESTAMPTZ, micros, Some(text))
}

/// Returns the value of microseconds since 1970, if PostgreSQL has it.
fn scalar(type_: &Type, micros: Option<i64>, text: Option<&str>) -> Result<ScalarValue, SqlError> {
    let micros = micros.filter(|micros| pg_micros(*micros).is_some());
    let micros = micros.ok_or_else(|| out_of_range(type_, text))?;
    let zone = (*type_ == Type::TIMESTAMPTZ).then(|| "UTC".into());
    Ok(ScalarValue::TimestampMicrosecond(Some(micros), zone))
}

/// Returns the `date` of days since 2000.
pub(super) fn date_of_binary(days: i32) -> Result<ScalarValue, SqlError> {
    if matches!(days, i32::MIN | i32::MAX) {
        return Err(infinite(&Type::DATE));
    }
    let days = days_of_pg(i64::from(days)).ok_or_else(|| out_of_range(&Type::DATE, None))?;
    Ok(ScalarValue::Date32(Some(days)))
}

/// Returns the `time` of microseconds since midnight.
pub(super) fn time_of_binary(micros: i64) -> Result<ScalarValue, SqlError> {
    time_of_micros(micros, None)
}

/// Returns the `timestamp` or `timestamptz` of microseconds since 2000.
pub(super) fn timestamp_of_binary(type_: &Type, micros: i64) -> Result<ScalarValue, SqlError> {
    match micros {
        i64::MIN | i64::MAX => Err(infinite(type_)),
        micros => scalar(type_, micros_of_pg(micros), None),
    }
}

impl Moment {
    /// Returns the microseconds since 1970 that a clock shows.
    fn local_micros(&self, text: &str, type_: &Type) -> Result<i64, SqlError> {
        let days = self.date.days().ok_or_else(|| field_out_of_range(text))?;
        let micros = days
            .checked_mul(DAY_MICROS)
            .and_then(|day| day.checked_add(self.micros));
        micros.ok_or_else(|| out_of_range(type_, Some(text)))
    }
}

/// Reads a date, and a time and zone if they are there.
fn moment(type_: &Type, text: &str) -> Result<Moment, SqlError> {
    let word = trimmed(text);
    if ["infinity", "-infinity"]
        .iter()
        .any(|name| word.eq_ignore_ascii_case(name))
    {
        return Err(infinite(type_));
    }
    let mut cursor = Cursor { rest: word };
    let date = cursor.date().ok_or_else(|| invalid(type_, text))?;
    let micros = match cursor.separator() {
        true => cursor.time().ok_or_else(|| invalid(type_, text))?,
        false => Some(0),
    };
    let zone = cursor.zone().ok_or_else(|| invalid(type_, text))?;
    let year = cursor.era(date.year).ok_or_else(|| invalid(type_, text))?;
    let micros = micros
        .filter(|_| date.year > 0)
        .ok_or_else(|| field_out_of_range(text))?;
    Ok(Moment {
        date: Date { year, ..date },
        micros,
        zone,
    })
}

/// Reads a clock like `04:05`, `4:05:06` or `04:05:06.789`, whose hours have any count of digits, as microseconds.
///
/// Returns `None` if the text is malformed, and `Some(None)` if minutes or seconds are out of range.
pub(super) fn clock(text: &str) -> Option<Option<i64>> {
    let mut cursor = Cursor { rest: text };
    let micros = cursor.clock(10)?;
    cursor.rest.is_empty().then_some(micros)
}

/// The rest of a text.
struct Cursor<'a> {
    rest: &'a str,
}

impl Cursor<'_> {
    /// Skips a letter, and returns whether it was there.
    fn skip(&mut self, letter: char) -> bool {
        let rest = self.rest.strip_prefix(letter);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Reads a number of one to `digits_max` digits.
    fn number(&mut self, digits_max: usize) -> Option<i64> {
        let end = self.digit_count();
        if end > digits_max {
            return None;
        }
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits.parse().ok()
    }

    /// Returns how many digits come next.
    fn digit_count(&self) -> usize {
        let end = self.rest.find(|letter: char| !letter.is_ascii_digit());
        end.unwrap_or(self.rest.len())
    }

    /// Reads a date like `2020-01-31`, or `20200131`.
    fn date(&mut self) -> Option<Date> {
        let digits = self.digit_count();
        if digits == 8 && !self.rest[8..].starts_with('-') {
            let number = self.number(8)?;
            return Some(Date {
                year: number / 10_000,
                month: number / 100 % 100,
                day: number % 100,
            });
        }
        if digits < 3 {
            return None;
        }
        let year = self.number(7)?;
        let month = self.skip('-').then(|| self.number(2)).flatten()?;
        let day = self.skip('-').then(|| self.number(2)).flatten()?;
        Some(Date { year, month, day })
    }

    /// Skips what is between a date and a time, and returns whether a time follows.
    fn separator(&mut self) -> bool {
        let rest = self
            .rest
            .strip_prefix(['T', 't'])
            .unwrap_or(self.rest.trim_start());
        let is_time = rest.starts_with(|letter: char| letter.is_ascii_digit());
        if is_time {
            self.rest = rest;
        }
        is_time
    }

    /// Reads a time of day. The result is as of [`clock`].
    fn time(&mut self) -> Option<Option<i64>> {
        let micros = self.clock(2)?;
        Some(micros.filter(|micros| *micros <= DAY_MICROS))
    }

    /// Reads hours, minutes, and seconds if they are there. The result is as of [`clock`].
    fn clock(&mut self, hour_digits: usize) -> Option<Option<i64>> {
        let hour = self.number(hour_digits)?;
        let minute = self.skip(':').then(|| self.number(2)).flatten()?;
        let (second, fraction) = match self.skip(':') {
            true => (self.number(2)?, self.fraction()?),
            false => (0, 0),
        };
        if minute > 59 || second > 60 {
            return Some(None);
        }
        let seconds = (hour * 60 + minute) * 60 + second;
        let micros = seconds.checked_mul(SECOND_MICROS);
        Some(micros.and_then(|micros| micros.checked_add(fraction)))
    }

    /// Reads a fraction of a second, if it is there, as microseconds, rounded half to even.
    fn fraction(&mut self) -> Option<i64> {
        if !self.skip('.') {
            return Some(0);
        }
        let (digits, rest) = self.rest.split_at(self.digit_count());
        self.rest = rest;
        let (kept, cut) = digits.split_at(digits.len().min(FRACTION_DIGITS));
        let micros: i64 = format!("{kept:0<FRACTION_DIGITS$}").parse().ok()?;
        let is_half = cut
            .strip_prefix('5')
            .is_some_and(|rest| rest.trim_end_matches('0').is_empty());
        let is_up = if is_half { micros % 2 != 0 } else { cut >= "5" };
        Some(micros + i64::from(is_up))
    }

    /// Reads a zone, if it is there: `Z`, `+05`, `-0530`, `+05:30:15`, or a name.
    fn zone(&mut self) -> Option<Zone> {
        let rest = self.rest.trim_start();
        if rest.is_empty() || is_era(rest) {
            return Some(Zone::Session);
        }
        self.rest = rest;
        if rest.starts_with(['+', '-']) {
            return self.offset().map(Zone::Offset);
        }
        let end = rest.find(' ').unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        self.rest = rest;
        match name.eq_ignore_ascii_case("z") {
            true => Some(Zone::Offset(0)),
            false => name.parse().ok().map(Zone::Named),
        }
    }

    /// Reads an offset from UTC, in seconds.
    fn offset(&mut self) -> Option<i64> {
        let is_negative = self.rest.starts_with('-');
        self.rest = self.rest.get(1..)?;
        let digits = self.digit_count();
        let number = self.number(6)?;
        let seconds = match digits {
            1 | 2 => number * 3600 + self.minutes_and_seconds()?,
            3 | 4 => (number / 100) * 3600 + (number % 100) * 60,
            _ => number / 10_000 * 3600 + number / 100 % 100 * 60 + number % 100,
        };
        let seconds = Some(seconds).filter(|seconds| *seconds < OFFSET_SECONDS_MAX)?;
        Some(if is_negative { -seconds } else { seconds })
    }

    /// Reads the minutes and seconds of an offset, if they are there, as seconds.
    fn minutes_and_seconds(&mut self) -> Option<i64> {
        let mut seconds = 0;
        for unit in [60, 1] {
            if self.skip(':') {
                let number = self.number(2).filter(|number| *number < 60)?;
                seconds += number * unit;
            }
        }
        Some(seconds)
    }

    /// Reads the era, if it is there, up to the end, and returns the year counted without one.
    fn era(&mut self, year: i64) -> Option<i64> {
        match self.rest.trim() {
            "" => Some(year),
            word if word.eq_ignore_ascii_case("ad") => Some(year),
            word if word.eq_ignore_ascii_case("bc") => Some(1 - year),
            _ => None,
        }
    }
}

fn is_era(word: &str) -> bool {
    word.eq_ignore_ascii_case("bc") || word.eq_ignore_ascii_case("ad")
}
