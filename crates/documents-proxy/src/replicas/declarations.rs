//! The list of declared caches on disk: one JSON object per line.

use std::io::{self, Write};
use std::path::Path;

use bson::{RawDocumentBuf, doc};
use forebay_documents::{Namespace, namespace};

use super::{ReplicaError, Replicas};

impl Replicas {
    /// Reads the declared caches.
    pub(super) fn recorded(&self) -> Result<Vec<(Namespace, Vec<RawDocumentBuf>)>, ReplicaError> {
        let Some(file) = &self.file else {
            return Ok(Vec::new());
        };
        match std::fs::read_to_string(file) {
            Ok(text) => Ok(text.lines().map(parse).collect::<io::Result<_>>()?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the list of declared caches atomically.
    pub(super) fn record(&self) -> Result<(), ReplicaError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        // Concurrent callers write one after the other, each with the latest declarations.
        let _one_at_a_time = self.recording.lock();
        let mut lines = String::new();
        for replica in self.declared() {
            let Namespace { db, collection } = &replica.namespace;
            let definitions: Result<Vec<bson::Document>, _> = replica
                .definitions()
                .iter()
                .map(bson::Document::try_from)
                .collect();
            let line = doc! { "db": db, "collection": collection, "indexes": definitions.map_err(invalid)? };
            lines.push_str(&format!(
                "{}\n",
                bson::Bson::from(line).into_relaxed_extjson()
            ));
        }
        let new = file.with_extension("new");
        let mut written = std::fs::File::create(&new)?;
        written.write_all(lines.as_bytes())?;
        written.sync_all()?;
        std::fs::rename(new, file)?;
        // Syncing the directory makes the rename durable.
        let directory = file.parent().filter(|it| !it.as_os_str().is_empty());
        Ok(std::fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?)
    }
}

fn parse(line: &str) -> io::Result<(Namespace, Vec<RawDocumentBuf>)> {
    let value: serde_json::Value = serde_json::from_str(line)?;
    let value = bson::Bson::try_from(value).map_err(invalid)?;
    let line = value
        .as_document()
        .ok_or_else(|| invalid("a line is not a JSON object"))?;
    let name = |key: &str| line.get_str(key).map_err(invalid);
    let namespace = namespace::checked(name("db")?, name("collection")?)
        .map_err(|error| invalid(format!("{error:?}")))?;
    let definitions = line.get_array("indexes").map_err(invalid)?.iter();
    let definitions = definitions.filter_map(|definition| definition.as_document());
    let definitions: Result<_, _> = definitions.map(RawDocumentBuf::try_from).collect();
    Ok((namespace, definitions.map_err(invalid)?))
}

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
