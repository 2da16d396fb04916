//! The public interface of devices: order of jobs, bounds of queues, failure and loss.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use forebay_cancel::Stop;
use forebay_device::cuda::{gpus, nvrtc_version};
use forebay_device::{
    Class, Device, DeviceContext, DeviceError, DeviceEvent, DeviceId, DeviceKind, DeviceOptions,
    DeviceState, Devices, Fault, Job, JobError, JobFailure, KernelError, PoolOptions, Signal, Step,
    SubmitError, Subscription,
};
use parking_lot::Mutex;

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

/// Returns a job that sends a word and finishes.
fn say(word: &'static str, sender: &Sender<&'static str>) -> Box<dyn Job> {
    let sender = sender.clone();
    Box::new(move |_: &mut _| {
        sender.send(word).expect("the test listens");
        Ok(Step::Done)
    })
}

/// Keeps a device busy until the returned sender is used or dropped.
fn hold(device: &Device) -> Sender<()> {
    let (release, held): (_, Receiver<()>) = channel();
    let (running, runs) = channel();
    device
        .submit(Box::new(move |_: &mut _| {
            running.send(()).expect("the test listens");
            // The job ends on a message and on a closed channel.
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
        .expect("one slot is left");
    let refused = device
        .submit(say("refused", &sender))
        .expect_err("no slot is left");
    assert_eq!(
        refused,
        SubmitError::QueueFull {
            device: "host:0".to_owned(),
            class: Class::Interactive,
            depth: 2
        }
    );
    drop((release, sender));
    assert_eq!(receiver.iter().collect::<Vec<_>>(), ["waits"]);
}

#[test]
fn an_injected_fault_loses_the_device_and_wakes_all_waiters() {
    let device = one(DeviceOptions::default());
    let release = hold(&device);
    let (sender, receiver) = channel();
    device.submit(say("never", &sender)).expect("room");
    device.submit(say("never", &sender)).expect("room");
    device.inject(Fault::Fail);
    drop((release, sender));
    assert_eq!(receiver.iter().collect::<Vec<_>>(), Vec::<&str>::new());
    let why = "injected fault".to_owned();
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

/// A job's step.
type Run = fn() -> Result<Step, JobError>;

/// A job whose step `run` fails; it reports the failure.
struct Failing {
    run: Run,
    report: Sender<String>,
}

impl Job for Failing {
    fn run(&mut self, _: &mut DeviceContext) -> Result<Step, JobError> {
        (self.run)()
    }

    fn fail(&mut self, failure: &JobFailure) {
        self.report
            .send(failure.to_string())
            .expect("the test listens");
    }
}

fn no_entry() -> KernelError {
    KernelError::NoEntry {
        program: "p".to_owned(),
        entry: "e".to_owned(),
    }
}

#[test]
fn jobs_that_fail_or_panic_take_no_other_job_with_them() {
    let device = one(DeviceOptions::default());
    let (answers, answered) = channel();
    let storm: Vec<_> = (0..4)
        .map(|_| {
            let (device, answers) = (Arc::clone(&device), answers.clone());
            thread::spawn(move || {
                for _ in 0..100 {
                    device.submit(say("answered", &answers)).expect("room");
                }
            })
        })
        .collect();
    let kinds: [(Run, &str); 4] = [
        (|| panic!("oops"), "a job panicked: oops"),
        (|| Err(no_entry().into()), "program p has no kernel e"),
        (
            || Err(JobFailure::from(Stop::at(Instant::now()).check().expect_err("now")).into()),
            "deadline",
        ),
        (|| panic!("{}", 7), "a job panicked: 7"),
    ];
    let (report, reports) = channel();
    for (run, _) in kinds {
        let report = report.clone();
        device
            .submit(Box::new(Failing { run, report }))
            .expect("room");
    }
    drop((report, answers));
    for (expected, found) in kinds.map(|(_, expected)| expected).into_iter().zip(reports) {
        assert!(found.contains(expected), "{found}");
    }
    storm
        .into_iter()
        .for_each(|thread| thread.join().expect("all were submitted"));
    assert_eq!(answered.iter().count(), 400);
    assert_eq!(device.state(), DeviceState::Ready);
    wait_until_idle(&device);
}

/// Waits until all jobs have freed their queue slots.
fn wait_until_idle(device: &Device) {
    while device.queued_jobs() > 0 {
        thread::yield_now();
    }
}

#[test]
fn a_panic_drops_what_the_job_kept_on_the_device_and_nothing_else() {
    let device = one(DeviceOptions::default());
    let (sender, receiver) = channel();
    let count = |panics: bool| {
        let sender = sender.clone();
        Box::new(move |context: &mut DeviceContext| {
            let count = context.parts().state.get_or_default::<u32>();
            *count += 1;
            assert!(!panics, "half done");
            sender.send(u64::from(*count)).expect("the test listens");
            Ok(Step::Done)
        })
    };
    let other = |context: &mut DeviceContext| {
        *context.parts().state.get_or_default::<u64>() += 10;
        Ok(Step::Done)
    };
    let answer = sender.clone();
    let read = move |context: &mut DeviceContext| {
        let other = *context.parts().state.get_or_default::<u64>();
        answer.send(other).expect("the test listens");
        Ok(Step::Done)
    };
    let jobs: [Box<dyn Job>; 5] = [
        count(false),
        Box::new(other),
        count(true),
        count(false),
        Box::new(read),
    ];
    for job in jobs {
        device.submit(job).expect("room");
    }
    let found: Vec<u64> = receiver.iter().take(3).collect();
    assert_eq!(found, [1, 1, 10]);
}

/// A job of a given class that sends its name when it runs; has a cancellation token.
struct Named {
    class: Class,
    stop: Stop,
    say: Sender<&'static str>,
    name: &'static str,
}

impl Job for Named {
    fn class(&self) -> Class {
        self.class
    }

    fn stop(&self) -> Option<&Stop> {
        Some(&self.stop)
    }

    fn run(&mut self, _: &mut DeviceContext) -> Result<Step, JobError> {
        self.say.send(self.name).expect("the test listens");
        Ok(Step::Done)
    }

    fn fail(&mut self, failure: &JobFailure) {
        assert!(matches!(failure, JobFailure::Stopped(_)), "{failure}");
        self.say.send("cancelled").expect("the test listens");
    }
}

#[test]
fn a_job_that_is_cancelled_while_it_waits_does_not_run() {
    let device = one(DeviceOptions::default());
    let release = hold(&device);
    let (say, said) = channel();
    let stop = Stop::never();
    let named = |stop: &Stop, name| {
        Box::new(Named {
            class: Class::Interactive,
            stop: stop.clone(),
            say: say.clone(),
            name,
        })
    };
    device.submit(named(&stop, "never")).expect("room");
    device.submit(named(&Stop::never(), "runs")).expect("room");
    stop.cancelled.store(true, Ordering::Relaxed);
    drop((release, say));
    assert_eq!(said.iter().collect::<Vec<_>>(), ["cancelled", "runs"]);
    assert_eq!(device.state(), DeviceState::Ready);
}

#[test]
fn a_class_that_fills_its_queue_leaves_the_others_theirs() {
    let device = one(DeviceOptions {
        queue_depth: 1,
        ..DeviceOptions::default()
    });
    let release = hold(&device);
    let (say, said) = channel();
    let named = |class, name| {
        Box::new(Named {
            class,
            stop: Stop::never(),
            say: say.clone(),
            name,
        })
    };
    device.submit(named(Class::Batch, "batch")).expect("room");
    let refused = device.submit(named(Class::Batch, "batch"));
    assert!(matches!(
        refused,
        Err(SubmitError::QueueFull {
            class: Class::Batch,
            ..
        })
    ));
    device
        .submit(named(Class::Load, "load"))
        .expect("a queue of its own");
    drop((release, say));
    let mut said: Vec<_> = said.iter().collect();
    said.sort_unstable();
    assert_eq!(said, ["batch", "load"]);
}

#[test]
fn a_job_that_waits_for_a_signal_is_set_aside_and_holds_no_other_up() {
    let device = one(DeviceOptions::default());
    let (sender, receiver) = channel();
    let signal = Signal::new();
    let (waits, late, steps) = (
        signal.clone(),
        sender.clone(),
        Arc::new(AtomicUsize::new(0)),
    );
    let counted = Arc::clone(&steps);
    let job = move |_: &mut DeviceContext| {
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            return Ok(Step::wait_for(waits.clone()));
        }
        late.send("late").expect("the test listens");
        Ok(Step::Done)
    };
    device.submit(Box::new(job)).expect("room");
    for _ in 0..100 {
        device.submit(say("other", &sender)).expect("room");
        assert_eq!(receiver.recv(), Ok("other"));
    }
    assert_eq!(steps.load(Ordering::Relaxed), 1, "a parked job is not run");
    signal.set();
    assert_eq!(receiver.recv(), Ok("late"));
    assert_eq!(steps.load(Ordering::Relaxed), 2);
}

#[test]
fn a_job_that_waits_goes_on_after_the_last_handle_is_gone() {
    let device = one(DeviceOptions::default());
    let (sender, receiver) = channel();
    let signal = Signal::new();
    let waits = signal.clone();
    let job = move |_: &mut DeviceContext| {
        if !waits.is_set() {
            return Ok(Step::wait_for(waits.clone()));
        }
        sender.send("done").expect("the test listens");
        Ok(Step::Done)
    };
    device.submit(Box::new(job)).expect("room");
    drop(device);
    signal.set();
    assert_eq!(receiver.recv(), Ok("done"));
}

#[test]
fn an_injected_fault_strikes_in_the_middle_of_a_job() {
    let device = one(DeviceOptions::default());
    device.inject(Fault::FailAfter { checks: 2 });
    let (sender, receiver) = channel();
    device
        .submit(Box::new(move |context: &mut DeviceContext| {
            // The device has already made the first check, before this step.
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
    let options = PoolOptions {
        name: "test".to_owned(),
        min_bytes: 0,
        share_bytes: 0,
        max_bytes: u64::MAX,
    };
    let pool = device.open_pool(options, None).expect("no minimum");
    let all = pool.reserve(10).expect("all is free");
    let refused = pool.reserve(1).expect_err("nothing is free");
    assert_eq!(
        refused.to_string(),
        "device host:0 has 0 of 10 bytes left, but 1 are needed"
    );
    drop(all);
    device.inject(Fault::OutOfMemory);
    assert!(pool.reserve(1).is_err(), "a test injected it");
    assert_eq!(pool.reserve(1).map(|one| one.bytes()), Ok(1));
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
    // Users that still hold the device can finish their work.
    let (sender, receiver) = channel();
    left.submit(say("still here", &sender))
        .expect("the device works");
    assert_eq!(receiver.recv(), Ok("still here"));
    // An id is never reused.
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
    let (report, seen) = channel();
    let watched = Arc::clone(&device);
    let look = move |_: &mut _| {
        report
            .send((watched.finished_jobs(), watched.busy_time()))
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
fn joins_leaves_and_losses_are_recorded() {
    let devices = devices("host:2");
    let lost = devices.get(DeviceId(0)).expect("a member");
    devices.remove(DeviceId(1)).expect("a member");
    lost.inject(Fault::FailAfter { checks: 0 });
    let (sender, receiver) = channel();
    lost.submit(say("never", &sender)).expect("room");
    drop(sender);
    assert_eq!(receiver.iter().count(), 0, "the job is dropped");
    let events = devices.events();
    let recorded: Vec<_> = events
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
        recorded,
        expected.map(|(device, change)| (device.to_owned(), change))
    );
    assert_eq!(events.counts(), [2, 1, 1]);
}

/// The events that a listener received: id of the device and change.
type Heard = Arc<Mutex<Vec<(u32, &'static str)>>>;

fn listen(devices: &Devices) -> (Subscription, Heard) {
    let heard = Heard::default();
    let written = Arc::clone(&heard);
    let listener = move |event: &DeviceEvent| {
        written.lock().push((event.id.0, event.change.name()));
    };
    (devices.subscribe(listener), heard)
}

/// Makes a device fail, and waits until it is lost and its jobs are dropped.
fn lose(device: &Device) {
    device.inject(Fault::Fail);
    let (sender, receiver) = channel();
    if device.submit(say("never", &sender)).is_ok() {
        drop(sender);
        assert_eq!(receiver.iter().count(), 0);
    }
}

#[test]
fn a_subscription_gets_present_devices_and_then_each_join_leave_and_loss() {
    let devices = devices("host:2");
    lose(&devices.list()[0]);
    let (subscription, heard) = listen(&devices);
    assert_eq!(*heard.lock(), [(0, "joined"), (0, "lost"), (1, "joined")]);
    heard.lock().clear();
    let added = devices.add(&"host:1".parse().expect("valid"));
    let added = added.expect("a thread").remove(0);
    lose(&added);
    devices.remove(added.id()).expect("a member");
    let left = devices.remove(DeviceId(1)).expect("a member");
    lose(&left);
    let expected = [
        (2, "joined"),
        (2, "lost"),
        (2, "left"),
        (1, "left"),
        (1, "lost"),
    ];
    assert_eq!(*heard.lock(), expected);
    drop(subscription);
    devices.remove(DeviceId(0)).expect("a member");
    assert_eq!(
        heard.lock().len(),
        expected.len(),
        "the subscription has ended"
    );
}

#[test]
fn a_listener_can_look_at_the_devices() {
    let devices = Arc::new(devices("host:1"));
    let (found, seen) = channel();
    let looked_at = Arc::downgrade(&devices);
    let subscription = devices.subscribe(move |event: &DeviceEvent| {
        let devices = looked_at.upgrade().expect("the test holds them");
        let device = devices.get(event.id);
        let is_there = device.is_some_and(|device| !device.is_lost());
        found.send(is_there).expect("the test listens");
    });
    let added = devices.add(&"host:1".parse().expect("valid"));
    lose(&added.expect("a thread")[0]);
    devices.remove(DeviceId(1)).expect("a member");
    drop(subscription);
    assert_eq!(seen.iter().collect::<Vec<_>>(), [true, true, false, false]);
}

/// Returns the devices in the set according to a listener's events, and whether each is lost.
fn members(heard: &[(u32, &'static str)]) -> BTreeMap<u32, bool> {
    let mut members = BTreeMap::new();
    for &(id, change) in heard {
        match change {
            "joined" => assert_eq!(members.insert(id, false), None, "{id} joins once"),
            "lost" => assert!(members.insert(id, true) != Some(true), "{id} is lost once"),
            _ => assert!(members.remove(&id).is_some(), "{id} was there"),
        }
    }
    members
}

#[test]
fn subscriptions_begun_in_a_storm_of_changes_agree_with_the_set() {
    let devices = devices("host:4");
    let subscriptions = thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..30 {
                    let added = devices.add(&"host:1".parse().expect("valid"));
                    let added = added.expect("a thread").remove(0);
                    match round % 3 {
                        0 => lose(&added),
                        1 => drop(devices.remove(added.id()).expect("a member")),
                        _ => {
                            lose(&added);
                            devices.remove(added.id()).expect("a member");
                        }
                    }
                }
            });
        }
        let late = (0..30).map(|_| listen(&devices));
        late.collect::<Vec<_>>()
    });
    let is_lost = |device: &Arc<Device>| (device.id().0, device.is_lost());
    let expected: BTreeMap<u32, bool> = devices.list().iter().map(is_lost).collect();
    for (_subscription, heard) in subscriptions {
        assert_eq!(members(&heard.lock()), expected);
    }
}

#[test]
fn a_host_device_registers_no_memory() {
    let device = one(DeviceOptions::default());
    let refused = device.register(vec![1_u8, 2]);
    let (memory, error) = refused.expect_err("a host device refuses");
    assert_eq!(memory, [1, 2]);
    assert_eq!(
        error.to_string(),
        "device host:0 is not a GPU; memory can be registered only for GPUs"
    );
    assert!(!device.reaches(&device));
}
