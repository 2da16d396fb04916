//! Devices with too little memory, and devices that join, leave, or fail during a search.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Pair, Value, leaf, options, regex, small_settings};
use forebay_cancel::{Stop, StopReason};
use forebay_device::{Device, Fault, PoolOptions, Step};
use forebay_documents_cache::{CacheSettings, SearchError, SearchRequest, Want};

const ROWS: u32 = 2000;

/// Builds a collection of two thousand rows in about a hundred buckets.
fn filled(devices: usize, memory_budget_bytes: u64) -> Pair {
    filled_with(devices, memory_budget_bytes, small_settings())
}

fn filled_with(devices: usize, memory_budget_bytes: u64, settings: CacheSettings) -> Pair {
    let mut pair = Pair::new(devices, options(memory_budget_bytes), settings, 1);
    for number in 0..ROWS {
        let value = format!("{:04}", number * 7919 % 10_000);
        pair.insert(number, vec![Value::String(value)]);
    }
    pair.collection.flush();
    pair
}

fn buckets_on(pair: &Pair, device: &Device) -> usize {
    let stats = pair.collection.stats(0).expect("a field");
    stats
        .buckets
        .iter()
        .filter(|bucket| bucket.device == Some(device.id()))
        .count()
}

fn bucket_count(pair: &Pair) -> usize {
    pair.collection.stats(0).expect("a field").buckets.len()
}

#[test]
fn buckets_are_spread_over_devices() {
    let pair = filled(4, u64::MAX);
    let answer = pair.check(&leaf(0, regex("1.*2")), Want::Count);
    assert_eq!(answer.report.devices.len(), 4, "{:?}", answer.report);
    assert_eq!(answer.report.host.buckets, 0);
    let rows: u64 = answer.report.devices.iter().map(|device| device.rows).sum();
    assert_eq!(rows, u64::from(ROWS));
    let counts: Vec<_> = pair
        .cache
        .devices()
        .list()
        .iter()
        .map(|d| buckets_on(&pair, d))
        .collect();
    let mean = bucket_count(&pair) / 4;
    assert!(
        counts.iter().all(|count| count.abs_diff(mean) <= mean / 2),
        "{counts:?}"
    );
}

#[test]
fn a_joining_device_takes_its_share_and_a_leaving_one_nothing() {
    let pair = filled(2, u64::MAX);
    let before = pair.cache.devices().list();
    let joined = pair
        .cache
        .devices()
        .add(&"host:1".parse().expect("valid"))
        .expect("a thread")
        .remove(0);
    assert_eq!(
        pair.cache.wait_for_moves(joined.id()),
        buckets_on(&pair, &joined)
    );
    // All values have the same length, so a third of the bytes is a third of the rows.
    let stats = pair.collection.stats(0).expect("a field");
    let moved = stats
        .buckets
        .iter()
        .filter(|bucket| bucket.device == Some(joined.id()));
    let moved: u64 = moved.map(|bucket| bucket.rows).sum();
    let largest = stats.buckets.iter().map(|bucket| bucket.rows).max();
    let share = u64::from(ROWS) / 3;
    assert!(
        moved <= share && moved + largest.expect("buckets") > share,
        "{moved} rows moved, the share is {share}"
    );
    pair.check_all_wants(&leaf(0, regex("9$")));
    let left = pair
        .cache
        .devices()
        .remove(before[0].id())
        .expect("a member");
    let on_it = buckets_on(&pair, &left);
    assert_eq!(pair.cache.wait_for_moves(left.id()), on_it);
    assert_eq!(buckets_on(&pair, &left), 0);
    assert_eq!(
        left.memory_used_bytes(),
        0,
        "the device's memory has been freed"
    );
    let answer = pair.check(&leaf(0, regex("9$")), Want::Count);
    assert_eq!(
        (answer.report.devices.len(), answer.report.host.buckets),
        (2, 0)
    );
}

#[test]
fn without_devices_the_host_answers() {
    let pair = filled(1, u64::MAX);
    let device = pair.cache.devices().list().remove(0);
    pair.cache.devices().remove(device.id()).expect("a member");
    pair.cache.wait_for_moves(device.id());
    let answer = pair.check(&leaf(0, regex("9$")), Want::Count);
    assert_eq!(answer.report.host.buckets, bucket_count(&pair));
    assert!(answer.report.devices.is_empty());
    let joined = pair
        .cache
        .devices()
        .add(&"host:2".parse().expect("valid"))
        .expect("threads");
    let moved = joined
        .iter()
        .map(|device| pair.cache.wait_for_moves(device.id()));
    assert_eq!(moved.sum::<usize>(), bucket_count(&pair));
    let answer = pair.check(&leaf(0, regex("9$")), Want::Count);
    assert_eq!(
        answer.report.host.buckets, 0,
        "buckets that had no device have one again"
    );
}

#[test]
fn what_does_not_fit_is_answered_by_the_host() {
    let whole = filled(1, u64::MAX).cache.devices().list()[0].memory_used_bytes();
    let pair = filled(2, whole / 4);
    for device in pair.cache.devices().list() {
        assert!(device.memory_used_bytes() <= whole / 4);
        assert!(device.memory_used_bytes() > whole / 8, "the budget is used");
    }
    let answer = pair.check(&leaf(0, regex("1.*2")), Want::Count);
    let stats = pair.collection.stats(0).expect("a field");
    assert!(stats.buckets_on_host > 0);
    assert_eq!(
        answer.report.host.buckets, stats.buckets_on_host,
        "the report says so"
    );
    pair.check_all_wants(&leaf(0, regex("^5")));
}

#[test]
fn a_device_that_fails_in_the_middle_of_a_search_loses_nothing() {
    for checks in 0..12 {
        let pair = filled(3, u64::MAX);
        let device = pair.cache.devices().list().remove(1);
        let lost_buckets = buckets_on(&pair, &device);
        device.inject(Fault::FailAfter { checks });
        let answer = pair.check(&leaf(0, regex("1.*2")), Want::Count);
        assert!(device.is_lost());
        assert_eq!(
            answer.report.host.buckets, lost_buckets,
            "{:?}",
            answer.report
        );
        pair.check_all_wants(&leaf(0, regex("^5")));
        pair.cache.wait_for_moves(device.id());
        let answer = pair.check(&leaf(0, regex("1.*2")), Want::Count);
        assert_eq!(answer.report.host.buckets, 0, "its buckets have new owners");
    }
}

#[test]
fn a_limit_is_met_although_a_device_fails() {
    for checks in 0..6 {
        let pair = filled(2, u64::MAX);
        pair.cache.devices().list()[0].inject(Fault::FailAfter { checks });
        pair.check(&leaf(0, regex("1")), Want::Numbers { limit: Some(100) });
    }
}

/// Waits until `is_reached` returns true for the number of buckets on a device.
fn wait_for_buckets(pair: &Pair, device: &Device, is_reached: impl Fn(usize) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_reached(buckets_on(pair, device)) {
        assert!(Instant::now() < deadline, "buckets do not move");
        std::thread::yield_now();
    }
}

#[test]
fn buckets_follow_the_devices_without_a_call() {
    let settings = CacheSettings {
        background: true,
        ..small_settings()
    };
    let mut pair = Pair::new(2, options(u64::MAX), settings, 1);
    for number in 0..ROWS {
        pair.insert(number, vec![Value::String(format!("{number:04}"))]);
    }
    pair.collection.flush();
    let devices = pair.cache.devices();
    let [first, second] = <[_; 2]>::try_from(devices.list()).expect("two devices");
    assert!(buckets_on(&pair, &first) > 0);
    first.inject(Fault::Fail);
    // A device checks for injected faults before it runs a job. This job is never run.
    let job = |_: &mut _| Ok(Step::Done);
    let submitted = first.submit(Box::new(job));
    submitted.expect("room in the queue");
    let all = bucket_count(&pair);
    wait_for_buckets(&pair, &second, |count| count == all);
    assert_eq!(buckets_on(&pair, &first), 0);
    let spec = "host:1".parse().expect("valid");
    let third = devices.add(&spec).expect("a thread").remove(0);
    wait_for_buckets(&pair, &third, |count| count > 0);
    devices.remove(second.id()).expect("a member");
    wait_for_buckets(&pair, &third, |count| count == all);
    let report = pair.check(&leaf(0, regex("1.*2")), Want::Count).report;
    assert_eq!(report.host.buckets, 0);
}

#[test]
fn out_of_memory_while_flushing_loses_nothing() {
    let mut pair = filled(2, u64::MAX);
    for round in 0..10 {
        for device in pair.cache.devices().list() {
            (0..=round).for_each(|_| device.inject(Fault::OutOfMemory));
        }
        for number in 0..50 {
            let value = format!("{:04}", number * 13 + round);
            pair.insert(ROWS + round * 50 + number, vec![Value::String(value)]);
        }
        pair.collection.flush();
        pair.check_all_wants(&leaf(0, regex("3")));
    }
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

fn request(stop: Stop) -> SearchRequest {
    SearchRequest {
        expr: leaf(0, regex("1.*2")),
        want: Want::Count,
        stop,
    }
}

#[test]
fn deadlines_hold_even_if_a_device_is_busy() {
    let pair = filled(1, u64::MAX);
    let release = hold(&pair.cache.devices().list()[0]);
    let stop = Stop::at(Instant::now() + Duration::from_millis(20));
    let outcome = common::runtime().block_on(pair.collection.search(request(stop)));
    assert_eq!(
        outcome.map(|answer| answer.count),
        Err(SearchError::Stopped {
            reason: StopReason::Deadline
        })
    );
    drop(release);
}

#[test]
fn cancelling_ends_a_search() {
    let pair = filled(1, u64::MAX);
    let release = hold(&pair.cache.devices().list()[0]);
    let stop = Stop::never();
    let cancelled = Arc::clone(&stop.cancelled);
    let outcome = common::runtime().block_on(async {
        let search = pair.collection.search(request(stop));
        let cancel = async {
            cancelled.store(true, Ordering::Relaxed);
            drop(release);
        };
        tokio::join!(search, cancel).0
    });
    assert_eq!(
        outcome.map(|answer| answer.count),
        Err(SearchError::Stopped {
            reason: StopReason::Cancelled
        })
    );
}

#[test]
fn a_dropped_search_leaves_the_device() {
    let pair = filled(1, u64::MAX);
    let device = pair.cache.devices().list().remove(0);
    let release = hold(&device);
    common::runtime().block_on(async {
        let search = pair.collection.search(request(Stop::never()));
        tokio::select! {
            biased;
            _ = search => panic!("answered although the device is busy"),
            () = std::future::ready(()) => {}
        }
    });
    drop(release);
    // This search is queued after the dropped search, so when it is answered, the device has processed both.
    pair.check(&leaf(0, regex("1.*2")), Want::Count);
    assert!(device.queued_jobs() <= 1);
}

#[test]
fn fields_are_declared_renamed_and_undeclared() {
    let pair = filled(2, u64::MAX);
    let cache = &pair.cache;
    assert!(cache.get("db.c").is_some() && cache.get("db.d").is_none());
    cache.rename("db.c", "db.d");
    assert!(cache.get("db.c").is_none());
    assert_eq!(
        cache.get("db.d").map(|c| c.document_count()),
        Some(u64::from(ROWS))
    );
    let two = cache.declare("db.two", &["a", "b"]);
    assert_eq!(
        (two.field_index("b"), two.field_index("c")),
        (Some(1), None)
    );
    two.insert(
        1,
        &[
            forebay_documents_cache::FieldValue::String(b"x"),
            forebay_documents_cache::FieldValue::String(b"y"),
        ],
    )
    .expect("new");
    let one = cache.undeclare("db.two", &["a"]).expect("a field is left");
    assert_eq!(one.fields(), ["b"]);
    assert_eq!(one.stats(0).map(|stats| stats.rows), Some(1));
    assert!(cache.undeclare("db.two", &["b"]).is_none());
    assert!(cache.get("db.two").is_none());
    cache.drop_collection("db.d");
    assert!(cache.get("db.d").is_none());
}

#[test]
fn dropped_collections_free_their_devices() {
    let pair = filled(2, u64::MAX);
    let devices: BTreeSet<_> = pair
        .cache
        .devices()
        .list()
        .iter()
        .map(|d| d.memory_used_bytes() > 0)
        .collect();
    assert_eq!(devices, BTreeSet::from([true]));
    let Pair {
        cache, collection, ..
    } = pair;
    cache.drop_collection("db.c");
    drop(collection);
    for device in cache.devices().list() {
        assert_eq!(device.memory_used_bytes(), 0);
    }
}

/// Builds a collection of few buckets, each large enough that another device may take it.
fn with_large_buckets(devices: usize) -> Pair {
    let mut pair = Pair::new(devices, options(u64::MAX), small_settings(), 1);
    for number in 0..200 {
        let value = format!("{:03}{}", number * 77 % 200, "-".repeat(8 << 10));
        pair.insert(number, vec![Value::String(value)]);
    }
    pair.collection.flush();
    pair
}

#[test]
fn a_device_that_is_done_searches_the_buckets_of_one_that_is_not() {
    let pair = with_large_buckets(2);
    let devices = pair.cache.devices().list();
    assert!(devices.iter().all(|device| buckets_on(&pair, device) > 1));
    let release = hold(&devices[0]);
    let search = pair.collection.search(request(Stop::never()));
    let answer = common::runtime().block_on(async {
        let let_go = async {
            while devices[1].queued_jobs() > 0 || devices[0].queued_jobs() < 2 {
                tokio::task::yield_now().await;
            }
            drop(release);
        };
        tokio::join!(search, let_go).0.expect("nothing stops it")
    });
    let report = &answer.report;
    assert_eq!(report.devices.len(), 1, "{report:?}");
    assert_eq!(report.devices[0].name, devices[1].name());
    assert_eq!(report.devices[0].buckets, bucket_count(&pair));
    assert_eq!(report.devices[0].rows, 200);
}

#[test]
fn buckets_that_a_device_took_from_another_are_searched_again_when_it_fails() {
    for checks in 0..12 {
        let pair = with_large_buckets(3);
        let device = pair.cache.devices().list().remove(1);
        device.inject(Fault::FailAfter { checks });
        let answer = pair.check(&leaf(0, regex("1.*-")), Want::Count);
        let report = &answer.report;
        let on_devices: usize = report.devices.iter().map(|device| device.buckets).sum();
        assert_eq!(
            on_devices + report.host.buckets,
            bucket_count(&pair),
            "each bucket is searched in one place: {report:?}"
        );
        pair.check_all_wants(&leaf(0, regex("^05")));
    }
}

#[test]
fn buckets_leave_a_device_whose_memory_another_tenant_needs() {
    let settings = CacheSettings {
        device_share_percent: 0,
        ..small_settings()
    };
    let pair = filled_with(1, u64::MAX, settings);
    let device = pair.cache.devices().list().remove(0);
    let (held, budget) = (device.memory_used_bytes(), device.memory_budget_bytes());
    assert!(held > 0);
    let options = PoolOptions {
        name: "tables".to_owned(),
        min_bytes: 0,
        share_bytes: 0,
        max_bytes: u64::MAX,
    };
    let other = device.open_pool(options, None).expect("no minimum");
    let free = other
        .reserve(budget - held)
        .expect("the memory that the cache leaves free");
    assert!(
        other.reserve(held / 2).is_err(),
        "a request takes only free memory"
    );
    assert!(other.make_room(held / 2), "the cache releases memory");
    let taken = other.reserve(held / 2).expect("there is room");
    let left = device.memory_used_bytes() - free.bytes() - taken.bytes();
    assert!(left <= held - held / 2 && left > 0, "{left} of {held}");
    let answer = pair.check(&leaf(0, regex("9$")), Want::Count);
    let (on_host, buckets) = (answer.report.host.buckets, bucket_count(&pair));
    assert!(on_host > 0 && on_host < buckets, "{on_host} of {buckets}");
    // A search replies before its job on the device lets go of the buckets; that job is over when the next one runs.
    let (ran, runs) = channel();
    let job = move |_: &mut _| {
        ran.send(()).expect("the test waits");
        Ok(Step::Done)
    };
    device.submit(Box::new(job)).expect("an idle device");
    runs.recv().expect("the job runs");
    assert!(other.make_room(left), "all can be had");
    drop((free, taken));
    pair.check_all_wants(&leaf(0, regex("9$")));
}
