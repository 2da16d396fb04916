//! Log lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::settings::Settings;

/// Starts logging as the settings say.
///
/// # Errors
/// If the filter is not one.
pub fn start(settings: &Settings) -> anyhow::Result<()> {
    let filter =
        EnvFilter::try_new(&settings.log).map_err(|error| anyhow::anyhow!("--log: {error}"))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match settings.log_format.as_str() {
        "json" => lines.json().init(),
        _ => lines.with_ansi(std::io::stderr().is_terminal()).init(),
    }
    Ok(())
}
