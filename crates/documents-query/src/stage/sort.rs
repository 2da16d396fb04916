//! `$sort`: sorts all documents in memory, or keeps only the first ones if there is a limit.

use bson::raw::RawDocument;

use super::memory::{Memory, block_bytes, compact_document, document_bytes, holding};
use super::{Run, Stream};
use crate::error::{Code, Error};
use crate::sort::{Sort, SortKey, TopK};

pub(super) fn run<'a, E: From<Error> + Send + 'a>(
    sort: &Sort,
    limit: Option<u64>,
    input: Stream<'_, E>,
    run: &Run,
) -> Result<Stream<'a, E>, E> {
    let count = limit
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX);
    let mut kept = TopK::new(count);
    let mut memory = Memory::new(run, too_large);
    let mut key_bytes = 0;
    for document in input {
        let document = document?;
        let key = memory.sort_key(sort, &document)?;
        if !kept.takes(&key) {
            memory.give_back(key.capacity());
            continue;
        }
        let growth = kept.growth();
        memory.count(key.len() + document.as_bytes().len())?;
        memory.give_back(key.capacity());
        memory.take(item_bytes(&key, &document) + block_bytes(growth.new_bytes))?;
        key_bytes += block_bytes(key.capacity());
        let dropped = kept.push(key, compact_document(document));
        memory.give_back(block_bytes(growth.old_bytes));
        if let Some((key, document)) = dropped {
            memory.discount(key.len() + document.as_bytes().len());
            memory.give_back(item_bytes(&key, &document));
            key_bytes -= block_bytes(key.capacity());
        }
    }
    let documents = kept.into_sorted();
    memory.give_back(key_bytes);
    Ok(holding(documents, memory))
}

/// Returns the heap bytes of a key and its document.
fn item_bytes(key: &SortKey, document: &RawDocument) -> usize {
    block_bytes(key.capacity()) + document_bytes(document)
}

fn too_large(bytes_max: usize) -> Error {
    Error::new(
        Code::QueryExceededMemoryLimitNoDiskUseAllowed,
        format!(
            "Sort exceeded memory limit of {bytes_max} bytes, but did not opt in to external sorting. Aborting operation: raise --documents-stage-memory-bytes-max, or set a limit."
        ),
    )
}
