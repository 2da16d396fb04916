//! Searches through the cache of field values give the same answers as a scan, during writes and changes of devices.

mod differential;
mod explain;
mod generate;
mod restart;
mod storm;
mod support;
