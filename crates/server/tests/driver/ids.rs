//! The documents that a search finds.

use anyhow::Result;
use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;

/// Returns the `_id`s of the documents that match, in order.
pub async fn matching_ids(collection: &Collection<Document>, filter: Document) -> Result<Vec<i32>> {
    let found = collection
        .find(filter)
        .projection(doc! { "_id": 1 })
        .await?;
    let documents: Vec<Document> = found.try_collect().await?;
    let mut ids = documents
        .iter()
        .map(|document| document.get_i32("_id"))
        .collect::<Result<Vec<_>, _>>()?;
    ids.sort_unstable();
    Ok(ids)
}
