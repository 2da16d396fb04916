//! The servers of this process. Each data model has its own folder, with its protocol and commands; the only data model
//! is documents. All servers share the limit on connections.

pub mod documents;
mod places;
