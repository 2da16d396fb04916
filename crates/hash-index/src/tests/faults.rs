//! Tables whose GPU is lost while they are built or probed: an error that says so. Nothing hangs, and no memory stays
//! in use.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use forebay_device::cuda::Cuda;
use forebay_device::{Device, DeviceContext, Fault, Step};

use super::gpu::{generated, gpu};
use crate::{
    HashIndex, IndexBuilder, IndexError, JoinTotals, ProbeKeys, Side, TableShape, Totals, Width,
    Workload,
};

/// Maximum time of a step.
const LIMIT: Duration = Duration::from_secs(30);

const WORKLOAD: Workload = Workload {
    width: Width::Eight,
    build_rows: 400_000,
    probe_rows: 300_000,
    probe_keys: ProbeKeys::Uniform,
};

/// A part of a join in one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Rows,
    Memory,
    Begin,
    Insert,
    Finish,
    /// A hybrid table moves to the device.
    Move,
    Probe,
    Read,
}

const PARTS: [Part; 8] = [
    Part::Rows,
    Part::Memory,
    Part::Begin,
    Part::Insert,
    Part::Finish,
    Part::Move,
    Part::Probe,
    Part::Read,
];

/// Runs work on the thread of a device. A fault of the device ends the job, and so loses the device.
///
/// # Errors
/// The state of the device, if it is lost.
fn on<T: Send + 'static>(
    device: &Device,
    work: impl FnOnce(&mut Cuda) -> Result<T, IndexError> + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = channel();
    let mut work = Some(work);
    let job = move |context: &mut DeviceContext| {
        let cuda = context.parts().cuda.expect("a GPU");
        let work = work.take().expect("one step");
        let done = match work(cuda) {
            Err(IndexError::Device(error)) => return Err(error),
            done => done,
        };
        sender.send(done).expect("the test waits");
        Ok(Step::Done)
    };
    if let Err(refused) = device.submit(Box::new(job)) {
        return Err(refused.to_string());
    }
    match receiver.recv_timeout(LIMIT) {
        Ok(done) => Ok(done.expect("the table has room")),
        Err(RecvTimeoutError::Disconnected) => Err(device.state().to_string()),
        Err(RecvTimeoutError::Timeout) => panic!("a step hangs"),
    }
}

/// Builds a table in device memory, or in memory of which half is in the host, and probes it. Calls `before` before
/// each part.
fn join(device: &Device, is_hybrid: bool, before: impl Fn(Part)) -> Result<JoinTotals, String> {
    let shape = TableShape::linear_probing(WORKLOAD.width, WORKLOAD.build_rows);
    let bytes = shape.slot_bytes();
    before(Part::Rows);
    let [build, probe] = on(device, |cuda| {
        let sides = [Side::Build, Side::Probe];
        Ok(sides.map(|side| generated(cuda, &WORKLOAD, side)))
    })?;
    before(Part::Memory);
    let memory = on(device, move |cuda| {
        let memory = is_hybrid.then(|| cuda.hybrid_memory(bytes, bytes / 2));
        Ok(memory.transpose()?)
    })?;
    before(Part::Begin);
    let slots = memory.as_ref().map(|memory| memory.all());
    let mut builder = on(device, move |cuda| {
        let stream = cuda.uploads().clone();
        match slots {
            Some(slots) => IndexBuilder::in_memory(cuda, shape, slots, &stream),
            None => IndexBuilder::new(cuda, shape, &stream),
        }
    })?;
    before(Part::Insert);
    let builder = on(device, move |cuda| {
        builder.insert_async(cuda, &build)?;
        Ok(builder)
    })?;
    before(Part::Finish);
    let index: HashIndex = on(device, move |cuda| builder.finish(cuda))?;
    before(Part::Move);
    on(device, move |cuda| match memory {
        Some(memory) => Ok(memory.set_device_bytes(cuda, bytes)?),
        None => Ok(()),
    })?;
    before(Part::Probe);
    let (totals, probing) = on(device, move |cuda| {
        let stream = cuda.downloads().clone();
        let totals = Totals::zero(cuda, &stream)?;
        let probing = index.probe_async(cuda, &probe, &totals, &stream)?;
        Ok((totals, probing))
    })?;
    before(Part::Read);
    let found = on(device, move |cuda| {
        let stream = cuda.downloads().clone();
        Ok(totals.read(cuda, &stream)?)
    })?;
    drop(probing);
    Ok(found)
}

/// Asserts that all memory of a device is free, when its thread has dropped what jobs used.
fn assert_is_free(device: &Device) {
    let end = Instant::now() + LIMIT;
    while device.memory_used_bytes() > 0 {
        let used = device.memory_used_bytes();
        assert!(Instant::now() < end, "{used} bytes are in use");
        thread::yield_now();
    }
}

/// Joins on a GPU into which a fault is injected before a part, and joins again.
fn lose(is_hybrid: bool, part: Part, fault: Fault) {
    let Some((_devices, device)) = gpu() else {
        return;
    };
    let found = join(&device, is_hybrid, |next| {
        if next == part {
            device.inject(fault);
        }
    });
    let case = format!("{part:?}, {fault:?}, hybrid: {is_hybrid}");
    let why = found.expect_err(&case);
    assert!(why.contains("injected fault"), "{case}: {why}");
    assert!(device.is_lost(), "{case}");
    assert_is_free(&device);
    let again = join(&device, is_hybrid, |_| ()).expect_err(&case);
    assert!(again.contains("injected fault"), "{case}: {again}");
}

#[test]
fn a_gpu_that_is_lost_while_a_table_is_built_or_probed_is_an_error_that_says_so() {
    for is_hybrid in [false, true] {
        let Some((_devices, device)) = gpu() else {
            return;
        };
        let found = join(&device, is_hybrid, |_| ());
        assert_eq!(found, Ok(WORKLOAD.answer(2)));
        assert_is_free(&device);
        // Kernels of the parts before may be in flight.
        for part in PARTS {
            lose(is_hybrid, part, Fault::Fail);
        }
        for part in [Part::Insert, Part::Probe] {
            lose(is_hybrid, part, Fault::LaunchFails);
        }
    }
}
