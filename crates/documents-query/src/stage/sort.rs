//! `$sort`: sorts all documents in memory, or keeps only the first ones if there is a limit.

use bson::raw::RawDocumentBuf;
use forebay_memory::Share;

use super::{Run, Stream};
use crate::error::{Code, Error};
use crate::sort::{Sort, TopK};

pub(super) fn run<E: From<Error>>(
    sort: &Sort,
    limit: Option<u64>,
    input: Stream<'_, E>,
    run: &Run,
    held: &Share,
) -> Result<Vec<RawDocumentBuf>, E> {
    let count = limit
        .and_then(|limit| usize::try_from(limit).ok())
        .unwrap_or(usize::MAX);
    let mut kept = TopK::new(count);
    let mut bytes = 0;
    for document in input {
        let document = document?;
        let key = sort.key(&document);
        if !kept.takes(&key) {
            continue;
        }
        // A displaced document also frees its key. The size of that key is not known, but all keys of a sort have about
        // the size of the new key.
        let key_bytes = key.len();
        bytes += document.as_bytes().len() + key_bytes;
        if let Some(dropped) = kept.push(key, document) {
            bytes = bytes.saturating_sub(dropped.as_bytes().len() + key_bytes);
        }
        check_memory(bytes, run.limits.stage_memory_bytes_max)?;
        let memory_bytes = bytes + kept.len() * TopK::<RawDocumentBuf>::ITEM_BYTES;
        held.try_cover(memory_bytes).map_err(Error::from)?;
    }
    Ok(kept.into_sorted())
}

fn check_memory(bytes: usize, bytes_max: usize) -> Result<(), Error> {
    match bytes > bytes_max {
        true => Err(Error::new(
            Code::QueryExceededMemoryLimitNoDiskUseAllowed,
            format!(
                "Sort exceeded memory limit of {bytes_max} bytes, but did not opt in to external sorting. Aborting operation: raise --documents-stage-memory-bytes-max, or set a limit."
            ),
        )),
        false => Ok(()),
    }
}
