//! Thread-local limits of the running evaluation: the cancellation token and the memory account of its command.
//!
//! Operators are plain functions of their operands. They find the limits here rather than in a parameter, because few
//! of them need the limits.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bson::raw::RawBsonRef;
use forebay_memory::{FREE_BYTES, Share};

use crate::element;
use crate::error::Error;
use crate::limits::CommandLimits;

/// Minimum number of bytes of an element of a document or an array: a type, an empty name, and a value without bytes.
const ELEMENT_BYTES_MIN: usize = 2;
/// Maximum memory used while a value is built, as a multiple of the value's bytes. Buffers grow by doubling.
pub(crate) const GROWTH: usize = 2;
/// Number of operator calls between two checks of the cancellation token.
const CALLS_PER_CHECK: u32 = 64;
/// A call whose operands have at least this many bytes always checks the cancellation token.
const LARGE_BYTES: usize = 16 << 10;
/// Number of elements that an operator processes between two checks of the cancellation token.
const ELEMENTS_PER_CHECK: usize = 4096;

struct Evaluation {
    limits: Arc<CommandLimits>,
    /// The memory reserved for values. It is released when the evaluation ends.
    share: Option<Share>,
    /// Number of bytes that [`keep`] has reserved until the evaluation ends.
    kept_bytes: usize,
}

impl Evaluation {
    /// Reserves at least `bytes` in addition to `kept_bytes`. The bytes of earlier calls count towards `bytes`.
    fn cover(&mut self, bytes: usize) -> Result<(), Error> {
        let share = self.share.get_or_insert_with(|| self.limits.memory.share());
        Ok(share.try_cover(bytes.saturating_add(self.kept_bytes))?)
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Evaluation>> = const { RefCell::new(None) };
    /// Number of calls of operators on this thread.
    static CALLS: Cell<u32> = const { Cell::new(0) };
    /// Number of bytes of values held, including the operands of the current call of an operator.
    static HELD_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Ends the evaluation on this thread when dropped. Only the outermost call of [`under`] has one.
struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.take();
    }
}

/// Does work for a command under the command's limits. The memory that the work reserves is released when the work
/// ends. In a nested call, the memory is released when the work of the outermost call ends.
pub(crate) fn under<T>(limits: &Arc<CommandLimits>, work: impl FnOnce() -> T) -> T {
    let _entered = CURRENT.with_borrow_mut(|current| match current {
        Some(_) => None,
        None => {
            HELD_BYTES.set(0);
            *current = Some(Evaluation {
                limits: Arc::clone(limits),
                share: None,
                kept_bytes: 0,
            });
            Some(Entered)
        }
    });
    work()
}

fn with_current(reserve: impl FnOnce(&mut Evaluation) -> Result<(), Error>) -> Result<(), Error> {
    CURRENT.with_borrow_mut(|current| current.as_mut().map_or(Ok(()), reserve))
}

/// Reserves memory for values of `bytes` in total that the evaluation holds at the same time.
///
/// # Errors
/// `ExceededMemoryLimit` if the memory account has no room.
pub(crate) fn reserve(bytes: usize) -> Result<(), Error> {
    HELD_BYTES.set(bytes);
    if bytes <= FREE_BYTES {
        return Ok(());
    }
    with_current(|current| current.cover(bytes.saturating_mul(GROWTH)))
}

/// Reserves memory for what an operator builds during its call, in addition to its operands. Later calls use the same
/// reservation.
///
/// # Errors
/// `ExceededMemoryLimit` if the memory account has no room.
pub(crate) fn reserve_beside(bytes: usize) -> Result<(), Error> {
    if bytes <= FREE_BYTES {
        return Ok(());
    }
    let held_bytes = HELD_BYTES.get();
    with_current(|current| current.cover(held_bytes.saturating_add(bytes)))
}

/// Returns the total bytes of a list that has an item of `item_bytes` for each element of `containers` (documents and
/// arrays). Returns an upper bound instead if the bound is so small that no memory needs to be reserved.
pub(crate) fn items_bytes<'b>(
    containers: impl Iterator<Item = RawBsonRef<'b>> + Clone,
    item_bytes: usize,
) -> usize {
    let bytes: usize = containers.clone().map(element::payload_bytes).sum();
    let items_max = bytes / ELEMENT_BYTES_MIN;
    if items_max.saturating_mul(item_bytes) <= FREE_BYTES {
        return items_max * item_bytes;
    }
    let items: usize = containers.map(element::count).sum();
    items.saturating_mul(item_bytes)
}

/// Reserves memory until the evaluation ends, in addition to all other reservations.
///
/// # Errors
/// `ExceededMemoryLimit` if the memory account has no room.
pub(crate) fn keep(bytes: usize) -> Result<(), Error> {
    with_current(|current| {
        if current.kept_bytes.saturating_add(bytes) > FREE_BYTES {
            current.cover(bytes)?;
        }
        current.kept_bytes += bytes;
        Ok(())
    })
}

/// Sets the number of bytes of values that are held while an operator builds its result, if the result's own bytes are
/// among those of the last call of [`reserve`].
pub(crate) fn set_held_bytes(bytes: usize) {
    HELD_BYTES.set(bytes);
}

/// Checks the cancellation token before an operator is called with operands of `bytes` in total. If the operands have
/// few bytes, checks only once in [`CALLS_PER_CHECK`] calls.
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

/// Checks the cancellation token before an operator processes element number `index`. Checks only once in
/// [`ELEMENTS_PER_CHECK`] elements.
///
/// # Errors
/// `Interrupted` or `MaxTimeMSExpired`.
pub(crate) fn check_element(index: usize) -> Result<(), Error> {
    if is_check_due(index) {
        check_call(LARGE_BYTES)?;
    }
    Ok(())
}

/// Returns whether to check the cancellation token before element number `index`.
pub(crate) fn is_check_due(index: usize) -> bool {
    index % ELEMENTS_PER_CHECK == ELEMENTS_PER_CHECK - 1
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use bson::{DateTime, RawDocument, RawDocumentBuf, rawdoc};
    use forebay_memory::Account;

    use super::*;
    use crate::element::Writer;
    use crate::error::Code;
    use crate::expr::{Expression, Scope, Value};
    use crate::filter::Compilation;
    use crate::limits::Limits;

    /// Evaluates an expression without a document; returns the error's code.
    fn error_of(expression: &RawDocument, limits: &Limits) -> Option<Code> {
        error_of_parsed(&parsed(expression, limits))
    }

    fn parsed(expression: &RawDocument, limits: &Limits) -> Expression {
        let value = bson::raw::RawBsonRef::Document(expression);
        Expression::parse(value, limits).expect("it parses")
    }

    fn error_of_parsed(expression: &Expression) -> Option<Code> {
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
        let expressions = [large, set, many].map(|expression| parsed(&expression, &limits));
        for expression in &expressions {
            assert_eq!(error_of_parsed(expression), None);
        }
        let stop = limits.stop().current();
        stop.cancelled.store(true, Ordering::Relaxed);
        limits.stop().follow(&stop);
        for expression in &expressions {
            assert_eq!(error_of_parsed(expression), Some(Code::Interrupted));
        }
    }

    #[test]
    fn values_take_memory_from_the_account_until_the_evaluation_ends() {
        let limits = Limits::new(Account::new(4 << 20), Compilation::default());
        let numbers = |count: i32| rawdoc! { "$range": [0, count] };
        let joined =
            |count: i32| rawdoc! { "$size": { "$concatArrays": [numbers(count), numbers(count)] } };
        assert_eq!(error_of(&joined(10_000), &limits), None);
        assert!(limits.memory().figures().peak_bytes > 0);
        let full = Some(Code::ExceededMemoryLimit);
        assert_eq!(error_of(&joined(200_000), &limits), full);
        let set = rawdoc! { "$size": { "$setUnion": [numbers(50_000)] } };
        assert_eq!(error_of(&set, &limits), full);
        assert_eq!(limits.memory().figures().used_bytes, 0);
    }

    #[test]
    fn a_nested_evaluation_does_not_end_the_outer_one() {
        let limits = Limits::new(Account::new(4 << 20), Compilation::default());
        let used_bytes = || limits.memory().figures().used_bytes;
        under(&limits.command, || {
            keep(1 << 20).expect("there is room");
            under(&limits.command, || ());
            assert!(used_bytes() >= 1 << 20);
            keep(4 << 20).expect_err("there is no room");
        });
        assert_eq!(used_bytes(), 0);
    }

    /// Builds a document with `count` fields, and an array of twice as many elements, each with an empty name instead
    /// of an index.
    fn dense_document(count: usize) -> RawDocumentBuf {
        let mut writer = Writer::new();
        writer.begin_document("fields");
        for index in 0..count {
            writer.value(&format!("{index:05}"), RawBsonRef::Null);
        }
        writer.end();
        writer.begin_array("array");
        (0..2 * count).for_each(|_| writer.value("", RawBsonRef::Null));
        writer.end();
        let long = "%Y".repeat(5 * count);
        writer.value("text", RawBsonRef::String(&long));
        writer.value("code", RawBsonRef::JavaScriptCode(&long));
        writer.finish()
    }

    #[test]
    fn temporaries_take_memory_before_they_are_built() {
        let document = dense_document(60_000);
        let limits = Limits::new(Account::new(6 << 20), Compilation::default());
        let codes = ["$code"; 6].into_iter().collect::<bson::RawArrayBuf>();
        for expression in [
            rawdoc! { "$mergeObjects": ["$fields"] },
            rawdoc! { "$reverseArray": "$array" },
            rawdoc! { "$setIsSubset": ["$array", []] },
            rawdoc! { "$dateToString": { "date": "$$NOW", "format": "$text" } },
            rawdoc! { "$size": [codes] },
        ] {
            let evaluate = |limits: &Limits| {
                let value = RawBsonRef::Document(&expression);
                let expression = Expression::parse(value, limits).expect("it parses");
                let scope = Scope::new(&document, DateTime::MIN);
                expression.evaluate(&scope).map(Value::into_static)
            };
            let refused = evaluate(&limits).expect_err("the account is too small");
            assert_eq!(refused.code, Code::ExceededMemoryLimit, "{expression:?}");
            assert_eq!(limits.memory().figures().used_bytes, 0);
            evaluate(&Limits::default()).expect("without a limit it fits");
        }
    }

    #[test]
    fn arrays_that_a_projection_numbers_take_memory() {
        let document = dense_document(200_000);
        let apply = |spec: &RawDocument, memory: Account| {
            let limits = Limits::new(memory, Compilation::default());
            let projection = crate::Projection::parse(spec, &limits).expect("it parses");
            let context = crate::ProjectionContext {
                now: DateTime::MIN,
                position: None,
            };
            projection.apply(&document, &context)
        };
        for spec in [
            rawdoc! { "array": { "$slice": 400_000 } },
            rawdoc! { "array.a": 0 },
        ] {
            apply(&spec, Account::default()).expect("without a limit it fits");
            let refused =
                apply(&spec, Account::new(4 << 20)).expect_err("the account is too small");
            assert_eq!(refused.code, Code::ExceededMemoryLimit);
        }
    }

    #[test]
    fn what_is_parsed_takes_memory_until_it_is_dropped() {
        let limits = |bytes| Limits::new(Account::new(bytes), Compilation::default());
        let nulls: bson::RawArrayBuf = (0..20_000).map(|_| RawBsonRef::Null).collect();
        let parse = |limits: &Limits| Expression::parse(RawBsonRef::Array(&nulls), limits);
        let refused = parse(&limits(1 << 20)).expect_err("the account is too small");
        assert_eq!(refused.code, Code::ExceededMemoryLimit);
        let wide = limits(64 << 20);
        let parsed = parse(&wide).expect("it fits");
        assert!(wide.memory().figures().used_bytes > 1 << 20);
        let memory = wide.memory().clone();
        drop((parsed, wide));
        assert_eq!(memory.figures().used_bytes, 0);
        let fields = dense_document(10_000);
        let fields = fields.get_document("fields").expect("a document");
        let mut spec = Writer::new();
        fields
            .iter_elements()
            .flatten()
            .for_each(|field| spec.value(field.key().as_str(), RawBsonRef::Int32(1)));
        let refused = crate::Projection::parse(&spec.finish(), &limits(1 << 20));
        let refused = refused.expect_err("the account is too small");
        assert_eq!(refused.code, Code::ExceededMemoryLimit);
    }
}
