//! Which device holds which shard.
//!
//! A [`Placement`] knows ids, loads and weights, no bytes. A device's weight says how much it does in a given time, so
//! a device with twice the weight gets twice the load. Every shard draws two devices at random, each with a chance in
//! proportion to its weight, and takes the one whose load by weight would be lower (power of two choices). That keeps
//! each device within a few shards of its share, where a single draw strays by the square root of it. A device that
//! joins takes its share of the load from the fullest devices; the shards of a device that leaves draw again. The same
//! seed and the same calls give the same placement.
//!
//! # Examples
//! ```
//! use forebay_placement::{Placement, ShardId};
//!
//! let mut placement = Placement::new(1);
//! placement.join("gpu", 600);
//! placement.join("core", 1);
//! for shard in 0..601 {
//!     placement.draw(ShardId(shard), 1, &[]);
//! }
//! assert_eq!((placement.load_on("gpu"), placement.load_on("core")), (600, 1));
//! ```
//!
//! # Sources
//! Morishima & Matsutani, DistGPU Cache, section 3.4; Mitzenmacher, The Power of Two Choices; Berenbrink, Brinkmann,
//! Friedetzky & Nagel, Balls into Non-uniform Bins (chances in proportion to capacity).
#![forbid(unsafe_code)]

mod placement;

pub use placement::{Move, Placement, ShardId};
