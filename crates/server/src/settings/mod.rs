//! The settings of `forebay serve`: each declared once in [`definitions`], from which the command-line flags, the
//! environment variables, the keys of the configuration file and the reference page are made.
//!
//! A flag wins over the environment, the environment over the file, the file over the default.

mod definitions;
mod kind;
mod reference;
mod sources;

pub use definitions::{DEFINITIONS, Settings};
pub use kind::{Kind, Value};
pub use reference::reference_page;
pub use sources::{Sources, flags};

/// One setting.
#[derive(Debug)]
pub struct Definition {
    /// Its name: the flag without dashes in front, the key of the file with `_` for `-`.
    pub key: &'static str,
    /// What values it takes, and their limits.
    pub kind: Kind,
    /// The default, written as a user would.
    pub default: &'static str,
    /// What it does, for people.
    pub doc: &'static str,
    /// Stores a value that `kind` has accepted.
    set: fn(&mut Settings, Value),
}

impl Definition {
    /// The environment variable that sets it.
    pub fn environment(&self) -> String {
        format!("FOREBAY_{}", self.key.replace('-', "_").to_uppercase())
    }

    /// The key that sets it in the configuration file.
    pub fn file_key(&self) -> String {
        self.key.replace('-', "_")
    }
}
