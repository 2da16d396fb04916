//! The command line: one command, one file.

mod serve;

use clap::{Parser, Subcommand};

/// A data server that keeps what is hot where it is searched fastest.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
}

/// Runs the command that was given.
///
/// # Errors
/// Whatever the command fails with, for a person to read.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve(args) => serve::run(&args).await,
    }
}
