//! Raises the limit of file descriptors, and reserves some of them for the store's files.

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Number of file descriptors that a client's connection needs.
pub const OF_CONNECTION: u64 = 1;
/// Number of file descriptors that a client's connection to a proxy needs: a second one is for the proxy's own
/// connection to the upstream.
pub const OF_PROXIED_CONNECTION: u64 = 2;
/// Number of descriptors reserved for the store's files and the rest of the process. If this is more than half of the
/// limit, half of the limit is reserved instead.
const RESERVED: u64 = 512;

/// Raises the soft limit of open files to the hard limit. Returns the soft limit that then applies.
///
/// # Errors
/// If the system does not report a limit.
pub fn raise() -> Result<u64> {
    let (soft, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).context("reading the limit of open files")?;
    if soft == hard {
        return Ok(soft);
    }
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => Ok(hard),
        Err(error) => {
            tracing::warn!(%error, soft, hard, "the limit of open files cannot be raised");
            Ok(soft)
        }
    }
}

/// Returns the maximum number of connections within a limit of descriptors. Each connection takes `each` descriptors.
pub fn room(limit: u64, each: u64) -> usize {
    let reserved = RESERVED.min(limit / 2);
    usize::try_from((limit - reserved) / each).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_keeps_its_part() {
        assert_eq!(room(1_024, 1), 512);
        assert_eq!(room(4_096, 2), 1_792);
        assert_eq!(room(64, 1), 32);
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_be() {
        let limit = raise().expect("the system tells the limit");
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the system tells the limit");
        assert_eq!((soft, hard), (limit, limit));
    }
}
