//! Definitions of indexes.

use bson::{RawDocumentBuf, doc};

use super::ID_INDEX;
use crate::error::{Result, StoreError};

/// Sort order of an index field, or a declaration that the field is only cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexKind {
    /// Lowest value first.
    Ascending,
    /// Highest value first.
    Descending,
    /// The field is cached on devices. The catalogue records the declaration; the index has no entries.
    Cache,
}

/// One field of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexField {
    /// Dotted path of the field.
    pub path: String,
    /// Sort order of the field.
    pub kind: IndexKind,
}

/// Definition of an index.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexSpec {
    /// Name of the index, unique in the collection.
    pub name: String,
    /// The indexed fields, most significant first.
    pub fields: Vec<IndexField>,
    /// Whether no two documents may share a key.
    pub unique: bool,
    /// Whether the index omits documents that have none of its fields.
    pub sparse: bool,
    /// The definition as sent by the client, for listings.
    pub definition: RawDocumentBuf,
}

impl IndexSpec {
    /// Builds a definition that is neither unique nor sparse. The `definition` document is empty.
    pub fn new(name: impl Into<String>, fields: Vec<IndexField>) -> Self {
        Self {
            name: name.into(),
            fields,
            unique: false,
            sparse: false,
            definition: RawDocumentBuf::new(),
        }
    }

    /// Builds a definition of an ascending index on one path, named as MongoDB names it.
    pub fn ascending(path: &str) -> Self {
        let field = IndexField {
            path: path.to_owned(),
            kind: IndexKind::Ascending,
        };
        Self::new(format!("{path}_1"), vec![field])
    }

    /// Makes the index unique.
    pub fn unique(mut self) -> Self {
        self.unique = true;
        self
    }

    /// Makes the index sparse.
    pub fn sparse(mut self) -> Self {
        self.sparse = true;
        self
    }

    /// Builds the definition of the index on `_id`.
    pub(crate) fn id() -> Self {
        let field = IndexField {
            path: "_id".to_owned(),
            kind: IndexKind::Ascending,
        };
        Self {
            definition: definition_of_id(),
            ..Self::new(ID_INDEX, vec![field]).unique()
        }
    }

    /// Returns whether this is a declaration of cached fields, for which the store keeps no entries.
    pub fn is_cache(&self) -> bool {
        self.fields
            .iter()
            .any(|field| field.kind == IndexKind::Cache)
    }

    /// Returns the key pattern, such as `{a: 1, b: -1}`.
    pub fn pattern(&self) -> RawDocumentBuf {
        let mut pattern = bson::Document::new();
        for field in &self.fields {
            pattern.insert(field.path.clone(), field.kind.to_bson());
        }
        RawDocumentBuf::try_from(&pattern).unwrap_or_default()
    }
}

fn definition_of_id() -> RawDocumentBuf {
    RawDocumentBuf::try_from(&doc! { "v": 2, "key": { "_id": 1 }, "name": ID_INDEX })
        .expect("the constant field names hold no zero byte")
}

impl IndexKind {
    /// Encodes the kind as a key pattern's value.
    pub fn to_bson(self) -> bson::Bson {
        match self {
            Self::Ascending => 1.into(),
            Self::Descending => (-1).into(),
            Self::Cache => "cache".into(),
        }
    }

    /// Decodes the kind from a key pattern that this store wrote.
    pub(crate) fn from_bson(value: &bson::Bson) -> Result<Self> {
        match value {
            bson::Bson::Int32(1) => Ok(Self::Ascending),
            bson::Bson::Int32(-1) => Ok(Self::Descending),
            bson::Bson::String(kind) if kind == "cache" => Ok(Self::Cache),
            other => Err(StoreError::InvalidDocument {
                why: format!("unknown kind of index: {other}"),
            }),
        }
    }
}
