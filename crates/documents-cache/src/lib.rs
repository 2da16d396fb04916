//! The cache of field values, which answers searches over cached fields.
//!
//! A [`Cache`] holds a [`CollectionCache`] for each collection that declares cached fields. A field's values are in
//! *buckets*: a bucket covers a range of values and holds immutable segments sorted by value, so that exact and prefix
//! searches are binary searches in few buckets. Each bucket has a prefix length that is large enough to tell its values
//! from those of neighbouring buckets. Each bucket belongs to a device, which scans it for substrings and regular
//! expressions. Recent writes are in a *delta*, which every search also covers, until a background flush sorts them
//! into the buckets.
//!
//! A search works on a snapshot, which costs a few reference counts. Writes, flushes, splits, merges and moves of
//! buckets between devices run concurrently, and the search sees each row exactly once.
//!
//! # Examples
//! ```
//! use std::sync::Arc;
//!
//! use forebay_documents_cache::{Cache, CacheSettings, Expr, FieldValue, Predicate, SearchRequest, Want};
//! use forebay_device::{DeviceOptions, Devices};
//! use forebay_cancel::Stop;
//! use forebay_text::Program;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let devices = Devices::new(&"host:2".parse()?, DeviceOptions::default())?;
//! let cache = Cache::new(Arc::new(devices), CacheSettings::default());
//! let names = cache.declare("shop.names", &["name"]);
//! names.insert(1, &[FieldValue::String(b"react")])?;
//! names.insert(2, &[FieldValue::String(b"preact")])?;
//! names.insert(3, &[FieldValue::Missing])?;
//! let predicate = Predicate::Program(Arc::new(Program::substring("react")));
//! let request = SearchRequest {
//!     expr: Expr::Leaf { field: 0, predicate },
//!     want: Want::Numbers { limit: None },
//!     stop: Stop::never(),
//! };
//! let answer = names.search(request).await?;
//! assert_eq!(answer.numbers.iter().collect::<Vec<_>>(), [1, 2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Sources
//! Morishima & Matsutani, DistGPU Cache, section 3: blocks, buckets, Algorithm 1, schema-less data, placement. It calls
//! a prefix of a value a *hash*.
#![forbid(unsafe_code)]

mod answer;
mod batch;
mod block;
mod bucket;
mod cache;
mod collection;
mod directory;
mod error;
mod field;
mod gpu;
mod maintain;
mod numbers;
mod owners;
mod request;
mod search;
mod segment;
mod settings;
mod sort;
mod stats;
mod value;

pub use answer::{
    DeviceReport, HostReport, LeafReport, SearchAnswer, SearchReport, ValueCount, ValueCounts,
};
pub use batch::Batch;
pub use cache::Cache;
pub use collection::CollectionCache;
pub use error::{CacheError, SearchError};
pub use request::{Expr, Predicate, SearchRequest, Want};
pub use settings::CacheSettings;
pub use stats::{BucketStats, BucketSummary, FieldStats};
pub use value::FieldValue;
