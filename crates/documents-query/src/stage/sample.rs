//! `$sample`: a uniform random sample of documents.

use bson::raw::RawDocumentBuf;

use super::memory::{Memory, compact_document, document_bytes, holding};
use super::{Run, Stream};
use crate::error::{Code, Error};

/// Reservoir sampling: the n-th document replaces a random kept document with probability `size`/n.
pub(super) fn run<'a, E: From<Error> + Send + 'a>(
    size: u64,
    input: Stream<'_, E>,
    run: &Run,
) -> Result<Stream<'a, E>, E> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let mut random = fastrand::Rng::with_seed(run.seed);
    let mut kept: Vec<RawDocumentBuf> = Vec::new();
    let mut memory = Memory::new(run, too_large);
    for (seen, document) in input.enumerate() {
        let document = document?;
        let place = if kept.len() < size {
            kept.len()
        } else {
            random.usize(..=seen)
        };
        if place >= size {
            continue;
        }
        memory.count(document.as_bytes().len())?;
        memory.take(document_bytes(&document))?;
        let document = compact_document(document);
        match kept.get_mut(place) {
            Some(slot) => {
                memory.discount(slot.as_bytes().len());
                memory.give_back(document_bytes(slot));
                *slot = document;
            }
            None => {
                memory.reserve(&mut kept)?;
                kept.push(document);
            }
        }
    }
    random.shuffle(&mut kept);
    Ok(holding(kept, memory))
}

fn too_large(_: usize) -> Error {
    let message = "Exceeded memory limit for $sample: raise --documents-stage-memory-bytes-max";
    Error::new(Code::QueryExceededMemoryLimitNoDiskUseAllowed, message)
}
