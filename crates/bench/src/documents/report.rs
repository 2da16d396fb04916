//! The report of a run: prints and keeps results, and appends them to the record.

use std::path::PathBuf;

use anyhow::Result;
use forebay_terminal::print_line;

use super::DocumentsArgs;
use crate::record::{self, Measured, Record, Run};
use crate::statistics::Summary;

/// The results of a run so far.
#[derive(Debug)]
pub struct Report {
    json: bool,
    file: Option<PathBuf>,
    run: Run,
    records: Vec<Record>,
}

impl Report {
    /// Starts the report of a run with the outputs in `args`.
    pub fn begin(args: &DocumentsArgs) -> Report {
        Report {
            json: args.json,
            file: args.record.clone(),
            run: Run::begin("documents"),
            records: Vec::new(),
        }
    }

    /// Returns whether standard output has only JSON lines.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints and keeps a result, and appends it to the record at once, so that an aborted run keeps its results.
    ///
    /// # Errors
    /// If the record cannot be written, or a number is not finite, which JSON cannot represent.
    pub fn add(
        &mut self,
        case: &str,
        by: Measured<'_>,
        metric: &str,
        summary: Summary,
    ) -> Result<()> {
        let record = self.run.record(case, by, metric, summary);
        if let Some(file) = &self.file {
            record::append(file, std::slice::from_ref(&record))?;
        }
        if self.json {
            print_line(serde_json::to_string(&record)?)?;
        } else {
            print_line(line(&record, by.devices))?;
        }
        self.records.push(record);
        Ok(())
    }

    /// Prints a note to standard error; it is not recorded.
    pub fn note(&self, text: &str) {
        forebay_terminal::note(text);
    }

    /// Returns all results.
    pub fn finish(self) -> Vec<Record> {
        self.records
    }
}

fn line(record: &Record, devices: &str) -> String {
    let Record {
        case,
        engine,
        metric,
        ..
    } = record;
    format!(
        "{case:40} {engine:22} {devices:10} {:>12.3} {metric:18} ({:.3} to {:.3}, n {})",
        record.median, record.min, record.max, record.n
    )
}
