//! Times by patterns such as `YYYY-MM-DD HH24:MI:SS`.

use datafusion::error::Result;

use super::failed;
use crate::error::Code;

/// The texts from which the parts of times are read.
pub(super) const FORMAT: &str = "%Y %m %d %H %M %S %6f +00:00 %j %u %G %V";
pub(super) const FORMAT_WITH_ZONE: &str = "%Y %m %d %H %M %S %6f %:z %j %u %G %V";
pub(super) const TIME_FORMAT: &str = "0000 01 01 %H %M %S %6f +00:00 001 6 0000 01";

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
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
/// Characters to which names of months and days are padded.
const NAME_WIDTH: usize = 9;

/// The words of patterns, longer ones before their beginnings.
const WORDS: [&str; 48] = [
    "SSSSS", "MONTH", "Y,YYY", "YYYY", "IYYY", "IDDD", "HH24", "HH12", "SSSS", "A.M.", "P.M.",
    "A.D.", "B.C.", "DAY", "DDD", "FF1", "FF2", "FF3", "FF4", "FF5", "FF6", "IYY", "MON", "TZH",
    "TZM", "YYY", "AD", "AM", "BC", "CC", "DD", "DY", "HH", "ID", "IW", "IY", "MI", "MM", "MS",
    "OF", "PM", "SS", "TZ", "US", "WW", "YY", "D", "Q",
];

/// The parts of a time.
#[derive(Debug, Default)]
struct Parts<'a> {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
    zone: &'a str,
    day_of_year: i64,
    /// From 1, Monday.
    weekday: i64,
    iso_year: i64,
    iso_week: i64,
}

impl Parts<'_> {
    fn new(text: &str) -> Option<Parts<'_>> {
        let mut parts = text.split(' ');
        let mut next = || parts.next();
        let number = |text: Option<&str>| text?.parse::<i64>().ok();
        Some(Parts {
            year: number(next())?,
            month: number(next())?,
            day: number(next())?,
            hour: number(next())?,
            minute: number(next())?,
            second: number(next())?,
            micros: number(next())?,
            zone: next()?,
            day_of_year: number(next())?,
            weekday: number(next())?,
            iso_year: number(next())?,
            iso_week: number(next())?,
        })
    }

    /// Returns the text of a word, which is in upper case; `None` if it is unknown.
    fn word(&self, word: &str, is_short: bool) -> Option<String> {
        let padded = |value: i64, width: usize| match is_short {
            true => value.to_string(),
            false => format!("{value:0width$}"),
        };
        let year = |value: i64, digits: u32| {
            let value = value.rem_euclid(10_i64.pow(digits));
            padded(value, digits as usize)
        };
        let hour = (self.hour + 11) % 12 + 1;
        Some(match word {
            "Y,YYY" => format!("{},{:03}", self.year / 1000, self.year % 1000),
            "YYYY" => padded(self.year, 4),
            "YYY" => year(self.year, 3),
            "YY" => year(self.year, 2),
            "Y" => year(self.year, 1),
            "IYYY" => padded(self.iso_year, 4),
            "IYY" => year(self.iso_year, 3),
            "IY" => year(self.iso_year, 2),
            "I" => year(self.iso_year, 1),
            "MM" => padded(self.month, 2),
            "DD" => padded(self.day, 2),
            "DDD" => padded(self.day_of_year, 3),
            "IDDD" => padded((self.iso_week - 1) * 7 + self.weekday, 3),
            "D" => (self.weekday % 7 + 1).to_string(),
            "ID" => self.weekday.to_string(),
            "WW" => padded((self.day_of_year - 1) / 7 + 1, 2),
            "W" => ((self.day - 1) / 7 + 1).to_string(),
            "IW" => padded(self.iso_week, 2),
            "CC" => padded((self.year + 99).div_euclid(100), 2),
            "Q" => ((self.month - 1) / 3 + 1).to_string(),
            "HH24" => padded(self.hour, 2),
            "HH12" | "HH" => padded(hour, 2),
            "MI" => padded(self.minute, 2),
            "SS" => padded(self.second, 2),
            "SSSS" | "SSSSS" => ((self.hour * 60 + self.minute) * 60 + self.second).to_string(),
            "MS" | "FF3" => format!("{:03}", self.micros / 1_000),
            "US" | "FF6" => format!("{:06}", self.micros),
            "FF1" => format!("{:01}", self.micros / 100_000),
            "FF2" => format!("{:02}", self.micros / 10_000),
            "FF4" => format!("{:04}", self.micros / 100),
            "FF5" => format!("{:05}", self.micros / 10),
            "AM" | "PM" => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            "A.M." | "P.M." => if self.hour < 12 { "A.M." } else { "P.M." }.to_owned(),
            "AD" | "BC" => if self.year > 0 { "AD" } else { "BC" }.to_owned(),
            "A.D." | "B.C." => if self.year > 0 { "A.D." } else { "B.C." }.to_owned(),
            "OF" => self
                .zone
                .strip_suffix(":00")
                .unwrap_or(self.zone)
                .to_owned(),
            "TZH" => self.zone[..3].to_owned(),
            "TZM" => self.zone[4..].to_owned(),
            "TZ" => match self.zone {
                "+00:00" => "UTC".to_owned(),
                zone => zone.strip_suffix(":00").unwrap_or(zone).to_owned(),
            },
            _ => return None,
        })
    }

    /// Returns the name of the month or day.
    fn name(&self, word: &str) -> Option<&'static str> {
        let (names, number): (&[&str], i64) = match word {
            "MONTH" | "MON" => (&MONTHS, self.month),
            "DAY" | "DY" => (&DAYS, self.weekday),
            _ => return None,
        };
        let name = names.get(usize::try_from(number - 1).ok()?)?;
        Some(if word.len() == 3 && word != "DAY" || word == "DY" {
            &name[..3]
        } else {
            name
        })
    }
}

/// Returns the text of a time, of which `parts` are the parts.
pub(super) fn text(parts: &str, pattern: &str) -> Result<String> {
    let parts = Parts::new(parts).ok_or_else(|| {
        failed(
            Code::FeatureNotSupported,
            "to_char of this type is not supported",
        )
    })?;
    let mut text = String::new();
    let mut rest = pattern;
    while let Some(letter) = rest.chars().next() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"').unwrap_or(quoted.len());
            text.push_str(&quoted[..end]);
            rest = quoted.get(end + 1..).unwrap_or("");
            continue;
        }
        let (is_short, after) = match rest
            .get(..2)
            .filter(|start| start.eq_ignore_ascii_case("FM"))
        {
            Some(_) => (true, &rest[2..]),
            None => (false, rest),
        };
        let Some((word, written)) = next_word(after) else {
            let escaped = rest.strip_prefix('\\').and_then(|rest| rest.chars().next());
            let skipped = if escaped.is_some() { 1 } else { 0 };
            let shown = escaped.unwrap_or(letter);
            if is_short {
                rest = after;
                continue;
            }
            text.push(shown);
            rest = &rest[skipped + shown.len_utf8()..];
            continue;
        };
        rest = &after[written.len()..];
        match parts.name(word) {
            Some(name) => push_name(&mut text, name, written, word, is_short),
            None => {
                let value = parts.word(word, is_short).unwrap_or_default();
                let is_lower = written.starts_with(|letter: char| letter.is_ascii_lowercase());
                match is_lower && value.starts_with(|letter: char| letter.is_ascii_alphabetic()) {
                    true => text.push_str(&value.to_lowercase()),
                    false => text.push_str(&value),
                }
                rest = ordinal(&mut text, &value, rest);
            }
        }
    }
    Ok(text)
}

/// Returns the word that a pattern begins with, and as it is written.
fn next_word(pattern: &str) -> Option<(&'static str, &str)> {
    let single = ["I", "W", "Y"];
    let mut words = WORDS.into_iter().chain(single);
    words.find_map(|word| {
        let written = pattern.get(..word.len())?;
        written
            .eq_ignore_ascii_case(word)
            .then_some((word, written))
    })
}

fn push_name(text: &mut String, name: &str, written: &str, word: &str, is_short: bool) {
    let mut letters = written.chars();
    let first = letters.next().is_some_and(char::is_uppercase);
    let second = letters.next().is_some_and(char::is_uppercase);
    let name = match (first, second) {
        (true, true) => name.to_uppercase(),
        (true, false) => name.to_owned(),
        _ => name.to_lowercase(),
    };
    let width = match word {
        "MONTH" | "DAY" if !is_short => NAME_WIDTH,
        _ => 0,
    };
    text.push_str(&format!("{name:width$}"));
}

/// Adds the ending of an ordinal number if the pattern goes on with `TH`.
fn ordinal<'a>(text: &mut String, value: &str, rest: &'a str) -> &'a str {
    let Some(ending) = rest.get(..2).filter(|next| matches!(*next, "TH" | "th")) else {
        return rest;
    };
    let Ok(number) = value.parse::<i64>() else {
        return rest;
    };
    let letters = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    match ending {
        "TH" => text.push_str(&letters.to_uppercase()),
        _ => text.push_str(letters),
    }
    &rest[2..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_postgresql() {
        let parts = "2020 01 05 15 04 09 012300 +00:00 005 7 2020 01";
        for (pattern, expected) in [
            ("YYYY-MM-DD", "2020-01-05"),
            ("yyyy/mm/dd hh24:mi:ss.ms", "2020/01/05 15:04:09.012"),
            ("FMMonth FMDDth, YYYY", "January 5th, 2020"),
            ("[Month] [DAY] [dy]", "[January  ] [SUNDAY   ] [sun]"),
            ("HH12:MI AM", "03:04 PM"),
            ("HH:MI p.m.", "03:04 p.m."),
            ("DDD D Q WW IW US", "005 1 1 01 01 012300"),
            ("\"on\" YY \\Y", "on 20 Y"),
            ("Mon-FMHH24", "Jan-15"),
        ] {
            assert_eq!(text(parts, pattern).expect(pattern), expected, "{pattern}");
        }
    }
}
