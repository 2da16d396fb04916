//! Movement of bytes between tiers: files, pageable and pinned host memory, and the memory of devices.
#![deny(unsafe_code)]
