//! Memory that searches charge to the account.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Pair, Value, leaf, options, regex};
use forebay_cancel::Stop;
use forebay_documents_cache::{
    CacheSettings, Expr, Predicate, SearchAnswer, SearchError, SearchRequest, Want,
};
use forebay_memory::Account;
use forebay_text::Program;

const DOCUMENTS: u32 = 20_000;
/// Part of every value. Each of its hundreds of substrings is a condition that every document meets.
const COMMON: &str = "abcdefghijklmnopqrstuvwxyz";

fn pair(memory: &Account) -> Pair {
    let settings = CacheSettings {
        background: false,
        memory: memory.clone(),
        ..CacheSettings::default()
    };
    let mut pair = Pair::new(1, options(u64::MAX), settings, 1);
    for number in 0..DOCUMENTS {
        let value = format!("{number:05}{COMMON}");
        pair.insert(number, vec![Value::String(value)]);
    }
    pair.collection.flush();
    pair
}

fn search(pair: &Pair, expr: Expr) -> Result<SearchAnswer, SearchError> {
    let request = SearchRequest {
        expr,
        want: Want::Numbers { limit: None },
        stop: Stop::never(),
    };
    common::runtime().block_on(pair.collection.search(request))
}

/// Waits until no memory is charged: a device drops a scan shortly after it has answered.
fn wait_until_nothing_is_held(memory: &Account) {
    let until = Instant::now() + Duration::from_secs(60);
    while memory.figures().used_bytes > 0 {
        assert!(Instant::now() < until, "{:?}", memory.figures());
        std::thread::yield_now();
    }
}

/// Returns `count` different conditions that every document meets: substrings of at least two letters.
fn met_by_all(count: usize) -> Vec<Expr> {
    let begins = 0..COMMON.len() - 1;
    let parts = begins.flat_map(|begin| (begin + 2..=COMMON.len()).map(move |end| (begin, end)));
    let conditions = parts.map(|(begin, end)| {
        let program = Program::substring(&COMMON[begin..end]);
        leaf(0, Predicate::Program(Arc::new(program)))
    });
    conditions.take(count).collect()
}

#[test]
fn many_conditions_hold_few_sets_at_a_time() {
    let memory = Account::new(1 << 30);
    let pair = pair(&memory);
    let one = search(&pair, met_by_all(1).remove(0)).expect("room");
    assert_eq!(one.count, u64::from(DOCUMENTS));
    let of_one = memory.figures().peak_bytes;
    assert!(of_one >= 64 << 10, "{of_one} bytes");
    for join in [Expr::And, Expr::Or] {
        let answer = search(&pair, join(met_by_all(200))).expect("room");
        assert_eq!(answer.count, u64::from(DOCUMENTS));
        assert_eq!(answer.report.leaves.len(), 200);
    }
    let of_many = memory.figures().peak_bytes;
    assert!(
        of_many <= of_one * 40,
        "200 conditions take {of_many} bytes, one takes {of_one}"
    );
    wait_until_nothing_is_held(&memory);
}

#[test]
fn equal_conditions_are_searched_once() {
    let pair = pair(&Account::default());
    let condition = leaf(0, regex("b.d"));
    let answer = search(&pair, Expr::And(vec![condition; 1000])).expect("room");
    assert_eq!(answer.count, u64::from(DOCUMENTS));
    assert_eq!(answer.report.leaves.len(), 1);
}

#[test]
fn a_search_without_room_fails_and_small_ones_succeed() {
    let memory = Account::new(4 << 20);
    let pair = pair(&memory);
    let all = memory.share();
    all.try_grow(3_900_000).expect("room");
    let refused = search(&pair, met_by_all(1).remove(0));
    assert!(
        matches!(refused, Err(SearchError::NoRoom(_))),
        "{refused:?}"
    );
    let one = Predicate::Equals(format!("00007{COMMON}").into_bytes());
    assert_eq!(search(&pair, leaf(0, one)).expect("room").count, 1);
    let few = search(&pair, leaf(0, regex("^0001.*xyz$"))).expect("room");
    assert_eq!(few.count, 10);
    drop(all);
    search(&pair, met_by_all(1).remove(0)).expect("room");
    wait_until_nothing_is_held(&memory);
}
