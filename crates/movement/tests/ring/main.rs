//! The staging ring on a host device; with a GPU, on that too.

#[path = "../common/mod.rs"]
mod common;
mod gpu;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_cancel::Stop;
use forebay_device::cuda::{Cuda, DeviceView, Stream};
use forebay_device::{Device, DeviceOptions, Devices, JobError};
use forebay_movement::{
    Chunk, Consumer, Feed, MoveError, Pageable, RingOptions, Slots, Source, StagingRing, Unread,
};

/// Sums the bytes of all chunks, each multiplied by its offset plus one, so that a byte at a wrong offset is found.
#[derive(Default)]
struct Sum {
    sum: AtomicU64,
    bytes: AtomicU64,
    /// Fails the chunk that holds this offset.
    fails_at: Option<u64>,
    panics: bool,
}

impl Consumer for Sum {
    fn enqueue(
        &self,
        _: &mut Cuda,
        _: &Stream,
        _: Chunk,
        _: &DeviceView<u8>,
    ) -> Result<(), JobError> {
        Ok(())
    }

    fn process(&self, chunk: Chunk, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let range = chunk.offset..chunk.offset + bytes.len() as u64;
        if self.fails_at.is_some_and(|at| range.contains(&at)) {
            assert!(!self.panics, "as the test wants");
            return Err("the consumer refuses".into());
        }
        self.sum
            .fetch_add(weighed(chunk.offset, bytes), Ordering::Relaxed);
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

fn weighed(offset: u64, bytes: &[u8]) -> u64 {
    let terms = bytes.iter().zip(offset + 1..);
    terms.fold(0, |sum, (&byte, weight)| {
        sum.wrapping_add(u64::from(byte) * weight)
    })
}

/// Bytes that differ from offset to offset.
fn bytes(count: usize) -> Vec<u8> {
    (0..count as u64).map(|at| (at * at / 7) as u8).collect()
}

fn host() -> (Devices, Arc<Device>) {
    let spec = "host:1".parse().expect("a valid specification");
    let devices = Devices::new(&spec, DeviceOptions::default()).expect("host devices start");
    let device = devices.list().remove(0);
    (devices, device)
}

fn ring(device: &Arc<Device>, slots: usize) -> StagingRing {
    let options = RingOptions {
        slots,
        slot_bytes: 4096,
    };
    StagingRing::lease(device, options).expect("memory")
}

/// A source whose first chunk is shorter by a lead, and which may fail.
struct Tricky<'a> {
    bytes: &'a [u8],
    lead: usize,
    fails_at: Option<u64>,
    panics: bool,
    stop: Option<(u64, Arc<AtomicBool>)>,
}

impl Source for Tricky<'_> {
    fn name(&self) -> String {
        "tricky".to_owned()
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn lead_bytes(&self) -> usize {
        self.lead
    }

    fn threads(&self) -> usize {
        3
    }

    fn fill(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        while let Some(mut slot) = slots.next() {
            let Chunk { offset, bytes, .. } = slot.chunk();
            if self.fails_at.is_some_and(|at| offset >= at) {
                assert!(!self.panics, "as the test wants");
                let why = "cannot be read; try another disk".into();
                return Err(Unread { offset, why });
            }
            if let Some((at, cancelled)) = &self.stop
                && offset >= *at
            {
                cancelled.store(true, Ordering::Relaxed);
            }
            let begin = if slot.chunk().index == 0 {
                self.lead
            } else {
                0
            };
            let from = &self.bytes[offset as usize..offset as usize + bytes];
            slot.host()[begin..begin + bytes].copy_from_slice(from);
            slots.filled(slot, Feed::Host(begin..begin + bytes));
        }
        Ok(())
    }
}

fn tricky(bytes: &[u8]) -> Tricky<'_> {
    Tricky {
        bytes,
        lead: 0,
        fails_at: None,
        panics: false,
        stop: None,
    }
}

#[test]
fn every_byte_arrives_once_at_its_offset() {
    let (_devices, device) = host();
    for (count, slots, lead) in [
        (0, 1, 0),
        (1, 1, 4095),
        (4096, 1, 0),
        (100_000, 1, 77),
        (100_000, 5, 0),
    ] {
        let data = bytes(count);
        let source = Tricky {
            lead,
            ..tricky(&data)
        };
        let sum = Arc::new(Sum::default());
        let report = ring(&device, slots).run(&source, &sum, &Stop::never());
        let report = report.expect("the source can be read");
        assert_eq!(sum.bytes.load(Ordering::Relaxed), count as u64);
        assert_eq!(sum.sum.load(Ordering::Relaxed), weighed(0, &data));
        assert_eq!(
            (report.bytes, report.chunks),
            (
                count as u64,
                ((count + lead).div_ceil(4096) as u64).min(count as u64)
            )
        );
    }
}

#[test]
fn pageable_memory_is_a_source() {
    let (_devices, device) = host();
    let data = bytes(1_000_001);
    let source = Pageable {
        bytes: &data,
        threads: 4,
    };
    let sum = Arc::new(Sum::default());
    ring(&device, 3)
        .run(&source, &sum, &Stop::never())
        .expect("memory can be read");
    assert_eq!(sum.sum.load(Ordering::Relaxed), weighed(0, &data));
}

/// Moves a source that fails, then the same bytes with the same ring.
fn fails_then_works(source: &Tricky<'_>, sum: Sum, stop: &Stop) -> MoveError {
    let (_devices, device) = host();
    let mut ring = ring(&device, 4);
    let error = ring.run(source, &Arc::new(sum), stop);
    let error = error.expect_err("one stage fails");
    let sum = Arc::new(Sum::default());
    ring.run(&tricky(source.bytes), &sum, &Stop::never())
        .expect("the ring works again");
    assert_eq!(sum.sum.load(Ordering::Relaxed), weighed(0, source.bytes));
    error
}

#[test]
fn an_unreadable_source_is_named_with_its_offset() {
    let data = bytes(100_000);
    for panics in [false, true] {
        let source = Tricky {
            fails_at: Some(50_000),
            panics,
            ..tricky(&data)
        };
        let error = fails_then_works(&source, Sum::default(), &Stop::never()).to_string();
        // Three threads read: any of the chunks from 50,000 on may be the first to fail.
        let (begin, end) = match panics {
            true => ("tricky, at byte 0", "the reader panicked"),
            false => ("tricky, at byte ", "cannot be read; try another disk"),
        };
        assert!(error.starts_with(begin) && error.ends_with(end), "{error}");
    }
}

#[test]
fn a_consumer_that_fails_ends_the_move_once() {
    let data = bytes(100_000);
    for (panics, why) in [
        (false, "the consumer refuses"),
        (true, "the consumer panicked"),
    ] {
        let sum = Sum {
            fails_at: Some(9000),
            panics,
            ..Sum::default()
        };
        let error = fails_then_works(&tricky(&data), sum, &Stop::never()).to_string();
        assert_eq!(
            error,
            format!("the chunk at byte 8192 failed on device host:0: {why}")
        );
    }
}

#[test]
fn a_move_can_be_cancelled() {
    let data = bytes(100_000);
    let stop = Stop::never();
    let source = Tricky {
        stop: Some((30_000, Arc::clone(&stop.cancelled))),
        ..tricky(&data)
    };
    let error = fails_then_works(&source, Sum::default(), &stop);
    assert!(matches!(error, MoveError::Stopped(_)), "{error}");
}

/// What a wrong source does with its second chunk.
#[derive(Clone, Copy)]
enum Wrong {
    /// Drops the slot.
    Drops,
    /// Names more bytes than the chunk has.
    TooLong,
    /// Names bytes behind the slot's end.
    Outside,
}

struct WrongSource(Wrong);

impl Source for WrongSource {
    fn name(&self) -> String {
        "wrong".to_owned()
    }

    fn bytes(&self) -> u64 {
        20_000
    }

    fn threads(&self) -> usize {
        2
    }

    fn fill(&self, slots: &Slots<'_>) -> Result<(), Unread> {
        while let Some(slot) = slots.next() {
            let bytes = slot.chunk().bytes;
            match (slot.chunk().index, self.0) {
                (1, Wrong::Drops) => drop(slot),
                (1, Wrong::TooLong) => slots.filled(slot, Feed::Host(0..bytes - 1)),
                (1, Wrong::Outside) => slots.filled(slot, Feed::Host(4096..4096 + bytes)),
                _ => slots.filled(slot, Feed::Host(0..bytes)),
            }
        }
        Ok(())
    }
}

#[test]
fn a_chunk_that_is_left_out_or_of_another_length_is_an_error() {
    let (_devices, device) = host();
    let mut ring = ring(&device, 2);
    for (wrong, why) in [
        (Wrong::Drops, "the reader left chunks out"),
        (Wrong::TooLong, "the reader panicked"),
        (Wrong::Outside, "the reader panicked"),
    ] {
        let sum = Arc::new(Sum::default());
        let moved = ring.run(&WrongSource(wrong), &sum, &Stop::never());
        let error = moved.expect_err("a chunk is missing").to_string();
        assert!(error.ends_with(why), "{error}");
    }
}

#[test]
fn a_source_for_gpus_is_refused_on_a_host_device() {
    struct Direct;
    impl Source for Direct {
        fn name(&self) -> String {
            "direct".to_owned()
        }
        fn bytes(&self) -> u64 {
            100_000
        }
        fn threads(&self) -> usize {
            2
        }
        fn fill(&self, slots: &Slots<'_>) -> Result<(), Unread> {
            while let Some(slot) = slots.next() {
                slots.filled(slot, Feed::Device);
            }
            Ok(())
        }
    }
    let (_devices, device) = host();
    let moved = ring(&device, 2).run(&Direct, &Arc::new(Sum::default()), &Stop::never());
    let error = moved.expect_err("a host device has no device memory");
    assert!(error.to_string().contains("needs a GPU"), "{error}");
}
