//! Movement of bytes between tiers: files, pageable and pinned host memory, and the memory of devices.
#![deny(unsafe_code)]

mod checksum;
mod error;
mod kernels;
pub mod measure;
pub mod method;
pub mod pick;
pub mod ring;
mod scatter;
pub mod storage;
mod tier;

pub use checksum::{checksum, part_checksum};
pub use error::MoveError;
pub use kernels::{Total, has_bulk, kernels};
pub use ring::{
    Chunk, Consumer, Feed, Pageable, PinnedSource, RingOptions, RingReport, Slot, Slots, Source,
    StagingRing, Unread,
};
pub use scatter::{Piece, scatter};
pub use tier::Tier;
