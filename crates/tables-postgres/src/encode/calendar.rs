//! The proleptic Gregorian calendar, time zones, and the ranges of PostgreSQL's dates and times.
//!
//! Days and microseconds count from 1970-01-01, as in Arrow, unless the name says otherwise.
//!
//! # Sources
//! `src/include/datatype/timestamp.h` of PostgreSQL 15 for the ranges; Howard Hinnant, "chrono-Compatible Low-Level
//! Date Algorithms", for days.

use std::ops::Range;

use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::datatypes::{TimeUnit, TimestampMicrosecondType};
use datafusion::arrow::temporal_conversions::as_datetime_with_timezone;

/// Microseconds of a second.
pub(crate) const SECOND_MICROS: i64 = 1_000_000;

/// Microseconds of a day.
pub(crate) const DAY_MICROS: i64 = 86_400 * SECOND_MICROS;

/// Days from 1970-01-01 to 2000-01-01, from which PostgreSQL counts.
const EPOCH_DAYS: i64 = 10_957;

/// Days since 2000-01-01 that PostgreSQL's `date` holds.
const DAYS: Range<i64> = -2_451_545..2_145_031_949;

/// Microseconds since 2000-01-01 that PostgreSQL's `timestamp` holds.
const MICROS: Range<i64> = -211_813_488_000_000_000..9_223_371_331_200_000_000;

/// Days of 400 years, after which the calendar repeats.
const CYCLE_DAYS: i64 = 146_097;

/// Days from 0000-03-01 to 1970-01-01.
const MARCH_DAYS: i64 = 719_468;

/// Microseconds since 1970-01-01 up to which `chrono` can compute with every time zone.
const CHRONO_MICROS_MAX: i64 = 6_000_000_000_000_000_000;

/// A date. The year 0 is 1 BC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Date {
    /// Year.
    pub(crate) year: i64,
    /// Month, from 1.
    pub(crate) month: i64,
    /// Day of the month, from 1.
    pub(crate) day: i64,
}

impl Date {
    /// Returns the date of a day.
    pub(crate) fn of_days(days: i64) -> Date {
        let days = days + MARCH_DAYS;
        let (cycle, day) = (days.div_euclid(CYCLE_DAYS), days.rem_euclid(CYCLE_DAYS));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let (next, month_of_year) = if month < 10 {
            (0, month + 3)
        } else {
            (1, month - 9)
        };
        Date {
            year: year + cycle * 400 + next,
            month: month_of_year,
            day: day - (153 * month + 2) / 5 + 1,
        }
    }

    /// Returns the day of the date, or `None` if the calendar lacks the date.
    pub(crate) fn days(self) -> Option<i64> {
        let days = self.days_unchecked();
        let is_near = self.year.abs() < 10_000_000 && (1..=31).contains(&self.day);
        (is_near && Date::of_days(days) == self).then_some(days)
    }

    fn days_unchecked(self) -> i64 {
        let year = if self.month <= 2 {
            self.year.saturating_sub(1)
        } else {
            self.year
        };
        let (cycle, year) = (year.div_euclid(400), year.rem_euclid(400));
        let month = if self.month > 2 {
            self.month - 3
        } else {
            self.month + 9
        };
        let day = (153 * month + 2) / 5 + self.day - 1;
        let day_of_cycle = year * 365 + year / 4 - year / 100 + day;
        cycle
            .saturating_mul(CYCLE_DAYS)
            .saturating_add(day_of_cycle)
            - MARCH_DAYS
    }
}

/// Returns days since 2000-01-01, or `None` if PostgreSQL's `date` cannot hold them.
pub(crate) fn pg_days(days: i64) -> Option<i32> {
    let days = days.checked_sub(EPOCH_DAYS)?;
    i32::try_from(days).ok().filter(|_| DAYS.contains(&days))
}

/// Returns the days of days since 2000-01-01, or `None` if PostgreSQL has no such `date`.
pub(crate) fn days_of_pg(days: i64) -> Option<i32> {
    let is_valid = DAYS.contains(&days);
    is_valid
        .then(|| i32::try_from(days + EPOCH_DAYS).ok())
        .flatten()
}

/// Returns microseconds since 2000-01-01, or `None` if PostgreSQL's `timestamp` cannot hold them.
pub(crate) fn pg_micros(micros: i64) -> Option<i64> {
    let micros = micros.checked_sub(EPOCH_DAYS * DAY_MICROS)?;
    MICROS.contains(&micros).then_some(micros)
}

/// Returns the microseconds of microseconds since 2000-01-01, or `None` if PostgreSQL has no such `timestamp`, or Arrow
/// cannot hold it.
pub(crate) fn micros_of_pg(micros: i64) -> Option<i64> {
    let is_valid = MICROS.contains(&micros);
    is_valid
        .then(|| micros.checked_add(EPOCH_DAYS * DAY_MICROS))
        .flatten()
}

/// Returns the microseconds of a count of `unit`, or `None` on overflow. Nanoseconds are rounded half to even.
pub(crate) fn micros_of(count: i64, unit: TimeUnit) -> Option<i64> {
    match unit {
        TimeUnit::Second => count.checked_mul(SECOND_MICROS),
        TimeUnit::Millisecond => count.checked_mul(1000),
        TimeUnit::Microsecond => Some(count),
        TimeUnit::Nanosecond => Some(round_to_micros(count)),
    }
}

/// Returns nanoseconds as microseconds, rounded half to even as PostgreSQL rounds fractions of seconds.
pub(crate) fn round_to_micros(nanos: i64) -> i64 {
    let (micros, rest) = (nanos.div_euclid(1000), nanos.rem_euclid(1000));
    let is_up = rest > 500 || (rest == 500 && micros % 2 != 0);
    micros + i64::from(is_up)
}

/// Returns the seconds that clocks of `zone` are ahead of UTC at a time, given in UTC. Without a zone, it is UTC.
pub(crate) fn offset_seconds(micros: i64, zone: Option<Tz>) -> i64 {
    let Some(zone) = zone else { return 0 };
    let near = match micros > CHRONO_MICROS_MAX {
        true => micros - 100 * CYCLE_DAYS * DAY_MICROS,
        false => micros,
    };
    let time = as_datetime_with_timezone::<TimestampMicrosecondType>(near, zone);
    time.map_or(0, |time| {
        (time.naive_local() - time.naive_utc()).num_seconds()
    })
}

/// Returns the time in UTC of a time that clocks of `zone` show, or `None` on overflow.
///
/// A time that clocks show twice is the later one, and a time that they skip is that before the change, as in
/// PostgreSQL.
pub(crate) fn utc_of_local(local: i64, zone: Option<Tz>) -> Option<i64> {
    let at = |seconds: i64| local.checked_sub(seconds * SECOND_MICROS);
    let before = offset_seconds(local.checked_sub(DAY_MICROS)?, zone);
    let after = offset_seconds(local.checked_add(DAY_MICROS)?, zone);
    let is_after = offset_seconds(at(after)?, zone) == after;
    match is_after {
        true => at(after),
        false => at(before),
    }
}
