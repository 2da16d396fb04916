//! Moving buckets to devices while one device stalls, or while several fail or leave.

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use common::{Pair, Value, leaf, options, regex, small_settings};
use forebay_cancel::Stop;
use forebay_device::{Device, Fault, Stall, Step};
use forebay_documents_cache::{CollectionCache, FieldValue, SearchRequest, Want};

/// Maximum time of any operation that must not wait for a stalled device.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Builds a collection with one bucket and an unflushed delta.
fn filled(devices: usize) -> Pair {
    let mut pair = Pair::new(devices, options(u64::MAX), small_settings(), 1);
    for number in 0..10 {
        pair.insert(number, vec![Value::String(format!("value {number}"))]);
    }
    pair
}

/// Returns the device of the collection's only bucket.
fn owner(collection: &CollectionCache) -> Option<forebay_device::DeviceId> {
    let stats = collection.stats(0).expect("a field");
    assert_eq!(stats.buckets.len(), 1);
    stats.buckets[0].device
}

/// Waits until a thread waits for memory of one of the devices. Returns the index of that device.
fn wait_for_a_waiter(stalls: &[Option<Stall>]) -> usize {
    let deadline = Instant::now() + TIMEOUT;
    let is_waited_for = |stall: &Option<Stall>| stall.as_ref().is_some_and(|s| s.waiting() > 0);
    loop {
        if let Some(position) = stalls.iter().position(is_waited_for) {
            return position;
        }
        assert!(Instant::now() < deadline, "no bucket is being moved");
        thread::yield_now();
    }
}

/// Runs `work` on a separate thread. Fails if it takes longer than [`TIMEOUT`].
fn in_time(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, finished) = channel();
    thread::spawn(move || {
        work();
        done.send(())
    });
    finished
        .recv_timeout(TIMEOUT)
        .unwrap_or_else(|_| panic!("{what} waits"));
}

/// Runs a search that must wait, because the device is busy.
async fn begin_search(collection: Arc<CollectionCache>) {
    let request = SearchRequest {
        expr: leaf(0, regex("1.*2")),
        want: Want::Count,
        stop: Stop::never(),
    };
    collection.search(request).await.expect("a search");
}

/// Keeps a device busy until the returned sender is dropped.
fn hold(device: &Device) -> std::sync::mpsc::Sender<()> {
    let (release, held) = channel();
    let job = move |_: &mut _| {
        let _ = held.recv();
        Ok(Step::Done)
    };
    device.submit(Box::new(job)).expect("an idle device");
    release
}

#[test]
fn a_device_that_keeps_a_bucket_waiting_delays_no_other_bucket_and_no_dropped_search() {
    let pair = filled(2);
    let devices = pair.cache.devices().list();
    let mut stalls: Vec<_> = devices.iter().map(|d| Some(Stall::new(d))).collect();
    let first = Arc::clone(&pair.collection);
    let placing = thread::spawn(move || first.flush());
    let stalled = wait_for_a_waiter(&stalls);
    stalls[1 - stalled] = None;

    let second = pair.cache.declare("db.second", &["f"]);
    second
        .insert(1, &[FieldValue::String(b"1 and 2")])
        .expect("new");
    let other = Arc::clone(&second);
    in_time("another bucket's placement", move || other.flush());
    assert_eq!(owner(&second), Some(devices[1 - stalled].id()));

    let release = hold(&devices[1 - stalled]);
    let runtime = common::runtime();
    let mut search = Box::pin(begin_search(Arc::clone(&second)));
    runtime.block_on(async {
        tokio::select! {
            biased;
            () = &mut search => panic!("answered although the device is busy"),
            () = std::future::ready(()) => {}
        }
    });
    // Now only the search refers to the bucket, so dropping the search drops the bucket.
    second.clear();
    in_time("a dropped search", move || drop(search));

    drop(release);
    drop(stalls);
    placing.join().expect("the bucket is placed");
    assert_eq!(owner(&pair.collection), Some(devices[stalled].id()));
    pair.check_all_wants(&leaf(0, regex("value [3-5]")));
}

/// Makes a device fail, and waits until it is lost.
fn lose(device: &Device) {
    device.inject(Fault::Fail);
    // A device checks for injected faults before it runs a job. Submitting fails if the device is already lost.
    let _ = device.submit(Box::new(|_: &mut _| Ok(Step::Done)));
    let deadline = Instant::now() + TIMEOUT;
    while !device.is_lost() {
        assert!(Instant::now() < deadline, "the device does not fail");
        thread::yield_now();
    }
}

#[test]
fn a_bucket_finds_a_device_although_several_fail_while_it_is_on_its_way() {
    let pair = filled(3);
    let devices = pair.cache.devices().list();
    let mut stalls: Vec<_> = devices.iter().map(|d| Some(Stall::new(d))).collect();
    let collection = Arc::clone(&pair.collection);
    let placing = thread::spawn(move || collection.flush());
    for _ in 0..2 {
        let on_its_way_to = wait_for_a_waiter(&stalls);
        lose(&devices[on_its_way_to]);
        stalls[on_its_way_to] = None;
    }
    let last = wait_for_a_waiter(&stalls);
    stalls[last] = None;
    placing.join().expect("the bucket is placed");
    assert_eq!(owner(&pair.collection), Some(devices[last].id()));
    for device in devices.iter().filter(|device| device.is_lost()) {
        assert_eq!(
            device.memory_used_bytes(),
            0,
            "the lost device holds no copy"
        );
    }
    let report = pair
        .check(&leaf(0, regex("value [3-5]")), Want::Count)
        .report;
    assert_eq!((report.devices.len(), report.host.buckets), (1, 0));
}

#[test]
fn a_bucket_stays_on_the_host_if_every_device_fails_while_it_is_on_its_way() {
    let pair = filled(2);
    let devices = pair.cache.devices().list();
    let mut stalls: Vec<_> = devices.iter().map(|d| Some(Stall::new(d))).collect();
    let collection = Arc::clone(&pair.collection);
    let placing = thread::spawn(move || collection.flush());
    for _ in 0..2 {
        let on_its_way_to = wait_for_a_waiter(&stalls);
        lose(&devices[on_its_way_to]);
        stalls[on_its_way_to] = None;
    }
    placing.join().expect("the bucket is placed");
    assert_eq!(owner(&pair.collection), None);
    pair.check_all_wants(&leaf(0, regex("value [3-5]")));
}

#[test]
fn a_device_that_leaves_while_a_bucket_is_on_its_way_does_not_get_it() {
    let pair = filled(2);
    let devices = pair.cache.devices().list();
    let mut stalls: Vec<_> = devices.iter().map(|d| Some(Stall::new(d))).collect();
    let collection = Arc::clone(&pair.collection);
    let placing = thread::spawn(move || collection.flush());
    let leaving = wait_for_a_waiter(&stalls);
    let (cache, id) = (Arc::clone(&pair.cache), devices[leaving].id());
    cache.devices().remove(id).expect("a member");
    let leave = thread::spawn(move || cache.wait_for_moves(id));
    stalls.clear();
    placing.join().expect("the bucket is placed");
    leave.join().expect("the device has left");
    assert_eq!(owner(&pair.collection), Some(devices[1 - leaving].id()));
    assert_eq!(devices[leaving].memory_used_bytes(), 0);
}
