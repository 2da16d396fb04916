//! A generation: a cache of a fixed set of fields of a collection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bson::RawDocument;
use forebay_documents_cache::{Batch, CollectionCache};

use super::build::BuildError;
use super::collection::CacheIndex;
use super::extract::Extractor;
use super::report::PlanSummary;
use super::stats::SearchCounters;

/// Value of `Generation::cursor` once the generation is complete.
const COMPLETE: u64 = u64::MAX;

/// A cache of a fixed set of fields of a collection. It is correct for all documents below a record number, the cursor.
pub struct Generation {
    /// Extracts the fields from documents.
    pub extractor: Extractor,
    /// The cached values.
    pub values: Arc<CollectionCache>,
    /// Number of documents that the collection had when the build began.
    pub total: u64,
    cursor: AtomicU64,
    done: AtomicU64,
    abandoned: AtomicBool,
    searches: SearchCounters,
}

impl Generation {
    /// Returns an empty generation, to be built from `total` documents.
    pub fn new(extractor: Extractor, values: Arc<CollectionCache>, total: u64) -> Generation {
        let searches = SearchCounters::new(extractor.fields().len());
        Generation {
            extractor,
            values,
            total,
            cursor: AtomicU64::new(0),
            done: AtomicU64::new(0),
            abandoned: AtomicBool::new(false),
            searches,
        }
    }

    /// Returns the record number below which the cache is correct.
    pub fn cursor(&self) -> u64 {
        self.cursor.load(Ordering::Acquire)
    }

    /// Moves the cursor to the record number `cursor`, and adds `documents` to the number of cached documents. The
    /// caller holds the write lock and the apply lock.
    pub fn advance(&self, cursor: u64, documents: u64) {
        self.cursor.store(cursor, Ordering::Release);
        self.done.fetch_add(documents, Ordering::Relaxed);
    }

    /// Marks the cache as complete. The caller holds the write lock and the apply lock.
    pub fn complete(&self) {
        self.cursor.store(COMPLETE, Ordering::Release);
    }

    /// Returns the number of documents that the build has cached.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Requests the end of the build.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    /// Returns whether the build should end.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Returns whether the generation has every field of `index`.
    pub fn has(&self, index: &CacheIndex) -> bool {
        let fields = self.extractor.fields();
        index
            .fields
            .iter()
            .all(|path| fields.index_of(path).is_some())
    }

    /// Returns whether the generation has exactly these fields, in any order.
    pub fn has_exactly(&self, fields: &[&str]) -> bool {
        let mine = self.extractor.fields();
        mine.len() == fields.len() && fields.iter().all(|path| mine.index_of(path).is_some())
    }

    /// Counts the conditions of a search, per field and tier.
    pub fn count_search(&self, plan: &PlanSummary) {
        plan.leaves
            .iter()
            .for_each(|leaf| self.searches.count(leaf.field, leaf.tier));
    }

    /// Returns the number of evaluated conditions on a field, per tier.
    pub fn searches(&self, column: usize) -> BTreeMap<&'static str, u64> {
        self.searches.of(column)
    }

    /// Caches new documents, regardless of the cursor.
    ///
    /// # Errors
    /// An error if a record number exceeds 32 bits, or the cache contradicts the collection.
    pub fn add(&self, documents: &[(u64, &RawDocument)]) -> Result<(), BuildError> {
        let values = self.gather(documents.iter().map(|(_, document)| *document));
        self.add_values(documents.iter().map(|(number, _)| *number), &values)
    }

    /// Returns the values that the cache will hold for `documents`.
    pub fn gather<'a>(&self, documents: impl ExactSizeIterator<Item = &'a RawDocument>) -> Batch {
        let mut batch = self.values.batch(documents.len());
        self.extractor.gather(documents, &mut batch);
        batch
    }

    /// Caches new documents from their extracted values.
    ///
    /// # Errors
    /// An error if a record number exceeds 32 bits, or the cache contradicts the collection.
    pub fn add_values(
        &self,
        numbers: impl Iterator<Item = u64>,
        values: &Batch,
    ) -> Result<(), BuildError> {
        let numbers: Vec<u32> = numbers.map(narrow).collect::<Result<_, _>>()?;
        Ok(self.values.insert_batch(&numbers, values)?)
    }

    /// Applies the insertion of documents, except those at or above the cursor. The caller holds the apply lock.
    ///
    /// # Errors
    /// An error if a record number exceeds 32 bits, or the cache contradicts the collection.
    pub fn follow_inserts(&self, documents: &[(u64, &RawDocument)]) -> Result<(), BuildError> {
        let cursor = self.cursor();
        if documents.iter().all(|(number, _)| *number < cursor) {
            self.add(documents)
        } else {
            let below: Vec<_> = documents
                .iter()
                .copied()
                .filter(|(number, _)| *number < cursor)
                .collect();
            self.add(&below)
        }
    }

    /// Applies the replacement of a document. The caller holds the apply lock.
    ///
    /// # Errors
    /// An error if the record number exceeds 32 bits, or the cache contradicts the collection.
    pub fn follow_replace(
        &self,
        number: u64,
        old: &RawDocument,
        new: &RawDocument,
    ) -> Result<(), BuildError> {
        if number < self.cursor() {
            let (old, new) = (self.extractor.extract(old), self.extractor.extract(new));
            if old != new {
                self.values.update(narrow(number)?, &old, &new)?;
            }
        }
        Ok(())
    }

    /// Applies the deletion of a document. The caller holds the apply lock.
    ///
    /// # Errors
    /// An error if the record number exceeds 32 bits, or the cache contradicts the collection.
    pub fn follow_delete(&self, number: u64, old: &RawDocument) -> Result<(), BuildError> {
        if number < self.cursor() {
            self.values
                .remove(narrow(number)?, &self.extractor.extract(old))?;
        }
        Ok(())
    }
}

/// Converts a record number to the cache's 32 bits.
fn narrow(number: u64) -> Result<u32, BuildError> {
    u32::try_from(number).map_err(|_| BuildError::TooManyDocuments { number })
}
