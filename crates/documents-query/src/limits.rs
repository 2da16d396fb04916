//! The limits of the query language.

use std::sync::Arc;

use bson::raw::{RawBson, RawBsonRef};
use forebay_cancel::SharedStop;
use forebay_memory::{Account, FREE_BYTES, Held};
use parking_lot::Mutex;

use crate::element;
use crate::error::Error;
use crate::expr::Variables;
use crate::filter::Compilation;
use crate::sort::ALLOCATION_BYTES;

/// Number of bytes of parsed form between two checks of the cancellation token.
const HELD_STEP_BYTES: usize = 64 << 10;

/// Maximum nesting of documents and arrays, including the outermost document. Applies to everything that is read from a
/// client, computed by an expression, a stage or an update, or stored. Deeper nesting is an `Overflow` error. MongoDB
/// has the same limit.
pub const DOCUMENT_DEPTH_MAX: usize = 200;

/// Limits of parsing and execution, and state that all parts of a command share.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum nesting of `$and`, `$or`, `$nor`, `$not` and `$elemMatch` in one filter. Deeper nesting is a `BadValue`
    /// error.
    pub filter_depth_max: usize,
    /// Maximum nesting of operators in one aggregation expression. Deeper nesting is a `BadValue` error.
    pub expression_depth_max: usize,
    /// Maximum bytes of one document. A larger document is a `BSONObjectTooLarge` error.
    pub document_bytes_max: usize,
    /// Maximum stages of one pipeline. More stages are a `FailedToParse` error.
    pub pipeline_stages_max: usize,
    /// Limits on the cost of one `$regex` pattern.
    pub pattern: forebay_text::Limits,
    /// Settings for the compilation of patterns, including one budget for all patterns of a command.
    pub compilation: Compilation,
    /// Maximum bytes of memory that one blocking stage (`$group`, `$sort`) may hold.
    pub stage_memory_bytes_max: usize,
    /// The variables of the command's `let`.
    pub variables: Variables,
    /// The limits that all filters, projections, expressions and updates of the command share and refer to.
    pub command: Arc<CommandLimits>,
}

/// The cancellation token and the memory account of a command, and the memory that the command's parsed form holds.
/// Each parsed filter, projection, expression and update refers to it, so the memory is released with the last of them.
#[derive(Debug)]
pub struct CommandLimits {
    pub(crate) stop: Arc<SharedStop>,
    pub(crate) memory: Account,
    held: Mutex<Held>,
}

impl CommandLimits {
    fn new(stop: Arc<SharedStop>, memory: Account) -> CommandLimits {
        CommandLimits {
            stop,
            held: Mutex::new(Held::new(&memory, FREE_BYTES)),
            memory,
        }
    }

    /// Reserves memory for `bytes` more bytes of parsed form.
    fn hold(&self, bytes: usize) -> Result<(), Error> {
        let mut held = self.held.lock();
        let step = held.bytes() / HELD_STEP_BYTES;
        held.take(bytes)?;
        if held.bytes() / HELD_STEP_BYTES != step {
            self.stop.check()?;
        }
        Ok(())
    }
}

impl Default for CommandLimits {
    fn default() -> CommandLimits {
        CommandLimits::new(Arc::default(), Account::default())
    }
}

impl Limits {
    /// Returns MongoDB's own limits for a command that charges `memory`. Its cancellation token is that of the
    /// `compilation`.
    pub fn new(memory: Account, compilation: Compilation) -> Limits {
        let stop = compilation.budget.stop().clone();
        Limits {
            filter_depth_max: 100,
            expression_depth_max: 100,
            document_bytes_max: 16 * 1024 * 1024,
            pipeline_stages_max: 1000,
            pattern: forebay_text::Limits::default(),
            compilation,
            stage_memory_bytes_max: 100 * 1024 * 1024,
            variables: Variables::default(),
            command: Arc::new(CommandLimits::new(stop, memory)),
        }
    }

    /// Returns the memory account that the command charges.
    pub fn memory(&self) -> &Account {
        &self.command.memory
    }

    /// Reserves memory for a part of the command's parsed form, and checks the cancellation token. Parsers call this
    /// for each part of which a command can have many, before they build it. Most calls only add to a counter.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the memory account has no room; `Interrupted` or `MaxTimeMSExpired`.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), Error> {
        self.command.hold(bytes)
    }

    /// Reserves memory for a value that the parsed form holds; see [`Limits::hold`].
    ///
    /// # Errors
    /// Those of [`Limits::hold`].
    pub(crate) fn hold_value(&self, value: RawBsonRef<'_>) -> Result<(), Error> {
        self.hold(memory_bytes(value))
    }

    /// Returns the cancellation token of the command. Long evaluations check it.
    pub fn stop(&self) -> &Arc<SharedStop> {
        &self.command.stop
    }
}

impl Default for Limits {
    /// Returns MongoDB's own limits.
    fn default() -> Limits {
        Limits::new(Account::default(), Compilation::default())
    }
}

/// Returns the bytes that a [`RawBson`] of this value takes.
pub(crate) fn memory_bytes(value: RawBsonRef<'_>) -> usize {
    size_of::<RawBson>() + heap_bytes(value)
}

/// Returns the bytes that a [`RawBson`] of this value takes in an allocation of its own.
pub(crate) fn heap_bytes(value: RawBsonRef<'_>) -> usize {
    match element::payload_bytes(value) {
        0 => 0,
        bytes => ALLOCATION_BYTES + bytes,
    }
}

/// Returns the bytes of a dotted path that is split into components, each an allocation of its own.
pub(crate) fn path_bytes(path: &str) -> usize {
    let count = path.bytes().filter(|byte| *byte == b'.').count() + 1;
    count * (size_of::<Box<str>>() + ALLOCATION_BYTES) + 2 * (path.len() + ALLOCATION_BYTES)
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::sync::atomic::Ordering;

    use bson::raw::{RawArrayBuf, RawDocument, RawDocumentBuf};
    use bson::{Binary, DateTime, rawdoc, spec::BinarySubtype};

    use super::*;
    use crate::error::Code;
    use crate::{Expression, Filter, Pipeline, Projection, Update};

    type Parsed = Result<Box<dyn Any>, Error>;
    /// Parses a command that has the given number of parts.
    type Parse = fn(usize, &Limits) -> Parsed;

    /// Returns `{0: value, 1: value, ...}`.
    fn fields(count: usize, value: impl Into<RawBson>) -> RawDocumentBuf {
        let value = value.into();
        let name = |index: usize| bson::raw::CString::try_from(index.to_string()).unwrap();
        (0..count)
            .map(|index| (name(index), value.clone()))
            .collect()
    }

    fn list(values: impl Iterator<Item = impl Into<RawBson>>) -> RawArrayBuf {
        values.map(Into::into).collect()
    }

    fn numbers(count: usize) -> RawArrayBuf {
        list(0..count as i64)
    }

    fn filter(query: &RawDocument, limits: &Limits) -> Parsed {
        Ok(Box::new(Filter::parse(query, limits)?))
    }

    fn pipeline(stage: RawDocumentBuf, limits: &Limits) -> Parsed {
        let stages = list([stage].into_iter());
        Ok(Box::new(Pipeline::parse(&stages, limits)?))
    }

    fn update(update: &RawDocument, limits: &Limits) -> Parsed {
        let update = RawBsonRef::Document(update);
        Ok(Box::new(Update::parse(update, None, limits)?))
    }

    fn array_filter(count: usize, limits: &Limits) -> Parsed {
        let condition = rawdoc! { "$and": list((0..count).map(|_| rawdoc! { "x.a": 1 })) };
        let update = rawdoc! { "$set": { "a.$[x]": 1 } };
        let update = RawBsonRef::Document(&update);
        let filters = list([condition].into_iter());
        Ok(Box::new(Update::parse(update, Some(&filters), limits)?))
    }

    const PARSERS: [(&str, Parse); 19] = [
        ("fields", |count, limits| filter(&fields(count, 1), limits)),
        ("$gt", |count, limits| {
            filter(&fields(count, rawdoc! { "$gt": 1 }), limits)
        }),
        ("$or", |count, limits| {
            let branches = list((0..count).map(|_| rawdoc! { "a": 1 }));
            filter(&rawdoc! { "$or": branches }, limits)
        }),
        ("$in", |count, limits| {
            filter(&rawdoc! { "a": { "$in": numbers(count) } }, limits)
        }),
        ("$all", |count, limits| {
            filter(&rawdoc! { "a": { "$all": numbers(count) } }, limits)
        }),
        ("$bitsAllSet", |count, limits| {
            let (subtype, bytes) = (BinarySubtype::Generic, vec![0xff; count]);
            let mask = Binary { subtype, bytes };
            filter(&rawdoc! { "a": { "$bitsAllSet": mask } }, limits)
        }),
        ("projection", |count, limits| {
            Ok(Box::new(Projection::parse(&fields(count, 1), limits)?))
        }),
        ("array", |count, limits| {
            let value = RawBson::Array(numbers(count));
            Ok(Box::new(Expression::parse(
                value.as_raw_bson_ref(),
                limits,
            )?))
        }),
        ("$literal", |count, limits| {
            let value = rawdoc! { "$literal": numbers(10 * count) };
            let value = RawBsonRef::Document(&value);
            Ok(Box::new(Expression::parse(value, limits)?))
        }),
        ("path", |count, limits| {
            let path = format!("${}", vec!["a"; count].join("."));
            let path = RawBsonRef::String(&path);
            Ok(Box::new(Expression::parse(path, limits)?))
        }),
        ("let", |count, limits| {
            let definitions: RawDocumentBuf = fields(count, 1)
                .iter_elements()
                .flatten()
                .map(|element| {
                    let name = format!("v{}", element.key().as_str());
                    (bson::raw::CString::try_from(name).unwrap(), 1)
                })
                .collect();
            Variables::parse(&definitions, DateTime::MIN, limits)?;
            Ok(Box::new(limits.command.clone()))
        }),
        ("stage $set", |count, limits| {
            pipeline(rawdoc! { "$set": fields(count, 1) }, limits)
        }),
        ("stage $unset", |count, limits| {
            let names = list((0..count).map(|name| name.to_string()));
            pipeline(rawdoc! { "$unset": names }, limits)
        }),
        ("$group", |count, limits| {
            let mut group = rawdoc! { "_id": 1 };
            for element in fields(count, rawdoc! { "$sum": 1 })
                .iter_elements()
                .flatten()
            {
                group.append(element.key(), element.value().unwrap());
            }
            pipeline(rawdoc! { "$group": group }, limits)
        }),
        ("$set", |count, limits| {
            update(&rawdoc! { "$set": fields(count, 1) }, limits)
        }),
        ("$unset", |count, limits| {
            update(&rawdoc! { "$unset": fields(count, 1) }, limits)
        }),
        ("$push", |count, limits| {
            update(
                &rawdoc! { "$push": { "a": { "$each": numbers(count) } } },
                limits,
            )
        }),
        ("$pullAll", |count, limits| {
            update(&rawdoc! { "$pullAll": { "a": numbers(count) } }, limits)
        }),
        ("arrayFilters", array_filter),
    ];

    fn limits(account: &Account) -> Limits {
        Limits::new(account.clone(), Compilation::default())
    }

    #[test]
    fn a_parsed_form_takes_memory_from_the_account_as_long_as_it_lives() {
        for (name, parse) in PARSERS {
            let account = Account::new(64 << 20);
            let parsed = parse(10, &limits(&account));
            assert!(parsed.is_ok(), "{name}");
            assert_eq!(account.figures().used_bytes, 0, "{name}, small");
            drop(parsed);
            let parsed = parse(20_000, &limits(&account));
            assert!(parsed.is_ok(), "{name}");
            let used_bytes = account.figures().used_bytes;
            assert!(used_bytes > 20_000 * 16, "{name}: {used_bytes} bytes");
            drop(parsed);
            assert_eq!(account.figures().used_bytes, 0, "{name}, dropped");
        }
    }

    #[test]
    fn a_parsed_form_for_which_there_is_no_memory_is_refused() {
        for (name, parse) in PARSERS {
            let account = Account::new(512 << 10);
            let parsed = parse(50_000, &limits(&account));
            let code = parsed.err().map(|error| error.code);
            assert_eq!(code, Some(Code::ExceededMemoryLimit), "{name}");
            assert_eq!(account.figures().used_bytes, 0, "{name}");
        }
    }

    #[test]
    fn parsing_is_stopped() {
        for (name, parse) in PARSERS {
            let limits = Limits::default();
            let stop = limits.stop().current();
            stop.cancelled.store(true, Ordering::Relaxed);
            limits.stop().follow(&stop);
            let code = parse(20_000, &limits).err().map(|error| error.code);
            assert_eq!(code, Some(Code::Interrupted), "{name}");
        }
    }
}
