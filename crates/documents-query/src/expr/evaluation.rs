//! Thread-local limits of the running evaluation: the cancellation token and the memory account of its command.
//!
//! Operators are plain functions of their operands. They find the limits here rather than in a parameter, because few
//! of them need the limits.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use forebay_cancel::SharedStop;
use forebay_memory::{Account, Share};

use crate::error::Error;
use crate::limits::Limits;

/// Number of bytes of values that an evaluation holds without a reservation in the memory account.
const FREE_BYTES: usize = 64 << 10;
/// Maximum memory used while a value is built, as a multiple of the value's bytes. Buffers grow by doubling.
const GROWTH: usize = 2;
/// Number of operator calls between two checks of the cancellation token.
const CALLS_PER_CHECK: u32 = 64;
/// A call whose operands have at least this many bytes always checks the cancellation token.
const LARGE_BYTES: usize = 16 << 10;
/// Number of elements that an operator processes between two checks of the cancellation token.
const ELEMENTS_PER_CHECK: usize = 4096;

/// The cancellation token and the memory account of the command that an expression belongs to.
#[derive(Debug, Clone, Default)]
pub(crate) struct CommandLimits {
    stop: Arc<SharedStop>,
    memory: Account,
}

impl CommandLimits {
    pub fn of(limits: &Limits) -> Arc<CommandLimits> {
        Arc::new(CommandLimits {
            stop: limits.stop().clone(),
            memory: limits.memory.clone(),
        })
    }
}

struct Evaluation {
    limits: Arc<CommandLimits>,
    /// The memory reserved for values. It is released when the evaluation ends.
    share: Option<Share>,
}

thread_local! {
    static CURRENT: RefCell<Option<Evaluation>> = const { RefCell::new(None) };
    /// Number of operator calls on this thread.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Guard that restores the outer evaluation when it is dropped.
struct Entered(Option<Evaluation>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.replace(self.0.take());
    }
}

/// Evaluates an expression under the limits of its command.
pub(crate) fn under<T>(limits: &Arc<CommandLimits>, evaluate: impl FnOnce() -> T) -> T {
    let evaluation = Evaluation {
        limits: Arc::clone(limits),
        share: None,
    };
    let _entered = Entered(CURRENT.replace(Some(evaluation)));
    evaluate()
}

/// Reserves memory for values of `bytes` in total that the evaluation holds at the same time.
///
/// # Errors
/// `ExceededMemoryLimit` if the memory account has no room.
pub(crate) fn reserve(bytes: usize) -> Result<(), Error> {
    if bytes <= FREE_BYTES {
        return Ok(());
    }
    CURRENT.with_borrow_mut(|current| {
        let Some(Evaluation { limits, share, .. }) = current else {
            return Ok(());
        };
        let share = share.get_or_insert_with(|| limits.memory.share());
        Ok(share.try_cover(bytes.saturating_mul(GROWTH))?)
    })
}

/// Checks the cancellation token before an operator is called with operands of `bytes` in total. If the operands have
/// few bytes, checks only in one of [`CALLS_PER_CHECK`] calls.
///
/// # Errors
/// `Interrupted` or `MaxTimeMSExpired`.
pub(crate) fn check_call(bytes: usize) -> Result<(), Error> {
    let calls = CALLS.get().wrapping_add(1);
    CALLS.set(calls);
    if bytes < LARGE_BYTES && !calls.is_multiple_of(CALLS_PER_CHECK) {
        return Ok(());
    }
    CURRENT.with_borrow(|current| match current {
        Some(evaluation) => Ok(evaluation.limits.stop.check()?),
        None => Ok(()),
    })
}

/// Checks the cancellation token before an operator processes the element number `index`. Checks only before one of
/// [`ELEMENTS_PER_CHECK`] elements.
///
/// # Errors
/// `Interrupted` or `MaxTimeMSExpired`.
pub(crate) fn check_element(index: usize) -> Result<(), Error> {
    if index % ELEMENTS_PER_CHECK == ELEMENTS_PER_CHECK - 1 {
        check_call(LARGE_BYTES)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use bson::{DateTime, RawDocument, rawdoc};

    use super::*;
    use crate::error::Code;
    use crate::expr::{Expression, Scope};

    /// Evaluates an expression without a document; returns the error's code.
    fn error_of(expression: &RawDocument, limits: &Limits) -> Option<Code> {
        let value = bson::raw::RawBsonRef::Document(expression);
        let expression = Expression::parse(value, limits).expect("it parses");
        let document = rawdoc! {};
        let evaluated = expression.evaluate(&Scope::new(&document, DateTime::MIN));
        evaluated.err().map(|error| error.code)
    }

    #[test]
    fn operators_without_iteration_are_stopped() {
        let limits = Limits::default();
        let numbers = rawdoc! { "$range": [0, 100_000] };
        let large = rawdoc! { "$size": { "$concatArrays": [numbers.clone(), numbers.clone()] } };
        let set = rawdoc! { "$size": { "$setUnion": [numbers] } };
        let mut many = bson::RawArrayBuf::new();
        (0..200).for_each(|_| many.push(rawdoc! { "$abs": 1 }));
        let many = rawdoc! { "$add": many };
        for expression in [&large, &set, &many] {
            assert_eq!(error_of(expression, &limits), None);
        }
        let stop = limits.stop().current();
        stop.cancelled.store(true, Ordering::Relaxed);
        limits.stop().follow(&stop);
        for expression in [&large, &set, &many] {
            assert_eq!(error_of(expression, &limits), Some(Code::Interrupted));
        }
    }

    #[test]
    fn values_take_memory_from_the_account_until_the_evaluation_ends() {
        let limits = Limits {
            memory: Account::new(4 << 20),
            ..Limits::default()
        };
        let numbers = |count: i32| rawdoc! { "$range": [0, count] };
        let joined =
            |count: i32| rawdoc! { "$size": { "$concatArrays": [numbers(count), numbers(count)] } };
        assert_eq!(error_of(&joined(10_000), &limits), None);
        assert!(limits.memory.figures().peak_bytes > 0);
        let full = Some(Code::ExceededMemoryLimit);
        assert_eq!(error_of(&joined(200_000), &limits), full);
        let set = rawdoc! { "$size": { "$setUnion": [numbers(50_000)] } };
        assert_eq!(error_of(&set, &limits), full);
        assert_eq!(limits.memory.figures().used_bytes, 0);
    }
}
