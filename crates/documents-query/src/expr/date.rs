//! Date operators, in UTC.

use bson::DateTime;
use bson::raw::RawBsonRef;

use super::function::{Function, named};
use super::{Value, check_bytes};
use crate::error::{Code, Error};

/// Names of the operands of a date operator. The operator takes a date alone or `{date, timezone}`.
const NAMES: &[&str] = &["date", "timezone"];

pub(super) const FUNCTIONS: &[Function] = &[
    named("$year", NAMES, |operands| {
        part(operands, |civil| civil.year)
    }),
    named("$month", NAMES, |operands| {
        part(operands, |civil| civil.month)
    }),
    named("$dayOfMonth", NAMES, |operands| {
        part(operands, |civil| civil.day)
    }),
    named("$dayOfYear", NAMES, |operands| {
        part(operands, Civil::day_of_year)
    }),
    named("$dayOfWeek", NAMES, |operands| {
        part(operands, Civil::day_of_week)
    }),
    named("$hour", NAMES, |operands| {
        part(operands, |civil| civil.milliseconds / 3_600_000)
    }),
    named("$minute", NAMES, |operands| {
        part(operands, |civil| civil.milliseconds / 60_000 % 60)
    }),
    named("$second", NAMES, |operands| {
        part(operands, |civil| civil.milliseconds / 1000 % 60)
    }),
    named("$millisecond", NAMES, |operands| {
        part(operands, |civil| civil.milliseconds % 1000)
    }),
    named(
        "$dateToString",
        &["date", "format", "timezone", "onNull"],
        to_text,
    ),
];

/// A point in time, as a Gregorian calendar day and the milliseconds within the day.
pub(super) struct Civil {
    days: i64,
    year: i64,
    month: i64,
    day: i64,
    milliseconds: i64,
}

const DAY_MS: i64 = 86_400_000;

impl Civil {
    /// Splits a date into calendar day and time.
    ///
    /// Sources: Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
    pub fn of(date: DateTime) -> Civil {
        let milliseconds = date.timestamp_millis();
        let days = milliseconds.div_euclid(DAY_MS);
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        Civil {
            days,
            year,
            month,
            day,
            milliseconds: milliseconds.rem_euclid(DAY_MS),
        }
    }

    /// Returns the day of the year, from 1 to 366.
    fn day_of_year(&self) -> i64 {
        const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        let leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        BEFORE[self.month as usize - 1] + self.day + i64::from(leap && self.month > 2)
    }

    /// Returns the day of the week, from 1 (Sunday) to 7.
    fn day_of_week(&self) -> i64 {
        (self.days + 4).rem_euclid(7) + 1
    }

    /// Formats the date as `2026-11-21T20:41:42.000Z`.
    pub fn to_iso(&self) -> String {
        self.format("%Y-%m-%dT%H:%M:%S.%LZ").unwrap_or_default()
    }

    /// Formats the date with a format string of `$dateToString`. Returns `None` if a specifier is unknown.
    fn format(&self, format: &str) -> Option<String> {
        let mut text = String::new();
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            match c {
                '%' => text.push_str(&self.specifier(rest.next()?)?),
                other => text.push(other),
            }
        }
        Some(text)
    }

    fn specifier(&self, letter: char) -> Option<String> {
        Some(match letter {
            'Y' => format!("{:04}", self.year),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'j' => format!("{:03}", self.day_of_year()),
            'H' => format!("{:02}", self.milliseconds / 3_600_000),
            'M' => format!("{:02}", self.milliseconds / 60_000 % 60),
            'S' => format!("{:02}", self.milliseconds / 1000 % 60),
            'L' => format!("{:03}", self.milliseconds % 1000),
            'w' => self.day_of_week().to_string(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

fn date_of(value: &Value<'_>) -> Result<Option<DateTime>, Error> {
    match value.get() {
        _ if value.is_nullish() => Ok(None),
        Some(RawBsonRef::DateTime(date)) => Ok(Some(date)),
        Some(RawBsonRef::ObjectId(id)) => Ok(Some(id.timestamp())),
        Some(RawBsonRef::Timestamp(stamp)) => {
            Ok(Some(DateTime::from_millis(i64::from(stamp.time) * 1000)))
        }
        _ => Err(Error::new(
            Code::Location16006,
            format!("can't convert from BSON type {} to Date", value.type_name()),
        )),
    }
}

/// Accepts all names of UTC. Returns an error for other time zones.
fn check_zone(zone: &Value<'_>) -> Result<(), Error> {
    match zone {
        Value::Missing => Ok(()),
        zone => match zone.as_text() {
            Some("UTC" | "GMT" | "Z" | "+00:00" | "+0000" | "+00" | "Etc/UTC") => Ok(()),
            Some(name) => Err(Error::new(
                Code::NotImplemented,
                format!("time zone {name:?} is not supported by this server, only UTC is"),
            )),
            None => Err(Error::new(
                Code::Location40517,
                format!(
                    "timezone must evaluate to a string, found {}",
                    zone.type_name()
                ),
            )),
        },
    }
}

fn part<'a>(operands: &[Value<'a>], part: fn(&Civil) -> i64) -> Result<Value<'a>, Error> {
    check_zone(&operands[1])?;
    Ok(date_of(&operands[0])?.map_or(Value::NULL, |date| (part(&Civil::of(date)) as i32).into()))
}

/// Factor between the bytes of a format string and the text formatted by it. `%Y` yields up to ten characters.
const SPECIFIER_GROWTH: usize = 5;

fn to_text<'a>(operands: &[Value<'a>]) -> Result<Value<'a>, Error> {
    check_zone(&operands[2])?;
    let Some(date) = date_of(&operands[0])? else {
        return Ok(match &operands[3] {
            Value::Missing => Value::NULL,
            default => default.clone(),
        });
    };
    let civil = Civil::of(date);
    let format = match &operands[1] {
        Value::Missing => return Ok(civil.to_iso().into()),
        format if format.is_nullish() => return Ok(Value::NULL),
        format => format.as_text().ok_or_else(|| {
            Error::new(
                Code::Location18533,
                "$dateToString requires that 'format' be a string",
            )
        })?,
    };
    check_bytes(format.len().saturating_mul(SPECIFIER_GROWTH))?;
    let text = civil.format(format);
    text.map(Value::from).ok_or_else(|| {
        Error::new(
            Code::Location18536,
            "Invalid format character in format string",
        )
    })
}
