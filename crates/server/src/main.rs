//! The `forebay` binary: a documents server with its own store or with an upstream, and its tools.
#![forbid(unsafe_code)]

mod auth;
mod cli;
mod descriptors;
mod doors;
mod driver_error;
mod import;
mod listen;
mod logging;
mod settings;
mod status;
mod stop;
mod tls;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use forebay_terminal::{OutputError, note};

/// Maximum number of blocking threads: more than all blocking work together may use, so that one is always free. When a
/// network thread blocks, a free thread takes over that thread's other tasks.
const BLOCKING_THREADS_MAX: usize = 2_048;

/// Stack of each thread of the runtime. Only what a thread uses takes memory. Trees of SQL statements are copied and
/// dropped on these threads; they are at most 2,000 operators deep.
const STACK_BYTES: usize = 16 << 20;

fn main() -> ExitCode {
    forebay_device::give_back_large_blocks();
    let cli = cli::Cli::parse();
    // Must run before any other thread starts, because threads inherit the blocked signals.
    let stop = match stop::Stop::on_signals() {
        Ok(stop) => stop,
        Err(error) => return failed(&error),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_stack_size(STACK_BYTES)
        .build()
        .context("starting threads; check the limits `ulimit -n` and `ulimit -u`");
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let ended = runtime.block_on(cli::run(cli, &stop));
    runtime.shutdown_background();
    forebay_device::cuda::end_compilations();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref().is_some_and(OutputError::is_closed) {
        return ExitCode::SUCCESS;
    }
    note(format_args!("forebay: {}", message(error)));
    ExitCode::FAILURE
}

/// Formats an error and its causes in one line. Skips causes whose text the line already contains.
fn message(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let of_driver = cause.downcast_ref::<mongodb::error::Error>();
        let text = of_driver.map_or_else(|| cause.to_string(), driver_error::sentence);
        if !line.contains(&text) {
            let separator = if line.is_empty() { "" } else { ": " };
            line.push_str(separator);
            line.push_str(&text);
        }
        if of_driver.is_some() {
            // The text of a MongoDB driver's error already includes its causes.
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_appears_once() {
        let error = Err::<(), _>(std::io::Error::other("disk full"));
        let error = error.context("cannot write: disk full").context("saving");
        let error = error.expect_err("made as an error");
        assert_eq!(message(&error), "saving: cannot write: disk full");
    }
}
