//! How the commands reach a running server.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use mongodb::Client;
use mongodb::options::ClientOptions;

/// How long to look for the server.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// If the connection string is not one, or nobody answers.
    pub async fn connect(&self) -> Result<Client> {
        let mut options = ClientOptions::parse(&self.uri).await.context("--uri")?;
        options.app_name = Some("forebay".to_owned());
        options.server_selection_timeout = Some(SELECTION_TIMEOUT);
        let hosts: Vec<String> = options.hosts.iter().map(ToString::to_string).collect();
        let client = Client::with_options(options).context("--uri")?;
        let alive = client
            .database("admin")
            .run_command(bson::doc! { "ping": 1 })
            .await;
        alive.with_context(|| {
            format!(
                "no server answers at {} (start one by `forebay serve`)",
                hosts.join(", ")
            )
        })?;
        Ok(client)
    }
}
