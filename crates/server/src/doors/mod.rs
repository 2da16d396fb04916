//! The servers of this process, one folder for each data model (documents) with its protocol and commands. All share
//! the limit on connections.

pub mod documents;
mod places;
