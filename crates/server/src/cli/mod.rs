//! The command line. Each command has its own file.

mod client;
mod debug;
mod devices;
mod doctor;
mod export;
mod import;
mod kernels;
mod memory;
mod reference;
mod serve;
#[cfg(feature = "tables")]
mod sql;
mod table;
mod user;
mod version;

use clap::{Parser, Subcommand};
#[cfg(feature = "bench")]
use forebay_bench::{BenchArgs, DemoArgs};
use nix::sys::stat::{Mode, umask};

#[cfg(feature = "tables")]
pub use self::sql::split;
use crate::stop::Stop;

/// A data server that keeps hot data in the memory of the devices that search it fastest.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    #[cfg(feature = "tables")]
    Sql(sql::SqlArgs),
    Import(import::ImportArgs),
    Export(export::ExportArgs),
    Devices(devices::DevicesArgs),
    Doctor(doctor::DoctorArgs),
    Kernels(kernels::KernelsArgs),
    Debug(debug::DebugArgs),
    User(user::UserArgs),
    #[cfg(feature = "bench")]
    Demo(DemoArgs),
    #[cfg(feature = "bench")]
    Bench(BenchArgs),
    Reference(reference::ReferenceArgs),
    /// Print the version
    Version,
}

/// Makes files that this process creates unreadable for other users. The files hold documents and password hashes.
fn keep_files_private() {
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
}

/// Returns a number of documents in words.
fn documents(count: u64) -> String {
    match count {
        1 => "1 document".to_owned(),
        count => format!("{count} documents"),
    }
}

/// Runs the command. `serve` runs until a stop is requested.
///
/// # Errors
/// If the command fails. The error's message is for the user.
pub async fn run(cli: Cli, stop: &Stop) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve(args) => serve::run(&args, stop).await,
        #[cfg(feature = "tables")]
        Command::Sql(args) => sql::run(args, stop).await,
        Command::Import(args) => import::run(args, stop).await,
        Command::Export(args) => export::run(&args, stop).await,
        Command::Devices(args) => devices::run(&args).await,
        Command::Doctor(args) => doctor::run(args, stop).await,
        Command::Kernels(args) => kernels::run(&args),
        Command::Debug(args) => debug::run(&args).await,
        Command::User(args) => user::run(&args).await,
        #[cfg(feature = "bench")]
        Command::Demo(args) => forebay_bench::demo(args).await,
        #[cfg(feature = "bench")]
        Command::Bench(args) => forebay_bench::bench(args).await,
        Command::Reference(args) => Ok(reference::run(&args)?),
        Command::Version => Ok(version::run()?),
    }
}
