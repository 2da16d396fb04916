//! Waiting in tests: for a condition, with a timeout. `tidy` refuses every other way to wait.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// How often a condition is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until `value` returns one.
///
/// # Errors
/// As `value`; or if it has returned none for as long as `timeout`.
pub async fn wait_for<T>(
    what: &str,
    timeout: Duration,
    mut value: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(value) = value().await? {
            return Ok(value);
        }
        let is_late = Instant::now() >= deadline;
        ensure!(!is_late, "waited {timeout:?} in vain: {what}");
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Lets time pass at the pace of a client that a test plays. Not for waiting until something has happened.
pub fn pace(time: Duration) {
    thread::sleep(time);
}
