//! Threads for what searches do on the host: a bound for all searches of the process together.

use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::time::Duration;

use forebay_cancel::Stop;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::error::SearchError;

/// Threads a core, which the system lets go on side by side, and the fewest and the most of them.
const THREADS_PER_CORE: usize = 8;
const THREADS_MIN: usize = 16;
const THREADS_MAX: usize = 128;
/// How often a search that waits looks at its stop sign.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

static FREE: LazyLock<Semaphore> = LazyLock::new(|| {
    let threads = THREADS_PER_CORE * forebay_device::cores();
    Semaphore::new(threads.clamp(THREADS_MIN, THREADS_MAX))
});

/// Runs work that may take long on a thread for that, as soon as one is free.
pub(super) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if let Ok(free) = FREE.try_acquire() {
        return spawn_blocking(move || {
            let _free = free;
            work()
        });
    }
    tokio::spawn(async {
        let _free = FREE.acquire().await.expect("it is never closed");
        match spawn_blocking(work).await {
            Ok(done) => done,
            Err(failed) => resume_unwind(failed.into_panic()),
        }
    })
}

/// Waits no longer than the search may go on.
pub(super) async fn before<F: Future + Unpin>(
    stop: &Stop,
    mut future: F,
) -> Result<F::Output, SearchError> {
    loop {
        stop.check().map_err(|stopped| SearchError::Stopped {
            reason: stopped.reason,
        })?;
        if let Ok(done) = timeout(look_interval(stop), &mut future).await {
            return Ok(done);
        }
    }
}

fn look_interval(stop: &Stop) -> Duration {
    let left = stop
        .deadline
        .map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
    left.map_or(LOOK_INTERVAL, |left| left.min(LOOK_INTERVAL))
}
