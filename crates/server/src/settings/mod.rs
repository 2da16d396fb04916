//! The settings of `forebay serve`. Each is declared once, in [`definitions`]; the command-line flags, the environment
//! variables, the keys of the configuration file and the reference page are made from the declarations.
//!
//! The first part of a name is the part of the server that uses the setting (decision 0021): a protocol, a door or
//! `upstream-`. Names without such a part are of the whole process.
//!
//! A flag wins over the environment, the environment over the file, the file over the default.

mod definitions;
mod kind;
mod reference;
mod sources;

pub use definitions::{DEFINITIONS, Settings};
use kind::bytes_text;
pub use kind::{FromValue, Kind, Value};
pub use reference::reference_page;
pub use sources::{Sources, flags};

/// One setting.
#[derive(Debug)]
pub struct Definition {
    /// Its name: the flag without dashes in front, the key of the file with `_` for `-`.
    pub key: &'static str,
    /// The kind and the limits of its values.
    pub kind: Kind,
    /// The default, as a user writes it.
    pub default: &'static str,
    /// What it does.
    pub doc: &'static str,
}

impl Definition {
    /// The default as the reference shows it; empty if there is none.
    pub fn default_text(&self) -> String {
        match self.kind.parse(self.default) {
            Ok(Value::Number(bytes)) if matches!(self.kind, Kind::Bytes { .. }) => {
                bytes_text(bytes)
            }
            _ => self.default.to_owned(),
        }
    }

    /// The environment variable that sets it.
    pub fn environment(&self) -> String {
        format!("FOREBAY_{}", self.key.replace('-', "_").to_uppercase())
    }

    /// The key that sets it in the configuration file.
    pub fn file_key(&self) -> String {
        self.key.replace('-', "_")
    }
}
