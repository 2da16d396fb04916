//! Background threads of the store.

use std::thread::JoinHandle;

use crate::error::{Result, StoreError};

/// A background thread. Dropping this value asks the thread to stop and joins it.
pub(crate) struct Background {
    name: &'static str,
    stop: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a thread that executes `run`. `stop` must make `run` return soon.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the operating system cannot create the thread.
    pub(crate) fn start(
        name: &'static str,
        run: impl FnOnce() + Send + 'static,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = thread.map_err(|error| StoreError::io("start a thread", error))?;
        Ok(Self {
            name,
            stop: Box::new(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(thread = self.name, "a thread of the store panicked");
        }
    }
}
