//! Random writes, flushes, splits and merges, while devices join, leave and are lost. Every answer is compared with the
//! answer of a naive model.

mod common;

use common::{Pair, options, random_expr, random_value, small_settings, with_seeds};
use fastrand::Rng;
use forebay_device::{DeviceState, Fault};
use forebay_documents_cache::CacheSettings;

const FIELDS: usize = 2;

/// Runs random steps.
fn run(mut rng: Rng) {
    let budget = if rng.bool() {
        u64::MAX
    } else {
        rng.u64(500..20_000)
    };
    // A background thread flushes deltas at any time between the steps.
    let settings = CacheSettings {
        background: rng.bool(),
        ..small_settings()
    };
    let mut pair = Pair::new(rng.usize(1..4), options(budget), settings, FIELDS);
    let mut next = 0;
    for _ in 0..rng.usize(50..250) {
        match rng.u32(..20) {
            0..8 => insert(&mut pair, &mut rng, &mut next),
            8..11 => update(&mut pair, &mut rng),
            11..13 => remove(&mut pair, &mut rng),
            13..15 => pair.collection.flush(),
            15 => change_devices(&pair, &mut rng),
            _ => check(&pair, &mut rng),
        }
    }
    for _ in 0..10 {
        check(&pair, &mut rng);
    }
    pair.collection.flush();
    check(&pair, &mut rng);
}

fn document(rng: &mut Rng) -> Vec<common::Value> {
    (0..FIELDS).map(|_| random_value(rng)).collect()
}

fn insert(pair: &mut Pair, rng: &mut Rng, next: &mut u32) {
    for _ in 0..rng.usize(..40) {
        *next += rng.u32(1..4);
        pair.insert(*next, document(rng));
    }
}

fn random_number(pair: &Pair, rng: &mut Rng) -> Option<u32> {
    let documents = &pair.model.documents;
    documents
        .keys()
        .nth(rng.usize(..documents.len().max(1)))
        .copied()
}

fn update(pair: &mut Pair, rng: &mut Rng) {
    for _ in 0..rng.usize(..10) {
        if let Some(number) = random_number(pair, rng) {
            let mut values = pair.model.documents[&number].clone();
            values[rng.usize(..FIELDS)] = random_value(rng);
            pair.update(number, values);
        }
    }
}

fn remove(pair: &mut Pair, rng: &mut Rng) {
    let most = if rng.u32(..8) == 0 { 1000 } else { 10 };
    for _ in 0..rng.usize(..most) {
        if let Some(number) = random_number(pair, rng) {
            pair.remove(number);
        }
    }
}

fn change_devices(pair: &Pair, rng: &mut Rng) {
    let devices = pair.cache.devices();
    let chosen = devices.list().get(rng.usize(..4)).cloned();
    match (rng.u32(..4), chosen) {
        (0, Some(device)) => {
            devices.remove(device.id()).expect("a member");
            pair.cache.wait_for_moves(device.id());
        }
        (1, Some(device)) => device.inject(Fault::FailAfter {
            checks: rng.u32(..3),
        }),
        (2, Some(device)) => device.inject(Fault::OutOfMemory),
        _ => common::join_device(&pair.cache),
    }
    for device in devices.list() {
        if rng.bool() && matches!(device.state(), DeviceState::Lost { .. }) {
            devices.remove(device.id()).expect("a member");
            pair.cache.wait_for_moves(device.id());
        }
    }
}

fn check(pair: &Pair, rng: &mut Rng) {
    let expr = random_expr(rng, FIELDS, 2);
    pair.check_all_wants(&expr);
    let stats = pair.collection.stats(0).expect("a field");
    let in_buckets: u64 = stats.buckets.iter().map(|bucket| bucket.rows).sum();
    assert!(
        in_buckets <= stats.rows && stats.rows <= in_buckets + stats.delta_rows,
        "{stats:?}"
    );
}

#[test]
fn agrees_with_the_model() {
    with_seeds(60, run);
}
