//! The different texts of a column in one file, and the numbers that rows have instead of them.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, StringViewArray, UInt32Array};
use datafusion::arrow::compute::{concat, take};
use datafusion::common::exec_err;
use datafusion::error::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_expr_common::binary_map::OutputType;
use datafusion::physical_expr_common::binary_view_map::ArrowBytesViewMap;
use parking_lot::Mutex;

use crate::packed::Unpackable;

/// Number of texts that are numbered between two checks of whether the statement has ended.
const TEXTS_AT_ONCE: usize = 1 << 16;
/// Maximum bytes of the texts that a task has seen. Above it, the task forgets them.
const SEEN_BYTES_MAX: usize = 32 << 20;
/// The number of a NULL; no text has it.
const NO_NUMBER: u32 = u32::MAX;

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

    /// Returns about the bytes without what is made of the texts of several files.
    pub(crate) fn own_bytes(&self) -> usize {
        self.bytes() + self.count() * size_of::<u128>()
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

/// Numbers the different texts of a file while tasks pack its rows.
#[derive(Debug)]
pub(crate) struct Dictionary {
    /// A NULL, then the texts with their numbers.
    map: ArrowBytesViewMap<u32>,
    count: usize,
    bytes: usize,
    max: TextsMax,
    /// Reservation in the memory pool of queries, until the texts are those of a column.
    memory: Option<MemoryReservation>,
}

impl Default for Dictionary {
    fn default() -> Dictionary {
        Dictionary::new(TextsMax::FEW, None)
    }
}

impl Dictionary {
    pub(crate) fn new(max: TextsMax, memory: Option<MemoryReservation>) -> Dictionary {
        let mut map = ArrowBytesViewMap::new(OutputType::Utf8View);
        let null: ArrayRef = Arc::new(StringViewArray::new_null(1));
        map.insert_if_new(&null, |_| NO_NUMBER, |_| {});
        Dictionary {
            map,
            count: 0,
            bytes: 0,
            max,
            memory,
        }
    }

    /// Returns the numbers of texts, none of which is NULL. One without a number gets the next.
    ///
    /// # Errors
    /// If there are too many, or too little memory.
    fn numbers(&mut self, texts: &ArrayRef) -> std::result::Result<Vec<u32>, Unpackable> {
        let (mut count, mut bytes) = (self.count, self.bytes);
        let mut numbers = Vec::with_capacity(texts.len());
        let next = |text: Option<&[u8]>| {
            bytes += text.map_or(0, <[u8]>::len);
            count += 1;
            count as u32 - 1
        };
        let push = |number| numbers.push(number);
        self.map.insert_if_new(texts, next, push);
        (self.count, self.bytes) = (count, bytes);
        if let Some(memory) = &self.memory {
            let resized = memory.try_resize(self.map.size());
            resized.map_err(|error| Unpackable::NoMemory(error.to_string()))?;
        }
        match count > self.max.count || bytes > self.max.bytes {
            true => Err(Unpackable::Texts(self.max)),
            false => Ok(numbers),
        }
    }

    /// Returns all texts.
    pub(crate) fn into_texts(self) -> Texts {
        let all = self.map.into_state().as_string_view().clone();
        Texts {
            texts: all.slice(1, all.len() - 1),
            bytes: OnceLock::from(self.bytes),
            behind_null: OnceLock::from(all),
            together: Mutex::default(),
            together_bytes: AtomicUsize::new(0),
        }
    }
}

/// The texts that a task has seen, so that it seldom waits for the others of the file.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The texts, by their places among those of the task.
    map: ArrowBytesViewMap<u32>,
    /// Their numbers in the file.
    numbers: Vec<u32>,
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            map: ArrowBytesViewMap::new(OutputType::Utf8View),
            numbers: Vec::new(),
        }
    }
}

impl Seen {
    /// Returns the numbers of texts, an array of views; `None` for a NULL.
    ///
    /// # Errors
    /// If the dictionary has no room for those that are new.
    pub(crate) fn numbers(
        &mut self,
        texts: &ArrayRef,
        dictionary: &Mutex<Dictionary>,
    ) -> std::result::Result<impl Iterator<Item = Option<u32>> + use<'_>, Unpackable> {
        if self.map.size() > SEEN_BYTES_MAX {
            *self = Seen::default();
        }
        let (mut firsts, mut places) = (Vec::new(), Vec::with_capacity(texts.len()));
        let (row, known) = (Cell::new(0_u32), self.numbers.len());
        let place = |text: Option<&[u8]>| match text {
            Some(_) => {
                firsts.push(row.get());
                (known + firsts.len()) as u32 - 1
            }
            None => NO_NUMBER,
        };
        let push = |place| {
            places.push(place);
            row.set(row.get() + 1);
        };
        self.map.insert_if_new(texts, place, push);
        if !firsts.is_empty() {
            let new = take(texts, &UInt32Array::from(firsts), None);
            let new = new.map_err(|_| Unpackable::Type(texts.data_type().clone()))?;
            self.numbers.extend(dictionary.lock().numbers(&new)?);
        }
        let places = places.into_iter();
        Ok(places.map(|place| self.numbers.get(place as usize).copied()))
    }
}
