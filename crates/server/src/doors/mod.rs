//! The servers of this process, each with its protocol: documents (MongoDB's), and tables (PostgreSQL's, and
//! Flight SQL). They share
//! users, TLS, and the limit on connections.

pub mod documents;
mod places;
#[cfg(feature = "tables")]
pub mod tables;
#[cfg(not(feature = "tables"))]
#[path = "tables/left_out.rs"]
pub mod tables;
