//! The servers of this process. Each data model has its own folder, with its protocol and commands. So far, documents
//! are the only data model. All servers share the limit on connections.

pub mod documents;
mod places;
