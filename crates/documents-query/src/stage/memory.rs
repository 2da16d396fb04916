//! The memory that a blocking stage holds.

use std::collections::HashMap;
use std::hash::Hash;

use bson::raw::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_memory::Held;

use super::{Run, Stream};
use crate::element::payload_bytes;
use crate::error::Error;
use crate::expr::Value;
use crate::sort::{Sort, SortKey};

/// Bytes of a heap block besides its contents: the allocator's header.
const HEADER_BYTES: usize = 8;
/// Alignment of heap blocks.
const ALIGNMENT: usize = 16;
/// Minimum bytes of a heap block.
const BLOCK_BYTES_MIN: usize = 32;
/// Minimum capacity of a hash table that is not empty.
const CAPACITY_MIN: usize = 3;

/// The memory that a stage holds. It is reserved in the memory account before it is allocated.
pub(super) struct Memory {
    held: Held,
    /// Bytes of the values held, without overhead.
    value_bytes: usize,
    limit: Option<Limit>,
}

/// Limit of the values that a stage may hold.
#[derive(Clone, Copy)]
struct Limit {
    bytes_max: usize,
    too_large: fn(usize) -> Error,
}

impl Memory {
    /// Creates the account of a stage that holds nothing yet. `too_large` builds the error for more than
    /// [`Limits::stage_memory_bytes_max`](crate::Limits::stage_memory_bytes_max).
    pub fn new(run: &Run, too_large: fn(usize) -> Error) -> Memory {
        Memory {
            limit: Some(Limit {
                bytes_max: run.limits.stage_memory_bytes_max,
                too_large,
            }),
            ..Memory::without_limit(run)
        }
    }

    /// Creates the account of a stage that has no limit of its own and holds nothing yet.
    pub fn without_limit(run: &Run) -> Memory {
        Memory {
            held: Held::new(run.limits.memory(), 0),
            value_bytes: 0,
            limit: None,
        }
    }

    /// Counts bytes of values towards the stage's limit. Does not charge them to the memory account, which
    /// [`Memory::take`] does.
    ///
    /// # Errors
    /// The stage's `too_large` error if the limit is exceeded.
    #[inline]
    pub fn count(&mut self, value_bytes: usize) -> Result<(), Error> {
        self.value_bytes += value_bytes;
        match self.limit {
            Some(limit) if self.value_bytes > limit.bytes_max => {
                Err((limit.too_large)(limit.bytes_max))
            }
            _ => Ok(()),
        }
    }

    /// Subtracts bytes of values that are no longer held from those counted towards the limit.
    #[inline]
    pub fn discount(&mut self, value_bytes: usize) {
        self.value_bytes = self.value_bytes.saturating_sub(value_bytes);
    }

    /// Charges `bytes` that are about to be allocated.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the memory account has no room.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Result<(), Error> {
        Ok(self.held.take(bytes)?)
    }

    /// Returns the sort key of a document, and charges it.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the memory account has no room.
    pub fn sort_key(&mut self, sort: &Sort, document: &RawDocument) -> Result<SortKey, Error> {
        Ok(sort.charged_key(document, &mut self.held)?)
    }

    /// Releases bytes that are no longer held.
    #[inline]
    pub fn give_back(&mut self, bytes: usize) {
        self.held.give_back(bytes);
    }

    /// Removes the stage's own limit, when the stage has read its input and only returns its output.
    pub fn remove_limit(&mut self) {
        self.limit = None;
    }

    /// Makes room for one more value, and charges the new buffer while the old one is still held.
    pub fn reserve<T>(&mut self, values: &mut Vec<T>) -> Result<(), Error> {
        self.reserve_all(values, 1)
    }

    /// Makes room for `count` more values, like [`Memory::reserve`].
    pub fn reserve_all<T>(&mut self, values: &mut Vec<T>, count: usize) -> Result<(), Error> {
        if values.capacity() - values.len() >= count {
            return Ok(());
        }
        let old_bytes = buffer_bytes(values);
        let capacity = (values.capacity() * 2).max(values.len() + count);
        self.take(block_bytes(capacity * size_of::<T>()))?;
        values.reserve_exact(capacity - values.len());
        self.give_back(old_bytes);
        Ok(())
    }

    /// Makes room for one more entry, and charges the new table while the old one is still held.
    pub fn reserve_entry<K: Eq + Hash, V>(&mut self, map: &mut HashMap<K, V>) -> Result<(), Error> {
        if map.len() < map.capacity() {
            return Ok(());
        }
        let old_bytes = table_bytes(map);
        let capacity = (map.capacity() + 1).max(CAPACITY_MIN);
        self.take(table_bytes_of(capacity, size_of::<(K, V)>()))?;
        map.reserve(1);
        self.give_back(old_bytes);
        Ok(())
    }
}

/// Returns the bytes that a heap block of `bytes` takes.
pub(super) fn block_bytes(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        _ => {
            let with_header = bytes.saturating_add(HEADER_BYTES + ALIGNMENT - 1);
            (with_header / ALIGNMENT * ALIGNMENT).max(BLOCK_BYTES_MIN)
        }
    }
}

/// Returns the bytes of a vector's buffer.
pub(super) fn buffer_bytes<T>(values: &Vec<T>) -> usize {
    block_bytes(values.capacity() * size_of::<T>())
}

/// Returns the bytes of a hash table.
pub(super) fn table_bytes<K, V>(map: &HashMap<K, V>) -> usize {
    table_bytes_of(map.capacity(), size_of::<(K, V)>())
}

fn table_bytes_of(capacity: usize, entry_bytes: usize) -> usize {
    if capacity == 0 {
        return 0;
    }
    // At most seven eighths of the buckets are used. Each bucket has one byte of metadata.
    let buckets = (capacity * 8).div_ceil(7).next_power_of_two();
    block_bytes(buckets * (entry_bytes + 1) + ALIGNMENT)
}

/// Returns the heap bytes of an owned copy of a value.
pub(super) fn heap_bytes(value: RawBsonRef<'_>) -> usize {
    block_bytes(payload_bytes(value))
}

/// Returns the heap bytes of a document without spare capacity.
pub(super) fn document_bytes(document: &RawDocument) -> usize {
    block_bytes(document.as_bytes().len())
}

/// Returns an owned value without spare capacity.
pub(super) fn compact(value: Value<'_>) -> RawBson {
    match value.into_owned() {
        RawBson::String(mut text) => {
            text.shrink_to_fit();
            RawBson::String(text)
        }
        RawBson::Document(document) => RawBson::Document(compact_document(document)),
        // Arrays are built as exact copies, and other values have no buffer that grows.
        other => other,
    }
}

/// Returns the document without spare capacity.
pub(super) fn compact_document(document: RawDocumentBuf) -> RawDocumentBuf {
    let mut bytes = document.into_bytes();
    bytes.shrink_to_fit();
    RawDocumentBuf::from_bytes(bytes).expect("these are the bytes of a document")
}

/// Returns a stream over documents that a stage holds and has charged with [`document_bytes`].
pub(super) fn holding<'a, E: 'a>(
    documents: Vec<RawDocumentBuf>,
    mut memory: Memory,
) -> Stream<'a, E> {
    memory.remove_limit();
    let mut held = Some((documents.into_iter(), memory));
    Box::new(std::iter::from_fn(move || {
        let (documents, memory) = held.as_mut()?;
        match documents.next() {
            Some(document) => {
                memory.give_back(document_bytes(&document));
                Some(Ok(document))
            }
            None => {
                held = None;
                None
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use bson::raw::RawArrayBuf;
    use bson::{DateTime, rawdoc};
    use forebay_memory::Account;

    use super::*;
    use crate::error::Code;
    use crate::filter::Compilation;
    use crate::limits::Limits;
    use crate::stage::Pipeline;

    const ACCOUNT_BYTES: u64 = 4 << 20;

    /// Limits of a command whose account has room for [`ACCOUNT_BYTES`].
    fn limits() -> Limits {
        Limits::new(Account::new(ACCOUNT_BYTES), Compilation::default())
    }

    fn run(
        stage: RawDocumentBuf,
        input: impl Iterator<Item = RawDocumentBuf> + Send + 'static,
        limits: &Limits,
    ) -> Stream<'static, Error> {
        let stages = RawArrayBuf::from_iter([stage]);
        let pipeline = Pipeline::parse(&stages, limits).expect("it parses");
        let run = Run::new(DateTime::from_millis(0), limits.clone());
        pipeline.run(Box::new(input.map(Ok)), &run)
    }

    /// Returns the number of output documents, or the error's code. Checks that all bytes are released.
    #[track_caller]
    fn outcome(
        stage: RawDocumentBuf,
        input: impl Iterator<Item = RawDocumentBuf> + Send + 'static,
    ) -> Result<usize, Code> {
        let limits = limits();
        let mut count = 0;
        let mut output = run(stage, input, &limits);
        let result = output.try_for_each(|document| document.map(|_| count += 1));
        let memory = limits.memory().clone();
        drop((output, limits));
        assert_eq!(memory.figures().used_bytes, 0);
        result.map(|()| count).map_err(|error| error.code)
    }

    /// Returns `count` documents, each with a text. Document `n` belongs to group `n` modulo `groups`.
    fn documents(
        count: i32,
        groups: i32,
        text_bytes: usize,
    ) -> impl Iterator<Item = RawDocumentBuf> + Send {
        (0..count).map(move |number| rawdoc! { "g": number % groups, "t": "x".repeat(text_bytes) })
    }

    const FULL: Result<usize, Code> = Err(Code::ExceededMemoryLimit);

    #[test]
    fn values_that_groups_hold_are_charged() {
        let stage = |operator: &str| {
            let key = bson::raw::CString::try_from(operator).expect("no NUL");
            let mut accumulator = RawDocumentBuf::new();
            accumulator.append(key, "$t");
            rawdoc! { "$group": { "_id": "$g", "a": accumulator } }
        };
        for operator in ["$first", "$last", "$max", "$min", "$push", "$addToSet"] {
            assert_eq!(outcome(stage(operator), documents(30, 30, 50_000)), Ok(30));
            assert_eq!(outcome(stage(operator), documents(200, 200, 50_000)), FULL);
        }
        // A value that is replaced is released.
        assert_eq!(outcome(stage("$last"), documents(400, 2, 50_000)), Ok(2));
    }

    #[test]
    fn values_that_replace_null_are_charged() {
        let large = rawdoc! { "$literal": "x".repeat(50_000) };
        let last = rawdoc! { "$cond": [{ "$eq": ["$t", ""] }, null, large] };
        let stage = rawdoc! { "$group": { "_id": "$g", "a": { "$last": last } } };
        let input = documents(200, 200, 0).chain(documents(200, 200, 1));
        assert_eq!(outcome(stage, input), FULL);
    }

    #[test]
    fn the_accumulators_are_charged() {
        let stage = |count: i32| {
            let mut group = rawdoc! { "_id": "$g" };
            for number in 0..count {
                let name = bson::raw::CString::try_from(format!("a{number}")).expect("no NUL");
                group.append(name, rawdoc! { "$sum": 1 });
            }
            rawdoc! { "$group": group }
        };
        assert_eq!(outcome(stage(100), documents(100, 100, 0)), Ok(100));
        assert_eq!(outcome(stage(1_000), documents(100, 100, 0)), FULL);
    }

    #[test]
    fn one_document_cannot_exceed_the_account() {
        let mut group = rawdoc! { "_id": null };
        for number in 0..200 {
            let name = bson::raw::CString::try_from(format!("a{number}")).expect("no NUL");
            group.append(name, rawdoc! { "$first": "$t" });
        }
        let stage = rawdoc! { "$group": group };
        assert_eq!(outcome(stage, documents(1, 1, 50_000)), FULL);
    }

    #[test]
    fn merged_fields_that_are_replaced_are_released() {
        let limits = Limits {
            stage_memory_bytes_max: 10_000,
            ..limits()
        };
        let stage = rawdoc! { "$group": { "_id": null, "a": { "$mergeObjects": "$$ROOT" } } };
        let number = |number: i32| rawdoc! { "number": f64::from(number), "at": DateTime::MIN };
        let output = run(stage, (0..10_000).map(number), &limits);
        assert_eq!(output.filter(Result::is_ok).count(), 1);
    }

    #[test]
    fn the_fields_of_merged_documents_are_charged() {
        let stage = rawdoc! { "$group": { "_id": "$g", "a": { "$mergeObjects": "$$ROOT" } } };
        let wide = |number: i32| {
            let mut document = rawdoc! { "g": number };
            for field in 0..100 {
                let name = bson::raw::CString::try_from(format!("f{field}")).expect("no NUL");
                document.append(name, bson::raw::RawBson::Null);
            }
            document
        };
        assert_eq!(outcome(stage.clone(), (0..100).map(wide)), Ok(100));
        assert_eq!(outcome(stage, (0..500).map(wide)), FULL);
    }

    #[test]
    fn the_overhead_of_small_documents_is_charged() {
        for stage in [
            rawdoc! { "$sort": { "a": 1 } },
            rawdoc! { "$sample": { "size": 100_000 } },
            rawdoc! { "$group": { "_id": "$a" } },
        ] {
            let input = |count: i32| (0..count).map(|number| rawdoc! { "a": number });
            assert_eq!(outcome(stage.clone(), input(5_000)), Ok(5_000));
            assert_eq!(outcome(stage, input(70_000)), FULL);
        }
    }

    #[test]
    fn documents_that_were_returned_are_released() {
        for stage in [
            rawdoc! { "$group": { "_id": "$g", "t": { "$push": "$t" } } },
            rawdoc! { "$sort": { "g": 1 } },
        ] {
            let limits = limits();
            let mut output = run(stage, documents(60, 60, 50_000), &limits);
            let mut used_bytes = || {
                output.next().expect("a document").expect("no error");
                limits.memory().figures().used_bytes
            };
            assert!(used_bytes() > 2_900_000);
            assert!((0..40).map(|_| used_bytes()).last() < Some(2_100_000));
        }
    }

    #[test]
    fn the_array_that_is_unwound_is_charged() {
        let array = RawArrayBuf::from_iter(0..50_000);
        let input = || std::iter::once(rawdoc! { "a": array.clone(), "t": "x" });
        let stage = rawdoc! { "$unwind": "$a" };
        let limits = limits();
        let mut output = run(stage.clone(), input(), &limits);
        output.next().expect("a document").expect("no error");
        assert!(limits.memory().figures().used_bytes > 500_000);
        assert_eq!(outcome(stage, input()), Ok(50_000));
    }

    #[test]
    fn table_bytes_are_at_least_those_of_the_entries() {
        let mut map: HashMap<u64, u64> = HashMap::new();
        for number in 0..1000 {
            map.insert(number, number);
            assert!(table_bytes(&map) > map.len() * 17);
            assert!(table_bytes(&map) < map.capacity().max(CAPACITY_MIN) * 40);
        }
    }
}
