//! Devices as others use them: jobs, turns, bounds, loss.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_device::cuda::{gpus, nvrtc_version};
use forebay_device::{
    Device, DeviceContext, DeviceError, DeviceFault, DeviceId, DeviceKind, DeviceOptions,
    DeviceState, Devices, Fault, Job, Step, SubmitError,
};

fn devices(spec: &str) -> Devices {
    Devices::new(
        &spec.parse().expect("a valid specification"),
        DeviceOptions::default(),
    )
    .expect("threads")
}

fn one(options: DeviceOptions) -> Arc<Device> {
    let devices = Devices::new(&"host:1".parse().expect("valid"), options).expect("a thread");
    devices.list().remove(0)
}

/// A job that sends a word and is done.
fn say(word: &'static str, sender: &Sender<&'static str>) -> Box<dyn Job> {
    let sender = sender.clone();
    Box::new(move |_: &mut _| {
        sender.send(word).expect("the test listens");
        Ok(Step::Done)
    })
}

/// Holds a device until the sender is used or dropped.
fn hold(device: &Device) -> Sender<()> {
    let (release, held): (_, Receiver<()>) = channel();
    let (running, runs) = channel();
    device
        .submit(Box::new(move |_: &mut _| {
            running.send(()).expect("the test listens");
            // Released either way.
            let _ = held.recv();
            Ok(Step::Done)
        }))
        .expect("an idle device");
    runs.recv().expect("the job runs");
    release
}

#[test]
fn jobs_run_in_order_on_one_thread() {
    let device = one(DeviceOptions::default());
    let (sender, receiver) = channel();
    for word in ["a", "b", "c"] {
        device.submit(say(word, &sender)).expect("room");
    }
    drop(sender);
    assert_eq!(receiver.iter().collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn long_jobs_take_turns() {
    let device = one(DeviceOptions::default());
    let release = hold(&device);
    let (sender, receiver) = channel();
    let long = sender.clone();
    let mut steps = 0;
    let job = move |_: &mut _| {
        long.send("long").expect("the test listens");
        steps += 1;
        Ok(if steps == 3 { Step::Done } else { Step::Again })
    };
    device.submit(Box::new(job)).expect("room");
    device.submit(say("short", &sender)).expect("room");
    drop((sender, release));
    assert_eq!(
        receiver.iter().collect::<Vec<_>>(),
        ["long", "short", "long", "long"]
    );
}

#[test]
fn a_full_queue_refuses() {
    let device = one(DeviceOptions {
        queue_depth: 2,
        ..DeviceOptions::default()
    });
    let release = hold(&device);
    let (sender, receiver) = channel();
    device
        .submit(say("waits", &sender))
        .expect("one place is left");
    let refused = device
        .submit(say("refused", &sender))
        .expect_err("no place is left");
    assert_eq!(
        refused,
        SubmitError::QueueFull {
            device: "host:0".to_owned(),
            depth: 2
        }
    );
    drop((release, sender));
    assert_eq!(receiver.iter().collect::<Vec<_>>(), ["waits"]);
}

#[test]
fn a_panic_loses_the_device_and_wakes_all_waiters() {
    let device = one(DeviceOptions::default());
    let release = hold(&device);
    let (sender, receiver) = channel();
    device
        .submit(Box::new(|_: &mut _| -> Result<Step, DeviceFault> {
            panic!("oops")
        }))
        .expect("room");
    device.submit(say("never", &sender)).expect("room");
    drop((release, sender));
    assert_eq!(receiver.iter().collect::<Vec<_>>(), Vec::<&str>::new());
    let why = "a job panicked: oops".to_owned();
    assert_eq!(device.state(), DeviceState::Lost { why: why.clone() });
    let (sender, _receiver) = channel();
    let refused = device
        .submit(say("never", &sender))
        .expect_err("the device is lost");
    assert_eq!(
        refused,
        SubmitError::Lost {
            device: "host:0".to_owned(),
            why
        }
    );
}

#[test]
fn an_injected_fault_strikes_in_the_middle_of_a_job() {
    let device = one(DeviceOptions::default());
    device.inject(Fault::FailAfter { checks: 2 });
    let (sender, receiver) = channel();
    device
        .submit(Box::new(move |context: &mut DeviceContext| {
            // The first check is the one before the step.
            sender.send("begun").expect("the test listens");
            context.check()?;
            sender.send("on").expect("the test listens");
            context.check()?;
            sender.send("never").expect("the test listens");
            Ok(Step::Done)
        }))
        .expect("room");
    assert_eq!(receiver.iter().collect::<Vec<_>>(), ["begun", "on"]);
    assert_eq!(
        device.state(),
        DeviceState::Lost {
            why: "injected fault".to_owned()
        }
    );
}

#[test]
fn memory_is_bounded_and_comes_back() {
    let device = one(DeviceOptions {
        memory_budget_bytes: 10,
        ..DeviceOptions::default()
    });
    let all = device.reserve(10).expect("all is free");
    let refused = device.reserve(1).expect_err("nothing is free");
    assert_eq!(
        refused.to_string(),
        "device host:0 has 0 of 10 bytes left, 1 are needed"
    );
    drop(all);
    device.inject(Fault::OutOfMemory);
    assert!(device.reserve(1).is_err(), "a test asked for it");
    assert_eq!(device.reserve(1).map(|one| one.bytes()), Ok(1));
    assert_eq!(
        (device.memory_used_bytes(), device.memory_budget_bytes()),
        (0, 10)
    );
}

#[test]
fn devices_join_and_leave() {
    let devices = devices("host:2");
    let added = devices
        .add(&"host:1".parse().expect("valid"))
        .expect("a thread");
    assert_eq!(added[0].name(), "host:2");
    let left = devices.remove(DeviceId(1)).expect("a member");
    assert_eq!(left.state(), DeviceState::Leaving);
    let names: Vec<_> = devices
        .list()
        .iter()
        .map(|device| device.name().to_owned())
        .collect();
    assert_eq!(names, ["host:0", "host:2"]);
    assert_eq!(
        devices.remove(DeviceId(1)).err(),
        Some(DeviceError::Unknown { id: DeviceId(1) })
    );
    assert!(devices.get(DeviceId(1)).is_none());
    // Whoever still holds it can finish what began before.
    let (sender, receiver) = channel();
    left.submit(say("still here", &sender)).expect("it works");
    assert_eq!(receiver.recv(), Ok("still here"));
    // An id is never given twice.
    let added = devices
        .add(&"host:1".parse().expect("valid"))
        .expect("a thread");
    assert_eq!(added[0].id(), DeviceId(3));
}

#[test]
fn a_gpu_that_is_not_there_says_what_is_missing() {
    let devices = devices("host:1");
    let error = devices
        .add(&"host:1,cuda:1000".parse().expect("valid"))
        .expect_err("no machine has as many");
    let expected = match (gpus(), nvrtc_version()) {
        (Err(why), _) => DeviceError::CudaUnavailable(why),
        (_, Err(why)) => DeviceError::NvrtcMissing(why),
        (Ok(gpus), Ok(_)) => DeviceError::NoSuchGpu {
            ordinal: 1000,
            count: gpus.len(),
        },
    };
    assert_eq!(error, expected);
    assert_eq!(devices.list().len(), 1, "nothing was started");
}

#[test]
fn a_host_device_has_no_memory_of_a_gpu() {
    let device = one(DeviceOptions::default());
    assert!(device.allocate(0).is_err());
    assert!(device.stage(0).is_none());
    assert!(device.details().is_none());
    assert_eq!(device.kind(), DeviceKind::Host);
}

#[test]
fn what_operators_keep_lives_from_job_to_job() {
    let device = one(DeviceOptions::default());
    let (sender, receiver) = channel();
    for _ in 0..3 {
        let sender = sender.clone();
        let job = move |context: &mut DeviceContext| {
            let parts = context.parts();
            assert!(parts.cuda.is_none());
            let count = parts.state.get_or_default::<u32>();
            *count += 1;
            sender.send(*count).expect("the test listens");
            Ok(Step::Done)
        };
        device.submit(Box::new(job)).expect("room");
    }
    drop(sender);
    assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn finished_jobs_and_their_time_are_counted() {
    let device = one(DeviceOptions::default());
    let (sender, receiver) = channel();
    for word in ["a", "b", "c"] {
        device.submit(say(word, &sender)).expect("room");
    }
    let (told, seen) = channel();
    let watched = Arc::clone(&device);
    let look = move |_: &mut _| {
        told.send((watched.finished_jobs(), watched.busy_time()))
            .expect("the test listens");
        Ok(Step::Done)
    };
    device.submit(Box::new(look)).expect("room");
    let (finished, busy) = seen.recv().expect("the job runs");
    assert_eq!(receiver.try_iter().count(), 3);
    assert_eq!(finished, 3);
    assert!(!busy.is_zero());
}

#[test]
fn joins_leaves_and_losses_are_told() {
    let devices = devices("host:2");
    let lost = devices.get(DeviceId(0)).expect("it is there");
    devices.remove(DeviceId(1)).expect("it is there");
    lost.inject(Fault::FailAfter { checks: 0 });
    let (sender, receiver) = channel();
    lost.submit(say("never", &sender)).expect("room");
    drop(sender);
    assert_eq!(receiver.iter().count(), 0, "the job is dropped");
    let events = devices.events();
    let told: Vec<_> = events
        .latest()
        .into_iter()
        .map(|event| (event.device, event.change.name()))
        .collect();
    let expected = [
        ("host:0", "lost"),
        ("host:1", "left"),
        ("host:1", "joined"),
        ("host:0", "joined"),
    ];
    assert_eq!(
        told,
        expected.map(|(device, change)| (device.to_owned(), change))
    );
    assert_eq!(events.counts(), [2, 1, 1]);
}
