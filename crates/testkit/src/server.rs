//! A Forebay server with its own data folder, which can be killed and restarted.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};
use forebay_peers::client;
use forebay_peers::process::ServerProcess;
use mongodb::Client;

/// A server and its data folder. Dropping it stops the server and removes the folder.
#[derive(Debug)]
pub struct Server {
    binary: PathBuf,
    arguments: Vec<String>,
    folder: tempfile::TempDir,
    process: ServerProcess,
}

impl Server {
    /// Starts `binary serve` with an empty data folder, a free port and `arguments`.
    ///
    /// # Errors
    /// If the server does not start. The error contains its last lines of output.
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

    /// Returns the connection string.
    pub fn uri(&self) -> &str {
        self.process.uri()
    }

    /// Returns the server's process.
    pub fn process(&self) -> &ServerProcess {
        &self.process
    }

    /// Connects a client with the driver's default settings.
    ///
    /// # Errors
    /// If the connection string is malformed, which would be a bug of the server.
    pub async fn client(&self) -> Result<Client> {
        client::connect(self.uri()).await
    }

    /// Returns the data folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills the process, as `kill -9` does.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops the server cleanly and restarts it on the same data, on a different port.
    ///
    /// # Errors
    /// If the server fails, or does not stop or start.
    pub fn shutdown_and_restart(&mut self) -> Result<()> {
        self.process.terminate()?;
        self.restart()
    }

    /// Kills the server if it is running, and restarts it on the same data, on a different port.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.process.kill();
        self.process = serve(&self.binary, self.folder.path(), &self.arguments)?;
        Ok(())
    }

    /// Stops the server cleanly.
    ///
    /// # Errors
    /// If the server fails or does not stop.
    pub fn stop(self) -> Result<()> {
        self.process.stop()
    }
}

/// Returns an address that no other process uses, so that a killed server can be restarted at the same address.
///
/// A free port of 127.0.0.1 may soon be taken by another server, or by an outgoing connection as its own port. So each
/// call returns a different host of 127.0.0.0/8, whose addresses all belong to this machine.
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
        .context("the path of the data folder is not UTF-8")?;
    let mut all: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if !all.contains(&"--memory") {
        all.extend(["--data", folder]);
    }
    ServerProcess::serve(binary, &all)
}
