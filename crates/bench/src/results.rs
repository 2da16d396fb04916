//! The results of a run: printed as a table or as JSON lines, appended to a file, and kept for the plots.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use forebay_terminal::print_line;

use crate::plot;
use crate::record::{self, Measured, Record, Run};
use crate::statistics::Summary;

/// What becomes of the results.
#[derive(Args, Clone, Debug, Default)]
pub struct ResultArgs {
    /// Print JSON lines.
    #[arg(long)]
    pub json: bool,
    /// Draw the results as SVG files into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub plot: Option<PathBuf>,
    /// Append the results to this file of JSON lines.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// The results of a run so far.
pub(crate) struct Results {
    options: ResultArgs,
    run: Run,
    /// Head of the table, until it is printed.
    head: Option<String>,
    records: Vec<Record>,
}

impl Results {
    /// Starts the results of a group of benchmarks; `head` is the head of their table.
    ///
    /// # Errors
    /// If the file or the folder that the options name cannot be written.
    pub(crate) fn begin(
        bench: &'static str,
        options: &ResultArgs,
        head: String,
    ) -> Result<Results> {
        if let Some(file) = &options.record {
            record::append(file, &[])?;
        }
        if let Some(folder) = &options.plot {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        Ok(Results {
            options: options.clone(),
            run: Run::begin(bench),
            head: Some(head),
            records: Vec::new(),
        })
    }

    /// Returns a record of this run, which is not added.
    pub(crate) fn record(
        &self,
        case: &str,
        by: Measured<'_>,
        metric: &str,
        summary: Summary,
    ) -> Record {
        self.run.record(case, by, metric, summary)
    }

    /// Adds records, which are one row of the table.
    ///
    /// # Errors
    /// If they cannot be written or printed.
    pub(crate) fn add(&mut self, records: Vec<Record>, row: &str) -> Result<()> {
        self.add_unprinted(records)?;
        if !self.options.json {
            if let Some(head) = self.head.take() {
                print_line(&head)?;
            }
            print_line(row)?;
        }
        Ok(())
    }

    /// Adds records that are no row of the table.
    ///
    /// # Errors
    /// If they cannot be written or printed.
    pub(crate) fn add_unprinted(&mut self, records: Vec<Record>) -> Result<()> {
        if let Some(file) = &self.options.record {
            record::append(file, &records)?;
        }
        if self.options.json {
            for record in &records {
                print_line(serde_json::to_string(record)?)?;
            }
        }
        self.records.extend(records);
        Ok(())
    }

    /// Returns all records.
    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Ends the run, and draws its plots if a folder is named.
    ///
    /// # Errors
    /// If nothing was measured, or the folder cannot be written.
    pub(crate) fn end(&self) -> Result<()> {
        ensure!(
            !self.records.is_empty(),
            "nothing was measured; the notes above say why"
        );
        match &self.options.plot {
            Some(folder) => plot::write_of_run(folder, &self.records),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_an_error_before_anything_is_measured() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("a-file");
        fs::write(&file, "").expect("writable");
        let below = Some(file.join("below"));
        let (record, plot) = (below.clone(), below);
        for options in [
            ResultArgs {
                record,
                ..ResultArgs::default()
            },
            ResultArgs {
                plot,
                ..ResultArgs::default()
            },
        ] {
            assert!(Results::begin("io", &options, String::new()).is_err());
        }
    }

    #[test]
    fn a_run_that_measured_nothing_is_an_error() {
        let results = Results::begin("io", &ResultArgs::default(), String::new());
        let error = results.and_then(|results| results.end());
        let error = error.expect_err("there is no result");
        assert!(
            error.to_string().contains("nothing was measured"),
            "{error}"
        );
    }
}
