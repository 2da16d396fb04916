//! Reads replies to commands.

use bson::{RawDocument, Timestamp};

/// Returns whether this is the reply to a command that succeeded.
pub fn succeeded(reply: &RawDocument) -> bool {
    match reply.get("ok") {
        Ok(Some(ok)) => {
            ok.as_f64() == Some(1.0) || ok.as_i32() == Some(1) || ok.as_i64() == Some(1)
        }
        _ => false,
    }
}

/// Returns the error message of a reply.
pub fn message(reply: &RawDocument) -> String {
    reply
        .get_str("errmsg")
        .unwrap_or("no reason was given")
        .to_owned()
}

/// Returns the documents of the first batch in a reply.
pub fn first_batch(reply: &RawDocument) -> impl Iterator<Item = &RawDocument> {
    let batch = reply
        .get_document("cursor")
        .and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = batch
        .ok()
        .into_iter()
        .flat_map(|batch| batch.into_iter().flatten());
    batch.filter_map(|document| document.as_document())
}

/// Returns the value of a numeric field, of any BSON number type.
pub fn number(document: &RawDocument, name: &str) -> Option<f64> {
    let number = document.get(name).ok().flatten()?;
    let small = number.as_i32().map(f64::from).or(number.as_f64());
    small.or(number.as_i64().map(|number| number as f64))
}

/// Returns the `operationTime` of a reply: the cluster time at which the upstream ran the command.
pub fn operation_time(reply: &RawDocument) -> Option<u64> {
    let time = reply.get_timestamp("operationTime").ok()?;
    Some(u64::from(time.time) << 32 | u64::from(time.increment))
}

/// Converts a cluster time to the BSON type that commands use.
pub fn timestamp(at: u64) -> Timestamp {
    Timestamp {
        time: (at >> 32) as u32,
        increment: at as u32,
    }
}
