//! Movement of bytes between tiers: files, pageable and pinned host memory, and the memory of devices.
#![deny(unsafe_code)]

mod error;
pub mod ring;

pub use error::MoveError;
pub use ring::{
    Chunk, Consumer, Feed, Pageable, PinnedSource, RingOptions, RingReport, Slot, Slots, Source,
    StagingRing, Unread,
};
