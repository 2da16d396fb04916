//! Tests through the Rust driver, in one binary: the driver's generic code takes longer to compile than the tests.

mod access;
mod authentication;
mod change_streams;
mod durability;
mod ids;
#[path = "../raw/mod.rs"]
mod raw;
mod replica_set;
mod rust_driver;
mod status;
mod storm;
mod upstream;
mod upstream_caches;
mod upstream_streams;
