//! Index specifications: converts a client's specification to the store's, and rejects an invalid one with MongoDB's
//! error.

use bson::raw::CString;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use forebay_documents_query::{Code, display};
use forebay_documents_store::{IndexField, IndexKind, IndexSpec, IndexStatus};

use crate::arguments::{
    Arguments, Known, check_collation, integer, invalid_bson, truth, type_name,
};
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::plan::same_pattern;

/// Maximum indexes of one collection.
pub const INDEXES_MAX: usize = 64;
/// Maximum fields of one index.
const FIELDS_MAX: usize = 32;

/// Options that have no effect on this server.
const HARMLESS: &[&str] = &[
    "v",
    "key",
    "name",
    "unique",
    "sparse",
    "background",
    "ns",
    "hidden",
    "dropDups",
    "collation",
    "clustered",
];
/// Options that are not implemented.
const UNSUPPORTED: &[&str] = &[
    "partialFilterExpression",
    "expireAfterSeconds",
    "weights",
    "default_language",
    "language_override",
    "textIndexVersion",
    "2dsphereIndexVersion",
    "bits",
    "min",
    "max",
    "bucketSize",
    "wildcardProjection",
    "storageEngine",
    "prepareUnique",
];

/// Reads one entry of `createIndexes.indexes`.
///
/// # Errors
/// `CannotCreateIndex` for a key that cannot be indexed or an option that is not implemented, `FailedToParse` for a
/// missing property, `InvalidIndexSpecificationOption` for an unknown option.
pub fn parse(entry: &RawDocument) -> Result<IndexSpec, CommandError> {
    let arguments = Arguments::parse("createIndexes.indexes", entry, Known::Any)?;
    check_options(entry)?;
    let key = arguments.document("key")?.ok_or_else(|| missing("key"))?;
    check_id_index(key, entry)?;
    let name = arguments.string("name")?.ok_or_else(|| missing("name"))?;
    let fields = fields(key)?;
    let spec = IndexSpec {
        name: checked_name(name)?.to_owned(),
        unique: arguments.flag("unique")?,
        sparse: arguments.flag("sparse")?,
        definition: RawDocumentBuf::new(),
        fields,
    };
    check_kinds(&spec)?;
    Ok(IndexSpec {
        definition: definition(&spec, key, arguments.boolean("background")?),
        ..spec
    })
}

fn missing(field: &str) -> CommandError {
    let message = format!("The '{field}' field is a required property of an index specification");
    CommandError::refused(Code::FailedToParse, message)
}

fn cannot(message: impl Into<String>) -> CommandError {
    CommandError::refused(Code::CannotCreateIndex, message)
}

fn check_options(entry: &RawDocument) -> Result<(), CommandError> {
    for option in entry {
        let (name, value) = option.map_err(|error| invalid_bson(&error))?;
        let name = name.as_str();
        if UNSUPPORTED.contains(&name) {
            return Err(cannot(format!(
                "the index option '{name}' is not supported"
            )));
        }
        if !HARMLESS.contains(&name) {
            let message = format!("The field '{name}' is not valid for an index specification");
            return Err(CommandError::refused(
                Code::InvalidIndexSpecificationOption,
                message,
            ));
        }
        if let ("collation", RawBsonRef::Document(collation)) = (name, value) {
            check_collation(collation)?;
        }
        if name == "hidden" && truth(value) == Some(true) {
            return Err(cannot("hidden indexes are not supported"));
        }
    }
    Ok(())
}

/// Checks a specification of the index on `_id`, which always exists and takes no options.
fn check_id_index(key: &RawDocument, entry: &RawDocument) -> Result<(), CommandError> {
    const OPTIONS: &[&str] = &["key", "name", "ns", "v", "collation"];
    let mut fields = key.iter().flatten();
    let direction = match (fields.next(), fields.next()) {
        (Some((name, value)), None) if name == "_id" => integer(value),
        _ => return Ok(()),
    };
    if !matches!(direction, Some(1 | -1)) {
        return Ok(());
    }
    let mut options = entry.iter().flatten().map(|(name, _)| name.as_str());
    if let Some(option) = options.find(|name| !OPTIONS.contains(name)) {
        let message = format!(
            "The field '{option}' is not valid for an _id index specification. Specification: {}",
            display::document(entry)
        );
        return Err(CommandError::refused(
            Code::InvalidIndexSpecificationOption,
            message,
        ));
    }
    match direction {
        Some(1) => Ok(()),
        _ => Err(CommandError::bad_value(format!(
            "The field 'key' for an _id index must be {{_id: 1}}, but got {}",
            display::document(key)
        ))),
    }
}

fn checked_name(name: &str) -> Result<&str, CommandError> {
    match name {
        "" => Err(cannot("index name cannot be empty")),
        "*" => Err(CommandError::bad_value("The index name '*' is not valid.")),
        name if name.contains('\0') => Err(cannot("index name cannot contain NUL bytes")),
        name => Ok(name),
    }
}

fn fields(key: &RawDocument) -> Result<Vec<IndexField>, CommandError> {
    let mut fields: Vec<IndexField> = Vec::new();
    for field in key {
        let (path, kind) = field.map_err(|error| invalid_bson(&error))?;
        let path = checked_path(path.as_str())?;
        if fields.iter().any(|known| known.path == path) {
            return Err(CommandError::bad_value(format!(
                "The field '{path}' appears in the index key pattern multiple times"
            )));
        }
        fields.push(IndexField {
            path: path.to_owned(),
            kind: kind_of(path, kind)?,
        });
    }
    match fields.len() {
        0 => Err(cannot("Index keys cannot be an empty object")),
        1..=FIELDS_MAX => Ok(fields),
        count => Err(cannot(format!(
            "an index can have at most {FIELDS_MAX} fields, and this one has {count}"
        ))),
    }
}

fn checked_path(path: &str) -> Result<&str, CommandError> {
    if path.is_empty() || path.split('.').any(str::is_empty) {
        return Err(cannot("Index keys cannot contain an empty field."));
    }
    if path.contains("$**") {
        return Err(cannot("wildcard indexes are not supported"));
    }
    if path.split('.').any(|part| part.starts_with('$')) {
        return Err(cannot(format!(
            "Index key contains an illegal field name: field name starts with '$': {path}"
        )));
    }
    Ok(path)
}

fn kind_of(path: &str, value: RawBsonRef<'_>) -> Result<IndexKind, CommandError> {
    let number = match value {
        RawBsonRef::String("cache") => return Ok(IndexKind::Cache),
        RawBsonRef::String(other) => return Err(unknown_kind(other)),
        RawBsonRef::Int32(number) => f64::from(number),
        RawBsonRef::Int64(number) => number as f64,
        RawBsonRef::Double(number) => number,
        other => {
            let kind = type_name(other);
            return Err(cannot(format!(
                "Values in v:2 index key pattern cannot be of type {kind}: '{path}'"
            )));
        }
    };
    match number {
        number if number > 0.0 => Ok(IndexKind::Ascending),
        number if number < 0.0 => Ok(IndexKind::Descending),
        _ => Err(cannot("Values in the index key pattern cannot be 0.")),
    }
}

fn unknown_kind(name: &str) -> CommandError {
    let hint = if looks_like_cache(name) {
        " (did you mean 'cache'?)"
    } else {
        ""
    };
    cannot(format!("Unknown index plugin '{name}'{hint}"))
}

/// Returns whether a word is probably a misspelt `cache`: it has the letters of `cache`, in any order and case, with at
/// most one letter missing or added.
fn looks_like_cache(word: &str) -> bool {
    let mut missing = Vec::from("cache");
    let is_added = |letter: u8| {
        let found = missing.iter().position(|wanted| *wanted == letter);
        found.map(|at| missing.swap_remove(at)).is_none()
    };
    let letters = word.bytes().map(|letter| letter.to_ascii_lowercase());
    letters.map(is_added).filter(|added| *added).count() + missing.len() <= 1
}

fn check_kinds(spec: &IndexSpec) -> Result<(), CommandError> {
    if !spec.is_cache() {
        return Ok(());
    }
    if spec
        .fields
        .iter()
        .any(|field| field.kind != IndexKind::Cache)
    {
        return Err(cannot(
            "an index cannot have both cached fields and ascending or descending fields",
        ));
    }
    if spec.unique || spec.sparse {
        return Err(cannot("a cache index cannot be unique or sparse"));
    }
    if spec.fields.iter().any(|field| field.path == "_id") {
        return Err(cannot(
            "the field _id cannot be cached: searches by _id need no cache",
        ));
    }
    Ok(())
}

/// Returns the specification as `listIndexes` shows it. `background` is the option that the client sent, if any.
fn definition(spec: &IndexSpec, key: &RawDocument, background: Option<bool>) -> RawDocumentBuf {
    let mut definition = RawDocumentBuf::new();
    definition.append(cstr!("v"), 2);
    definition.append(cstr!("key"), key);
    definition.append(cstr!("name"), spec.name.as_str());
    if let Some(background) = background {
        definition.append(cstr!("background"), background);
    }
    for (name, is_set) in [("unique", spec.unique), ("sparse", spec.sparse)] {
        if is_set {
            definition.append(
                CString::try_from(name).expect("the names hold no NUL"),
                true,
            );
        }
    }
    definition
}

/// Returns whether the index `wanted` already exists.
///
/// # Errors
/// - `IndexKeySpecsConflict` for another index of the same name.
/// - `IndexOptionsConflict` for an index of the same key with other options.
/// - `CannotCreateIndex` if the collection has too many indexes.
pub fn is_there(
    namespace: &Namespace,
    existing: &[IndexStatus],
    wanted: &IndexSpec,
) -> Result<bool, CommandError> {
    let pattern = wanted.pattern();
    if same_pattern(&pattern, &bson::rawdoc! { "_id": 1 }) {
        return Ok(true);
    }
    for index in existing.iter().map(|index| &index.spec) {
        let same_key = same_pattern(&index.pattern(), &pattern);
        let same_options = (index.unique, index.sparse) == (wanted.unique, wanted.sparse);
        match (index.name == wanted.name, same_key) {
            (true, true) if same_options => return Ok(true),
            (true, _) => return Err(name_conflict(wanted)),
            (false, true) => return Err(key_conflict(&index.name)),
            (false, false) => {}
        }
    }
    if existing.len() >= INDEXES_MAX {
        return Err(cannot(format!(
            "add index fails, too many indexes for {namespace} (at most {INDEXES_MAX})"
        )));
    }
    Ok(false)
}

fn name_conflict(wanted: &IndexSpec) -> CommandError {
    let message = format!(
        "An existing index has the same name as the requested index. When index names are not specified, they are auto generated and can cause conflicts. Please refer to our documentation. Requested index: {}",
        wanted.name
    );
    CommandError::refused(Code::IndexKeySpecsConflict, message)
}

fn key_conflict(existing: &str) -> CommandError {
    CommandError::refused(
        Code::IndexOptionsConflict,
        format!("Index already exists with a different name: {existing}"),
    )
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn specifications_are_read() {
        let spec = parse(
            &rawdoc! { "key": { "a.b": 1, "c": -1i64 }, "name": "x", "unique": true, "v": 2 },
        )
        .unwrap();
        assert_eq!(spec.fields.len(), 2);
        assert_eq!(
            spec.definition,
            rawdoc! { "v": 2, "key": { "a.b": 1, "c": -1i64 }, "name": "x", "unique": true }
        );
        assert!(
            parse(&rawdoc! { "key": { "a": "cache", "b": "cache" }, "name": "x" })
                .unwrap()
                .is_cache()
        );
    }

    #[test]
    fn a_misspelt_cache_is_recognised() {
        for word in ["Cache", "cahce", "cach", "caches", "CACHE"] {
            assert!(looks_like_cache(word), "{word}");
        }
        for word in ["text", "hashed", "2dsphere", "wildcard", "", "cccccc"] {
            assert!(!looks_like_cache(word), "{word}");
        }
        let refused = parse(&rawdoc! { "key": { "a": "cahce" }, "name": "x" }).unwrap_err();
        let message = refused.to_string();
        assert!(message.contains("did you mean 'cache'?"), "{message}");
    }

    #[test]
    fn what_cannot_be_indexed_is_refused() {
        for (entry, code) in [
            (rawdoc! { "name": "x" }, Code::FailedToParse),
            (rawdoc! { "key": { "a": 1 } }, Code::FailedToParse),
            (rawdoc! { "key": {}, "name": "x" }, Code::CannotCreateIndex),
            (
                rawdoc! { "key": { "a": 0 }, "name": "x" },
                Code::CannotCreateIndex,
            ),
            (
                rawdoc! { "key": { "a": "text" }, "name": "x" },
                Code::CannotCreateIndex,
            ),
            (
                rawdoc! { "key": { "a": true }, "name": "x" },
                Code::CannotCreateIndex,
            ),
            (
                rawdoc! { "key": { "a..b": 1 }, "name": "x" },
                Code::CannotCreateIndex,
            ),
            (
                rawdoc! { "key": { "$**": 1 }, "name": "x" },
                Code::CannotCreateIndex,
            ),
            (
                rawdoc! { "key": { "a": "cache", "b": 1 }, "name": "x" },
                Code::CannotCreateIndex,
            ),
            (
                rawdoc! { "key": { "a": "cache" }, "name": "x", "unique": true },
                Code::CannotCreateIndex,
            ),
            (
                rawdoc! { "key": { "a": 1 }, "name": "x", "expireAfterSeconds": 5 },
                Code::CannotCreateIndex,
            ),
            (
                rawdoc! { "key": { "a": 1 }, "name": "x", "frob": 5 },
                Code::InvalidIndexSpecificationOption,
            ),
            (rawdoc! { "key": { "a": 1 }, "name": "*" }, Code::BadValue),
        ] {
            assert_eq!(parse(&entry).unwrap_err().code(), code, "{entry:?}");
        }
    }
}
