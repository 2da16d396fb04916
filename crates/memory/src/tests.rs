//! Tests of accounts and shares, some with many concurrent tasks.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::*;
use crate::line::{CLAIM_TIME, OVERTAKING_BYTES_MAX, PAUSE};

const MIB: usize = 1 << 20;
/// Timeout far above any wait that succeeds.
const LONG: Duration = Duration::from_secs(60);

fn used(account: &Account) -> u64 {
    account.figures().used_bytes
}

#[test]
fn shares_take_and_give_back() {
    let account = Account::new(1 << 20);
    let mut share = account.share();
    share.try_grow(1000).expect("room");
    assert_eq!((share.bytes(), used(&account)), (1000, 1000));
    share.shrink(300);
    assert_eq!(used(&account), 700);
    share.try_resize(5000).expect("room");
    assert_eq!(used(&account), 5000);
    share.try_resize(50).expect("less");
    assert_eq!(used(&account), 50);
    share.shrink(51);
    assert_eq!(used(&account), 0, "no more than was held");
    share.try_grow(20).expect("room");
    drop(share);
    assert_eq!(used(&account), 0);
    assert_eq!(account.figures().peak_bytes, 5000);
    assert_eq!(account.figures().refused, 0);
}

#[test]
fn what_grows_little_by_little_asks_now_and_then() {
    let account = Account::new(1 << 20);
    let share = account.share();
    share.try_cover(1).expect("room");
    assert_eq!(share.bytes(), STEP_BYTES as u64);
    share
        .try_cover(STEP_BYTES)
        .expect("the share already has these bytes");
    assert_eq!(share.bytes(), STEP_BYTES as u64);
    share.try_cover(STEP_BYTES + 1).expect("room");
    assert_eq!(share.bytes(), 2 * STEP_BYTES as u64);
    assert!(share.try_cover(2 * MIB).is_err());
}

#[test]
fn a_refused_share_keeps_what_it_has() {
    let account = Account::new(MIB as u64);
    let share = account.share();
    share.try_grow(MIB / 2).expect("room");
    let full = share.try_grow(MIB).expect_err("no room");
    assert_eq!(full.limit_bytes, MIB as u64);
    assert_eq!(share.bytes(), MIB as u64 / 2);
    assert_eq!(used(&account), MIB as u64 / 2);
    assert_eq!(account.figures().refused, 1);
    assert!(share.try_grow(usize::MAX).is_err(), "no overflow");
}

#[test]
fn the_last_part_is_for_small_shares() {
    let account = Account::new(MIB as u64);
    let large = account.share();
    assert!(large.try_grow(MIB).is_err(), "not the reserve");
    large.try_grow(MIB / 16 * 15).expect("all but the reserve");
    let small = account.share();
    small.try_grow(MIB / 16).expect("the reserve");
    assert!(account.share().try_grow(1).is_err(), "the limit");
}

#[test]
fn an_account_below_another_takes_from_both() {
    let top = Account::new(10 * MIB as u64);
    let strangers = top.below(MIB as u64);
    let share = strangers.share();
    share.try_grow(MIB / 2).expect("room in both");
    assert_eq!(
        (used(&strangers), used(&top)),
        (MIB as u64 / 2, MIB as u64 / 2)
    );
    assert!(
        share.try_grow(MIB).is_err(),
        "the request exceeds the child account's limit"
    );
    let rest = top.share();
    rest.try_grow(8 * MIB).expect("the rest");
    let small = Account::below(&top, 100 * MIB as u64);
    assert!(
        small.share().try_grow(MIB).is_err(),
        "the request exceeds the parent account's limit"
    );
    assert_eq!(
        used(&small),
        0,
        "a refused request takes nothing from either account"
    );
    drop((share, rest));
    assert_eq!((used(&strangers), used(&top)), (0, 0));
}

#[tokio::test]
async fn a_share_waits_for_room() {
    let account = Account::new(MIB as u64);
    let holder = account.share();
    holder.try_grow(MIB / 2).expect("room");
    let waiter = account.share();
    let (grown, ()) = tokio::join!(waiter.grow_within(MIB / 2, LONG), async {
        tokio::task::yield_now().await;
        drop(holder);
    });
    grown.expect("there is room now");
    assert_eq!(used(&account), MIB as u64 / 2);
}

#[tokio::test]
async fn waiting_has_an_end() {
    let account = Account::new(MIB as u64);
    let holder = account.share();
    holder.try_grow(MIB / 2).expect("room");
    let waiter = account.share();
    let grown = waiter.grow_within(MIB / 2, Duration::from_millis(10)).await;
    assert!(grown.is_err());
    assert_eq!(account.figures().refused, 1);
    assert_eq!(account.figures().waiting, 0);
}

#[tokio::test]
async fn a_small_share_does_not_wait_behind_a_large_one() {
    let account = Account::new(MIB as u64);
    let holder = account.share();
    holder.try_grow(MIB / 2).expect("room");
    let large = account.share();
    let small = account.share();
    tokio::select! {
        biased;
        _ = large.grow_within(MIB * 3 / 4, LONG) => panic!("there is no room for the large share"),
        grown = small.grow_within(MIB / 8, LONG) => grown.expect("there is room"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_shares_of_many_tasks_stay_within_the_limit() {
    let account = Account::new(4 * MIB as u64);
    let below = account.below(2 * MIB as u64);
    let work = |account: Account, seed| async move {
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..500 {
            let share = account.share();
            // A task holds no bytes while it waits, so every wait ends.
            let bytes = random.usize(0..MIB / 4);
            share.grow_within(bytes, LONG).await.expect("room in time");
            tokio::task::yield_now().await;
            if random.bool() {
                let _refused = share.try_grow(random.usize(0..MIB)).is_err();
            }
        }
    };
    let accounts = (0..12).map(|n| if n % 2 == 0 { &account } else { &below });
    let tasks: Vec<_> = (1..)
        .zip(accounts)
        .map(|(seed, account)| tokio::spawn(work(account.clone(), seed)))
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    for account in [account, below] {
        let figures = account.figures();
        assert_eq!(figures.used_bytes, 0);
        assert!(figures.peak_bytes <= figures.limit_bytes, "{figures:?}");
        assert!(figures.peak_bytes > figures.limit_bytes / 2, "{figures:?}");
    }
}

#[test]
fn what_is_resident_besides_leaves_less_room() {
    let account = Account::new(MIB as u64);
    let share = account.share();
    share.try_grow(MIB / 8).expect("room");
    account.look(MIB as u64 * 5 / 8);
    assert_eq!(account.figures().outside_bytes, MIB as u64 / 2);
    let large = account.share();
    assert!(large.try_grow(MIB / 2).is_err(), "half is held outside");
    large.try_grow(MIB / 4).expect("room");
    account.look(100 * MIB as u64);
    assert!(
        large.try_grow(MIB / 8).is_err(),
        "the process is above its limit"
    );
    drop((share, large));
    account
        .share()
        .try_grow(MIB / 16)
        .expect("the reserve for small shares has room");
}

#[test]
fn parts_set_apart_count_before_they_are_resident() {
    let account = Account::new(MIB as u64);
    account.set_least_outside(MIB as u64 / 2);
    account.look(1000);
    assert_eq!(account.figures().outside_bytes, MIB as u64 / 2);
    assert!(account.share().try_grow(MIB / 2).is_err());
}

#[test]
fn the_largest_look_counts_for_some_seconds() {
    let outside = outside::Outside::default();
    let began = Instant::now();
    let mut looks = Vec::new();
    for (after_ms, bytes) in [(0, 500), (1_000, 100), (2_500, 50), (4_600, 20)] {
        outside.look(bytes, began + Duration::from_millis(after_ms));
        looks.push(outside.bytes());
    }
    assert_eq!(looks, [500, 500, 500, 50]);
    outside.look(10, began + LONG);
    assert_eq!(outside.bytes(), 10, "nothing counts that long");
}

#[tokio::test]
async fn a_share_waits_until_less_is_resident() {
    let account = Account::new(MIB as u64);
    account.look(MIB as u64);
    let waiter = account.share();
    let (grown, ()) = tokio::join!(waiter.grow_within(MIB / 2, LONG), async {
        tokio::task::yield_now().await;
        account.inner.outside.forget();
        account.look(0);
    });
    grown.expect("there is room now");
}

/// Returns whether a waiting share gets its bytes while other shares of `each` bytes come and go. Two other shares
/// exist at first. Each further share is created before the oldest is dropped.
async fn gets_room(account: &Account, waits_for: usize, each: usize) -> bool {
    let holds = || {
        let share = account.share();
        share.try_grow(each).is_ok().then_some(share)
    };
    let mut held = VecDeque::from_iter([holds(), holds()].into_iter().flatten());
    let waiter = account.share();
    let others = async {
        for _ in 0..1000 {
            held.extend(holds());
            tokio::task::yield_now().await;
            if held.len() > 1 {
                held.pop_front();
            }
        }
    };
    tokio::select! {
        biased;
        () = others => false,
        grown = waiter.grow_within(waits_for, LONG) => grown.is_ok(),
    }
}

#[tokio::test]
async fn a_large_share_is_not_overtaken_for_ever() {
    let account = Account::new(16 * MIB as u64);
    assert!(gets_room(&account, 8 * MIB, 5 * MIB).await);
    let overtaking = OVERTAKING_BYTES_MAX as usize;
    assert!(gets_room(&account, 14 * MIB, overtaking).await);
    assert_eq!(used(&account), 0);
}

#[tokio::test]
async fn shares_find_room_in_the_order_in_which_they_wait() {
    let account = Account::new(16 * MIB as u64);
    let holder = account.share();
    holder.try_grow(15 * MIB).expect("room");
    let done = Mutex::new(Vec::new());
    let wait = async |name, bytes| {
        let share = account.share();
        share.grow_within(bytes, LONG).await.expect("room");
        done.lock().push(name);
        tokio::task::yield_now().await;
    };
    tokio::join!(
        wait("first", 12 * MIB),
        wait("second", 4 * MIB),
        wait("third", 2 * MIB),
        async {
            for _ in 0..15 {
                tokio::task::yield_now().await;
                holder.shrink(MIB);
            }
        }
    );
    assert_eq!(*done.lock(), ["first", "second", "third"]);
}

#[tokio::test]
async fn a_claim_leaves_room_for_shares_that_are_not_large() {
    let account = Account::new(16 * MIB as u64);
    let holder = account.share();
    holder.try_grow(8 * MIB).expect("room");
    let waiter = account.share();
    let others = async {
        let large = account.share();
        assert!(
            large.try_grow(2 * MIB).is_err(),
            "the oldest waiting share has a claim"
        );
        let shares = Vec::from_iter((0..3).map(|_| account.share()));
        let grown = shares.iter().map(|share| share.try_grow(MIB).is_ok());
        assert_eq!(
            Vec::from_iter(grown),
            [true, true, false],
            "all shares together take at most an eighth of the limit ahead of a claim"
        );
        account.share().try_grow(1000).expect("small");
    };
    tokio::select! {
        biased;
        _ = waiter.grow_within(12 * MIB, LONG) => panic!("there is no room"),
        () = others => {}
    }
    account.share().try_grow(2 * MIB).expect("no claim is left");
}

#[tokio::test]
async fn what_can_never_be_held_is_refused_at_once() {
    let account = Account::new(16 * MIB as u64);
    account.set_least_outside(4 * MIB as u64);
    let strangers = account.below(MIB as u64);
    for (account, bytes) in [(&account, 12 * MIB), (&strangers, MIB)] {
        let began = Instant::now();
        let share = account.share();
        assert!(share.grow_within(bytes, LONG).await.is_err());
        assert!(began.elapsed() < LONG / 2);
    }
    assert_eq!((account.figures().refused, used(&account)), (2, 0));
}

#[test]
fn a_claim_ends_and_goes_to_the_next_share_after_a_pause() {
    let line = Line::default();
    let began = Instant::now();
    let tickets = [100, 20, 30].map(|bytes| line.add(bytes));
    let [large, second, third] = tickets;
    let turns =
        |after: Duration| tickets.map(|ticket| line.turn(ticket, 50, 1000, began + after).0);
    let claimed = || line.left_to_claim(1, OVERTAKING_BYTES_MAX + 1);
    assert_eq!(
        turns(Duration::ZERO),
        [false, true, false],
        "only 50 bytes are free"
    );
    assert_eq!(claimed(), 20);
    assert_eq!(turns(CLAIM_TIME), [false; 3], "a pause");
    assert_eq!(claimed(), 0);
    let next = CLAIM_TIME + PAUSE;
    assert_eq!(turns(next), [false, false, true]);
    assert_eq!(claimed(), 30);
    line.remove(third);
    assert_eq!(turns(next), [false; 3], "each has one claim");
    assert_eq!(
        (claimed(), line.turn(large, 50, 1000, began + next).1),
        (0, None)
    );
    assert!(
        line.turn(large, 100, 1000, began + next).0,
        "there may be room later"
    );
    line.remove(large);
    line.remove(second);
    assert_eq!(claimed(), 0);
}

#[test]
fn what_a_large_share_leaves_behind_is_measured_before_others_take_its_bytes() {
    let account = Account::new(100 * MIB as u64);
    account.look(0);
    let (writer, other) = (account.share(), account.share());
    writer.try_grow(60 * MIB).expect("room");
    // The writer's bytes stay resident in a buffer.
    drop(writer);
    assert_eq!(used(&account), 60 * MIB as u64);
    other.try_grow(50 * MIB).expect_err("not measured yet");
    account.look(60 * MIB as u64);
    let figures = account.figures();
    assert_eq!(
        (figures.used_bytes, figures.outside_bytes),
        (0, 60 * MIB as u64)
    );
    other
        .try_grow(50 * MIB)
        .expect_err("the buffer is resident");
    other.try_grow(30 * MIB).expect("room");
    other.shrink(1000);
    assert_eq!(
        used(&account),
        30 * MIB as u64 - 1000,
        "few bytes are free at once"
    );
}
