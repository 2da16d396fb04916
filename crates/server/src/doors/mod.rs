//! The doors: each protocol has a folder, and all share the places for connections.

pub mod documents;
mod places;
