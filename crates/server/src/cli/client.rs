//! How the commands reach a running server.

use std::io;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use mongodb::Client;
use mongodb::options::{ClientOptions, ServerAddress};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long to look for the server, unless the connection string says (`serverSelectionTimeoutMS`).
const SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The port of an address that names none.
const DEFAULT_PORT: u16 = 27017;

/// Which server to talk to.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// Connection string of the server; user, password and TLS go into it.
    #[arg(
        long,
        global = true,
        env = "FOREBAY_URI",
        hide_env_values = true,
        default_value = "mongodb://127.0.0.1:27017"
    )]
    pub uri: String,
}

impl ServerArgs {
    /// Connects, and asks the server for a sign of life.
    ///
    /// # Errors
    /// If the connection string is not one, or no server answers.
    pub async fn connect(&self) -> Result<Client> {
        let (client, hosts) = self.open().await?;
        let alive = client
            .database("admin")
            .run_command(bson::doc! { "ping": 1 })
            .await;
        alive.with_context(|| format!("cannot work with the server at {hosts}"))?;
        Ok(client)
    }

    /// A client of the server, and the server's address. In front of a store that is away, the server answers no
    /// ping, and may answer other commands.
    ///
    /// # Errors
    /// If the connection string is not one, or nothing listens.
    pub async fn open(&self) -> Result<(Client, String)> {
        let mut options = ClientOptions::parse(&self.uri).await.context("--uri")?;
        options.app_name = Some("forebay".to_owned());
        options
            .server_selection_timeout
            .get_or_insert(SELECTION_TIMEOUT);
        stay_at_one_host(&mut options);
        let hosts: Vec<String> = options.hosts.iter().map(ToString::to_string).collect();
        let hosts = hosts.join(", ");
        if nothing_listens(&options.hosts).await {
            bail!("no server listens at {hosts} (start one by `forebay serve`)");
        }
        Ok((Client::with_options(options).context("--uri")?, hosts))
    }
}

/// A single host without the name of a replica set is the server that is meant: the driver would go on to the address
/// by which the server describes itself, which may be one for other machines.
fn stay_at_one_host(options: &mut ClientOptions) {
    let is_balanced = options.load_balanced.unwrap_or(false);
    if options.hosts.len() == 1 && options.repl_set_name.is_none() && !is_balanced {
        options.direct_connection.get_or_insert(true);
    }
}

/// Whether every address refuses connections: the driver would ask again and again until its time is up.
async fn nothing_listens(hosts: &[ServerAddress]) -> bool {
    for host in hosts {
        let ServerAddress::Tcp { host, port } = host else {
            return false;
        };
        let address = (host.as_str(), port.unwrap_or(DEFAULT_PORT));
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        match timeout(SELECTION_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Err(error)) if refused(&error) => {}
            _ => return false,
        }
    }
    true
}
