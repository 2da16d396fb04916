//! Seed of random tests.

/// Returns the seed from `FOREBAY_TEST_SEED`, or a new one. The caller prints it.
pub fn seed() -> u64 {
    match std::env::var("FOREBAY_TEST_SEED") {
        Ok(text) => text.parse().expect("FOREBAY_TEST_SEED is a number"),
        Err(_) => fastrand::u64(..),
    }
}
