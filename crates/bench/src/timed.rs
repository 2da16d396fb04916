//! Repeated, timed counts.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bson::Document;
use forebay_peers::client::{self, Plan};
use forebay_peers::ripgrep;
use mongodb::Database;

use crate::statistics::{Repeat, Summary, milliseconds};

/// Counts matching documents repeatedly. Returns the count, which must be equal in all runs, and a summary of the run
/// times in milliseconds.
///
/// # Errors
/// As for [`client::count`], or if two runs disagree.
pub async fn count(
    db: &Database,
    collection: &str,
    filter: &Document,
    plan: Plan,
    repeat: Repeat,
) -> Result<(u64, Summary)> {
    let begin = Instant::now();
    let mut samples = Vec::new();
    let mut counts = Vec::new();
    while repeat.continues(samples.len(), begin) {
        let start = Instant::now();
        counts.push(client::count(db, collection, filter, plan).await?);
        samples.push(milliseconds(start.elapsed()));
    }
    summary(&counts, &samples)
}

/// Repeatedly counts the matching lines of `file` with `rg -c -j1`. Returns the count and a summary of the wall times
/// in milliseconds.
///
/// # Errors
/// As for [`ripgrep::count`], or if two runs disagree.
pub fn ripgrep_count(
    file: &Path,
    pattern: &str,
    ignore_case: bool,
    repeat: Repeat,
) -> Result<(u64, Summary)> {
    let begin = Instant::now();
    let mut samples = Vec::new();
    let mut counts = Vec::new();
    while repeat.continues(samples.len(), begin) {
        let start = Instant::now();
        counts.push(ripgrep::count(file, pattern, ignore_case)?);
        samples.push(milliseconds(start.elapsed()));
    }
    summary(&counts, &samples)
}

fn summary(counts: &[u64], samples: &[f64]) -> Result<(u64, Summary)> {
    let first = *counts.first().context("no run was timed")?;
    ensure!(
        counts.iter().all(|count| *count == first),
        "runs of the same search disagree: {counts:?}"
    );
    Ok((first, Summary::of(samples).context("no run was timed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_disagree_are_an_error() {
        let (count, summary_of) = summary(&[3, 3], &[1.0, 2.0]).expect("the counts agree");
        assert_eq!((count, summary_of.count), (3, 2));
        let error = summary(&[3, 4], &[1.0, 2.0]).expect_err("the counts disagree");
        assert!(error.to_string().contains("[3, 4]"), "{error}");
    }
}
