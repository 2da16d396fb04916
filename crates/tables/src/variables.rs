//! The settings of a session, as `SET` and `SHOW` know them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Code, Result, SqlError};
use crate::gpu::{GpuOptions, no_gpu};

/// The release of PostgreSQL whose behaviour clients may expect.
pub const POSTGRES_VERSION: &str = "15.8";
/// The same as a number.
const POSTGRES_VERSION_NUMBER: &str = "150008";

/// What values a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Any text.
    Text,
    /// One of these texts, in any case. The first spelling is kept.
    OneOf(&'static [&'static str]),
    /// `on` or `off`, and what PostgreSQL takes for them.
    Switch,
    /// A whole number of at least this.
    Number { min: i64 },
    /// A time in milliseconds, or a number and a unit.
    Milliseconds,
    /// The name of a time zone.
    TimeZone,
    /// The format of dates: ISO, and an order of day and month.
    DateStyle,
    /// Cannot be set.
    Fixed,
}

struct Definition {
    /// The name as `SHOW` prints it.
    name: &'static str,
    kind: Kind,
    default: &'static str,
    /// Whether clients are told of a new value.
    is_reported: bool,
}

const fn setting(name: &'static str, kind: Kind, default: &'static str) -> Definition {
    Definition {
        name,
        kind,
        default,
        is_reported: false,
    }
}

const fn reported(name: &'static str, kind: Kind, default: &'static str) -> Definition {
    Definition {
        name,
        kind,
        default,
        is_reported: true,
    }
}

const ISOLATION: Kind = Kind::OneOf(&[
    "read committed",
    "read uncommitted",
    "repeatable read",
    "serializable",
]);

/// All settings, sorted by name in lower case.
const DEFINITIONS: &[Definition] = &[
    reported("application_name", Kind::Text, ""),
    setting("bytea_output", Kind::OneOf(&["hex"]), "hex"),
    reported(
        "client_encoding",
        Kind::OneOf(&["UTF8", "UTF-8", "unicode"]),
        "UTF8",
    ),
    setting(
        "client_min_messages",
        Kind::OneOf(&[
            "notice", "debug", "debug1", "debug2", "debug3", "debug4", "debug5", "error", "info",
            "log", "warning",
        ]),
        "notice",
    ),
    reported("DateStyle", Kind::DateStyle, "ISO, MDY"),
    setting("default_table_access_method", Kind::Text, "heap"),
    setting("default_tablespace", Kind::Text, ""),
    setting("default_transaction_deferrable", Kind::Switch, "off"),
    setting("default_transaction_isolation", ISOLATION, "read committed"),
    reported("default_transaction_read_only", Kind::Switch, "off"),
    setting("escape_string_warning", Kind::Switch, "on"),
    setting("extra_float_digits", Kind::Number { min: -15 }, "1"),
    setting(
        "forebay.compile",
        Kind::OneOf(&["background", "wait"]),
        "background",
    ),
    setting("forebay.gpu", Kind::OneOf(&["auto", "on", "off"]), "auto"),
    setting("forebay.strict", Kind::Switch, "off"),
    setting(
        "idle_in_transaction_session_timeout",
        Kind::Milliseconds,
        "0",
    ),
    reported("in_hot_standby", Kind::Fixed, "off"),
    reported("integer_datetimes", Kind::Fixed, "on"),
    reported("IntervalStyle", Kind::OneOf(&["postgres"]), "postgres"),
    reported("is_superuser", Kind::Fixed, "on"),
    setting("jit", Kind::Switch, "off"),
    setting("lc_collate", Kind::Fixed, "C"),
    setting("lc_ctype", Kind::Fixed, "C.UTF-8"),
    setting("lc_messages", Kind::Text, "C"),
    setting("lc_monetary", Kind::Text, "C"),
    setting("lc_numeric", Kind::Text, "C"),
    setting("lc_time", Kind::Text, "C"),
    setting("lock_timeout", Kind::Milliseconds, "0"),
    setting("max_identifier_length", Kind::Fixed, "63"),
    setting("max_index_keys", Kind::Fixed, "32"),
    setting("row_security", Kind::Switch, "on"),
    setting("search_path", Kind::Text, "\"$user\", public"),
    reported("server_encoding", Kind::Fixed, "UTF8"),
    reported("server_version", Kind::Fixed, POSTGRES_VERSION),
    setting("server_version_num", Kind::Fixed, POSTGRES_VERSION_NUMBER),
    reported("session_authorization", Kind::Text, ""),
    reported("standard_conforming_strings", Kind::OneOf(&["on"]), "on"),
    setting("statement_timeout", Kind::Milliseconds, "0"),
    setting("synchronize_seqscans", Kind::Switch, "on"),
    reported("TimeZone", Kind::TimeZone, "UTC"),
    setting("transaction_deferrable", Kind::Switch, "off"),
    setting("transaction_isolation", ISOLATION, "read committed"),
    setting("transaction_read_only", Kind::Switch, "off"),
    setting("work_mem", Kind::Text, "4MB"),
    setting("xmloption", Kind::Text, "content"),
];

/// Maximum bytes of a setting's name and value together.
const VALUE_BYTES_MAX: usize = 4 << 10;
/// Maximum number of settings that a session changes.
const VALUES_MAX: usize = 200;

/// The settings of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Variables {
    /// Values that differ from the defaults, by their names in lower case. Names with a dot are the client's own, but
    /// for those of Forebay.
    set: BTreeMap<String, String>,
    has_gpu: bool,
}

impl Variables {
    /// Returns the defaults. Without a GPU, no setting asks for one.
    pub(crate) fn new(has_gpu: bool) -> Variables {
        Variables {
            set: BTreeMap::new(),
            has_gpu,
        }
    }

    /// Returns a value.
    ///
    /// # Errors
    /// If there is no such setting.
    pub(crate) fn get(&self, name: &str) -> Result<&str> {
        let key = key(name);
        if let Some(value) = self.set.get(&key) {
            return Ok(value);
        }
        find(&key).map(|definition| definition.default)
    }

    /// Sets a value. Returns the name and the value if clients are told.
    ///
    /// # Errors
    /// If there is no such setting, or it does not take the value.
    pub(crate) fn set(
        &mut self,
        name: &str,
        value: &str,
    ) -> Result<Option<(&'static str, String)>> {
        let key = key(name);
        if key.len() + value.len() > VALUE_BYTES_MAX || self.set.len() >= VALUES_MAX {
            let message = format!(
                "the value of \"{}\" is too long, or there are too many",
                name.get(..63).unwrap_or(name)
            );
            return Err(SqlError::new(Code::LimitExceeded, message));
        }
        let definition = match find(&key) {
            Err(_) if key.contains('.') && !key.starts_with("forebay.") => {
                self.set.insert(key, value.to_owned());
                return Ok(None);
            }
            found => found?,
        };
        let value = definition.kind.read(definition.name, value)?;
        let asks = ["forebay.gpu", "forebay.strict"].contains(&definition.name) && value == "on";
        if asks && !self.has_gpu {
            return Err(no_gpu(&format!("{name} cannot be on")));
        }
        self.set.insert(key, value.clone());
        Ok(definition.is_reported.then_some((definition.name, value)))
    }

    /// Sets a value that clients cannot set.
    pub(crate) fn fix(&mut self, name: &str, value: &str) {
        self.set.insert(key(name), value.to_owned());
    }

    /// Sets the default of a setting, or of all of them. Returns the names and values that are reported to clients
    /// (`ParameterStatus`).
    ///
    /// # Errors
    /// If there is no such setting.
    pub(crate) fn reset(&mut self, name: Option<&str>) -> Result<Vec<(&'static str, String)>> {
        let keys: Vec<String> = match name {
            Some(name) => vec![key(name)],
            None => self.set.keys().cloned().collect(),
        };
        let mut told = Vec::new();
        for key in keys {
            let definition = match find(&key) {
                Err(_) if key.contains('.') => {
                    self.set.remove(&key);
                    continue;
                }
                found => found?,
            };
            if definition.kind == Kind::Fixed || key == "session_authorization" {
                continue;
            }
            if self.set.remove(&key).is_some() && definition.is_reported {
                told.push((definition.name, definition.default.to_owned()));
            }
        }
        Ok(told)
    }

    /// Returns names and values of all settings that are reported to clients (`ParameterStatus`).
    pub(crate) fn reported(&self) -> Vec<(&'static str, String)> {
        let reported = DEFINITIONS
            .iter()
            .filter(|definition| definition.is_reported);
        let value = |definition: &Definition| {
            let set = self.set.get(&key(definition.name));
            set.map_or(definition.default, String::as_str).to_owned()
        };
        reported
            .map(|definition| (definition.name, value(definition)))
            .collect()
    }

    /// Returns names and values of all settings.
    pub(crate) fn all(&self) -> Vec<(&'static str, String)> {
        let value = |definition: &Definition| {
            let set = self.set.get(&key(definition.name));
            set.map_or(definition.default, String::as_str).to_owned()
        };
        DEFINITIONS
            .iter()
            .map(|definition| (definition.name, value(definition)))
            .collect()
    }

    /// Returns what is chosen for GPUs.
    pub(crate) fn gpu(&self) -> GpuOptions {
        let is = |name, value| self.get(name).is_ok_and(|it| it == value);
        GpuOptions {
            is_on: !is("forebay.gpu", "off"),
            loads: is("forebay.gpu", "on"),
            waits: is("forebay.compile", "wait"),
            strict: is("forebay.strict", "on"),
        }
    }

    /// Returns the timeout of statements; `None` without one.
    pub(crate) fn statement_timeout(&self) -> Option<Duration> {
        let set = self.set.get("statement_timeout")?;
        let ms = milliseconds(set).filter(|ms| *ms > 0)?;
        Some(Duration::from_millis(ms))
    }
}

fn key(name: &str) -> String {
    let key = name.to_ascii_lowercase();
    match key.as_str() {
        "time zone" => "timezone".to_owned(),
        "names" => "client_encoding".to_owned(),
        _ => key,
    }
}

fn find(key: &str) -> Result<&'static Definition> {
    let mut definitions = DEFINITIONS.iter();
    definitions
        .find(|definition| definition.name.eq_ignore_ascii_case(key))
        .ok_or_else(|| {
            SqlError::new(
                Code::UndefinedObject,
                format!("unrecognized configuration parameter \"{key}\""),
            )
        })
}

impl Kind {
    /// Checks a value, and returns it as `SHOW` prints it.
    fn read(self, name: &str, value: &str) -> Result<String> {
        let invalid = || {
            SqlError::new(
                Code::InvalidParameterValue,
                format!("invalid value for parameter \"{name}\": \"{value}\""),
            )
        };
        match self {
            Kind::Text => Ok(value.to_owned()),
            Kind::OneOf(values) => {
                // As in PostgreSQL, punctuation in the name of an encoding does not count.
                let is_encoding = name == "client_encoding";
                let kept = |letter: &char| !is_encoding || letter.is_ascii_alphanumeric();
                let plain = |text: &str| text.chars().filter(kept).collect::<String>();
                let mut known = values.iter();
                let found = known.find(|known| plain(known).eq_ignore_ascii_case(&plain(value)));
                let found = found.ok_or_else(|| {
                    invalid().with_hint(format!("available values: {}", values.join(", ")))
                })?;
                // All spellings of an encoding are one.
                Ok(if is_encoding { values[0] } else { found }.to_owned())
            }
            Kind::Switch => match &*value.to_ascii_lowercase() {
                "on" | "true" | "yes" | "1" | "t" | "y" => Ok("on".to_owned()),
                "off" | "false" | "no" | "0" | "f" | "n" => Ok("off".to_owned()),
                _ => Err(invalid()),
            },
            Kind::Number { min } => {
                let number: i64 = value.parse().map_err(|_| invalid())?;
                if number < min {
                    return Err(invalid());
                }
                Ok(number.to_string())
            }
            Kind::Milliseconds => {
                let ms = milliseconds(value).ok_or_else(invalid)?;
                Ok(with_unit(ms))
            }
            Kind::TimeZone => time_zone(value).ok_or_else(invalid),
            Kind::DateStyle => date_style(value)
                .ok_or_else(|| invalid().with_hint("dates are printed in the style ISO alone")),
            Kind::Fixed => Err(SqlError::new(
                Code::ObjectNotInState,
                format!("parameter \"{name}\" cannot be changed"),
            )),
        }
    }
}

/// Returns the milliseconds of a text such as `1500`, `5s` or `2 min`.
fn milliseconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|letter: char| !letter.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let factor = match unit.trim() {
        "" | "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let ms = number.parse::<u64>().ok()?.checked_mul(factor)?;
    (ms <= i32::MAX as u64).then_some(ms)
}

/// Formats milliseconds as PostgreSQL shows them: in the largest unit that divides them.
fn with_unit(ms: u64) -> String {
    let units = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "min"),
        (1_000, "s"),
    ];
    let unit = units
        .into_iter()
        .find(|(factor, _)| ms > 0 && ms.is_multiple_of(*factor));
    match (ms, unit) {
        (0, _) => "0".to_owned(),
        (ms, Some((factor, unit))) => format!("{}{unit}", ms / factor),
        (ms, None) => format!("{ms}ms"),
    }
}

/// Returns the name of a time zone as Arrow knows it.
fn time_zone(text: &str) -> Option<String> {
    use datafusion::arrow::array::timezone::Tz;
    let text = match text {
        "GMT" | "utc" | "Z" => "UTC",
        text => text,
    };
    if text.eq_ignore_ascii_case("default") || text.eq_ignore_ascii_case("local") {
        return Some("UTC".to_owned());
    }
    text.parse::<Tz>().is_ok().then(|| text.to_owned())
}

/// Returns a style of dates as `SHOW` prints it; `None` for other output formats than ISO.
fn date_style(text: &str) -> Option<String> {
    let mut order = "MDY";
    for part in text.split(',').map(|part| part.trim().to_ascii_uppercase()) {
        match &*part {
            "ISO" | "" => {}
            "MDY" | "US" | "NONEURO" | "NONEUROPEAN" => order = "MDY",
            "DMY" | "EURO" | "EUROPEAN" => order = "DMY",
            "YMD" => order = "YMD",
            _ => return None,
        }
    }
    Some(format!("ISO, {order}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_sorted_and_take_their_defaults() {
        let names = DEFINITIONS
            .iter()
            .map(|definition| definition.name.to_lowercase());
        assert!(names.is_sorted());
        for definition in DEFINITIONS {
            let read = definition.kind.read(definition.name, definition.default);
            let is_fixed = definition.kind == Kind::Fixed;
            assert!(
                is_fixed || read.as_deref() == Ok(definition.default),
                "{}",
                definition.name
            );
        }
    }

    #[test]
    fn values_are_checked_and_shown_as_postgresql_shows_them() {
        let mut variables = Variables::default();
        for (name, value, shown) in [
            ("STATEMENT_TIMEOUT", "1500", "1500ms"),
            ("statement_timeout", "120 s", "2min"),
            ("datestyle", "iso", "ISO, MDY"),
            ("datestyle", "ISO, dmy", "ISO, DMY"),
            ("extra_float_digits", "3", "3"),
            ("names", "utf-8", "UTF8"),
            ("time zone", "Europe/Vienna", "Europe/Vienna"),
            ("timezone", "+02:00", "+02:00"),
            ("row_security", "NO", "off"),
            ("my.own", "x", "x"),
        ] {
            variables.set(name, value).expect(name);
            assert_eq!(variables.get(name).as_deref(), Ok(shown), "{name}");
        }
        for (name, value, code) in [
            ("nothing", "1", Code::UndefinedObject),
            ("client_encoding", "latin1", Code::InvalidParameterValue),
            ("statement_timeout", "5 years", Code::InvalidParameterValue),
            ("timezone", "Vienna", Code::InvalidParameterValue),
            ("server_version", "9", Code::ObjectNotInState),
            ("forebay.strickt", "on", Code::UndefinedObject),
            ("forebay.strict", "true", Code::ObjectNotInState),
            ("forebay.gpu", "on", Code::ObjectNotInState),
        ] {
            let error = variables.set(name, value).expect_err(name);
            assert_eq!(error.code, code, "{name}");
        }
        assert_eq!(
            variables.statement_timeout(),
            Some(Duration::from_secs(120))
        );
        let told = variables.reset(None).expect("all can be reset");
        assert!(told.contains(&("TimeZone", "UTC".to_owned())), "{told:?}");
        assert_eq!(variables.get("statement_timeout").as_deref(), Ok("0"));
        variables.get("my.own").expect_err("it is forgotten");
    }
}
