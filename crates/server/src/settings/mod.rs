//! The settings of `forebay serve`. Each is defined once, in [`definitions`]; the command-line flags, the environment
//! variables, the keys of the configuration file and the reference page are generated from the definitions.
//!
//! The prefix of a setting's name is the part of the server that uses the setting (decision 0021): a protocol
//! (`mongodb-`), a data model (`documents-`) or `upstream-`. Settings without such a prefix apply to the whole process.
//!
//! A flag overrides the environment, the environment the file, and the file the default.

mod definitions;
mod kind;
mod reference;
mod sources;

pub use definitions::{DEFINITIONS, Settings};
use kind::bytes_text;
pub use kind::{FromValue, Kind, Value};
pub use reference::reference_page;
pub use sources::{Sources, flags, unknown_variables};

/// The definition of one setting.
#[derive(Debug)]
pub struct Definition {
    /// Name: the flag without leading dashes. The key in the file has `_` for `-`.
    pub key: &'static str,
    /// Kind and limits of the values.
    pub kind: Kind,
    /// Default value, as a user writes it.
    pub default: &'static str,
    /// Description for the reference page and `--help`.
    pub doc: &'static str,
}

impl Definition {
    /// Returns the default as the reference page shows it; empty if there is none.
    pub fn default_text(&self) -> String {
        match self.kind.parse(self.default) {
            Ok(Value::Number(bytes)) if matches!(self.kind, Kind::Bytes { .. }) => {
                bytes_text(bytes)
            }
            _ => self.default.to_owned(),
        }
    }

    /// Returns the environment variable of the setting.
    pub fn environment(&self) -> String {
        format!("FOREBAY_{}", self.key.replace('-', "_").to_uppercase())
    }

    /// Returns the setting's key in the configuration file.
    pub fn file_key(&self) -> String {
        self.key.replace('-', "_")
    }
}
