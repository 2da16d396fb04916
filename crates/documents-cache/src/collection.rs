//! The cache of one collection's fields.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::answer::SearchAnswer;
use crate::batch::{Batch, Column};
use crate::bucket::Bucket;
use crate::cache::Shared;
use crate::error::{CacheError, SearchError};
use crate::field::FieldState;
use crate::numbers::NumberSet;
use crate::request::SearchRequest;
use crate::search::{self, Snapshot};
use crate::stats::{BucketStats, BucketSummary, FieldStats};
use crate::value::FieldValue;
use crate::{CacheSettings, maintain};

/// The part of a collection's cache that its lock guards.
#[derive(Debug)]
pub(crate) struct State {
    /// Document numbers of all documents in the cache.
    pub(crate) live: NumberSet,
    pub(crate) fields: Vec<Arc<FieldState>>,
    /// Incremented when the cache is cleared, so that maintenance started earlier does not install its results.
    pub(crate) generation: u64,
    /// Number of writes so far, used to detect that a collection is idle.
    pub(crate) writes: u64,
}

/// The cache of one collection. One lock guards all its cached fields, so that a document is written to all fields
/// atomically and a search sees all fields at one moment.
///
/// Documents are identified by number. The caller applies the writes to a document in order.
#[derive(Debug)]
pub struct CollectionCache {
    pub(crate) shared: Arc<Shared>,
    fields: Vec<String>,
    pub(crate) state: RwLock<State>,
    /// Held by the thread that changes the lists of segments and buckets.
    pub(crate) maintenance: Mutex<maintain::Progress>,
}

impl CollectionCache {
    pub(crate) fn new(shared: &Arc<Shared>, fields: &[&str]) -> Arc<CollectionCache> {
        let state = State {
            live: NumberSet::default(),
            fields: fields
                .iter()
                .map(|_| Arc::new(empty_field(shared)))
                .collect(),
            generation: 0,
            writes: 0,
        };
        Arc::new(CollectionCache {
            shared: Arc::clone(shared),
            fields: fields.iter().map(|field| (*field).to_owned()).collect(),
            state: RwLock::new(state),
            maintenance: Mutex::default(),
        })
    }

    /// Copies the collection's cache with only the fields that `keep` accepts. Later writes to one cache do not reach
    /// the other.
    pub(crate) fn with_fields(&self, keep: impl Fn(&str) -> bool) -> Arc<CollectionCache> {
        let state = self.state.read();
        let kept = self
            .fields
            .iter()
            .zip(&state.fields)
            .filter(|(name, _)| keep(name));
        let (fields, states) = kept
            .map(|(name, state)| (name.clone(), Arc::clone(state)))
            .unzip();
        let state = State {
            live: state.live.clone(),
            fields: states,
            generation: 0,
            writes: 0,
        };
        Arc::new(CollectionCache {
            shared: Arc::clone(&self.shared),
            fields,
            state: RwLock::new(state),
            maintenance: Mutex::default(),
        })
    }

    /// Returns the names of the cached fields, in the order in which values are passed.
    pub fn fields(&self) -> &[String] {
        &self.fields
    }

    /// Returns the index of a cached field.
    pub fn field_index(&self, field: &str) -> Option<usize> {
        self.fields.iter().position(|name| name == field)
    }

    /// Returns the number of documents.
    pub fn document_count(&self) -> u64 {
        self.state.read().live.len()
    }

    pub(crate) fn settings(&self) -> &CacheSettings {
        &self.shared.settings
    }

    /// Creates an empty batch for the fields of this collection, with capacity for `documents` documents.
    pub fn batch(&self, documents: usize) -> Batch {
        Batch::new(
            self.fields.len(),
            documents,
            self.settings().value_bytes_max,
        )
    }

    /// Adds a document with one value for each field, in field order.
    ///
    /// # Errors
    /// [`CacheError::FieldCount`] or [`CacheError::NumberInUse`]. Nothing is changed then.
    pub fn insert(&self, number: u32, values: &[FieldValue<'_>]) -> Result<(), CacheError> {
        check_count(values.len(), self.fields.len())?;
        let mut batch = self.batch(1);
        batch.push(values);
        self.insert_batch(&[number], &batch)
    }

    /// Adds a batch of documents. `numbers` holds the document number of each.
    ///
    /// # Errors
    /// [`CacheError::NumberInUse`]. Nothing is changed then.
    ///
    /// # Panics
    /// If `numbers` and `batch` differ in length, or if the batch was created for other fields.
    pub fn insert_batch(&self, numbers: &[u32], batch: &Batch) -> Result<(), CacheError> {
        assert_eq!(
            numbers.len(),
            batch.len(),
            "the batch needs one number per document"
        );
        assert_eq!(batch.columns.len(), self.fields.len(), "the same fields");
        let mut state = self.state.write();
        state.add_numbers(numbers)?;
        for (field, column) in state.fields.iter_mut().zip(&batch.columns) {
            Arc::make_mut(field).insert(column, numbers, self.settings());
        }
        self.count_writes(&mut state, numbers.len() as u64);
        Ok(())
    }

    /// Changes a document from its old values to new ones.
    ///
    /// # Errors
    /// [`CacheError::FieldCount`] or [`CacheError::UnknownNumber`]: nothing is changed. [`CacheError::UnknownValue`]:
    /// the new values are added, but a field whose cached value differs from `old` keeps that value too.
    pub fn update(
        &self,
        number: u32,
        old: &[FieldValue<'_>],
        new: &[FieldValue<'_>],
    ) -> Result<(), CacheError> {
        check_count(old.len(), self.fields.len())?;
        check_count(new.len(), self.fields.len())?;
        let mut state = self.state.write();
        state.check_known(number)?;
        let mut outcome = Ok(());
        for (field, (old, new)) in old.iter().zip(new).enumerate().filter(|(_, (o, n))| o != n) {
            let state = Arc::make_mut(&mut state.fields[field]);
            if !state.remove(number, old, self.settings()) {
                outcome = Err(CacheError::UnknownValue { number, field });
            }
            let mut column = Column::with_capacity(1);
            column.push(0, new, self.settings().value_bytes_max);
            state.insert(&column, &[number], self.settings());
        }
        self.count_writes(&mut state, 1);
        outcome
    }

    /// Removes a document. `old` holds its values.
    ///
    /// # Errors
    /// [`CacheError::FieldCount`] or [`CacheError::UnknownNumber`]: nothing is changed. [`CacheError::UnknownValue`]:
    /// the document is removed, but a field whose cached value differs from `old` keeps that value.
    pub fn remove(&self, number: u32, old: &[FieldValue<'_>]) -> Result<(), CacheError> {
        check_count(old.len(), self.fields.len())?;
        let mut state = self.state.write();
        state.check_known(number)?;
        state.live.remove(number);
        let mut outcome = Ok(());
        for (field, old) in old.iter().enumerate() {
            let state = Arc::make_mut(&mut state.fields[field]);
            if !state.remove(number, old, self.settings()) {
                outcome = Err(CacheError::UnknownValue { number, field });
            }
        }
        self.count_writes(&mut state, 1);
        outcome
    }

    /// Removes all documents.
    pub fn clear(&self) {
        let mut state = self.state.write();
        state.generation += 1;
        state.live = NumberSet::default();
        for field in &mut state.fields {
            *field = Arc::new(empty_field(&self.shared));
        }
    }

    /// Flushes the delta to the buckets, then splits, merges, compacts and places buckets as needed. Blocks, while
    /// searches and writes continue. The background thread does the same when the delta is full or the collection is
    /// idle.
    pub fn flush(&self) {
        maintain::maintain(self, maintain::Extent::Everything);
    }

    /// Answers a search. Polling the future never waits for a device, and never scans much on the caller's thread.
    /// Dropping the future cancels the search. Needs a tokio runtime with time enabled.
    ///
    /// # Errors
    /// [`SearchError`]. Lost devices are no error.
    pub async fn search(&self, request: SearchRequest) -> Result<SearchAnswer, SearchError> {
        search::search(self, request).await
    }

    /// Returns a snapshot for a search.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state.read();
        Snapshot {
            live: state.live.clone(),
            fields: state.fields.clone(),
        }
    }

    /// Returns whether each document has a string or null in a field, or lacks it. Returns `false` if no field has this
    /// index, or the cache cannot judge a document.
    pub fn holds_only_strings(&self, field: usize) -> bool {
        let snapshot = self.snapshot();
        snapshot.fields.get(field).is_some_and(|state| {
            let judged = state.rows + state.null.len() + state.missing.len();
            state.arrays.is_empty() && state.recheck.is_empty() && judged == snapshot.live.len()
        })
    }

    /// Returns statistics of one field with all details of its buckets. Returns `None` if no field has this index.
    pub fn stats(&self, field: usize) -> Option<FieldStats> {
        self.field_stats(field, |bucket| bucket_stats(self, bucket))
    }

    /// Returns statistics of one field with few details of its buckets. Cheap enough to poll.
    pub fn summary(&self, field: usize) -> Option<FieldStats<BucketSummary>> {
        self.field_stats(field, |bucket| BucketSummary {
            rows: bucket.live_rows() as u64,
            device: bucket.device().map(|device| device.id()),
        })
    }

    fn field_stats<B>(&self, field: usize, of: impl Fn(&Bucket) -> B) -> Option<FieldStats<B>> {
        let name = self.fields.get(field)?;
        let snapshot = self.snapshot();
        let live_bytes = snapshot.live.memory_bytes();
        let state = &snapshot.fields[field];
        let buckets = state.directory.buckets();
        Some(FieldStats {
            field: name.clone(),
            rows: state.rows,
            value_bytes: state.value_bytes,
            overhead_bytes: (state.memory_bytes() + live_bytes).saturating_sub(state.value_bytes),
            delta_rows: state.delta_rows() as u64,
            recheck: state.recheck.len(),
            arrays: state.arrays.len(),
            buckets_on_host: buckets
                .iter()
                .filter(|bucket| bucket.device().is_none())
                .count(),
            buckets: buckets.iter().map(|bucket| of(bucket)).collect(),
        })
    }

    /// Counts writes, and wakes the background thread if a delta is full.
    fn count_writes(&self, state: &mut State, writes: u64) {
        state.writes += writes;
        let full = |field: &Arc<FieldState>| field.runs.len() >= self.settings().runs_max();
        self.shared
            .flush_signal
            .report_write(state.fields.iter().any(full));
    }
}

impl State {
    /// Adds document numbers. If one of them is in use, adds no number and returns an error.
    fn add_numbers(&mut self, numbers: &[u32]) -> Result<(), CacheError> {
        for (index, number) in numbers.iter().enumerate() {
            if !self.live.insert(*number) {
                for added in &numbers[..index] {
                    self.live.remove(*added);
                }
                return Err(CacheError::NumberInUse { number: *number });
            }
        }
        Ok(())
    }

    fn check_known(&self, number: u32) -> Result<(), CacheError> {
        let known = self.live.contains(number);
        known
            .then_some(())
            .ok_or(CacheError::UnknownNumber { number })
    }
}

fn check_count(given: usize, declared: usize) -> Result<(), CacheError> {
    let same = given == declared;
    same.then_some(())
        .ok_or(CacheError::FieldCount { given, declared })
}

fn empty_field(shared: &Shared) -> FieldState {
    FieldState::new(Bucket::new(
        shared.owners.new_bucket(),
        b"",
        shared.settings.prefix_bytes,
        Vec::new(),
    ))
}

fn bucket_stats(collection: &CollectionCache, bucket: &Bucket) -> BucketStats {
    let prefix = |value: &[u8]| value[..value.len().min(bucket.prefix_bytes)].to_vec();
    let filled = || {
        bucket
            .segments
            .iter()
            .filter(|segment| segment.block().len() > 0)
    };
    let first = filled().map(|segment| segment.block().value(0)).min();
    let last = filled()
        .map(|segment| segment.block().value(segment.block().len() - 1))
        .max();
    BucketStats {
        id: bucket.id().0,
        first_prefix: prefix(first.unwrap_or(&bucket.lower)),
        last_prefix: prefix(last.unwrap_or(&bucket.lower)),
        prefix_bytes: bucket.prefix_bytes,
        rows: bucket.live_rows() as u64,
        bytes: bucket.memory_bytes(),
        segments: bucket.segments.len(),
        unsplittable: maintain::is_unsplittable(collection, bucket),
        device: bucket.device().map(|device| device.id()),
    }
}
