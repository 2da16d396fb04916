//! Updates: operators, replacements and pipelines, applied to raw documents.
//!
//! An update is parsed once and applied to many documents. [`Update::apply`] returns `None` if a document stays
//! identical, byte for byte, so that modified documents are counted correctly. Only the changed paths are decoded; the
//! rest of a document is copied as raw bytes.

mod array;
mod array_filters;
mod difference;
mod field;
mod fields;
mod number;
mod operator;
mod path;
mod tree;
mod upsert;

use std::collections::HashSet;
use std::sync::Arc;

use bson::DateTime;
use bson::raw::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_cancel::SharedStop;

use crate::compare::equal;
use crate::display;
use crate::element::{Writer, check_depth, elements, first_is_operator, get};
use crate::error::{Code, Error};
use crate::expr::evaluation;
use crate::limits::{CommandLimits, Limits, path_bytes};
use crate::stage::Transform;
use crate::timestamp;

use array_filters::ArrayFilters;
use field::Moment;
use operator::{Operator, Scene};
use path::{Places, UpdatePath};
use tree::{Padding, Tree};

pub use difference::describe;

/// A parsed update.
#[derive(Debug, Clone)]
pub struct Update {
    kind: Kind,
    document_bytes_max: usize,
    limits: Arc<CommandLimits>,
}

#[derive(Debug, Clone)]
enum Kind {
    Replacement(RawDocumentBuf),
    Operators {
        changes: Vec<(UpdatePath, Operator)>,
        filters: ArrayFilters,
    },
    Pipeline(Vec<Transform>),
}

/// Input of an update besides the document.
#[derive(Debug, Clone, Copy)]
pub struct UpdateContext {
    /// The time that `$currentDate` and `$$NOW` use.
    pub now: DateTime,
    /// Whether the document is being inserted, so that `$setOnInsert` applies.
    pub is_insert: bool,
    /// The index of the array element that the query matched, to which `$` refers (see
    /// [`Filter::match_position`](crate::Filter)).
    pub position: Option<usize>,
}

impl UpdateContext {
    /// Builds the input for an update of an existing document.
    pub fn new(now: DateTime, position: Option<usize>) -> UpdateContext {
        UpdateContext {
            now,
            is_insert: false,
            position,
        }
    }
}

impl Update {
    /// Parses the update of an `update` or `findAndModify` command: a document, or an array for a pipeline.
    ///
    /// # Errors
    /// MongoDB's codes: 9 for unknown operators, 40 for conflicts, 52 and 56 for invalid names, and the errors of
    /// invalid operands.
    pub fn parse(
        update: RawBsonRef<'_>,
        array_filters: Option<&RawArray>,
        limits: &Limits,
    ) -> Result<Update, Error> {
        check_depth(update)?;
        let kind = match update {
            RawBsonRef::Array(pipeline) => {
                if array_filters.is_some_and(|filters| !filters.is_empty()) {
                    return Err(Error::parse(
                        "arrayFilters may not be specified for pipeline-syle updates",
                    ));
                }
                Kind::Pipeline(crate::stage::parse_update_pipeline(pipeline, limits)?)
            }
            RawBsonRef::Document(document) if first_is_operator(document) => {
                operators(document, array_filters, limits)?
            }
            RawBsonRef::Document(document) => {
                limits.hold_value(update)?;
                replacement(document, array_filters)?
            }
            _ => {
                return Err(Error::parse(
                    "Update argument must be either an object or an array",
                ));
            }
        };
        Ok(Update {
            kind,
            document_bytes_max: limits.document_bytes_max,
            limits: limits.command.clone(),
        })
    }

    /// Returns whether the update replaces the whole document. Callers must not apply a replacement to several
    /// documents.
    pub fn is_replacement(&self) -> bool {
        matches!(self.kind, Kind::Replacement(_))
    }

    /// Returns the changed document, or `None` if nothing changes.
    ///
    /// # Errors
    /// MongoDB's codes: 66 for a change of `_id`, 28 for a path that cannot be created, 14 and 2 for types that an
    /// operator does not accept, 10334 for a document that grows too large.
    pub fn apply(
        &self,
        document: &RawDocument,
        context: &UpdateContext,
    ) -> Result<Option<RawDocumentBuf>, Error> {
        evaluation::under(&self.limits, || self.change(document, context))
    }

    fn change(
        &self,
        document: &RawDocument,
        context: &UpdateContext,
    ) -> Result<Option<RawDocumentBuf>, Error> {
        let changed = match &self.kind {
            Kind::Replacement(replacement) => replace(document, replacement)?,
            Kind::Operators { changes, filters } => {
                let stop = &self.limits.stop;
                change(document, (changes, filters), context, stop)?
            }
            Kind::Pipeline(transforms) => transform(document, transforms, context)?,
        };
        if changed.as_bytes() == document.as_bytes() {
            return Ok(None);
        }
        check_id(document, &changed)?;
        self.check_size(&changed)?;
        Ok(Some(changed))
    }

    fn check_size(&self, changed: &RawDocument) -> Result<(), Error> {
        let (bytes, bytes_max) = (changed.as_bytes().len(), self.document_bytes_max);
        if bytes > bytes_max {
            let message =
                format!("BSONObj size: {bytes} is invalid. Size must be between 0 and {bytes_max}");
            return Err(Error::new(Code::BSONObjectTooLarge, message));
        }
        check_depth(RawBsonRef::Document(changed))
    }
}

/// Returns the bytes of a change besides the operator's operand. Counts the three forms that exist at the same time
/// while the update is applied: a parsed path, a path in one document, and a part of the document's tree.
fn change_bytes(path: &str) -> usize {
    const CHANGE_BYTES: usize = size_of::<(UpdatePath, Operator)>()
        + size_of::<(Vec<String>, &UpdatePath, &Operator)>()
        + size_of::<(String, Tree<'_>)>();
    CHANGE_BYTES + 2 * path_bytes(path)
}

fn operators(
    document: &RawDocument,
    array_filters: Option<&RawArray>,
    limits: &Limits,
) -> Result<Kind, Error> {
    let filters = ArrayFilters::parse(array_filters, limits)?;
    let mut changes = Vec::new();
    for element in elements(document) {
        let name = element.key;
        operator::check_name(name)?;
        let RawBsonRef::Document(operands) = element.value() else {
            return Err(operator::not_a_document(name, element.value()));
        };
        for operand in elements(operands) {
            limits.hold(change_bytes(operand.key))?;
            let operator = Operator::parse(name, operand.key, operand.value(), limits)?;
            changes.push((UpdatePath::parse(operand.key)?, operator));
        }
    }
    check_conflicts(&changes)?;
    check_identifiers(document, &changes, &filters)?;
    changes.sort_by(|(a, _), (b, _)| a.order(b));
    Ok(Kind::Operators { changes, filters })
}

/// Checks all paths for conflicts with each other, including the targets of renames.
fn check_conflicts(changes: &[(UpdatePath, Operator)]) -> Result<(), Error> {
    let mut places = Places::default();
    for (path, operator) in changes {
        let target = match operator {
            Operator::Rename(target) => Some(target),
            _ => None,
        };
        for path in target.into_iter().chain([path]) {
            path.take(&mut places)?;
        }
    }
    Ok(())
}

fn check_identifiers(
    update: &RawDocument,
    changes: &[(UpdatePath, Operator)],
    filters: &ArrayFilters,
) -> Result<(), Error> {
    for (path, _) in changes {
        if let Some(name) = path.identifiers().find(|name| !filters.has(name)) {
            let message = format!(
                "No array filter found for identifier '{name}' in path '{}'",
                path.as_str()
            );
            return Err(Error::bad_value(message));
        }
    }
    let used: HashSet<&str> = changes
        .iter()
        .flat_map(|(path, _)| path.identifiers())
        .collect();
    match filters.names().find(|name| !used.contains(name)) {
        Some(name) => {
            let shown = display::document(update);
            Err(Error::parse(format!(
                "The array filter for identifier '{name}' was not used in the update {shown}"
            )))
        }
        None => Ok(()),
    }
}

fn replacement(document: &RawDocument, array_filters: Option<&RawArray>) -> Result<Kind, Error> {
    if array_filters.is_some_and(|filters| !filters.is_empty()) {
        return Err(Error::parse(
            "arrayFilters may not be specified for replacement-style updates",
        ));
    }
    if let Some(element) = elements(document).find(|element| element.key.starts_with('$')) {
        let name = element.key;
        return Err(Error::new(
            Code::DollarPrefixedFieldName,
            format!(
                "The dollar ($) prefixed field '{name}' in '{name}' is not allowed in the context of an update's replacement document. Consider using an aggregation pipeline with $replaceWith."
            ),
        ));
    }
    Ok(Kind::Replacement(document.to_owned()))
}

/// Returns the replacement with the old `_id` as its first field and its empty timestamps filled in.
fn replace(document: &RawDocument, replacement: &RawDocument) -> Result<RawDocumentBuf, Error> {
    let mut writer = Writer::with_capacity(replacement.as_bytes().len() + 32);
    match (get(document, "_id"), get(replacement, "_id")) {
        (Some(old), Some(new)) if !equal(old, new) => {
            let message = format!(
                "After applying the update, the (immutable) field '_id' was found to have been altered to _id: {}",
                display::value(new)
            );
            return Err(Error::new(Code::ImmutableField, message));
        }
        (Some(id), _) | (None, Some(id)) => writer.value("_id", id),
        (None, None) => {}
    }
    elements(replacement)
        .filter(|element| element.key != "_id")
        .for_each(|element| writer.element(&element));
    let replaced = writer.finish();
    Ok(timestamp::filled(&replaced).unwrap_or(replaced))
}

fn change(
    document: &RawDocument,
    (changes, filters): (&[(UpdatePath, Operator)], &ArrayFilters),
    context: &UpdateContext,
    stop: &SharedStop,
) -> Result<RawDocumentBuf, Error> {
    let id =
        get(document, "_id").map_or_else(|| "no _id".to_owned(), |id| display::field("_id", id));
    let mut root = Tree::of(document);
    let mut places = Vec::new();
    for (path, operator) in changes {
        stop.check()?;
        for place in path.resolve(&mut root, context.position, filters)? {
            places.push((place, path, operator));
        }
    }
    check_places(&places)?;
    let mut padding = Padding::default();
    for (place, path, operator) in places {
        stop.check()?;
        if let Operator::Rename(target) = operator {
            let to = target.resolve(&mut root, None, filters)?;
            to.iter()
                .try_for_each(|to| field::rename(&mut root, &place, to, &id))?;
            continue;
        }
        if matches!(operator, Operator::SetOnInsert(_)) && !context.is_insert {
            continue;
        }
        let name = place.last().map_or("", String::as_str);
        let scene = Scene {
            name,
            path: path.as_str(),
            id: &id,
            now: context.now,
        };
        root.change(&place, &mut padding, &mut |place| {
            operator.apply(place, &scene)
        })?;
    }
    root.into_document(document.as_bytes().len())
}

/// Checks resolved paths for conflicts: positional operators may resolve two paths to the same element.
fn check_places(places: &[(Vec<String>, &UpdatePath, &Operator)]) -> Result<(), Error> {
    if !places.iter().any(|(_, path, _)| path.is_positional()) {
        return Ok(());
    }
    let mut sorted: Vec<&Vec<String>> = places.iter().map(|(place, ..)| place).collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[1].starts_with(pair[0])) {
        Some(pair) => Err(path::conflict(&pair[1].join("."), &pair[0].join("."))),
        None => Ok(()),
    }
}

fn transform(
    document: &RawDocument,
    transforms: &[Transform],
    context: &UpdateContext,
) -> Result<RawDocumentBuf, Error> {
    let mut current = document.to_owned();
    for transform in transforms {
        let made = transform.apply(&current, context.now)?;
        let grown_bytes = made
            .as_bytes()
            .len()
            .saturating_sub(current.as_bytes().len());
        evaluation::keep(grown_bytes)?;
        current = made;
    }
    Ok(match (get(document, "_id"), get(&current, "_id")) {
        // If a pipeline drops `_id`, the document keeps its old `_id`, as in MongoDB.
        (Some(id), None) => {
            let mut writer = Writer::new();
            writer.value("_id", id);
            elements(&current).for_each(|element| writer.element(&element));
            writer.finish()
        }
        _ => current,
    })
}

fn check_id(old: &RawDocument, new: &RawDocument) -> Result<(), Error> {
    let same = match (get(old, "_id"), get(new, "_id")) {
        (Some(old), Some(new)) => equal(old, new),
        (old, _) => old.is_none(),
    };
    match same {
        true => Ok(()),
        false => Err(Error::new(
            Code::ImmutableField,
            "Performing an update on the path '_id' would modify the immutable field '_id'",
        )),
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawArrayBuf, rawdoc};
    use forebay_memory::Account;

    use super::*;
    use crate::filter::Compilation;

    #[test]
    fn decoded_elements_take_memory() {
        let numbers: RawArrayBuf = (0..20_000).collect();
        let documents: RawArrayBuf = (0..2_000).map(|_| rawdoc! {}).collect();
        let arrays: RawArrayBuf = (0..2_000).map(|_| RawArrayBuf::new()).collect();
        let document = rawdoc! { "_id": 1, "empty": [], "numbers": numbers, "documents": documents, "arrays": arrays };
        let text = "x".repeat(2_000);
        for update in [
            rawdoc! { "$set": { "empty.50000": 1 } },
            rawdoc! { "$inc": { "numbers.$[]": 1 } },
            rawdoc! { "$set": { "documents.$[].a.b.c.d.e.f.g.h.i.j.k.l": 1 } },
            rawdoc! { "$push": { "numbers": { "$each": [1], "$sort": -1 } } },
            rawdoc! { "$addToSet": { "numbers": -1 } },
            rawdoc! { "$set": { "documents.$[]": &*text } },
            rawdoc! { "$max": { "documents.$[].a": &*text } },
            rawdoc! { "$push": { "arrays.$[]": &*text } },
            rawdoc! { "$addToSet": { "arrays.$[]": &*text } },
        ] {
            let apply = |memory: &Account| {
                let update = parsed(RawBsonRef::Document(&update), memory);
                update.apply(&document, &UpdateContext::new(DateTime::MIN, None))
            };
            let account = Account::new(2 << 20);
            let refused = apply(&account).expect_err("the account is too small");
            assert_eq!(refused.code, Code::ExceededMemoryLimit, "{update:?}");
            assert_eq!(account.figures().used_bytes, 0);
            assert!(apply(&Account::default()).expect("it fits").is_some());
        }
    }

    fn parsed(update: RawBsonRef<'_>, memory: &Account) -> Update {
        let limits = Limits::new(memory.clone(), Compilation::default());
        Update::parse(update, None, &limits).expect("it parses")
    }

    #[test]
    fn new_documents_take_memory_while_they_are_built() {
        let text = rawdoc! { "$literal": "x".repeat(1 << 20) };
        let stages =
            ["a", "b"].map(|name| rawdoc! { "$set": RawDocumentBuf::from_iter([(bson::raw::CString::try_from(name).unwrap(), text.clone())]) });
        let pipeline: RawArrayBuf = stages.into_iter().collect();
        let put = rawdoc! { "$set": { "a": "x".repeat(1 << 20) } };
        let pushed = rawdoc! { "$push": { "a": "x".repeat(1 << 20) } };
        for (update, used_bytes_min) in [
            // The first stage's document, and twice the second stage's.
            (RawBsonRef::Array(&pipeline), 5 << 20),
            // The copy of the operand, and the document.
            (RawBsonRef::Document(&put), 2 << 20),
            (RawBsonRef::Document(&pushed), 2 << 20),
        ] {
            let account = Account::default();
            let update = parsed(update, &account);
            let parsed_bytes = account.figures().used_bytes;
            let context = UpdateContext::new(DateTime::MIN, None);
            let made = update.apply(&rawdoc! { "_id": 1 }, &context);
            assert!(made.expect("there is room").is_some());
            assert!(account.figures().peak_bytes >= parsed_bytes + used_bytes_min);
        }
    }

    #[test]
    fn the_fields_of_a_query_that_an_upsert_inserts_take_memory() {
        let name = |index: i32| bson::raw::CString::try_from(format!("a{index}")).expect("no NUL");
        let query: RawDocumentBuf = (0..10_000).map(|index| (name(index), index)).collect();
        let filter = crate::Filter::parse(&query, &Limits::default()).expect("it parses");
        let account = Account::new(1 << 20);
        let update = rawdoc! { "$set": { "b": 1 } };
        let update = parsed(RawBsonRef::Document(&update), &account);
        let made = update.upsert_document(&filter, &UpdateContext::new(DateTime::MIN, None));
        let refused = made.expect_err("the account is too small");
        assert_eq!(refused.code, Code::ExceededMemoryLimit);
    }
}
