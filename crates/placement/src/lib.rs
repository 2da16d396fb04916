//! Which device holds which bucket.
//!
//! A [`Placement`] knows ids and loads, no bytes. Every bucket draws two devices at random and takes the less loaded one
//! (power of two choices), which keeps the fullest device within a few buckets of the mean where a single draw strays by
//! the square root of it. A device that joins takes `b / G` of all `b` buckets; the buckets of one that leaves draw anew.
//! The same seed and the same calls give the same placement.
//!
//! # Sources
//! Morishima & Matsutani, DistGPU Cache, section 3.4; Mitzenmacher, The Power of Two Choices.
#![forbid(unsafe_code)]

mod placement;

pub use placement::{BucketId, Home, Move, Placement};
