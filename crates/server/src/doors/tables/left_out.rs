//! The tables server of a build without it.

use std::sync::Arc;

use anyhow::{Result, bail};
use forebay_documents::Documents;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::documents;
use crate::settings::Settings;
use crate::status;

/// No server.
pub struct Door;

impl Door {
    /// Checks that the settings ask for none.
    ///
    /// # Errors
    /// If they do.
    pub async fn open(
        settings: &Settings,
        _tls: Option<TlsAcceptor>,
        _documents: &Arc<Documents>,
    ) -> Result<Door> {
        if settings
            .postgres_listen
            .or(settings.flight_listen)
            .is_some()
        {
            bail!(
                "this build has no SQL: remove --postgres-listen and --flight-listen, or build with the feature `tables`"
            );
        }
        Ok(Door)
    }

    /// Returns that there are no tables.
    pub fn status(&self) -> status::Tables {
        status::Tables
    }

    /// Prints nothing.
    ///
    /// # Errors
    /// Never.
    pub fn announce(&self) -> Result<()> {
        Ok(())
    }

    /// Returns at once.
    pub async fn serve(
        self,
        _documents: Arc<documents::Door>,
        _shutdown: watch::Receiver<bool>,
        _settings: &Settings,
    ) {
    }
}
