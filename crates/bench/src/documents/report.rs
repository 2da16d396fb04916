//! Figures as they are found: printed, kept, and appended to the record.

use std::path::PathBuf;

use anyhow::Result;

use super::DocumentsArgs;
use crate::record::{self, Measured, Record, Run};
use crate::statistics::Summary;

/// The figures of a run so far.
#[derive(Debug)]
pub struct Report {
    json: bool,
    file: Option<PathBuf>,
    run: Run,
    records: Vec<Record>,
}

impl Report {
    /// Begins a run, with the options that say where figures go.
    pub fn begin(args: &DocumentsArgs) -> Report {
        Report {
            json: args.json,
            file: args.record.clone(),
            run: Run::begin("documents"),
            records: Vec::new(),
        }
    }

    /// Whether lines of JSON are printed, and nothing else.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints and keeps a figure, and appends it to the record at once: a run that is cut off leaves what it found.
    ///
    /// # Errors
    /// If it cannot be written, or not as JSON, which a number that is not finite would cause.
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
            println!("{}", serde_json::to_string(&record)?);
        } else {
            println!("{}", line(&record, by.devices));
        }
        self.records.push(record);
        Ok(())
    }

    /// Tells whoever watches; the record does not have it.
    pub fn note(&self, text: &str) {
        eprintln!("{text}");
    }

    /// All figures.
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
