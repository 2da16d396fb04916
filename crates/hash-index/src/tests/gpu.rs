//! The kernels on a GPU.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_device::cuda::{Cuda, DeviceView, Part, Pinned, Transfer, gpus};
use forebay_device::{
    AlignedBytes, Class, Device, DeviceContext, DeviceOptions, Devices, HaltingDevices, Job,
    JobError, JobFailure, Step,
};

use super::cases::{Case, answered, columns, pair};
use super::check;
use crate::{
    Column, DeviceRows, HashIndex, HostRows, IndexBuilder, IndexError, JoinTotals, ProbeKeys, Side,
    TableMethod, TableShape, Totals, Width, Workload,
};

/// Held while a test has all memory of the card, and while another one takes its part.
static FULL: Mutex<()> = Mutex::new(());

/// Returns the first GPU. Without one, prints that the test is skipped, or panics if `FOREBAY_REQUIRE_GPU=1`.
pub(super) fn gpu() -> Option<(HaltingDevices, Arc<Device>)> {
    if let Err(error) = gpus() {
        let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        println!("skipped: no GPU");
        return None;
    }
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(512 << 20),
        pinned_pool_bytes: 1 << 20,
        ..DeviceOptions::default()
    };
    let _starting = FULL.lock().unwrap_or_else(PoisonError::into_inner);
    let devices = Devices::new(&"cuda:0".parse().expect("a device"), options);
    let devices = devices.expect("the GPU starts");
    let device = devices.list().remove(0);
    // Its thread ends before the process does.
    Some((devices.into(), device))
}

/// A job of one step, which runs a function.
struct Once<F>(Option<F>);

impl<F: FnOnce(&mut Cuda) + Send> Job for Once<F> {
    fn class(&self) -> Class {
        Class::Load
    }

    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        let cuda = context.parts().cuda.expect("a GPU");
        self.0.take().expect("one step")(cuda);
        Ok(Step::Done)
    }

    fn fail(&mut self, failure: &JobFailure) {
        println!("the job failed: {failure}");
    }
}

/// Runs a function on the thread of a device, and returns its result.
fn on<T: Send + 'static>(device: &Device, work: impl FnOnce(&mut Cuda) -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let work = move |cuda: &mut Cuda| sender.send(work(cuda)).expect("a receiver");
    device.submit(Box::new(Once(Some(work)))).expect("a device");
    receiver.recv().expect("the job runs")
}

/// Where the columns of a test are.
#[derive(Debug, Clone, Copy)]
enum Place {
    Device,
    /// Device memory at addresses that are no multiples of 16.
    Unaligned,
    Pinned,
}

fn to_device(cuda: &Cuda, bytes: &[u8], offset: usize) -> Column {
    let mut host: Pinned = cuda.host_buffer(bytes.len() + offset).expect("host memory");
    host[offset..].copy_from_slice(bytes);
    let buffer = cuda
        .buffer::<u8>(bytes.len() + offset)
        .expect("device memory");
    let copy = Transfer::begin(cuda, host, buffer.all(), cuda.uploads());
    copy.expect("a copy").finish().expect("it ends");
    Column::Device(buffer.view(offset..offset + bytes.len()))
}

fn pinned(device: &Device, bytes: &[u8]) -> Column {
    let mut memory = AlignedBytes::zeroed(bytes.len().max(1));
    memory[..bytes.len()].copy_from_slice(bytes);
    let registered = device.register(memory).map_err(|(_, error)| error);
    let registered = Arc::new(registered.expect("the memory can be pinned"));
    Column::Pinned(registered, 0..bytes.len())
}

/// Brings rows to where kernels read them.
fn place(device: &Device, rows: &[(u128, u64)], width: Width, place: Place) -> DeviceRows {
    let (keys, payloads) = columns(rows, width);
    let offset = match place {
        Place::Pinned => {
            return DeviceRows {
                keys: pinned(device, &keys),
                payloads: pinned(device, &payloads),
            };
        }
        Place::Unaligned => 8,
        Place::Device => 0,
    };
    on(device, move |cuda| DeviceRows {
        keys: to_device(cuda, &keys, offset),
        payloads: to_device(cuda, &payloads, offset),
    })
}

fn build(cuda: &mut Cuda, shape: TableShape, rows: &[DeviceRows]) -> Result<HashIndex, IndexError> {
    let stream = cuda.uploads().clone();
    let mut builder = IndexBuilder::new(cuda, shape, &stream)?;
    for rows in rows {
        builder.insert_async(cuda, rows)?;
    }
    builder.finish(cuda)
}

fn probe(cuda: &mut Cuda, index: &HashIndex, rows: &DeviceRows) -> Result<JoinTotals, IndexError> {
    let stream = cuda.downloads().clone();
    let totals = Totals::zero(cuda, &stream)?;
    let _probing = index.probe_async(cuda, rows, &totals, &stream)?;
    Ok(totals.read(cuda, &stream)?)
}

fn join(device: &Device, case: &Case, to: Place) -> Result<JoinTotals, IndexError> {
    let (shape, rows) = (case.shape, case.build.len() as u64);
    let build_rows = place(device, &case.build, shape.width(), to);
    let probe_rows = place(device, &case.probe, shape.width(), to);
    on(device, move |cuda| {
        let index = build(cuda, shape, &[build_rows])?;
        assert_eq!(index.rows(), rows);
        probe(cuda, &index, &probe_rows)
    })
}

#[test]
fn a_gpu_agrees_with_the_model() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    for to in [Place::Device, Place::Unaligned, Place::Pinned] {
        check(|case| join(&device, case, to));
    }
}

#[test]
fn a_copy_of_a_gpu_s_table_gives_the_same_matches_on_the_cpu() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let is_linear = |case: &Case| case.shape.method() == TableMethod::LinearProbing;
    for case in answered().into_iter().filter(is_linear) {
        let (shape, width) = (case.shape, case.shape.width());
        let build_rows = place(&device, &case.build, width, Place::Device);
        let bytes = shape.slot_bytes() as usize;
        let memory = device.register(AlignedBytes::zeroed(bytes));
        let memory = memory.map_err(|(_, error)| error);
        let mut parts = Part::divide(memory.expect("the memory can be pinned"), &[bytes]);
        let part = parts.swap_remove(0);
        let copy = on(&device, move |cuda| {
            let index = build(cuda, shape, &[build_rows]).expect("a table");
            let stream = cuda.downloads().clone();
            index.copy_async(cuda, part, &stream).expect("a copy")
        });
        let copy = copy.finish().expect("the copy ends");
        let (keys, payloads) = columns(&case.probe, width);
        let found = copy.probe_here(HostRows {
            keys: &keys,
            payloads: &payloads,
        });
        assert_eq!(found, case.answer(), "{}", case.name);
        parts.push(copy.into_memory());
        assert!(Part::join(parts).len() >= bytes);
    }
}

pub(super) fn generated(cuda: &mut Cuda, workload: &Workload, side: Side) -> DeviceRows {
    let column = |cuda: &Cuda, of_value: u64| -> DeviceView<u8> {
        let bytes = (workload.rows(side) * of_value) as usize;
        cuda.buffer::<u8>(bytes).expect("device memory").all()
    };
    let width = workload.width;
    let (keys, payloads) = (
        column(cuda, width.key_bytes()),
        column(cuda, width.payload_bytes()),
    );
    let stream = cuda.uploads().clone();
    let queued = workload.generate_async(
        cuda,
        (side, 0..workload.rows(side)),
        (&keys, &payloads),
        &stream,
    );
    drop(queued.expect("the kernel runs"));
    DeviceRows {
        keys: Column::Device(keys),
        payloads: Column::Device(payloads),
    }
}

#[test]
fn a_gpu_joins_generated_sides_with_every_table_while_all_threads_insert() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    for (width, build_rows, probe_keys) in [
        (Width::Four, 1_500_001, ProbeKeys::Uniform),
        (Width::Eight, 1 << 20, ProbeKeys::Uniform),
        (
            Width::Eight,
            1_500_001,
            ProbeKeys::Matching { thousandths: 300 },
        ),
        (Width::FourEight, 1 << 20, ProbeKeys::Uniform),
        (
            Width::EightFour,
            1_500_001,
            ProbeKeys::Matching { thousandths: 300 },
        ),
    ] {
        let workload = Workload {
            width,
            build_rows,
            probe_rows: 5_000_003,
            probe_keys,
        };
        let expected = workload.answer(4);
        let found = on(&device, move |cuda| {
            let sides = [Side::Build, Side::Probe].map(|side| generated(cuda, &workload, side));
            let shapes = [
                TableShape::perfect(width, 0..build_rows),
                TableShape::perfect(width, 0..2 * build_rows),
                TableShape::linear_probing(width, build_rows),
                TableShape::bucketed(width, build_rows),
            ];
            shapes.map(|shape| {
                let index = build(cuda, shape, &sides[..1]).expect("the table has room");
                probe(cuda, &index, &sides[1]).expect("the kernel runs")
            })
        });
        assert_eq!(found, [expected; 4], "{workload:?}");
    }
}

/// A table moves between the host and the device while kernels probe it.
#[test]
fn a_gpu_probes_a_table_that_moves_between_device_and_host() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let workload = Workload {
        width: Width::Eight,
        build_rows: 2_000_000,
        probe_rows: 1_000_000,
        probe_keys: ProbeKeys::Uniform,
    };
    let shape = TableShape::linear_probing(workload.width, workload.build_rows);
    let (bytes, expected) = (shape.slot_bytes(), workload.answer(4));
    on(&device, move |cuda| {
        let sides = [Side::Build, Side::Probe].map(|side| generated(cuda, &workload, side));
        for first in [0, bytes / 3, bytes] {
            let memory = cuda.hybrid_memory(bytes, first).expect("memory");
            let is_at = |bytes: u64| (bytes..bytes + (4 << 20)).contains(&memory.device_bytes());
            assert!(is_at(first));
            let stream = cuda.uploads().clone();
            let builder = IndexBuilder::in_memory(cuda, shape, memory.all(), &stream);
            let mut builder = builder.expect("memory");
            builder.insert_async(cuda, &sides[0]).expect("a kernel");
            let index = builder.finish(cuda).expect("the table has room");
            for share in [first, 0, bytes, bytes / 2, u64::MAX, first] {
                let totals = Totals::zero(cuda, &stream).expect("memory");
                let probing = index.probe_async(cuda, &sides[1], &totals, &stream);
                memory.set_device_bytes(cuda, share).expect("memory");
                assert!(is_at(share.min(bytes)), "{share} of {bytes}");
                drop(probing.expect("a kernel"));
                let found = totals.read(cuda, &stream).expect("the kernel ran");
                assert_eq!(found, expected, "{share} of {bytes}, {first} at first");
                let found = probe(cuda, &index, &sides[1]).expect("the kernel runs");
                assert_eq!(found, expected, "{share} of {bytes}, {first} at first");
            }
            // The table keeps the memory.
            drop(memory);
            let found = probe(cuda, &index, &sides[1]).expect("the kernel runs");
            assert_eq!(found, expected);
        }
    });
}

/// In device memory, and in memory of which half is in the host.
#[test]
fn a_gpu_joins_generated_sides_with_composite_keys() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let workload = Workload {
        width: Width::Composite,
        build_rows: 1_000_001,
        probe_rows: 3_000_003,
        probe_keys: ProbeKeys::Matching { thousandths: 700 },
    };
    let shape = TableShape::linear_probing(workload.width, workload.build_rows);
    let (bytes, expected) = (shape.slot_bytes(), workload.answer(4));
    on(&device, move |cuda| {
        let sides = [Side::Build, Side::Probe].map(|side| generated(cuda, &workload, side));
        let stream = cuda.uploads().clone();
        for device_bytes in [bytes, bytes / 2] {
            let memory = cuda.hybrid_memory(bytes, device_bytes).expect("memory");
            let builder = IndexBuilder::in_memory(cuda, shape, memory.all(), &stream);
            let mut builder = builder.expect("memory");
            builder.insert_async(cuda, &sides[0]).expect("a kernel");
            let index = builder.finish(cuda).expect("the table has room");
            let found = probe(cuda, &index, &sides[1]).expect("the kernel runs");
            assert_eq!(found, expected, "{device_bytes} of {bytes} bytes");
        }
    });
}

#[test]
fn a_gpu_copies_all_bytes_of_memory_that_is_partly_in_the_host() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    on(&device, |cuda| {
        let len = (9 << 20) + 5;
        let mut bytes = cuda.host_buffer(len).expect("host memory");
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        let expected = bytes.to_vec();
        let memory = cuda.hybrid_memory(len as u64, 4 << 20).expect("memory");
        let stream = cuda.uploads().clone();
        let copy = Transfer::begin(cuda, bytes, memory.all(), &stream).expect("a copy");
        let (mut bytes, _) = copy.finish().expect("it ends");
        for share in [4 << 20, 0, u64::MAX] {
            memory.set_device_bytes(cuda, share).expect("memory");
            // Into plain device memory, and from there.
            let plain = cuda.buffer::<u8>(len).expect("memory").all();
            let copy = Transfer::begin(cuda, memory.all(), plain, &stream).expect("a copy");
            let (_, plain) = copy.finish().expect("it ends");
            bytes.fill(0);
            let copy = Transfer::begin(cuda, plain, bytes, &stream).expect("a copy");
            (_, bytes) = copy.finish().expect("it ends");
            assert!(bytes[..] == expected[..], "{share}");
            let copy = Transfer::begin(cuda, memory.all(), bytes, &stream).expect("a copy");
            (_, bytes) = copy.finish().expect("it ends");
            assert!(bytes[..] == expected[..], "{share}");
        }
    });
}

#[test]
fn a_gpu_without_room_leaves_the_chunks_where_they_are() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let workload = Workload {
        width: Width::Eight,
        build_rows: 12_000_000,
        probe_rows: 1_000_000,
        probe_keys: ProbeKeys::Uniform,
    };
    let shape = TableShape::perfect(workload.width, 0..workload.build_rows);
    let (bytes, expected) = (shape.slot_bytes(), workload.answer(4));
    let is_full =
        |error: &JobError| matches!(error, JobError::Failed(JobFailure::NoRoomOnCard { .. }));
    let _full = FULL.lock().unwrap_or_else(PoisonError::into_inner);
    on(&device, move |cuda| {
        let memory = cuda.hybrid_memory(bytes, 0).expect("memory");
        let stream = cuda.uploads().clone();
        let builder = IndexBuilder::in_memory(cuda, shape, memory.all(), &stream);
        let mut builder = builder.expect("memory");
        let rows = generated(cuda, &workload, Side::Build);
        builder.insert_async(cuda, &rows).expect("a kernel");
        let index = builder.finish(cuda).expect("the table has room");
        drop(rows);
        let mut taken = Vec::new();
        for size in (26..38).rev().map(|bit| 1 << bit) {
            let error = loop {
                match cuda.hybrid_memory(size, size) {
                    Ok(memory) => taken.push(memory),
                    Err(error) => break error,
                }
            };
            assert!(is_full(&error), "{error}");
        }
        let moved = memory.set_device_bytes(cuda, bytes);
        let error = moved.expect_err("the card is full");
        assert!(is_full(&error), "{error}");
        assert!(memory.device_bytes() < bytes);
        let rows = generated(cuda, &workload, Side::Probe);
        let found = probe(cuda, &index, &rows).expect("the kernel runs");
        assert_eq!(found, expected);
        drop(taken);
        memory.set_device_bytes(cuda, bytes).expect("room");
        let found = probe(cuda, &index, &rows).expect("the kernel runs");
        assert_eq!(found, expected);
    });
}

/// Threads of many blocks insert the same keys at the same time: in turn, and one of them thousands of times.
#[test]
fn a_gpu_counts_rows_that_many_blocks_insert_with_the_same_key() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    const KEYS: u64 = 100_000;
    let in_turn = (0..5 * KEYS).map(|row| (row % KEYS, row));
    let one_often = (0..KEYS).map(|row| (if row % 40 == 0 { 7 } else { 1_000 + row }, row));
    let all: [Vec<(u64, u64)>; 2] = [in_turn.collect(), one_often.collect()];
    for (rows, width) in all
        .iter()
        .flat_map(|rows| Width::ALL.map(|width| (rows, width)))
    {
        let key_of = |number: u64| match width.is_single() {
            true => u128::from(number),
            false => pair(number / 300, number % 300),
        };
        let keyed = rows.iter().map(|(key, payload)| (key_of(*key), *payload));
        let keyed: Vec<(u128, u64)> = keyed.collect();
        let build_rows = place(&device, &keyed, width, Place::Device);
        let probe_rows: Vec<(u128, u64)> = (0..KEYS).map(|key| (key_of(key), 1)).collect();
        let probes = place(&device, &probe_rows, width, Place::Device);
        let count = rows.len() as u64;
        let found = on(&device, move |cuda| {
            let shape = TableShape::linear_probing(width, count);
            let index = build(cuda, shape, &[build_rows])?;
            assert_eq!(index.rows(), count);
            probe(cuda, &index, &probes)
        });
        let matches = rows.iter().filter(|(key, _)| *key < KEYS);
        let wanted = matches.fold((0, 0_u64), |(matches, sum), (_, payload)| {
            (matches + 1, sum + payload)
        });
        let found = found.expect("the table has room");
        assert_eq!(
            (found.count, found.build_sum, found.probe_sum),
            (wanted.0, wanted.1, wanted.0)
        );
    }
}

#[test]
fn a_gpu_finds_every_match_of_keys_that_were_inserted_three_times() {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let workload = Workload {
        width: Width::Eight,
        build_rows: 300_000,
        probe_rows: 1_000_000,
        probe_keys: ProbeKeys::Uniform,
    };
    let once = workload.answer(4);
    let found = on(&device, move |cuda| {
        let side = generated(cuda, &workload, Side::Build);
        let shape = TableShape::linear_probing(workload.width, 3 * workload.build_rows);
        let index = build(cuda, shape, &[side.clone(), side.clone(), side])?;
        let rows = generated(cuda, &workload, Side::Probe);
        probe(cuda, &index, &rows)
    });
    let mut thrice = JoinTotals::default();
    (0..3).for_each(|_| thrice.add(once));
    assert_eq!(found.expect("the table has room"), thrice);
}
