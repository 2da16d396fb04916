//! Encoding of a change in the history.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | total bytes of all earlier entries, including deleted ones |
//! | 8 | wall-clock time in milliseconds since 1970 |
//! | 1 | the kind of the change |
//! | 16 | the UUID of the collection |
//! | 4, 4 | lengths of the database's name and of the collection's name; both names follow |
//! | the rest | a BSON document, see [`ChangeKind`] |
//!
//! Integers are little-endian.

use bson::{DateTime, RawDocument, Uuid, rawdoc};

use super::time::ClusterTime;
use crate::document::{Document, note_size};
use crate::error::{Result, StoreError};
use crate::store::Namespace;

/// Bytes of an entry before the names.
const HEADER_BYTES: usize = 8 + 8 + 1 + 16 + 4 + 4;
/// Bytes of an entry's key.
const KEY_BYTES: u64 = 8;

/// Kind of a change. Each variant says what [`ChangeEvent::detail`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// The history began. The detail is empty.
    Beginning,
    /// A document was inserted. The detail is the document.
    Insert,
    /// A document was updated. The detail is `{documentKey: {_id}, updateDescription}`.
    Update,
    /// A document was replaced. The detail is the new document.
    Replace,
    /// A document was deleted. The detail is its `{_id}`.
    Delete,
    /// A collection was dropped. The detail is empty.
    Drop,
    /// A collection was renamed. The detail is `{to: {db, coll}}`. A collection that already had the new name was
    /// dropped in the same batch.
    Rename,
    /// A database was dropped. The drops of its collections precede this change. The detail is empty.
    DropDatabase,
}

impl ChangeKind {
    const ALL: [(Self, u8); 8] = [
        (Self::Beginning, b'b'),
        (Self::Insert, b'i'),
        (Self::Update, b'u'),
        (Self::Replace, b'r'),
        (Self::Delete, b'd'),
        (Self::Drop, b'c'),
        (Self::Rename, b'n'),
        (Self::DropDatabase, b'x'),
    ];

    fn letter(self) -> u8 {
        let known = Self::ALL.iter().find(|(kind, _)| *kind == self);
        known.map_or(b'?', |(_, letter)| *letter)
    }

    fn of(letter: u8) -> Option<Self> {
        let known = Self::ALL.iter().find(|(_, known)| *known == letter);
        known.map(|(kind, _)| *kind)
    }
}

/// A change that was read from the history.
#[derive(Debug, Clone)]
pub struct ChangeEvent {
    /// Position in the order of all changes.
    pub at: ClusterTime,
    /// Wall-clock time of the change.
    pub wall_time: DateTime,
    /// Kind of the change.
    pub kind: ChangeKind,
    /// The collection's name at the time of the change. The collection part is empty for a change of a whole database.
    pub namespace: Namespace,
    /// The UUID of the collection. All zeros for a change without a collection.
    pub uuid: Uuid,
    /// Details by kind; see [`ChangeKind`].
    pub detail: Document,
}

impl ChangeEvent {
    pub(super) fn decode(at: ClusterTime, value: &[u8]) -> Result<Self> {
        let parsed = Self::parse(at, value)?;
        parsed.ok_or_else(|| malformed("an entry is too short"))
    }

    fn parse(at: ClusterTime, mut rest: &[u8]) -> Result<Option<Self>> {
        let (Some(_), Some(wall_ms), Some([kind]), Some(uuid), Some(db), Some(name)) = (
            take::<8>(&mut rest),
            take::<8>(&mut rest),
            take::<1>(&mut rest),
            take::<16>(&mut rest),
            take::<4>(&mut rest),
            take::<4>(&mut rest),
        ) else {
            return Ok(None);
        };
        let kind = ChangeKind::of(kind).ok_or_else(|| malformed("an entry has an unknown kind"))?;
        let (Some(db), Some(name)) = (take_name(&mut rest, db), take_name(&mut rest, name)) else {
            return Ok(None);
        };
        note_size(rest.len());
        Ok(Some(Self {
            at,
            wall_time: DateTime::from_millis(i64::from_le_bytes(wall_ms)),
            kind,
            namespace: Namespace::new(db, name),
            uuid: Uuid::from_bytes(uuid),
            detail: Document::new(rest.into())?,
        }))
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*taken)
}

fn take_name<'a>(rest: &mut &'a [u8], bytes: [u8; 4]) -> Option<&'a str> {
    let (name, behind) = rest.split_at_checked(u32::from_le_bytes(bytes) as usize)?;
    *rest = behind;
    std::str::from_utf8(name).ok()
}

fn malformed(why: &str) -> StoreError {
    StoreError::InvalidDocument {
        why: format!("history of changes: {why}"),
    }
}

/// Changes to record in one batch.
#[derive(Default)]
pub(crate) struct Changes {
    /// The encoded entries, without the fields that [`stamp`] fills in.
    pub(super) values: Vec<Vec<u8>>,
    /// The collections that the changes affect.
    pub(super) namespaces: Vec<Namespace>,
}

impl Changes {
    /// Builds the first entry of a history.
    pub(super) fn beginning() -> Self {
        let mut changes = Self::default();
        let nowhere = Namespace::new("", "");
        changes.push(ChangeKind::Beginning, &nowhere, None, &rawdoc! {});
        changes
    }

    /// Starts a list of changes that affect a collection.
    pub(crate) fn of(namespace: Namespace) -> Self {
        Self {
            values: Vec::new(),
            namespaces: vec![namespace],
        }
    }

    /// Returns whether there are no changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds a collection that the changes affect.
    pub(crate) fn concern(&mut self, namespace: Namespace) {
        self.namespaces.push(namespace);
    }

    /// Adds a change of a document. The document's collection is the first of `namespaces`.
    pub(crate) fn document(&mut self, kind: ChangeKind, uuid: Uuid, detail: &RawDocument) {
        let value = encode(kind, &self.namespaces[0], Some(uuid), detail);
        self.values.push(value);
    }

    /// Adds a change.
    pub(crate) fn push(
        &mut self,
        kind: ChangeKind,
        namespace: &Namespace,
        uuid: Option<Uuid>,
        detail: &RawDocument,
    ) {
        self.values.push(encode(kind, namespace, uuid, detail));
    }
}

fn encode(
    kind: ChangeKind,
    namespace: &Namespace,
    uuid: Option<Uuid>,
    detail: &RawDocument,
) -> Vec<u8> {
    let (db, name, detail) = (&namespace.db, &namespace.collection, detail.as_bytes());
    let length = |name: &str| {
        u32::try_from(name.len())
            .expect("a name is short")
            .to_le_bytes()
    };
    let bytes = HEADER_BYTES + db.len() + name.len() + detail.len();
    let mut value = Vec::with_capacity(bytes);
    value.extend_from_slice(&[0; 16]);
    value.push(kind.letter());
    value.extend_from_slice(&uuid.map_or([0; 16], Uuid::bytes));
    value.extend_from_slice(&length(db));
    value.extend_from_slice(&length(name));
    value.extend_from_slice(db.as_bytes());
    value.extend_from_slice(name.as_bytes());
    value.extend_from_slice(detail);
    value
}

/// Fills in the fields that are known only when the change is committed: the total bytes of earlier entries, and the
/// time.
pub(super) fn stamp(value: &mut [u8], bytes_before: u64, now: DateTime) {
    value[..8].copy_from_slice(&bytes_before.to_le_bytes());
    value[8..16].copy_from_slice(&now.timestamp_millis().to_le_bytes());
}

/// Decodes the total bytes of all earlier entries.
pub(super) fn bytes_before(mut value: &[u8]) -> Result<u64> {
    take(&mut value)
        .map(u64::from_le_bytes)
        .ok_or_else(|| malformed("an entry is too short"))
}

/// Returns the bytes of an entry with its key.
pub(super) fn bytes(value: &[u8]) -> u64 {
    KEY_BYTES + value.len() as u64
}
