//! The doors: one folder for each protocol. All share the limit on connections.

pub mod documents;
mod places;
