//! The file of queries that run when the server has started, so that their kernels are compiled and cached.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use forebay_tables::{Tables, Warmed, Warming};
use tokio::sync::watch;

use crate::cli::split;
use crate::listen::stopped;

/// Maximum bytes of the file.
const BYTES_MAX: u64 = 16 << 20;

/// A file of queries.
pub struct Queries {
    path: PathBuf,
    text: String,
}

impl Queries {
    /// Reads the file of `--tables-gpu-warm`.
    ///
    /// # Errors
    /// If it cannot be read, or is no file of at most 16 MiB.
    pub fn read(path: &Path) -> Result<Queries> {
        let read = || {
            let found = fs::metadata(path)?;
            ensure!(
                found.is_file() && found.len() <= BYTES_MAX,
                "no file of at most {} MiB",
                BYTES_MAX >> 20
            );
            Ok(fs::read_to_string(path)?)
        };
        let text = read().with_context(|| format!("--tables-gpu-warm: {}", path.display()))?;
        Ok(Queries {
            path: path.to_owned(),
            text,
        })
    }

    /// Runs the queries one after the other, until `shutdown` becomes true. Logs those that fail, with their lines.
    pub async fn run(self, tables: Arc<Tables>, mut shutdown: watch::Receiver<bool>) {
        tokio::select! {
            () = self.run_all(&tables) => {}
            () = stopped(&mut shutdown) => {}
        }
    }

    async fn run_all(&self, tables: &Arc<Tables>) {
        let file = self.path.display();
        let warming = match Warming::start(tables).await {
            Ok(warming) => warming,
            Err(error) => {
                tracing::warn!(%file, %error, "the queries of --tables-gpu-warm do not run");
                return;
            }
        };
        let began = Instant::now();
        let (mut count, mut failed) = (0, 0);
        for query in split(&self.text) {
            let line = query.lines_before + 1;
            count += 1;
            match warming.run(query.text).await {
                Warmed::Ran => tracing::debug!(%file, line, "a query ran"),
                Warmed::OnCpu(reason) => {
                    tracing::warn!(%file, line, %reason, "the CPU computes a part of a query");
                }
                Warmed::Failed(error) => {
                    failed += 1;
                    tracing::warn!(%file, line, %error, "a query failed");
                }
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        tracing::info!(%file, count, failed, seconds, "the queries of --tables-gpu-warm ran");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_missing_is_named() {
        let error = Queries::read(Path::new("/nonexistent/queries.sql")).err();
        let error = error.map(|error| format!("{error:#}")).unwrap_or_default();
        let begin = "--tables-gpu-warm: /nonexistent/queries.sql: No such file";
        assert!(error.starts_with(begin), "{error}");
    }
}
