//! Searches through the cache of field values return the same answers as a scan, during writes and device changes.

mod differential;
mod explain;
mod generate;
mod restart;
mod storm;
mod support;
