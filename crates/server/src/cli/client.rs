//! Connects commands to a running server.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use mongodb::Client;
use mongodb::error::{Error, ErrorKind};
use mongodb::options::{AuthMechanism, ClientOptions, Credential, ServerAddress};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Server selection timeout, unless the connection string sets `serverSelectionTimeoutMS`.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Default port of an address.
const DEFAULT_PORT: u16 = 27017;

/// Error code CommandNotFound.
const COMMAND_NOT_FOUND: i32 = 59;

/// The server that a command connects to.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// Connection string of the server, with user, password and TLS options.
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
    /// Connects and pings the server.
    ///
    /// # Errors
    /// If the connection string is malformed, or the server does not answer.
    pub async fn connect(&self) -> Result<Client> {
        let (client, hosts) = self.open().await?;
        let alive = client
            .database("admin")
            .run_command(bson::doc! { "ping": 1 })
            .await;
        alive.map_err(|error| of_server(error, &hosts))?;
        Ok(client)
    }

    /// Returns a client of the server, and the server's address. Sends no ping: a proxy answers no ping while its
    /// upstream cannot be reached, but may answer other commands.
    ///
    /// # Errors
    /// If the connection string is malformed, or no server listens.
    pub async fn open(&self) -> Result<(Client, String)> {
        let mut options = ClientOptions::parse(&self.uri).await.context("--uri")?;
        options.app_name = Some("forebay".to_owned());
        options
            .server_selection_timeout
            .get_or_insert(SELECTION_TIMEOUT);
        stay_at_one_host(&mut options);
        if let Some(credential) = &mut options.credential {
            complete(credential)?;
        }
        let hosts: Vec<String> = options.hosts.iter().map(ToString::to_string).collect();
        let hosts = hosts.join(", ");
        if nothing_listens(&options.hosts).await {
            bail!("no server listens at {hosts} (start one with `forebay serve`)");
        }
        Ok((Client::with_options(options).context("--uri")?, hosts))
    }
}

/// Adds the server's address to an error. Leaves the refusal of a command as it is, because the server works.
pub fn of_server(error: Error, hosts: &str) -> anyhow::Error {
    let is_refusal = matches!(*error.kind, ErrorKind::Command(_));
    let error = anyhow::Error::from(error);
    match is_refusal {
        true => error,
        false => error.context(format!("cannot use the server at {hosts}")),
    }
}

/// Replaces an error about an unknown command by `meaning`. Forebay with its own store knows all commands that the
/// command line sends; a proxy passes some of them on to an upstream that may not know them.
pub fn explain_unknown(error: Error, meaning: impl FnOnce() -> String) -> anyhow::Error {
    match &*error.kind {
        ErrorKind::Command(refusal) if refusal.code == COMMAND_NOT_FOUND => anyhow!(meaning()),
        _ => error.into(),
    }
}

/// Asks for the password of a user that the connection string names without one.
///
/// # Errors
/// If standard input is not a terminal.
fn complete(credential: &mut Credential) -> Result<()> {
    let has_password = matches!(
        credential.mechanism,
        None | Some(AuthMechanism::ScramSha1 | AuthMechanism::ScramSha256 | AuthMechanism::Plain)
    );
    let Some(user) = credential.username.as_deref() else {
        return Ok(());
    };
    if !has_password || credential.password.is_some() {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        bail!(
            "--uri names user {user} without a password: write mongodb://USER:PASSWORD@HOST:PORT (in FOREBAY_URI, other \
             accounts of the machine do not see it), or run the command at a terminal to be asked"
        );
    }
    credential.password = Some(ask_secret(&format!("Password of {user}: "))?);
    Ok(())
}

/// Asks for a line at the terminal without echo. The prompt goes to standard error.
///
/// # Errors
/// Those of the terminal.
pub fn ask_secret(prompt: &str) -> io::Result<String> {
    let mut terminal = console::Term::stderr();
    terminal.write_all(prompt.as_bytes())?;
    terminal.read_secure_line()
}

/// Connects directly if the connection string names one host and no replica set. Otherwise the driver would use the
/// address that the server reports, which may not be reachable from this machine.
fn stay_at_one_host(options: &mut ClientOptions) {
    let is_balanced = options.load_balanced.unwrap_or(false);
    if options.hosts.len() == 1 && options.repl_set_name.is_none() && !is_balanced {
        options.direct_connection.get_or_insert(true);
    }
}

/// Returns whether every address refuses connections. The driver alone would not report this before its timeout.
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
