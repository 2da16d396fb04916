//! The GPU of a run: the query over row groups in device memory and in host memory.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use forebay_device::cuda::{
    DeviceMemory, DevicePointer, DeviceView, Event, HostRegistration, Pinned, Priority,
    RegisteredPart, Transfer, gpus,
};
use forebay_device::{AlignedBytes, Device, DeviceOptions, Devices, JobError};
use forebay_movement::Total;
use forebay_movement::method::run_on_device;

use super::kernels::Entry;
use super::launch;
use super::table::GROUP_BYTES;

/// Bytes of pinned memory of a device: the largest ring.
const PINNED_BYTES: u64 = 512 << 20;
/// Bytes of device memory of a smoke run.
const SMOKE_BYTES: u64 = 2 << 30;
/// Bytes of a copy when a table is loaded into device memory.
const LOAD_BYTES: usize = 64 << 20;

/// Starts the first GPU; `None` if this machine has none. A smoke run takes little of its memory.
///
/// # Errors
/// If there is a GPU but it does not start.
pub(super) fn start(smoke: bool) -> Result<Option<Devices>> {
    if gpus().is_err() {
        return Ok(None);
    }
    let options = DeviceOptions {
        cuda_memory_budget_bytes: smoke.then_some(SMOKE_BYTES),
        pinned_pool_bytes: PINNED_BYTES,
        ..DeviceOptions::default()
    };
    Ok(Some(Devices::new(&"cuda:0".parse()?, options)?))
}

/// Row groups that a kernel can read.
#[derive(Clone, Debug)]
pub(super) enum Resident {
    /// In device memory.
    Device(Arc<DeviceMemory>),
    /// In host memory of this process, which is pinned.
    Host(Arc<HostRegistration<AlignedBytes>>),
    /// In host memory that the driver allocated, pinned.
    Allocated(Arc<Pinned>),
}

impl Resident {
    /// Returns the address of the row groups.
    pub(super) fn words(&self) -> DevicePointer<u32> {
        match self {
            Resident::Device(memory) => DevicePointer::new(memory.address()),
            Resident::Host(memory) => memory.device_pointer(),
            Resident::Allocated(memory) => {
                DevicePointer::new(memory.device_pointer::<u32>().address())
            }
        }
    }

    /// Returns the number of row groups.
    pub(super) fn groups(&self) -> u64 {
        let bytes = match self {
            Resident::Device(memory) => memory.bytes(),
            Resident::Host(memory) => memory.len() as u64,
            Resident::Allocated(memory) => memory.len() as u64,
        };
        bytes / GROUP_BYTES as u64
    }
}

/// Copies pinned row groups to device memory by the copy engine. Returns the memory and the time of the copies on the
/// device.
///
/// # Errors
/// If device memory is too small, or the device is lost.
pub(super) fn load(
    device: &Device,
    groups: &Arc<HostRegistration<AlignedBytes>>,
) -> Result<(Arc<DeviceMemory>, Duration)> {
    let groups = Arc::clone(groups);
    Ok(run_on_device(device, move |cuda| {
        let memory = Arc::new(cuda.allocate(groups.len() as u64)?);
        let stream = cuda.stream(Priority::Normal)?;
        let (began, ended) = (cuda.event()?, cuda.event()?);
        let mut in_flight = Vec::new();
        cuda.record(&began, &stream)?;
        for begin in (0..groups.len()).step_by(LOAD_BYTES) {
            let range = begin..(begin + LOAD_BYTES).min(groups.len());
            let to = DeviceView::of(&memory, range.clone());
            let part = RegisteredPart::new(&groups, range);
            in_flight.push(Transfer::begin(cuda, part, to, &stream)?);
        }
        cuda.record(&ended, &stream)?;
        cuda.synchronize(&stream)?;
        Ok((memory, duration(&began, &ended)?))
    })?)
}

/// Returns the time on the device between two events that are done.
pub(super) fn duration(began: &Event, ended: &Event) -> Result<Duration, JobError> {
    let ms = ended.elapsed_ms(began)?;
    Ok(Duration::from_secs_f64(f64::from(ms) / 1e3))
}

/// Sum of a kernel, and its time on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    /// What the kernel added up.
    pub(super) sum: u64,
    /// Time on the device.
    pub(super) took: Duration,
}

/// Runs a kernel once over row groups, on at most `blocks` blocks. Blocks the calling thread.
///
/// # Errors
/// If the kernel fails, or the device is lost.
pub(super) fn run(
    device: &Device,
    entry: Entry,
    groups: &Resident,
    blocks: Option<u64>,
) -> Result<Timed> {
    let groups = groups.clone();
    Ok(run_on_device(device, move |cuda| {
        let stream = cuda.stream(Priority::Normal)?;
        let total = Total::zero(cuda, &stream)?;
        Ok(Timed {
            took: launch::run(cuda, entry, (&groups, blocks), &total, &stream)?,
            sum: total.read(cuda, &stream)?,
        })
    })?)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::q6::table::{Row, encode};
    use crate::q6::{cpu, table};

    /// Returns the first GPU. Without one, prints that the test is skipped, or panics if `FOREBAY_REQUIRE_GPU=1`.
    pub(crate) fn gpu() -> Option<Arc<Device>> {
        if let Err(error) = gpus() {
            let required =
                std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
            assert!(!required, "{error}");
            println!("skipped: no GPU");
            return None;
        }
        let options = DeviceOptions {
            cuda_memory_budget_bytes: Some(256 << 20),
            pinned_pool_bytes: 8 << 20,
            ..DeviceOptions::default()
        };
        let devices = Devices::new(&"cuda:0".parse().expect("a device"), options);
        devices.expect("the GPU starts").list().into_iter().next()
    }

    /// Returns row groups of random rows near the query's limits.
    pub(crate) fn random(groups: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(groups as u64);
        let begin = table::SHIP_BEGIN;
        let rows = (0..groups * table::GROUP_ROWS).map(|_| Row {
            ship_date: random.i32(begin - 200..begin + 600),
            discount: random.i32(0..11),
            quantity: random.i32(1..51),
            price: random.i32(0..table::PRICE_CENTS_END as i32),
        });
        let mut bytes = Vec::new();
        encode(&rows.collect::<Vec<_>>(), &mut bytes);
        bytes
    }

    /// Returns the sum of all 32-bit words.
    fn words(bytes: &[u8]) -> u64 {
        let words = bytes.as_chunks::<4>().0.iter();
        words.map(|word| u64::from(u32::from_le_bytes(*word))).sum()
    }

    #[test]
    fn kernels_give_the_answer_of_the_cpu_from_both_memories() {
        let Some(device) = gpu() else { return };
        for count in [1, 2, 3, 5, 263, 264, 265, 1500] {
            let bytes = random(count);
            let (answer, sum) = (cpu::sum(&bytes), words(&bytes));
            assert!(answer > 0);
            let mut host = AlignedBytes::zeroed(bytes.len());
            host.copy_from_slice(&bytes);
            let host = device.register(host).map_err(|(_, error)| error);
            let host = Arc::new(host.expect("the memory can be pinned"));
            let on_device = Resident::Device(load(&device, &host).expect("it fits").0);
            let mut pinned = device.pinned(host.len()).expect("the memory can be pinned");
            pinned.copy_from_slice(&host);
            let allocated = Resident::Allocated(Arc::new(pinned));
            for (resident, blocks) in [
                (on_device, None),
                (Resident::Host(host), Some(3)),
                (allocated, Some(1)),
            ] {
                for entry in [Entry::Query, Entry::Bulk, Entry::Read] {
                    let arch = device.details().expect("a GPU").arch;
                    if !entry.runs_on(arch) {
                        continue;
                    }
                    let timed = run(&device, entry, &resident, blocks).expect("the kernel runs");
                    let expected = if entry == Entry::Read { sum } else { answer };
                    assert_eq!(timed.sum, expected, "{entry:?} over {count} groups");
                    assert!(timed.took > Duration::ZERO);
                }
            }
        }
    }

    #[test]
    fn a_table_beyond_device_memory_is_an_error_that_says_so() {
        let Some(device) = gpu() else { return };
        let host = device
            .register(AlignedBytes::zeroed(300 << 20))
            .map_err(|(_, error)| error);
        let host = Arc::new(host.expect("the memory can be pinned"));
        let error = load(&device, &host).expect_err("the budget is smaller");
        assert!(error.to_string().contains("are needed"), "{error}");
    }
}
