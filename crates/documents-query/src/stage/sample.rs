//! `$sample`: a uniform random sample of documents.

use bson::raw::RawDocumentBuf;
use forebay_memory::Share;

use super::{Run, Stream};
use crate::error::{Code, Error};
use crate::sort::ALLOCATION_BYTES;

/// Memory of a document besides its bytes.
const DOCUMENT_BYTES: usize = size_of::<RawDocumentBuf>() + ALLOCATION_BYTES;

/// Reservoir sampling: the n-th document replaces a random kept document with probability `size`/n.
pub(super) fn run<E: From<Error>>(
    size: u64,
    input: Stream<'_, E>,
    run: &Run,
    held: &Share,
) -> Result<Vec<RawDocumentBuf>, E> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let mut random = fastrand::Rng::with_seed(run.seed);
    let (mut kept, mut bytes) = (Vec::new(), 0);
    for (seen, document) in input.enumerate() {
        let document = document?;
        if kept.len() < size {
            bytes += document.as_bytes().len();
            kept.push(document);
        } else {
            let place = random.usize(..=seen);
            if let Some(slot) = kept.get_mut(place) {
                bytes = bytes + document.as_bytes().len() - slot.as_bytes().len();
                *slot = document;
            }
        }
        if bytes > run.limits.stage_memory_bytes_max {
            let message =
                "Exceeded memory limit for $sample: raise --documents-stage-memory-bytes-max";
            return Err(Error::new(Code::QueryExceededMemoryLimitNoDiskUseAllowed, message).into());
        }
        let memory_bytes = bytes + kept.len() * DOCUMENT_BYTES;
        held.try_cover(memory_bytes).map_err(Error::from)?;
    }
    random.shuffle(&mut kept);
    Ok(kept)
}
