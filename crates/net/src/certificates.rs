//! Reads certificates from PEM files.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// Why a PEM file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what} from {path}: {problem}")]
pub struct PemError {
    /// What the file should contain.
    pub what: &'static str,
    /// Path of the file.
    pub path: PathBuf,
    /// Why the file cannot be used.
    pub problem: String,
}

impl PemError {
    /// Creates the error for a file at `path` that should contain `what`.
    pub fn new(what: &'static str, path: &Path, problem: impl Display) -> PemError {
        PemError {
            what,
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }
}

/// Reads all certificates of a PEM file.
///
/// # Errors
/// If the file is missing, is not a PEM file or has no certificate.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let what = "a certificate";
    let failed = |error| PemError::new(what, path, error);
    let chain = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(failed)?;
    if chain.is_empty() {
        Err(PemError::new(what, path, "the file has none"))
    } else {
        Ok(chain)
    }
}
