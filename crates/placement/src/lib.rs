//! Placement: the device that owns each shard.
//!
//! A [`Placement`] knows ids, loads and weights, but no data. A device's weight is its speed: a device with twice the
//! weight gets twice the load. For each shard, two devices are drawn at random, with probabilities proportional to
//! their weights. The owner is the one of the two that, with the shard, would have the lower load divided by weight
//! (power of two choices). Each device then stays within a few shards of its fair share. If only one device were drawn,
//! the difference would be about the square root of the fair share. A device that joins takes its share of the load
//! from the devices with the highest load. When a device leaves, new owners are drawn for its shards. The same seed and
//! the same calls produce the same placement.
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
//! Friedetzky & Nagel, Balls into Non-uniform Bins (probabilities proportional to capacity).
#![forbid(unsafe_code)]

mod placement;

pub use placement::{Move, Placement, ShardId};
