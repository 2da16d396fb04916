//! The seed of a random test.

/// The seed that `FOREBAY_TEST_SEED` gives, or a new one. The caller prints it.
pub fn seed() -> u64 {
    match std::env::var("FOREBAY_TEST_SEED") {
        Ok(text) => text.parse().expect("FOREBAY_TEST_SEED is a number"),
        Err(_) => fastrand::u64(..),
    }
}
