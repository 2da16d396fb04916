//! The different texts of a column in one file, and the numbers that rows have instead of them.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, StringViewArray, UInt32Array};
use datafusion::arrow::compute::{concat, take};
use datafusion::common::exec_err;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr_common::binary_map::OutputType;
use datafusion::physical_expr_common::binary_view_map::ArrowBytesViewMap;
use parking_lot::Mutex;

use crate::packed::Unpackable;

/// Number of texts that are numbered between two checks of whether the statement has ended.
const TEXTS_AT_ONCE: usize = 1 << 16;
/// Number of shards of a dictionary of many texts. Each may hold up to 2 MiB more than its texts need.
const SHARDS: usize = 16;
/// A shard reserves memory in multiples of these bytes, so that tasks seldom ask the pool that all queries share.
const RESERVED_AT_ONCE: usize = 64 << 10;
/// Maximum bytes of the texts that a task keeps as seen. Beyond it, the task drops them.
const SEEN_BYTES_MAX: usize = 32 << 20;
/// The same for a dictionary with shards: enough for several batches, as its tasks seldom wait for a lock.
const SEEN_BYTES_MAX_OF_SHARDS: usize = if cfg!(test) { 32 << 10 } else { 8 << 20 };
/// The place of a NULL; no text has it.
const NO_PLACE: u32 = u32::MAX;

/// Maximum number of texts of a dictionary, and of their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TextsMax {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl TextsMax {
    /// For columns of which the CPU may compute expressions, once for each text.
    pub(crate) const FEW: TextsMax = TextsMax {
        count: if cfg!(test) { 1 << 10 } else { 1 << 18 },
        bytes: 16 << 20,
    };
    /// For columns that queries use only as keys of groups.
    pub(crate) const MANY: TextsMax = TextsMax {
        count: if cfg!(test) { 1 << 13 } else { 1 << 24 },
        bytes: 512 << 20,
    };
}

impl fmt::Display for TextsMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.bytes >> 20;
        write!(f, "{} different texts, or {mib} MiB of them", self.count)
    }
}

/// The different texts of a column in one file, in the order of their numbers.
#[derive(Debug)]
pub(crate) struct Texts {
    texts: StringViewArray,
    /// Their bytes.
    bytes: OnceLock<usize>,
    /// A NULL and the texts behind it.
    behind_null: OnceLock<StringViewArray>,
    /// The latest files that were numbered together and of which this is the first, with their common numbers.
    together: Mutex<Option<(Files, Arc<Together>)>>,
    together_bytes: AtomicUsize,
}

/// The texts of files, and whether a row of theirs is NULL.
type Files = (Vec<Weak<Texts>>, bool);

/// The texts of several files, numbered together.
#[derive(Debug)]
pub(crate) struct Together {
    /// For each file, the numbers of NULL and of its texts.
    pub(crate) numbers: Vec<Vec<u32>>,
    /// The different texts, behind a NULL if a row is.
    pub(crate) values: ArrayRef,
}

impl Default for Texts {
    fn default() -> Texts {
        Texts::of_all(std::iter::empty::<&str>())
    }
}

impl Texts {
    /// Returns different texts with the numbers of their places. No row has the number of a NULL among them.
    pub(crate) fn of(texts: &StringViewArray) -> Texts {
        Texts {
            texts: texts.clone(),
            bytes: OnceLock::new(),
            behind_null: OnceLock::new(),
            together: Mutex::default(),
            together_bytes: AtomicUsize::new(0),
        }
    }

    /// Returns the texts of files numbered together, behind a NULL if a row is. The first file keeps them, for other
    /// queries over the same files.
    ///
    /// # Errors
    /// If `stop` is set, as it is when the statement ends.
    pub(crate) fn together(
        files: &[Arc<Texts>],
        has_nulls: bool,
        stop: &AtomicBool,
    ) -> Result<Arc<Together>> {
        let Some(first) = files.first() else {
            return numbered(files, has_nulls, stop).map(Arc::new);
        };
        let of_files: Vec<*const Texts> = files.iter().map(Arc::as_ptr).collect();
        if let Some(((known, had_nulls), together)) = &*first.together.lock()
            && *had_nulls == has_nulls
            && known.iter().map(Weak::as_ptr).eq(of_files)
        {
            return Ok(Arc::clone(together));
        }
        let together = Arc::new(numbered(files, has_nulls, stop)?);
        let of_files: usize = files.iter().map(|it| it.count() * size_of::<u32>()).sum();
        let bytes = together.values.get_array_memory_size() + of_files;
        // The weak pointers keep these addresses from being used for other files.
        let known = files.iter().map(Arc::downgrade).collect();
        *first.together.lock() = Some(((known, has_nulls), Arc::clone(&together)));
        first.together_bytes.store(bytes, Ordering::Relaxed);
        Ok(together)
    }

    /// Returns these different texts with the numbers of their places.
    pub(crate) fn of_all<T: AsRef<str>>(texts: impl Iterator<Item = T>) -> Texts {
        Texts::of(&StringViewArray::from_iter_values(texts))
    }

    /// Returns the texts in the order of their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().flatten()
    }

    /// Returns the bytes of the texts.
    pub(crate) fn bytes(&self) -> usize {
        let lengths = || self.texts.lengths().map(|it| it as usize);
        *self.bytes.get_or_init(|| lengths().sum())
    }

    /// Returns the number of texts.
    pub(crate) fn count(&self) -> usize {
        self.texts.len()
    }

    /// Returns the approximate number of bytes in host memory.
    pub(crate) fn host_bytes(&self) -> usize {
        let together = self.together_bytes.load(Ordering::Relaxed);
        self.own_bytes() + together
    }

    /// Returns about the bytes without what is made of the texts of several files: what the buffers have room for,
    /// and the views.
    pub(crate) fn own_bytes(&self) -> usize {
        let buffers = self.texts.data_buffers().iter();
        let held: usize = buffers.map(|it| it.capacity()).sum();
        held + self.count() * size_of::<u128>()
    }

    /// Returns a NULL and the texts behind it. All queries share one array. The bytes of the texts are not copied.
    ///
    /// # Errors
    /// If the texts have too many buffers.
    pub(crate) fn array(&self) -> Result<StringViewArray> {
        if let Some(array) = self.behind_null.get() {
            return Ok(array.clone());
        }
        let all = concat(&[&StringViewArray::new_null(1), &self.texts])?;
        let all = all.as_string_view().clone();
        Ok(self.behind_null.get_or_init(|| all).clone())
    }
}

/// Numbers the texts of files together.
fn numbered(files: &[Arc<Texts>], has_nulls: bool, stop: &AtomicBool) -> Result<Together> {
    let mut map = ArrowBytesViewMap::new(OutputType::Utf8View);
    let count = Cell::new(0);
    let next = |_: Option<&[u8]>| count.replace(count.get() + 1);
    if has_nulls {
        let null: ArrayRef = Arc::new(StringViewArray::new_null(1));
        map.insert_if_new(&null, next, |_| {});
    }
    let mut numbers = Vec::new();
    for file in files {
        // The first is that of NULL.
        let mut of_file = Vec::with_capacity(1 + file.count());
        of_file.push(0);
        for first in (0..file.count()).step_by(TEXTS_AT_ONCE) {
            if stop.load(Ordering::Relaxed) {
                return exec_err!("the statement was cancelled");
            }
            let texts = file
                .texts
                .slice(first, TEXTS_AT_ONCE.min(file.count() - first));
            let texts: ArrayRef = Arc::new(texts);
            map.insert_if_new(&texts, next, |number| of_file.push(number));
        }
        numbers.push(of_file);
    }
    Ok(Together {
        numbers,
        values: map.into_state(),
    })
}

/// Different texts, and their numbers in a file.
#[derive(Debug)]
struct Numbered {
    /// A NULL, then the texts, by their places: the order in which they came.
    map: ArrowBytesViewMap<u32>,
    /// Their numbers, by place.
    numbers: Vec<u32>,
}

impl Default for Numbered {
    fn default() -> Numbered {
        let mut map = ArrowBytesViewMap::new(OutputType::Utf8View);
        let null: ArrayRef = Arc::new(StringViewArray::new_null(1));
        map.insert_if_new(&null, |_| NO_PLACE, |_| {});
        Numbered {
            map,
            numbers: Vec::new(),
        }
    }
}

impl Numbered {
    /// Adds texts, an array of views. Returns the place of each row, and the first row of each new text. The caller
    /// appends the numbers of the new texts.
    fn places(&mut self, texts: &ArrayRef) -> (Vec<u32>, Vec<u32>) {
        let (mut places, mut firsts) = (Vec::with_capacity(texts.len()), Vec::new());
        let (row, known) = (Cell::new(0_u32), self.numbers.len());
        let place = |text: Option<&[u8]>| match text {
            Some(_) => {
                firsts.push(row.get());
                (known + firsts.len()) as u32 - 1
            }
            None => NO_PLACE,
        };
        let push = |place| {
            places.push(place);
            row.set(row.get() + 1);
        };
        self.map.insert_if_new(texts, place, push);
        (places, firsts)
    }

    /// Returns the bytes in host memory.
    fn host_bytes(&self) -> usize {
        self.map.size() + self.numbers.capacity() * size_of::<u32>()
    }
}

/// Numbers the different texts of a file while tasks pack its rows.
#[derive(Debug)]
pub(crate) struct Dictionary {
    /// The texts, in shards by their hashes.
    shards: Vec<Mutex<Shard>>,
    /// Number of texts of all shards.
    count: AtomicUsize,
    /// Their bytes.
    bytes: AtomicUsize,
    max: TextsMax,
    /// The first error. All tasks end with it, so that none waits for memory that the load no longer needs.
    failed: OnceLock<Unpackable>,
}

/// Some of the texts of a dictionary.
#[derive(Debug, Default)]
struct Shard {
    texts: Numbered,
    /// Reservation in the memory pool of queries, until a column has the texts.
    memory: Option<MemoryReservation>,
}

impl Default for Dictionary {
    fn default() -> Dictionary {
        Dictionary::new(TextsMax::FEW, 1, None)
    }
}

impl Dictionary {
    /// Returns an empty dictionary of a file that is read in this number of ranges. It reserves memory for the
    /// consumer of `memory`.
    pub(crate) fn new(
        max: TextsMax,
        ranges: u64,
        memory: Option<&MemoryReservation>,
    ) -> Dictionary {
        // With few texts, nearly all are among those that tasks have seen, so that tasks seldom wait for the lock.
        let shards = match max == TextsMax::MANY && ranges > 1 {
            true => SHARDS,
            false => 1,
        };
        let shard = || Shard {
            texts: Numbered::default(),
            memory: memory.map(MemoryReservation::new_empty),
        };
        Dictionary {
            shards: (0..shards).map(|_| Mutex::new(shard())).collect(),
            count: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            max,
            failed: OnceLock::new(),
        }
    }

    /// Ends all further work on the texts with an error, because the load has ended.
    pub(crate) fn end(&self) {
        self.failed.get_or_init(|| Unpackable::Ended);
    }

    /// Returns whether the load has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.failed.get() == Some(&Unpackable::Ended)
    }

    /// Returns the numbers of texts, none of which is NULL. A new text gets the next number.
    ///
    /// # Errors
    /// If there are too many texts, there is too little memory, or there was an error before.
    fn numbers(&self, texts: &ArrayRef) -> std::result::Result<Vec<u32>, Unpackable> {
        if let [only] = &*self.shards {
            return self.numbers_in(only, texts);
        }
        let unpackable = || Unpackable::Type(texts.data_type().clone());
        let mut hashes = vec![0_u64; texts.len()];
        create_hashes([texts], &RandomState::default(), &mut hashes).map_err(|_| unpackable())?;
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.shards.len()];
        for (row, hash) in hashes.iter().enumerate() {
            // The table of a shard uses the lowest and the highest bits of the same hash.
            rows[(hash >> 32) as usize % self.shards.len()].push(row as u32);
        }
        let mut numbers = vec![0; texts.len()];
        let of_shards = self.shards.iter().zip(rows);
        for (shard, rows) in of_shards.filter(|(_, rows)| !rows.is_empty()) {
            let rows = UInt32Array::from(rows);
            let of_shard = take(texts, &rows, None).map_err(|_| unpackable())?;
            for (row, number) in rows.values().iter().zip(self.numbers_in(shard, &of_shard)?) {
                numbers[*row as usize] = number;
            }
        }
        Ok(numbers)
    }

    /// Returns the numbers of texts of a shard, as [`Dictionary::numbers`] does.
    fn numbers_in(
        &self,
        shard: &Mutex<Shard>,
        texts: &ArrayRef,
    ) -> std::result::Result<Vec<u32>, Unpackable> {
        let mut shard = shard.lock();
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        let numbers = self.added(&mut shard, texts);
        numbers.map_err(|error| self.failed.get_or_init(|| error).clone())
    }

    /// Returns the numbers of texts of a shard, to which it adds the new ones.
    fn added(
        &self,
        shard: &mut Shard,
        texts: &ArrayRef,
    ) -> std::result::Result<Vec<u32>, Unpackable> {
        let (mut numbers, new) = shard.texts.places(texts);
        let first = self.count.fetch_add(new.len(), Ordering::Relaxed);
        let count = first + new.len();
        let of_new = (first..count).map(|number| number as u32);
        shard.texts.numbers.extend(of_new);
        for place in &mut numbers {
            *place = shard.texts.numbers[*place as usize];
        }
        let held = shard.texts.host_bytes();
        if let Some(memory) = shard.memory.as_ref().filter(|it| it.size() < held) {
            let resized = memory.try_resize(held.next_multiple_of(RESERVED_AT_ONCE));
            resized.map_err(|error| Unpackable::NoMemory(error.to_string()))?;
        }
        let texts = texts.as_string_view();
        let lengths = new.iter().map(|row| texts.value(*row as usize).len());
        let new_bytes: usize = lengths.sum();
        let bytes = self.bytes.fetch_add(new_bytes, Ordering::Relaxed) + new_bytes;
        match count > self.max.count || bytes > self.max.bytes {
            true => Err(Unpackable::Texts(self.max)),
            false => Ok(numbers),
        }
    }

    /// Takes all texts. Their bytes are not copied; the views of several shards are.
    ///
    /// # Errors
    /// If the texts have too many buffers, or there was an error before.
    pub(crate) fn take_texts(&self) -> Result<Texts> {
        if let Some(error) = self.failed.get() {
            return exec_err!("{error}");
        }
        let (mut arrays, mut reserved) = (Vec::new(), Vec::new());
        // For NULL and each number, the place among the NULLs and texts of all shards. The first is a NULL.
        let mut places = vec![0_u32; 1 + self.count.swap(0, Ordering::Relaxed)];
        let mut place = 0_u32;
        for shard in &self.shards {
            let Shard { texts, memory } = std::mem::take(&mut *shard.lock());
            for number in texts.numbers {
                place += 1;
                places[1 + number as usize] = place;
            }
            place += 1;
            arrays.push(texts.map.into_state());
            reserved.push(memory);
        }
        let all = match &*arrays {
            [only] => Arc::clone(only),
            arrays => {
                let arrays: Vec<&dyn Array> = arrays.iter().map(|it| it.as_ref()).collect();
                take(&concat(&arrays)?, &UInt32Array::from(places), None)?
            }
        };
        let all = all.as_string_view();
        // The memory that was reserved for the shards' tables counts for the copies of views until here.
        drop(reserved);
        Ok(Texts {
            bytes: OnceLock::from(self.bytes.swap(0, Ordering::Relaxed)),
            behind_null: OnceLock::from(all.clone()),
            ..Texts::of(&all.slice(1, all.len() - 1))
        })
    }

    /// Returns whether there are several shards: several tasks may add many texts.
    pub(crate) fn has_shards(&self) -> bool {
        self.shards.len() > 1
    }

    /// Returns the maximum bytes of the texts that a task keeps as seen.
    fn seen_bytes_max(&self) -> usize {
        match self.has_shards() {
            true => SEEN_BYTES_MAX_OF_SHARDS,
            false => SEEN_BYTES_MAX,
        }
    }
}

/// The texts that a task has seen, so that it seldom waits for the others of the file.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    texts: Numbered,
}

impl Seen {
    /// Returns the numbers of texts, an array of views; `None` for a NULL.
    ///
    /// # Errors
    /// If the dictionary has no room for those that are new.
    pub(crate) fn numbers(
        &mut self,
        texts: &ArrayRef,
        dictionary: &Dictionary,
    ) -> std::result::Result<impl Iterator<Item = Option<u32>> + use<'_>, Unpackable> {
        if self.texts.map.size() > dictionary.seen_bytes_max() {
            *self = Seen::default();
        }
        let (places, firsts) = self.texts.places(texts);
        if !firsts.is_empty() {
            let new = take(texts, &UInt32Array::from(firsts), None);
            let new = new.map_err(|_| Unpackable::Type(texts.data_type().clone()))?;
            self.texts.numbers.extend(dictionary.numbers(&new)?);
        }
        let numbers = &self.texts.numbers;
        let places = places.into_iter();
        Ok(places.map(move |place| numbers.get(place as usize).copied()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    use super::*;

    /// Returns rows of a thread. Other threads have most of the texts, too.
    fn rows(seed: u64) -> Vec<Option<String>> {
        let mut random = fastrand::Rng::with_seed(seed);
        let row = |_| match random.usize(..3_000) {
            0 => None,
            1 => Some(String::new()),
            number => Some(format!("{number}{}", " and more".repeat(number % 4))),
        };
        (0..10_000).map(row).collect()
    }

    fn numbers(rows: &[Option<String>], dictionary: &Dictionary) -> Vec<Option<u32>> {
        let (mut seen, mut numbers) = (Seen::default(), Vec::new());
        for rows in rows.chunks(100) {
            let texts: ArrayRef = Arc::new(rows.iter().collect::<StringViewArray>());
            numbers.extend(seen.numbers(&texts, dictionary).expect("few texts"));
        }
        numbers
    }

    #[test]
    fn threads_number_the_texts_of_a_file_together() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(64 << 20));
        let memory = MemoryConsumer::new("texts").register(&pool);
        for ranges in [1, 4] {
            let dictionary = &Dictionary::new(TextsMax::MANY, ranges, Some(&memory));
            let rows: Vec<_> = (0..4).map(rows).collect();
            let numbered: Vec<_> = std::thread::scope(|scope| {
                let threads = rows.iter();
                let threads = threads.map(|rows| scope.spawn(move || numbers(rows, dictionary)));
                let threads: Vec<_> = threads.collect();
                let threads = threads.into_iter();
                threads.map(|it| it.join().expect("numbers")).collect()
            });
            let different = rows.iter().flatten().flatten();
            let different: HashSet<&str> = different.map(String::as_str).collect();
            let bytes: usize = different.iter().map(|it| it.len()).sum();
            assert!(pool.reserved() > bytes);
            let reserves = |it: &Mutex<Shard>| {
                let shard = it.lock();
                shard.memory.as_ref().is_some_and(|it| it.size() > 0)
            };
            assert!(dictionary.shards.iter().all(reserves));
            let texts = dictionary.take_texts().expect("few buffers");
            assert_eq!((texts.count(), texts.bytes()), (different.len(), bytes));
            assert_eq!(pool.reserved(), 0);
            let array = texts.array().expect("few buffers");
            assert!(array.is_null(0));
            let (rows, numbered) = (rows.concat(), numbered.concat());
            assert_eq!(rows.len(), numbered.len());
            for (row, number) in rows.iter().zip(numbered) {
                let text = number.map(|it| array.value(1 + it as usize));
                assert_eq!(text, row.as_deref());
            }
        }
    }

    #[test]
    fn texts_of_all_shards_have_the_memory_of_queries() {
        let texts: ArrayRef = Arc::new(rows(0).iter().collect::<StringViewArray>());
        for (reservations, has_room) in [(SHARDS, true), (SHARDS - 1, false)] {
            let pool = GreedyMemoryPool::new(reservations * RESERVED_AT_ONCE);
            let pool: Arc<dyn MemoryPool> = Arc::new(pool);
            let memory = MemoryConsumer::new("texts").register(&pool);
            let dictionary = Dictionary::new(TextsMax::MANY, 4, Some(&memory));
            let error = |texts: &ArrayRef| Seen::default().numbers(texts, &dictionary).err();
            let first = error(&texts);
            assert_eq!(first.is_none(), has_room, "{first:?}");
            // Texts that have numbers end the load with the same error.
            assert_eq!(error(&texts.slice(0, 10)), first);
            assert_eq!(dictionary.take_texts().is_ok(), has_room);
            drop(dictionary);
            assert_eq!(pool.reserved(), 0);
        }
    }

    #[test]
    fn no_texts_are_added_when_the_load_has_ended() {
        let dictionary = Dictionary::new(TextsMax::MANY, 4, None);
        let texts: ArrayRef = Arc::new(StringViewArray::from(vec!["one", "other"]));
        assert!(!dictionary.has_ended());
        dictionary.end();
        assert!(dictionary.has_ended());
        let numbered = Seen::default().numbers(&texts, &dictionary).err();
        assert_eq!(numbered, Some(Unpackable::Ended));
        assert_eq!(dictionary.count.load(Ordering::Relaxed), 0);
        assert!(dictionary.take_texts().is_err());
    }
}
