//! When work that is made of many small pieces checks the cancellation token.

use std::cell::Cell;

/// Bytes that a thread reads between two checks.
const BYTES_PER_CHECK: usize = 256 << 10;

/// What a piece of work costs besides the bytes that it reads, in bytes.
const PIECE_BYTES: usize = 64;

/// Returns whether a piece of work that may read `bytes` has to check the cancellation token, because this thread has
/// read much since its last check: one long value, or many short ones for many conditions.
pub(crate) fn is_check_due(bytes: usize) -> bool {
    thread_local! {
        static READ_BYTES: Cell<usize> = const { Cell::new(0) };
    }
    let read = READ_BYTES.get() + bytes + PIECE_BYTES;
    let is_due = read >= BYTES_PER_CHECK;
    READ_BYTES.set(if is_due { 0 } else { read });
    is_due
}
