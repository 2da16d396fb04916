//! The table `date`: the days of seven years. Nothing of it is random.

use anyhow::Result;
use arrow::array::RecordBatch;

use crate::tables::columns::Columns;

/// First year of the calendar.
const FIRST_YEAR: i32 = 1992;
/// Last year of the calendar.
const LAST_YEAR: i32 = 1998;
/// Number of rows. dbgen's table ends a day before the seventh year does.
pub const DATES: usize = 2_556;
/// Day of the week of the first day, as dbgen counts: see [`Day::weekday`].
const FIRST_WEEKDAY: i32 = 5;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
/// Holidays: months and days.
const HOLIDAYS: [(i32, i32); 10] = [
    (1, 1),
    (2, 20),
    (4, 20),
    (5, 20),
    (7, 20),
    (8, 20),
    (9, 20),
    (10, 20),
    (11, 20),
    (12, 24),
];

/// A day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Day {
    /// Year, as in 1992.
    pub year: i32,
    /// Month, from 1.
    pub month: i32,
    /// Day of the month, from 1.
    pub day: i32,
    /// Day of the year, from 1.
    pub of_year: i32,
    /// Day of the week, from 1 for what dbgen calls Sunday: it is a day ahead of the calendar.
    pub weekday: i32,
}

impl Day {
    /// Returns the key of the day, as in 19920131.
    pub fn key(&self) -> i32 {
        self.month_key() * 100 + self.day
    }

    /// Returns year and month, as in 199201.
    pub fn month_key(&self) -> i32 {
        self.year * 100 + self.month
    }

    /// Returns the week of the year by dbgen's rule; the first week has six days.
    pub fn week(&self) -> i32 {
        self.of_year / 7 + 1
    }

    fn month_name(&self) -> &'static str {
        MONTHS[self.month as usize - 1]
    }

    fn weekday_name(&self) -> &'static str {
        WEEKDAYS[self.weekday as usize - 1]
    }

    fn season(&self) -> &'static str {
        match self.month {
            1..=3 => "Winter",
            4 => "Spring",
            5..=8 => "Summer",
            9..=10 => "Fall",
            _ => "Christmas",
        }
    }

    fn is_last_of_month(&self) -> bool {
        self.day == days_of_month(self.year, self.month)
    }

    fn is_holiday(&self) -> bool {
        HOLIDAYS.contains(&(self.month, self.day))
    }
}

/// Returns all days of the seven years, in order.
pub fn days() -> Vec<Day> {
    let mut days = Vec::new();
    for year in FIRST_YEAR..=LAST_YEAR {
        let mut of_year = 0;
        for month in 1..=12 {
            for day in 1..=days_of_month(year, month) {
                of_year += 1;
                days.push(Day {
                    year,
                    month,
                    day,
                    of_year,
                    weekday: (FIRST_WEEKDAY - 1 + days.len() as i32) % 7 + 1,
                });
            }
        }
    }
    days
}

/// Returns the number of days of a month; 1900 and 2000 are not among the years.
fn days_of_month(year: i32, month: i32) -> i32 {
    match month {
        2 if year % 4 == 0 => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the rows of `days` as a batch.
pub fn batch(days: &[Day]) -> Result<RecordBatch> {
    let flag = |is_set: bool| if is_set { "1" } else { "0" };
    Columns::of(days)
        .int("d_datekey", Day::key)
        .text("d_date", |day| {
            format!("{} {}, {}", day.month_name(), day.day, day.year)
        })
        .text("d_dayofweek", Day::weekday_name)
        .text("d_month", Day::month_name)
        .int("d_year", |day| day.year)
        .int("d_yearmonthnum", Day::month_key)
        .text("d_yearmonth", |day| {
            format!("{}{}", &day.month_name()[..3], day.year)
        })
        .int("d_daynuminweek", |day| day.weekday)
        .int("d_daynuminmonth", |day| day.day)
        .int("d_daynuminyear", |day| day.of_year)
        .int("d_monthnuminyear", |day| day.month)
        .int("d_weeknuminyear", Day::week)
        .text("d_sellingseason", Day::season)
        .text("d_lastdayinweekfl", |day| flag(day.weekday == 7))
        .text("d_lastdayinmonthfl", |day| flag(day.is_last_of_month()))
        .text("d_holidayfl", |day| flag(day.is_holiday()))
        .text("d_weekdayfl", |day| flag((2..=6).contains(&day.weekday)))
        .batch()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_has_seven_years() {
        let days = days();
        assert_eq!(days.len(), 2_557);
        assert_eq!(days[DATES - 1].key(), 19_981_230);
        let of = |key| days.iter().find(|day| day.key() == key);
        let leap = of(19_960_229).expect("1996 is a leap year");
        assert_eq!((leap.of_year, leap.is_last_of_month()), (60, true));
        assert!(of(19_930_229).is_none());
        assert_eq!(days.iter().filter(|day| day.is_last_of_month()).count(), 84);
        assert_eq!(days.iter().filter(|day| day.is_holiday()).count(), 70);
    }

    #[test]
    fn weeks_and_seasons_follow_dbgen() {
        let days = days();
        let week_days = |week| {
            let of_1994 = days.iter().filter(|day| day.year == 1994);
            of_1994.filter(|day| day.week() == week).count()
        };
        assert_eq!((week_days(1), week_days(6), week_days(53)), (6, 7, 2));
        let season_days = |season| {
            let of_1993 = days.iter().filter(|day| day.year == 1993);
            of_1993.filter(|day| day.season() == season).count()
        };
        let seasons = ["Winter", "Spring", "Summer", "Fall", "Christmas"];
        assert_eq!(seasons.map(season_days), [90, 30, 123, 61, 61]);
    }

    #[test]
    fn the_first_day_is_dbgens_thursday() {
        // The calendar says Wednesday. dbgen adds one twice.
        let first = days()[0];
        assert_eq!((first.weekday, first.weekday_name()), (5, "Thursday"));
        assert_eq!((first.week(), first.season()), (1, "Winter"));
        assert!(first.is_holiday() && !first.is_last_of_month());
    }
}
