//! Host threads for searches, with a common limit for all searches of the process.

use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::time::Duration;

use forebay_cancel::Stop;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::error::SearchError;

/// Maximum threads per core. The total is kept between `THREADS_MIN` and `THREADS_MAX`. The operating system shares the
/// cores fairly among the threads.
const THREADS_PER_CORE: usize = 8;
const THREADS_MIN: usize = 16;
const THREADS_MAX: usize = 128;
/// Interval at which a waiting search checks its cancellation token.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

static FREE: LazyLock<Semaphore> = LazyLock::new(|| {
    let threads = THREADS_PER_CORE * forebay_device::cores();
    Semaphore::new(threads.clamp(THREADS_MIN, THREADS_MAX))
});

/// Runs long work on a separate thread, as soon as one is free.
pub(super) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if let Ok(free) = FREE.try_acquire() {
        return spawn_blocking(move || {
            let _free = free;
            work()
        });
    }
    tokio::spawn(async {
        let _free = FREE.acquire().await.expect("never closed");
        match spawn_blocking(work).await {
            Ok(done) => done,
            Err(failed) => resume_unwind(failed.into_panic()),
        }
    })
}

/// Waits for `future`, or returns an error once the search is stopped.
pub(super) async fn until_stopped<F: Future + Unpin>(
    stop: &Stop,
    mut future: F,
) -> Result<F::Output, SearchError> {
    loop {
        stop.check()?;
        if let Ok(done) = timeout(check_interval(stop), &mut future).await {
            return Ok(done);
        }
    }
}

fn check_interval(stop: &Stop) -> Duration {
    let left = stop
        .deadline
        .map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
    left.map_or(CHECK_INTERVAL, |left| left.min(CHECK_INTERVAL))
}
