//! The commands, run as a door runs them: documents in, documents out.

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
