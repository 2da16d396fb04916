//! Waits in tests: for a condition, with a timeout. The test `tidy` refuses every other way of waiting.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Interval between checks of a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until `value` returns `Some`.
///
/// # Errors
/// The error of `value`, or a timeout if it still returns `None` after `timeout`.
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

/// Pauses, to set the pace of a simulated client. Must not be used to wait for an event.
pub fn pace(time: Duration) {
    thread::sleep(time);
}
