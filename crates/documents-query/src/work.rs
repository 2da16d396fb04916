//! Decides when work that consists of many small pieces checks the cancellation token.

use std::cell::Cell;

/// Cost of work, in bytes, after which a thread checks the token again.
const BYTES_PER_CHECK: usize = 256 << 10;

/// Fixed cost of a piece of work, in bytes, added to the bytes that it reads.
const PIECE_BYTES: usize = 64;

/// Returns whether a piece of work that may read `bytes` must check the cancellation token. It must if this thread has
/// read many bytes since its last check, in one long value or in many short ones.
pub(crate) fn is_check_due(bytes: usize) -> bool {
    thread_local! {
        static READ_BYTES: Cell<usize> = const { Cell::new(0) };
    }
    let read = READ_BYTES.get() + bytes + PIECE_BYTES;
    let is_due = read >= BYTES_PER_CHECK;
    READ_BYTES.set(if is_due { 0 } else { read });
    is_due
}
