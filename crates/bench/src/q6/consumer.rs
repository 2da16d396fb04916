//! The query as the consumer of a staging ring: each chunk is some row groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use forebay_device::{Device, DeviceKind};
use forebay_movement::Total;
use forebay_movement::method::run_on_device;

use super::kernels::Entry;

/// Adds up the answers of chunks, on a GPU or on the CPU. Its work on chunks is in `launch`, as it launches kernels.
pub(super) struct Query {
    /// The sum on the GPU; `None` on the CPU.
    pub(super) total: Option<Total>,
    /// The sum on the CPU.
    pub(super) sum: AtomicU64,
    /// How many times the kernel runs over each chunk.
    pub(super) repeats: u64,
}

impl Query {
    /// Returns a consumer for a device, whose kernel runs `repeats` times over each chunk. Compiles the kernel.
    ///
    /// # Errors
    /// If the device is lost, or the kernel does not compile.
    pub(super) fn new(device: &Device, repeats: u64) -> Result<Arc<Query>> {
        let total = match device.kind() {
            DeviceKind::Cuda => Some(run_on_device(device, |cuda| {
                Entry::Query.load(cuda)?;
                let stream = cuda.uploads().clone();
                Total::zero(cuda, &stream)
            })?),
            _ => None,
        };
        Ok(Arc::new(Query {
            total,
            sum: AtomicU64::new(0),
            repeats,
        }))
    }

    /// Returns the answer of all chunks. All work must be done.
    ///
    /// # Errors
    /// If the device is lost, or the repeated kernel gave different answers.
    pub(super) fn answer(self: &Arc<Self>, device: &Device) -> Result<u64> {
        let sum = if self.total.is_some() {
            let query = Arc::clone(self);
            run_on_device(device, move |cuda| {
                let stream = cuda.downloads().clone();
                query
                    .total
                    .as_ref()
                    .map_or(Ok(0), |total| total.read(cuda, &stream))
            })?
        } else {
            self.sum.load(Ordering::Relaxed)
        };
        ensure!(
            sum.is_multiple_of(self.repeats),
            "{} runs of the kernel add up to {sum}, so they gave different answers; this is a bug",
            self.repeats
        );
        Ok(sum / self.repeats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::q6::cpu;
    use crate::q6::gpu::tests::{gpu, random};
    use crate::q6::table::{DISCOUNT_MAX, GROUP_BYTES, GROUP_ROWS, Row, SHIP_BEGIN, encode};
    use forebay_cancel::Stop;
    use forebay_device::{DeviceOptions, Devices};
    use forebay_movement::{Pageable, PinnedSource, RingOptions, StagingRing};

    #[test]
    fn a_ring_on_the_cpu_gives_the_answer() {
        let rows: Vec<Row> = (0..9 * GROUP_ROWS as i32)
            .map(|price| Row {
                ship_date: SHIP_BEGIN,
                discount: DISCOUNT_MAX,
                quantity: 1,
                price,
            })
            .collect();
        let mut bytes = Vec::new();
        encode(&rows, &mut bytes);
        let spec = "host:1".parse().expect("a device");
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("a host device");
        let device = devices.list().remove(0);
        for (slots, groups, repeats) in [(1, 1, 1), (3, 2, 1), (4, 4, 3)] {
            let options = RingOptions {
                slots,
                slot_bytes: groups * GROUP_BYTES,
            };
            let mut ring = StagingRing::lease(&device, options).expect("memory");
            let query = Query::new(&device, repeats).expect("no kernel");
            let source = Pageable {
                bytes: &bytes,
                threads: 2,
            };
            let report = ring.run(&source, &query, &Stop::never()).expect("it runs");
            assert_eq!(report.chunks, 9_u64.div_ceil(groups as u64));
            assert_eq!(
                query.answer(&device).expect("a host device"),
                cpu::sum(&bytes)
            );
        }
    }
    #[test]
    fn repeats_that_differ_are_an_error() {
        let query = |sum| {
            Arc::new(Query {
                total: None,
                sum: AtomicU64::new(sum),
                repeats: 3,
            })
        };
        let spec = "host:1".parse().expect("a device");
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("a host device");
        let device = devices.list().remove(0);
        assert_eq!(query(9).answer(&device).expect("three times 3"), 3);
        let error = query(10).answer(&device).expect_err("no multiple of 3");
        assert!(error.to_string().contains("different answers"), "{error}");
    }

    #[test]
    fn a_ring_on_a_gpu_gives_the_answer() {
        let Some(device) = gpu() else { return };
        let bytes = random(37);
        let answer = cpu::sum(&bytes);
        let pinned = device.register(bytes).map_err(|(_, error)| error);
        let source = PinnedSource {
            bytes: Arc::new(pinned.expect("the memory can be pinned")),
        };
        for (slots, groups, repeats) in [(1, 1, 1), (3, 8, 1), (4, 5, 3)] {
            let options = RingOptions {
                slots,
                slot_bytes: groups * GROUP_BYTES,
            };
            let mut ring = StagingRing::lease(&device, options).expect("memory");
            for _ in 0..2 {
                let query = Query::new(&device, repeats).expect("the kernel compiles");
                ring.run(&source, &query, &Stop::never()).expect("it runs");
                assert_eq!(query.answer(&device).expect("a GPU"), answer);
            }
        }
    }
}
