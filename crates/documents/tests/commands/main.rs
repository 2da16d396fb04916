//! Tests of commands, which pass documents in and out without a network.

mod access;
mod aggregate;
mod basics;
mod concurrency;
mod crud;
mod cursors;
mod door;
mod durability;
mod errors;
mod explain;
mod indexes;
mod lifecycle;
mod modify;
mod retries;
