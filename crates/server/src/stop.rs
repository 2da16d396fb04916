//! Handles requests to stop the process: Ctrl-C, SIGTERM, and the end of standard input.
//!
//! Signals are blocked in all threads except one, which waits for them. Signal handlers would not work: while NVRTC
//! compiles, it installs its own handlers, which end the process.

use std::sync::Arc;
use std::time::Duration;
use std::{io, process, thread};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, raise};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

/// Whether the process was requested to stop, and the progress of the stop.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: watch::Sender<bool>,
    /// Number of Ctrl-C that were given to a shell.
    interrupts: watch::Sender<u64>,
    phase: Arc<(Mutex<Phase>, Condvar)>,
}

/// Progress of a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// No stop was requested.
    #[default]
    Running,
    /// A stop was requested; commands in progress may finish.
    Asked,
    /// The server has finished serving clients. The rest of the shutdown has no time limit.
    Served,
}

/// Time between the end of the shutdown timeout and the forced end of the process.
const MARGIN: Duration = Duration::from_secs(1);

impl Stop {
    /// Handles Ctrl-C and SIGTERM, also for threads that start later. A signal still ends the process at once if
    /// nothing [listens](Stop::listen) for a stop, or if it is the second signal. Also blocks SIGXFSZ, so that a write
    /// beyond the limit on file sizes (`ulimit -f`) fails with an error and does not end the process.
    ///
    /// # Errors
    /// If the system cannot block the signals or start a thread.
    pub fn on_signals() -> Result<Stop> {
        let (asked, _) = watch::channel(false);
        let stop = Stop {
            asked,
            interrupts: watch::Sender::default(),
            phase: Arc::default(),
        };
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        let file_too_large = SigSet::from_iter([Signal::SIGXFSZ]);
        for blocked in [signals, file_too_large] {
            blocked.thread_block().context("blocking signals")?;
        }
        let waiting = stop.clone();
        let thread = thread::Builder::new().name("signals".to_owned());
        thread.spawn(move || waiting.wait_for(signals))?;
        Ok(stop)
    }

    /// Returns a receiver whose value becomes true when a stop is requested.
    pub fn listen(&self) -> watch::Receiver<bool> {
        self.asked.subscribe()
    }

    /// Returns a receiver whose value counts Ctrl-C. While there is such a receiver, Ctrl-C does nothing else: it
    /// neither requests a stop nor ends the process. For a shell, in which it cancels a statement.
    #[cfg_attr(
        not(feature = "tables"),
        expect(dead_code, reason = "there is no shell without SQL")
    )]
    pub fn interrupts(&self) -> watch::Receiver<u64> {
        self.interrupts.subscribe()
    }

    /// Ends the process if clients are still served when `timeout` and one more second have passed since a request to
    /// stop. Runs in its own thread, so that no other thread can delay it.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn end_after(&self, timeout: Duration) -> Result<()> {
        let stop = self.clone();
        let thread = thread::Builder::new().name("stop".to_owned());
        thread.spawn(move || {
            if !stop.is_served_within(timeout + MARGIN) {
                tracing::error!(
                    "commands did not finish in time: the process ends without an orderly shutdown"
                );
                forebay_device::cuda::end_compilations();
                process::exit(1);
            }
        })?;
        Ok(())
    }

    /// Records that no client is served any more.
    pub fn served(&self) {
        self.enter(Phase::Served);
    }

    fn enter(&self, next: Phase) {
        let (phase, changed) = &*self.phase;
        *phase.lock() = next;
        changed.notify_all();
    }

    /// Waits for a request to stop, then until no client is served any more. Returns false if clients are still served
    /// after `time`.
    fn is_served_within(&self, time: Duration) -> bool {
        let (phase, changed) = &*self.phase;
        let mut phase = phase.lock();
        changed.wait_while(&mut phase, |phase| *phase == Phase::Running);
        changed.wait_while_for(&mut phase, |phase| *phase == Phase::Asked, time);
        *phase == Phase::Served
    }

    /// Requests a stop when standard input ends or cannot be read.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn on_stdin_end(&self) -> Result<()> {
        let stop = self.clone();
        let thread = thread::Builder::new().name("stdin".to_owned());
        thread.spawn(move || {
            if let Err(error) = io::copy(&mut io::stdin().lock(), &mut io::sink()) {
                tracing::warn!(%error, "standard input cannot be read");
            }
            stop.request();
        })?;
        Ok(())
    }

    fn wait_for(&self, signals: SigSet) {
        while let Ok(signal) = signals.wait() {
            if (signal == Signal::SIGINT && self.interrupt()) || self.request() {
                continue;
            }
            // The signal takes effect in this thread, before `raise` returns.
            let done = signals.thread_unblock().and_then(|()| raise(signal));
            if let Err(error) = done.and_then(|()| signals.thread_block()) {
                tracing::warn!(%error, "{signal} has no effect");
            }
        }
    }

    /// Counts a Ctrl-C. Returns false if no shell receives it.
    fn interrupt(&self) -> bool {
        let has_receiver = self.interrupts.receiver_count() > 0;
        if has_receiver {
            self.interrupts.send_modify(|count| *count += 1);
        }
        has_receiver
    }

    /// Requests a stop. Returns true if this is the first request and a listener will act on it.
    fn request(&self) -> bool {
        let first = !*self.asked.borrow() && self.asked.send(true).is_ok();
        if first {
            self.enter(Phase::Asked);
            tracing::info!("stopping: commands in progress may finish");
        }
        first
    }
}
