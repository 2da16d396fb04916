//! The ways of reading and writing files.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A way between a file and the memory of its consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum StoragePath {
    /// Reads into CPU memory and writes from it, for consumers on the CPU.
    Host,
    /// Through pinned memory: one thread keeps many operations in flight by io_uring.
    StagedUring,
    /// Through pinned memory: each of several threads does one operation at a time.
    StagedThreads,
    /// By cuFile, which may bypass the CPU's memory.
    Direct(DirectMode),
}

/// How cuFile is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DirectMode {
    /// Each call blocks.
    Sync,
    /// Calls on a stream.
    Async,
    /// Many operations in a call.
    Batch,
}

impl StoragePath {
    /// All paths.
    pub const ALL: [StoragePath; 6] = [
        StoragePath::Host,
        StoragePath::StagedUring,
        StoragePath::StagedThreads,
        StoragePath::Direct(DirectMode::Sync),
        StoragePath::Direct(DirectMode::Async),
        StoragePath::Direct(DirectMode::Batch),
    ];

    /// Returns the name, as in `staged-uring`.
    pub fn name(self) -> &'static str {
        match self {
            StoragePath::Host => "host",
            StoragePath::StagedUring => "staged-uring",
            StoragePath::StagedThreads => "staged-threads",
            StoragePath::Direct(DirectMode::Sync) => "direct-sync",
            StoragePath::Direct(DirectMode::Async) => "direct-async",
            StoragePath::Direct(DirectMode::Batch) => "direct-batch",
        }
    }
}

impl fmt::Display for StoragePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not that of a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no storage path {0}; the paths are {names}", names = names())]
pub struct UnknownPath(pub String);

fn names() -> String {
    StoragePath::ALL.map(StoragePath::name).join(", ")
}

impl FromStr for StoragePath {
    type Err = UnknownPath;

    fn from_str(text: &str) -> Result<StoragePath, UnknownPath> {
        let found = StoragePath::ALL
            .into_iter()
            .find(|path| path.name() == text);
        found.ok_or_else(|| UnknownPath(text.to_owned()))
    }
}

impl From<StoragePath> for String {
    fn from(path: StoragePath) -> String {
        path.name().to_owned()
    }
}

impl TryFrom<String> for StoragePath {
    type Error = UnknownPath;

    fn try_from(text: String) -> Result<StoragePath, UnknownPath> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_own_name() {
        for path in StoragePath::ALL {
            assert_eq!(path.name().parse(), Ok(path));
            let json = serde_json::to_string(&path).expect("a string");
            assert_eq!(serde_json::from_str::<StoragePath>(&json).ok(), Some(path));
        }
        let error = "direct".parse::<StoragePath>().expect_err("not a path");
        assert!(
            error.to_string().ends_with("direct-async, direct-batch"),
            "{error}"
        );
    }
}
