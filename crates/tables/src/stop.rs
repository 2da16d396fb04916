//! The flag that ends work of a statement which computes for long without waiting.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use datafusion::error::{DataFusionError, Result};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::error::{Code, SqlError};
use crate::source::of_this_user;

tokio::task_local! {
    /// The flag of the work that this task is part of.
    static IS_STOPPED: Arc<AtomicBool>;
}

/// Stops the work in its scope when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Returns `work`, which [`check`] stops. So it does in tasks that DataFusion starts for it.
    pub(crate) fn scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        IS_STOPPED.scope(Arc::clone(&self.0), work)
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Checks that the work of this task may continue.
///
/// # Errors
/// If it was stopped.
pub(crate) fn check() -> Result<()> {
    let is_stopped = IS_STOPPED.try_with(|flag| flag.load(Ordering::Relaxed));
    if !is_stopped.unwrap_or(false) {
        return Ok(());
    }
    let error = SqlError::new(Code::QueryCanceled, "the statement was stopped");
    Err(DataFusionError::External(Box::new(error)))
}

/// Gives tasks that DataFusion starts the flag and the user of the task that starts them.
pub(crate) fn follow_tasks() {
    // Another engine of this process may have set it.
    let _ = set_join_set_tracer(&Follow);
}

struct Follow;

type Value = Box<dyn Any + Send>;

impl JoinSetTracer for Follow {
    fn trace_future(&self, work: BoxFuture<'static, Value>) -> BoxFuture<'static, Value> {
        let work = of_this_user(work);
        match IS_STOPPED.try_with(Arc::clone) {
            Ok(flag) => IS_STOPPED.scope(flag, work).boxed(),
            Err(_) => work,
        }
    }

    fn trace_block(
        &self,
        work: Box<dyn FnOnce() -> Value + Send>,
    ) -> Box<dyn FnOnce() -> Value + Send> {
        match IS_STOPPED.try_with(Arc::clone) {
            Ok(flag) => Box::new(move || IS_STOPPED.sync_scope(flag, work)),
            Err(_) => work,
        }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::runtime::SpawnedTask;

    use super::*;

    #[tokio::test]
    async fn tasks_end_with_the_work_that_started_them() {
        follow_tasks();
        let stop = Stop::default();
        let checked = || async {
            (
                check().is_ok(),
                SpawnedTask::spawn(async { check().is_ok() }).await,
            )
        };
        assert!(matches!(stop.scope(checked()).await, (true, Ok(true))));
        let work = stop.scope(checked());
        drop(stop);
        assert!(matches!(work.await, (false, Ok(false))));
        check().expect("no work is stopped here");
    }
}
