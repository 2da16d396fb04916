// Dates and times. A date is a number of days since 1970-01-01, from the year 1 to 9999 of the proleptic Gregorian
// calendar; a time is a number of seconds or of shorter units since then. As `times.rs` writes.
#pragma once
#include "numbers.cuh"

// Returns what is left of a number by steps that are rounded down: at least 0.
__device__ inline i64 rest_of(i64 number, i64 step) {
    const i64 rest = number % step;
    return rest < 0 ? rest + step : rest;
}

// Returns the quotient, rounded down.
__device__ inline i64 floor_of(i64 number, i64 step) { return number / step - (number % step < 0 ? 1 : 0); }

// A year from 1 March on, in which leap days are the last ones (Howard Hinnant, *chrono-Compatible Low-Level Date
// Algorithms*).
constexpr u32 kDaysOfEra = 146097, kYearsOfEra = 400;
// Eras before 1970-01-01 from which days and years are counted, so that no number is negative.
constexpr u32 kEras = 20, kYearsBefore = kEras * kYearsOfEra;
constexpr u32 kDaysBefore = kEras * kDaysOfEra + 719468;

struct Date {
    i32 year;
    u32 month, day;
};

__device__ inline Date date_of(i32 days) {
    const u32 since = static_cast<u32>(days) + kDaysBefore, era = since / kDaysOfEra, of_era = since % kDaysOfEra;
    const u32 year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const u32 of_year = of_era - (365 * year + year / 4 - year / 100), month = (5 * of_year + 2) / 153;
    Date date;
    date.month = month < 10 ? month + 3 : month - 9;
    date.day = of_year - (153 * month + 2) / 5 + 1;
    date.year = static_cast<i32>(year + era * kYearsOfEra - kYearsBefore + (date.month <= 2 ? 1 : 0));
    return date;
}

__device__ inline i32 days_of(i32 year, u32 month, u32 day) {
    const u32 since = static_cast<u32>(year) + kYearsBefore - (month <= 2 ? 1 : 0);
    const u32 era = since / kYearsOfEra, of_era = since % kYearsOfEra;
    const u32 of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    const u32 days = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    return static_cast<i32>(era * kDaysOfEra + days - kDaysBefore);
}

__device__ inline i32 year_of(i32 days) { return date_of(days).year; }
__device__ inline i32 month_of(i32 days) { return static_cast<i32>(date_of(days).month); }
__device__ inline i32 quarter_of(i32 days) { return (month_of(days) + 2) / 3; }
__device__ inline i32 day_of_month(i32 days) { return static_cast<i32>(date_of(days).day); }
__device__ inline i32 day_of_year(i32 days) { return days - days_of(year_of(days), 1, 1) + 1; }

// Returns the day of the week, 0 for Sunday; and of ISO 8601, 7 for Sunday. 1970-01-01 is a Thursday.
__device__ inline i32 weekday_of(i32 days) { return static_cast<i32>(rest_of(days + 4, 7)); }
__device__ inline i32 iso_weekday_of(i32 days) { return static_cast<i32>(rest_of(days + 3, 7)) + 1; }

// Returns the year and the week of ISO 8601: a week is of the year of its Thursday.
__device__ inline i32 thursday_of(i32 days) { return days - iso_weekday_of(days) + 4; }
__device__ inline i32 iso_year_of(i32 days) { return year_of(thursday_of(days)); }
__device__ inline i32 iso_week_of(i32 days) { return (day_of_year(thursday_of(days)) - 1) / 7 + 1; }

// Returns the number of months since the year 0.
__device__ inline i32 months_of(i32 days) {
    const Date date = date_of(days);
    return date.year * 12 + static_cast<i32>(date.month) - 1;
}

// Returns the first day of a number of months, since the year 0.
__device__ inline i32 first_of_months(i32 months) {
    const i32 year = static_cast<i32>(floor_of(months, 12));
    return days_of(year, static_cast<u32>(months - year * 12) + 1, 1);
}

// Returns the same day some months later, or the last of the month that it would be behind.
__device__ inline i32 months_later(i32 days, i32 months) {
    const i32 to = months_of(days) + months;
    const i32 first = first_of_months(to), last = first_of_months(to + 1) - 1;
    return min(first + day_of_month(days) - 1, last);
}
