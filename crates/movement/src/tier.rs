//! The tiers that bytes move between.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// In a file.
    File,
    /// In ordinary host memory, whose pages the system may move.
    Pageable,
    /// In pinned (page-locked) host memory.
    Pinned,
    /// In unified memory, whose pages move between the host and a device.
    Managed,
    /// In the memory of the device that uses the bytes.
    Device,
}

impl Tier {
    /// Returns the name of the tier for users.
    pub fn name(self) -> &'static str {
        match self {
            Tier::File => "file",
            Tier::Pageable => "pageable host memory",
            Tier::Pinned => "pinned host memory",
            Tier::Managed => "unified memory",
            Tier::Device => "device memory",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
