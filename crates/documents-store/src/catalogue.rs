//! The catalogue lists the store's collections, in one partition of the engine.
//!
//! | key | value |
//! |---|---|
//! | `c` and the collection's id | the collection's entry, as BSON |
//! | `s` and the collection's id | the collection's statistics, updated by every batch |
//! | `n` and the collection's id | the collection's note: opaque bytes of the caller, optional |
//! | `f` | marker written when the catalogue is created |
//! | `u` and a user's name | the user's record |

use bson::{Bson, Document, RawDocumentBuf, doc};

use crate::document::RecordNumber;
use crate::engine::{Batch, Engine, Entries, KeyRange, PartitionId};
use crate::error::{Result, StoreError};
use crate::index::{IndexField, IndexKind, IndexSpec};

/// Name of the catalogue's partition.
pub const PARTITION: &str = "catalogue";

const COLLECTION: u8 = b'c';
const STATISTICS: u8 = b's';
const NOTE: u8 = b'n';
const MARK: &[u8] = b"f";

/// Definition of a collection.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectionEntry {
    pub id: u32,
    pub db: String,
    pub name: String,
    pub uuid: bson::Uuid,
    pub created: bson::DateTime,
    pub options: RawDocumentBuf,
    /// Name of the engine partition that holds the collection's documents.
    pub records: String,
    pub indexes: Vec<IndexEntry>,
}

/// Definition of an index of a collection.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexEntry {
    pub id: u32,
    pub spec: IndexSpec,
    /// Name of the engine partition that holds the index entries; `None` for a declaration of cached fields, which has
    /// no entries.
    pub partition: Option<String>,
    pub multikey: bool,
    pub complete: bool,
}

/// Counters of a collection. Every batch updates them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    pub documents: u64,
    pub bytes: u64,
    pub next_number: RecordNumber,
}

impl Statistics {
    /// Encodes the counters as the value of a catalogue key.
    pub fn encode(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let numbers = [self.documents, self.bytes, self.next_number];
        for (field, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let field = |at: usize| {
            bytes
                .get(at..at + 8)
                .and_then(|field| field.try_into().ok())
                .map(u64::from_be_bytes)
        };
        match (field(0), field(8), field(16), bytes.len()) {
            (Some(documents), Some(bytes), Some(next_number), 24) => Ok(Self {
                documents,
                bytes,
                next_number,
            }),
            _ => Err(malformed("statistics have the wrong length")),
        }
    }
}

/// Writes the marker into a new catalogue. A catalogue without the marker has lost its entries if other partitions
/// exist.
///
/// # Errors
/// [`StoreError::InvalidDocument`] if other partitions exist, but the marker is missing.
pub fn mark(engine: &dyn Engine, catalogue: PartitionId) -> Result<()> {
    if engine.get(catalogue, MARK)?.is_some() {
        return Ok(());
    }
    if engine.has_other_partitions(PARTITION) {
        return Err(malformed("the marker is missing, but collections exist"));
    }
    let mut batch = Batch::default();
    batch.put(catalogue, MARK, b"1".as_slice());
    engine.commit(batch)?;
    engine.sync()
}

/// Returns the catalogue key of a collection's entry.
pub fn collection_key(id: u32) -> Vec<u8> {
    key(COLLECTION, id)
}

/// Returns the catalogue key of a collection's statistics.
pub fn statistics_key(id: u32) -> Vec<u8> {
    key(STATISTICS, id)
}

/// Returns the catalogue key of a collection's note.
pub fn note_key(id: u32) -> Vec<u8> {
    key(NOTE, id)
}

fn key(kind: u8, id: u32) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(&id.to_be_bytes());
    key
}

/// Reads the entries of all collections with their statistics.
pub fn read_collections(
    entries: impl Fn(KeyRange) -> Entries,
) -> Result<Vec<(CollectionEntry, Statistics)>> {
    let mut statistics = std::collections::HashMap::new();
    for entry in entries(KeyRange::prefix(&[STATISTICS])) {
        let (key, value) = entry?;
        statistics.insert(key[1..].to_vec(), Statistics::decode(&value)?);
    }
    let mut found = Vec::new();
    for entry in entries(KeyRange::prefix(&[COLLECTION])) {
        let (key, value) = entry?;
        let counts = statistics.get(&key[1..]).copied();
        let counts = counts.ok_or_else(|| malformed("a collection has no statistics"))?;
        found.push((CollectionEntry::decode(&value)?, counts));
    }
    Ok(found)
}

impl CollectionEntry {
    /// Encodes the entry as BSON.
    ///
    /// # Errors
    /// [`StoreError::InvalidDocument`] if a name holds a zero byte.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let indexes: Vec<Bson> = self
            .indexes
            .iter()
            .map(|index| index.encode().map(Bson::Document))
            .collect::<Result<_>>()?;
        let entry = doc! {
            "id": i64::from(self.id),
            "db": &self.db,
            "name": &self.name,
            "uuid": self.uuid,
            "created": self.created,
            "options": Document::try_from(&self.options)?,
            "records": &self.records,
            "indexes": indexes,
        };
        Ok(RawDocumentBuf::try_from(&entry)?.into_bytes())
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let entry = Document::try_from(RawDocumentBuf::from_bytes(bytes.to_vec())?)?;
        let indexes = entry.get_array("indexes").map_err(field)?;
        Ok(Self {
            id: id(&entry)?,
            db: entry.get_str("db").map_err(field)?.to_owned(),
            name: entry.get_str("name").map_err(field)?.to_owned(),
            uuid: uuid(&entry)?,
            created: *entry.get_datetime("created").map_err(field)?,
            options: RawDocumentBuf::try_from(entry.get_document("options").map_err(field)?)?,
            records: entry.get_str("records").map_err(field)?.to_owned(),
            indexes: indexes
                .iter()
                .map(IndexEntry::decode)
                .collect::<Result<_>>()?,
        })
    }
}

impl IndexEntry {
    fn encode(&self) -> Result<Document> {
        let fields: Vec<Bson> = self.spec.fields.iter().map(encode_field).collect();
        Ok(doc! {
            "id": i64::from(self.id),
            "name": &self.spec.name,
            "fields": fields,
            "unique": self.spec.unique,
            "sparse": self.spec.sparse,
            "definition": Document::try_from(&self.spec.definition)?,
            "partition": self.partition.as_deref(),
            "multikey": self.multikey,
            "complete": self.complete,
        })
    }

    fn decode(value: &Bson) -> Result<Self> {
        let entry = value
            .as_document()
            .ok_or_else(|| malformed("an index is not a document"))?;
        let fields = entry.get_array("fields").map_err(field)?;
        let flag = |name: &str| entry.get_bool(name).map_err(field);
        Ok(Self {
            id: id(entry)?,
            spec: IndexSpec {
                name: entry.get_str("name").map_err(field)?.to_owned(),
                fields: fields.iter().map(decode_field).collect::<Result<_>>()?,
                unique: flag("unique")?,
                sparse: flag("sparse")?,
                definition: RawDocumentBuf::try_from(
                    entry.get_document("definition").map_err(field)?,
                )?,
            },
            partition: optional_string(entry, "partition")?,
            multikey: flag("multikey")?,
            complete: flag("complete")?,
        })
    }
}

fn encode_field(field: &IndexField) -> Bson {
    Bson::Document(doc! { "path": &field.path, "kind": field.kind.to_bson() })
}

fn decode_field(value: &Bson) -> Result<IndexField> {
    let entry = value
        .as_document()
        .ok_or_else(|| malformed("an index field is not a document"))?;
    let kind = entry
        .get("kind")
        .ok_or_else(|| malformed("an index field has no kind"))?;
    Ok(IndexField {
        path: entry.get_str("path").map_err(field)?.to_owned(),
        kind: IndexKind::from_bson(kind)?,
    })
}

fn id(entry: &Document) -> Result<u32> {
    let id = entry.get_i64("id").map_err(field)?;
    u32::try_from(id).map_err(|_| malformed("an id is out of range"))
}

fn uuid(entry: &Document) -> Result<bson::Uuid> {
    let binary = match entry.get("uuid") {
        Some(Bson::Binary(binary)) => binary,
        _ => return Err(malformed("a collection has no UUID")),
    };
    Ok(binary.to_uuid()?)
}

fn optional_string(entry: &Document, name: &str) -> Result<Option<String>> {
    match entry.get(name) {
        None | Some(Bson::Null) => Ok(None),
        Some(Bson::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(malformed("a partition name is not a string")),
    }
}

fn field(error: impl std::fmt::Display) -> StoreError {
    malformed(&error.to_string())
}

fn malformed(why: &str) -> StoreError {
    StoreError::InvalidDocument {
        why: format!("catalogue entry: {why}"),
    }
}
