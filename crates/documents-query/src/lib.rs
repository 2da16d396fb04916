//! MongoDB's query language as pure functions over raw BSON.
//!
//! The crate knows documents, not storage: filters, projections, sorts, updates and aggregation stages are parsed from
//! BSON, checked by MongoDB's rules, and applied to one document (or a stream of documents) at a time. Documents are
//! read in place, element by element; matching deserialises nothing.
//!
//! - [`Filter`] parses and matches a query; its tree ([`filter::Node`]) is public for planners.
//! - [`compare()`] orders BSON values across types. [`key`] encodes values as bytes with the same order.
//! - [`Path`] follows dotted names through arrays.
//! - [`Projection`], [`Sort`] and [`Update`] reshape, order and change documents; [`timestamp`] fills in the server's
//!   time.
//! - [`Pipeline`] runs aggregation stages over a stream of documents; [`Expression`] evaluates their expressions.
//!
//! Features that MongoDB supports and this crate does not are refused with MongoDB's error code and wording, never
//! ignored.

#![forbid(unsafe_code)]

pub mod compare;
pub mod decimal;
pub mod display;
pub mod element;
pub mod error;
pub mod expr;
pub mod filter;
pub mod key;
pub mod limits;
pub mod number;
pub mod path;
pub mod projection;
pub mod sort;
pub mod stage;
pub mod timestamp;
pub mod update;
mod work;
mod writer;

pub use compare::compare;
pub use error::{Code, Error};
pub use expr::{Expression, Scope, Variables};
pub use filter::{Filter, pattern_error};

pub use limits::Limits;
pub use path::Path;
pub use projection::{Projection, ProjectionContext};
pub use sort::{Sort, TopK};
pub use stage::{Pipeline, Stage};
pub use update::{Update, UpdateContext};
