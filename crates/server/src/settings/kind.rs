//! The kinds of settings, and how their values are parsed.

use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// The kind of values that a setting has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// True or false; a flag without a value means true.
    Switch,
    /// A host and a port.
    Address,
    /// A host and a port; empty for none.
    AddressOrNone,
    /// A file or directory.
    Path,
    /// A file or directory; empty for none.
    PathOrNone,
    /// Any text.
    Text,
    /// The name of a replica set, optionally with `/` and the host and port of its member; empty for none.
    ReplicaSet,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A whole number.
    Count {
        /// Minimum value.
        min: u64,
        /// Maximum value.
        max: u64,
    },
    /// A number of bytes, with or without a unit from `KiB` to `TiB`.
    Bytes {
        /// Minimum value.
        min: u64,
        /// Maximum value.
        max: u64,
    },
    /// Milliseconds.
    Milliseconds {
        /// Minimum value.
        min: u64,
        /// Maximum value.
        max: u64,
    },
}

/// A value of some [`Kind`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Value of a switch.
    Switch(bool),
    /// Value of an address.
    Address(SocketAddr),
    /// Value of an optional address; `None` if empty.
    AddressOrNone(Option<SocketAddr>),
    /// Value of a path; `None` if empty.
    Path(Option<PathBuf>),
    /// Value of a text or a choice.
    Text(String),
    /// Value of a count or a number of bytes.
    Number(u64),
    /// Value of a time in milliseconds.
    Duration(Duration),
}

/// Units of bytes, the largest first. `B` is last, because the other units end with it.
const UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// Conversion of a setting's value to the type of its field.
pub trait FromValue {
    /// Converts a value.
    ///
    /// # Panics
    /// If the kind of the setting does not fit the type of the field, which means that the setting's definition is
    /// wrong.
    fn from_value(value: Value) -> Self;
}

/// Implements [`FromValue`] for each type, by conversion from the variant of [`Value`] that holds its values.
macro_rules! from_value {
    ($($type:ty, $variant:ident($held:ident) => $converted:expr;)+) => {
        $(impl FromValue for $type {
            fn from_value(value: Value) -> $type {
                match value {
                    Value::$variant($held) => $converted,
                    other => panic!("{other:?} in a field of type {}", stringify!($type)),
                }
            }
        })+
    };
}

from_value! {
    bool, Switch(it) => it;
    String, Text(it) => it;
    SocketAddr, Address(it) => it;
    Option<SocketAddr>, AddressOrNone(it) => it;
    PathBuf, Path(it) => it.unwrap_or_default();
    Option<PathBuf>, Path(it) => it;
    Duration, Duration(it) => it;
    u64, Number(it) => it;
    usize, Number(it) => it.try_into().expect("the limits of the kind fit the type");
    u32, Number(it) => it.try_into().expect("the limits of the kind fit the type");
    u8, Number(it) => it.try_into().expect("the limits of the kind fit the type");
}

impl Kind {
    /// Parses a value.
    ///
    /// # Errors
    /// If the value is invalid. The error says why, as the end of a sentence that begins with the setting's name.
    pub fn parse(self, text: &str) -> Result<Value, String> {
        match self {
            Kind::Switch => parse_switch(text).map(Value::Switch),
            Kind::Address => parse_address(text).map(Value::Address),
            Kind::AddressOrNone if text.is_empty() => Ok(Value::AddressOrNone(None)),
            Kind::AddressOrNone => {
                parse_address(text).map(|address| Value::AddressOrNone(Some(address)))
            }
            Kind::PathOrNone if text.is_empty() => Ok(Value::Path(None)),
            Kind::Path if text.is_empty() => Err("must be a path".to_owned()),
            Kind::Path | Kind::PathOrNone => Ok(Value::Path(Some(PathBuf::from(text)))),
            Kind::Text => Ok(Value::Text(text.to_owned())),
            Kind::ReplicaSet if is_replica_set(text) => Ok(Value::Text(text.to_owned())),
            Kind::ReplicaSet => Err(
                "must be NAME or NAME/HOST:PORT, for instance rs0 or rs0/db.example.com:27017 (letters, digits, `-`, `_` and `.`)"
                    .to_owned(),
            ),
            Kind::Choice(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
            Kind::Choice(words) => Err(format!("must be one of {}", words.join(", "))),
            Kind::Count { min, max } => parse_number(text, 1, min, max).map(Value::Number),
            Kind::Bytes { min, max } => parse_bytes(text, min, max).map(Value::Number),
            Kind::Milliseconds { min, max } => {
                let milliseconds = parse_number(text, 1, min, max)?;
                Ok(Value::Duration(Duration::from_millis(milliseconds)))
            }
        }
    }

    /// Describes the type and limits, for the reference page.
    pub fn describe(self) -> String {
        match self {
            Kind::Switch => "true or false".to_owned(),
            Kind::Address | Kind::AddressOrNone => "host:port".to_owned(),
            Kind::Path | Kind::PathOrNone => "path".to_owned(),
            Kind::Text => "text".to_owned(),
            Kind::ReplicaSet => "`NAME` or `NAME/HOST:PORT`".to_owned(),
            Kind::Choice(words) => words.join(" or "),
            Kind::Count { min, max } => format!("count, {min} to {max}"),
            Kind::Bytes { min, max } => {
                format!("bytes, {} to {}", bytes_text(min), bytes_text(max))
            }
            Kind::Milliseconds { min, max } => format!("milliseconds, {min} to {max}"),
        }
    }

    /// Returns the placeholder for a value in help texts.
    pub fn placeholder(self) -> &'static str {
        match self {
            Kind::Switch => "BOOL",
            Kind::Address | Kind::AddressOrNone => "HOST:PORT",
            Kind::Path | Kind::PathOrNone => "PATH",
            Kind::Text => "TEXT",
            Kind::ReplicaSet => "NAME[/HOST:PORT]",
            Kind::Choice(_) => "WORD",
            Kind::Count { .. } => "COUNT",
            Kind::Bytes { .. } => "BYTES",
            Kind::Milliseconds { .. } => "MS",
        }
    }
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" | "" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |_| "must be an address and a port, for instance 127.0.0.1:27017".to_owned();
    let mut addresses = text.to_socket_addrs().map_err(wrong)?;
    addresses
        .next()
        .ok_or_else(|| "must name a host that has an address".to_owned())
}

fn is_replica_set(text: &str) -> bool {
    let is_name = |text: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !text.is_empty() && text.chars().all(is_part)
    };
    match text.split_once('/') {
        None => text.is_empty() || is_name(text),
        Some((name, address)) => {
            let is_host = |host: &str| is_name(host) || is_ip_v6(host);
            let is_port = |port: &str| port.parse().is_ok_and(|port: u16| port > 0);
            let address = address.rsplit_once(':');
            is_name(name) && address.is_some_and(|(host, port)| is_host(host) && is_port(port))
        }
    }
}

fn is_ip_v6(host: &str) -> bool {
    let inner = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    inner.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok())
}

/// Formats a number of bytes as a whole number in the largest possible unit, for instance `256 MiB`.
pub fn bytes_text(bytes: u64) -> String {
    let whole = |(_, factor): &&(&str, u64)| bytes > 0 && bytes.is_multiple_of(*factor);
    match UNITS.iter().find(whole) {
        Some((unit, factor)) if *factor > 1 => format!("{} {unit}", bytes / factor),
        _ => bytes.to_string(),
    }
}

fn parse_bytes(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let unit = UNITS.iter().find(|(suffix, _)| text.ends_with(suffix));
    let (suffix, factor) = unit.copied().unwrap_or(("", 1));
    let number = text.strip_suffix(suffix).unwrap_or(text).trim();
    if number.parse::<u64>().is_err() {
        return Err(
            "must be a whole number of bytes, KiB, MiB, GiB or TiB, for instance 512MiB".to_owned(),
        );
    }
    let range = || format!("must be from {} to {}", bytes_text(min), bytes_text(max));
    parse_number(number, factor, min, max).map_err(|_| range())
}

fn parse_number(text: &str, factor: u64, min: u64, max: u64) -> Result<u64, String> {
    let number: Option<u64> = text.parse().ok();
    match number.and_then(|number| number.checked_mul(factor)) {
        Some(number) if (min..=max).contains(&number) => Ok(number),
        Some(_) => Err(format!("must be from {min} to {max}")),
        None => Err("must be a whole number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_units() {
        let kind = Kind::Bytes {
            min: 1,
            max: 1 << 40,
        };
        assert_eq!(kind.parse("4096"), Ok(Value::Number(4096)));
        assert_eq!(kind.parse("2GiB"), Ok(Value::Number(2 << 30)));
        assert_eq!(kind.parse("3 MiB"), Ok(Value::Number(3 << 20)));
        assert_eq!(kind.parse("1TiB"), Ok(Value::Number(1 << 40)));
        assert!(
            kind.parse("0").is_err()
                && kind.parse("1.5GiB").is_err()
                && kind.parse("99999999GiB").is_err()
        );
    }

    #[test]
    fn bytes_are_shown_in_their_largest_whole_unit() {
        for (bytes, text) in [
            (0, "0"),
            (1000, "1000"),
            (1 << 10, "1 KiB"),
            (256 << 20, "256 MiB"),
            (3 << 29, "1536 MiB"),
            (1 << 50, "1024 TiB"),
        ] {
            assert_eq!(bytes_text(bytes), text);
        }
        let kind = Kind::Bytes {
            min: 1 << 20,
            max: 1 << 30,
        };
        assert_eq!(
            kind.parse("2GiB"),
            Err("must be from 1 MiB to 1 GiB".to_owned())
        );
    }

    #[test]
    fn a_replica_set_has_a_name_and_perhaps_an_address() {
        for text in ["", "rs0", "rs0/db.example.com:27017", "a-b_c.d/[::1]:1"] {
            assert_eq!(
                Kind::ReplicaSet.parse(text),
                Ok(Value::Text(text.to_owned()))
            );
        }
        for text in [
            "a b",
            "/db:27017",
            "rs0/",
            "rs0/db",
            "rs0/:1",
            "rs0/db:0",
            "rs0/db:99999",
            "rs0/a:1,b:2",
            "rs0/::1:1",
        ] {
            assert!(Kind::ReplicaSet.parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn values_outside_the_limits_are_refused() {
        let kind = Kind::Milliseconds { min: 10, max: 20 };
        assert_eq!(
            kind.parse("10"),
            Ok(Value::Duration(Duration::from_millis(10)))
        );
        assert_eq!(kind.parse("9"), Err("must be from 10 to 20".to_owned()));
        assert_eq!(kind.parse("-1"), Err("must be a whole number".to_owned()));
        assert!(Kind::Choice(&["text", "json"]).parse("xml").is_err());
        assert!(Kind::Address.parse("nowhere").is_err());
    }
}
