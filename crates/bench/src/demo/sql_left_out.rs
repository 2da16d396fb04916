//! The SQL of the demonstration in a build without the tables server: none.

use anyhow::Result;

/// The folder of tables. There is none.
#[derive(Debug)]
pub enum Folder {}

impl Folder {
    /// Prepares nothing.
    ///
    /// # Errors
    /// Never.
    pub fn prepare(_is_real: bool) -> Result<Option<Folder>> {
        Ok(None)
    }

    /// Returns the path, as an argument of the server.
    ///
    /// # Errors
    /// Never.
    pub fn argument(&self) -> Result<&str> {
        match *self {}
    }
}

/// Runs no query.
///
/// # Errors
/// Never.
pub async fn ask_all(_uri: &str, folder: &Folder, _is_json: bool) -> Result<()> {
    match *folder {}
}
