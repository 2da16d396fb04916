//! A Forebay server with a data folder of its own, which can be killed and started again.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};
use forebay_peers::client;
use forebay_peers::process::ServerProcess;
use mongodb::Client;

/// A server and its data folder; both are gone when this value is dropped.
#[derive(Debug)]
pub struct Server {
    binary: PathBuf,
    arguments: Vec<String>,
    folder: tempfile::TempDir,
    process: ServerProcess,
}

impl Server {
    /// Starts `binary serve` on an empty data folder and a free port, with further `arguments`.
    ///
    /// # Errors
    /// If it does not start; its last lines are in the error.
    pub fn start(binary: &str, arguments: &[&str]) -> Result<Server> {
        let folder = tempfile::tempdir()?;
        let binary = PathBuf::from(binary);
        let arguments: Vec<String> = arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        let process = serve(&binary, folder.path(), &arguments)?;
        Ok(Server {
            binary,
            arguments,
            folder,
            process,
        })
    }

    /// The connection string.
    pub fn uri(&self) -> &str {
        self.process.uri()
    }

    /// The process.
    pub fn process(&self) -> &ServerProcess {
        &self.process
    }

    /// A client with the driver's default settings.
    ///
    /// # Errors
    /// If the connection string is wrong, which would be a mistake of the server.
    pub async fn client(&self) -> Result<Client> {
        client::connect(self.uri()).await
    }

    /// The data folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Ends the process as `kill -9` does.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops the server in good order and starts it again on the same data, on another port.
    ///
    /// # Errors
    /// If it does not stop, ends with a failure, or does not start.
    pub fn shutdown_and_restart(&mut self) -> Result<()> {
        self.process.terminate()?;
        self.restart()
    }

    /// Starts the server again on the same data, on another port, after a kill or in its place.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.process.kill();
        self.process = serve(&self.binary, self.folder.path(), &self.arguments)?;
        Ok(())
    }

    /// Asks the server to stop and waits until it has.
    ///
    /// # Errors
    /// If it does not, or ends with a failure.
    pub fn stop(self) -> Result<()> {
        self.process.stop()
    }
}

/// An address that a server can have again after it was killed; until then nobody listens there.
///
/// A port of 127.0.0.1 that was free may be anybody's a moment later: another server's, or that of a connection of ours,
/// even one to this very port. So the host is one of our own; all of 127.0.0.0/8 is this machine.
///
/// # Errors
/// If this machine's loopback interface has no such address.
pub fn own_address() -> Result<SocketAddr> {
    static GIVEN: AtomicU8 = AtomicU8::new(2);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, high, low, GIVEN.fetch_add(1, Ordering::Relaxed));
    let listener = TcpListener::bind((host, 0)).with_context(|| format!("listening on {host}"))?;
    Ok(listener.local_addr()?)
}

fn serve(binary: &Path, folder: &Path, arguments: &[String]) -> Result<ServerProcess> {
    let folder = folder
        .to_str()
        .context("temporary folders have plain names")?;
    let mut all: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if !all.contains(&"--memory") {
        all.extend(["--data", folder]);
    }
    ServerProcess::serve(binary, &all)
}
