//! The doors (a door is a data model with its protocol and commands), one folder each. All share the limit on
//! connections.

pub mod documents;
mod places;
