//! A stored document and its number.

use std::sync::atomic::{AtomicUsize, Ordering};

use bson::{RawDocument, RawDocumentBuf};

use crate::engine::Bytes;
use crate::error::{Result, StoreError};

/// Number of a document in its collection. Numbers count up from 0 and are never reused.
pub type RecordNumber = u64;

/// Exclusive upper limit of record numbers: caches and bitmaps store them in 32 bits.
pub const NUMBER_MAX: RecordNumber = u32::MAX as RecordNumber;
/// Record number from which the operator is warned that numbers run out.
pub(crate) const NUMBER_WARNED: RecordNumber = NUMBER_MAX / 10 * 9;

/// Size of the largest document that this process has read or written.
static LARGEST: Largest = Largest(AtomicUsize::new(0));

/// Returns the size in bytes of the largest document that this process has read or written, in any collection.
pub fn largest_document_bytes() -> usize {
    LARGEST.bytes()
}

/// Records the size of a document that is not stored in a collection.
pub(crate) fn note_size(bytes: usize) {
    LARGEST.note(bytes);
}

/// Size in bytes of the largest document read or written so far. Used as an estimate of the memory that the next
/// document takes.
#[derive(Debug, Default)]
pub(crate) struct Largest(AtomicUsize);

impl Largest {
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Records the size of a document that is read or written. Raises this maximum and the maximum of the whole
    /// process.
    pub(crate) fn note(&self, bytes: usize) {
        if bytes > self.bytes() {
            self.0.fetch_max(bytes, Ordering::Relaxed);
            LARGEST.0.fetch_max(bytes, Ordering::Relaxed);
        }
    }
}

/// Size from which a document may keep its block in memory.
const DETACHED_BYTES_MAX: usize = 64 << 10;

/// A stored document: shared bytes, cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Document(Bytes);

impl Document {
    /// Checks the frame of the bytes (length and terminator) and wraps them.
    ///
    /// # Errors
    /// [`StoreError::InvalidDocument`] if the frame is wrong.
    pub(crate) fn new(bytes: Bytes) -> Result<Self> {
        RawDocument::from_bytes(&*bytes).map_err(|error| StoreError::InvalidDocument {
            why: error.to_string(),
        })?;
        Ok(Self(bytes))
    }

    /// Borrows the document.
    pub fn raw(&self) -> &RawDocument {
        RawDocument::from_bytes(&*self.0).expect("the frame was checked when the document was read")
    }

    /// Copies the document.
    pub fn to_buf(&self) -> RawDocumentBuf {
        self.raw().to_owned()
    }

    /// Returns the document in a form that does not keep a much larger block of the store in memory. Copies a small
    /// document. Returns a large document unchanged, because it fills most of its block.
    pub fn detached(self) -> Document {
        match self.0.len() < DETACHED_BYTES_MAX {
            true => Document(Bytes::from(&*self.0)),
            false => self,
        }
    }

    /// Returns the size in bytes.
    pub fn len_bytes(&self) -> usize {
        self.0.len()
    }
}

impl std::ops::Deref for Document {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        self.raw()
    }
}

impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.raw().fmt(f)
    }
}

/// Encodes a record number as a key, big-endian, so that keys sort by number.
pub(crate) fn record_key(number: RecordNumber) -> [u8; 8] {
    number.to_be_bytes()
}

/// Decodes the number from a record key.
pub(crate) fn record_number(key: &[u8]) -> Option<RecordNumber> {
    key.try_into().ok().map(u64::from_be_bytes)
}
