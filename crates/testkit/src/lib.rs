//! What tests of the whole server share: a server in a process of its own, and a model of what it must answer.
#![forbid(unsafe_code)]

mod model;
mod server;

pub use forebay_peers::ferretdb::FerretDb;
pub use model::Model;
pub use server::{Server, own_address};

/// Whether tests run at full size: ten million documents instead of some thousands.
pub fn is_full() -> bool {
    std::env::var_os("FOREBAY_TEST_FULL").is_some_and(|value| value != "0")
}

/// The seed of a random test: from `FOREBAY_TEST_SEED`, or a new one. Printed, so that a failure can be repeated.
pub fn seed(test: &str) -> u64 {
    let given = std::env::var("FOREBAY_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("{test}: FOREBAY_TEST_SEED={seed}");
    seed
}
