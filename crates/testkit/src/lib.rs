//! Helpers for tests of the whole server: server processes, a model with the expected results, and waiting.
#![forbid(unsafe_code)]

mod model;
mod server;
mod wait;

pub use forebay_peers::ferretdb::FerretDb;
pub use model::Model;
pub use server::{Server, own_address};
pub use wait::{pace, wait_for};

/// Returns whether tests run at full size: with ten million documents instead of some thousands.
pub fn is_full() -> bool {
    std::env::var_os("FOREBAY_TEST_FULL").is_some_and(|value| value != "0")
}

/// Returns the seed of a random test: `FOREBAY_TEST_SEED`, or a random one. Prints it, so that a failure can be
/// repeated.
pub fn seed(test: &str) -> u64 {
    let given = std::env::var("FOREBAY_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("{test}: FOREBAY_TEST_SEED={seed}");
    seed
}
