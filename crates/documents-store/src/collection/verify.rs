//! Checks that documents, index entries and counters agree.

use std::sync::Arc;

use forebay_cancel::Stop;

use super::write::nests_too_deep;
use super::{Collection, Writer};
use crate::document::{Document, RecordNumber};
use crate::engine::{Direction, KeyRange};
use crate::error::{Result, StoreError};
use crate::index::Index;

/// Maximum number of problems that a report describes. Further problems are only counted.
const PROBLEMS_MAX: usize = 100;

/// Number of index entries that are read between two checks of the cancellation token.
const ENTRIES_PER_CHECK: u64 = 4_096;

/// Result of a collection's check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of documents read.
    pub documents: u64,
    /// Total size of the documents read, in bytes.
    pub bytes: u64,
    /// Number of index entries read.
    pub entries: u64,
    /// Descriptions of the first 100 problems.
    pub problems: Vec<String>,
    /// Number of all problems, including those without a description.
    pub problem_count: u64,
}

impl VerifyReport {
    /// Returns whether no problem was found.
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    fn problem(&mut self, problem: impl FnOnce() -> String) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem());
        }
    }
}

impl Collection {
    /// Reads the whole collection and checks that each document is valid BSON, that each complete index has exactly the
    /// documents' keys, and that the counters are right. Writers wait until the check ends.
    ///
    /// # Errors
    /// [`StoreError::Stopped`], and errors of the reads. The report lists the problems that the check finds.
    pub fn verify(&self, stop: &Stop) -> Result<VerifyReport> {
        let writer = self.writer.lock();
        let mut report = VerifyReport::default();
        let indexes: Vec<Arc<Index>> = self
            .index_list()
            .iter()
            .filter(|index| index.is_complete())
            .cloned()
            .collect();
        let mut expected = vec![0; indexes.len()];
        for record in self.scan(0) {
            stop.check()?;
            let (number, document) = record?;
            self.verify_document(&mut report, number, &document);
            for (index, expected) in indexes.iter().zip(&mut expected) {
                *expected += self.verify_keys(&mut report, index, number, &document)?;
            }
        }
        for (index, expected) in indexes.iter().zip(expected) {
            self.verify_entry_count(&mut report, index, expected, stop)?;
        }
        verify_counts(&mut report, &writer);
        Ok(report)
    }

    fn verify_document(
        &self,
        report: &mut VerifyReport,
        number: RecordNumber,
        document: &Document,
    ) {
        report.documents += 1;
        report.bytes += document.len_bytes() as u64;
        if nests_too_deep(document) {
            report.problem(|| format!("document {number}: {}", StoreError::TooDeep));
        } else if let Err(error) = bson::Document::try_from(document.raw()) {
            report.problem(|| format!("document {number} is not BSON: {error}"));
        }
        if number >= self.next_number() {
            report.problem(|| {
                format!(
                    "record number {number} of a document is not below the collection's next record number {}",
                    self.next_number()
                )
            });
        }
    }

    /// Checks that the index has every key of a document. Returns the number of keys.
    fn verify_keys(
        &self,
        report: &mut VerifyReport,
        index: &Index,
        number: RecordNumber,
        document: &Document,
    ) -> Result<u64> {
        let Some(partition) = index.partition_id() else {
            return Ok(0);
        };
        let name = &index.spec.name;
        let keys = match index.keys(document.raw()) {
            Ok(keys) => keys,
            Err(error) => {
                report.problem(|| format!("document {number} cannot be in index {name}: {error}"));
                return Ok(0);
            }
        };
        if keys.multikey && !index.is_multikey() {
            report.problem(|| {
                format!(
                    "document {number} has an array in index {name}, which is not marked multikey"
                )
            });
        }
        for key in &keys.keys {
            let (entry, value) = index.entry(key, number);
            if self.shared.engine.get(partition, &entry)? != Some(value) {
                report.problem(|| format!("index {name} lacks a key of document {number}"));
            }
        }
        Ok(keys.keys.len() as u64)
    }

    fn verify_entry_count(
        &self,
        report: &mut VerifyReport,
        index: &Index,
        expected: u64,
        stop: &Stop,
    ) -> Result<()> {
        let Some(partition) = index.partition_id() else {
            return Ok(());
        };
        let mut found = 0_u64;
        for entry in self.entries(partition, KeyRange::all(), Direction::Forward) {
            entry?;
            found += 1;
            if found.is_multiple_of(ENTRIES_PER_CHECK) {
                stop.check()?;
            }
        }
        report.entries += found;
        if found != expected {
            report.problem(|| {
                format!(
                    "index {} has {found} entries instead of {expected}",
                    index.spec.name
                )
            });
        }
        Ok(())
    }
}

fn verify_counts(report: &mut VerifyReport, writer: &Writer) {
    let (documents, bytes) = (report.documents, report.bytes);
    if writer.statistics.documents != documents {
        report.problem(|| {
            format!(
                "the collection has {documents} documents, but its counter says {}",
                writer.statistics.documents
            )
        });
    }
    if writer.statistics.bytes != bytes {
        report.problem(|| {
            format!(
                "the documents have {bytes} bytes, but the counter says {}",
                writer.statistics.bytes
            )
        });
    }
}
