//! Waiting in tests: for a condition, with a timeout. The test `tidy` refuses every other kind of waiting.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Interval of checking a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until `value` returns `Some`.
///
/// # Errors
/// As `value`, or if it returned `None` until `timeout`.
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
        ensure!(!is_late, "timeout after {timeout:?}: {what}");
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Pauses, to set the pace of a simulated client. Not for waiting until something has happened.
pub fn pace(time: Duration) {
    thread::sleep(time);
}
