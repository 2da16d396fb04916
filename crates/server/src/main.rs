//! The `forebay` binary: a server in front of, or instead of, the store that people have, and the tools around it.
#![forbid(unsafe_code)]

mod auth;
mod cli;
mod door;
mod import;
mod logging;
mod settings;
mod tls;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("the system gives threads and an event queue to a fresh process");
    let ended = runtime.block_on(cli::run(cli));
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: {error:#}");
            ExitCode::FAILURE
        }
    }
}
