//! The line about a long statement on standard error: rows read so far, and time.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Interval, MissedTickBehavior, interval_at};

/// Time after which a statement gets a line.
const DELAY: Duration = Duration::from_secs(2);
/// Time between two changes of the line.
const INTERVAL: Duration = Duration::from_millis(100);

/// The line about one statement. Dropping it clears the line.
pub struct Progress {
    begun: Instant,
    ticks: Interval,
    line: ProgressBar,
}

impl Progress {
    /// Begins to measure the time of a statement. Nothing is drawn if standard error is not a terminal.
    pub fn start() -> Progress {
        let begun = Instant::now();
        let mut ticks = interval_at((begun + DELAY).into(), INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let style = ProgressStyle::with_template("{msg}");
        let line = ProgressBar::new_spinner();
        Progress {
            begun,
            ticks,
            line: line.with_style(style.expect("the template is well-formed")),
        }
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Waits until the line should be drawn again; forever if it is never drawn.
    pub async fn tick(&mut self) {
        match self.line.is_hidden() || self.line.is_finished() {
            true => std::future::pending().await,
            false => _ = self.ticks.tick().await,
        }
    }

    /// Draws the line.
    pub fn draw(&self, rows_scanned: u64) {
        let seconds = self.elapsed().as_secs_f64();
        let read = match rows_scanned {
            0 => String::new(),
            rows => format!("{rows} rows read, "),
        };
        self.line
            .set_message(format!("{read}{seconds:.1} s (Ctrl-C cancels)"));
    }

    /// Clears the line, and draws it no more.
    pub fn clear(&self) {
        self.line.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
