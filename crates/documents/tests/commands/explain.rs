//! The output of `explain`.

use bson::doc;
use forebay_documents::Settings;
use forebay_text::{Limits, Tier};

use crate::door::{door, with};

#[tokio::test]
async fn the_stage_is_named() {
    let door = door();
    door.insert("c", (0..100).map(|id| doc! { "_id": id, "a": id }))
        .await;
    door.ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] })
        .await;
    for (command, stage) in [
        (doc! { "find": "c", "filter": { "_id": 1 } }, "IDHACK"),
        (doc! { "find": "c", "filter": { "a": 1 } }, "IXSCAN"),
        (doc! { "find": "c", "filter": { "b": 1 } }, "COLLSCAN"),
        (
            doc! { "count": "c", "query": { "a": { "$gt": 5 } } },
            "IXSCAN",
        ),
        (doc! { "distinct": "c", "key": "a" }, "COLLSCAN"),
        (
            doc! { "aggregate": "c", "pipeline": [{ "$match": { "a": 1 } }, { "$count": "n" }], "cursor": {} },
            "IXSCAN",
        ),
        (
            doc! { "update": "c", "updates": [{ "q": { "a": 1 }, "u": { "$set": { "a": 2 } } }] },
            "IXSCAN",
        ),
        (
            doc! { "delete": "c", "deletes": [{ "q": { "b": 1 }, "limit": 0 }] },
            "COLLSCAN",
        ),
        (doc! { "find": "nothing" }, "EOF"),
    ] {
        let planned = door
            .ok(doc! { "explain": command.clone(), "verbosity": "queryPlanner" })
            .await;
        assert!(
            planned
                .get_document("queryPlanner")
                .unwrap()
                .to_string()
                .contains(stage),
            "{planned}"
        );
        assert!(!planned.contains_key("executionStats"));
        let run = door.ok(doc! { "explain": command }).await;
        assert!(
            run.get_document("executionStats")
                .unwrap()
                .get_bool("executionSuccess")
                .unwrap(),
            "{run}"
        );
    }
    let explained = door
        .ok(doc! { "explain": { "find": "c", "filter": { "a": { "$lt": 10 } }, "limit": 3 } })
        .await;
    let figures = explained.get_document("executionStats").unwrap();
    assert_eq!(figures.get_i64("nReturned").ok(), Some(3));
    assert_eq!(
        door.count("c", doc! { "a": 1 }).await,
        1,
        "nothing was written"
    );
}

#[tokio::test]
async fn limits_of_patterns_are_settings_and_change_no_answer() {
    // The limits do not apply to the bit-parallel automaton, but this pattern is too long for it.
    let pattern = "[b-y]{70}-[0-9]{2}";
    let letters = "bcdefg".repeat(12);
    let values = ["-12", "-99-", "12", "-1", "a-12"].map(|end| format!("{letters}{end}"));
    let limits = Limits::default;
    let settings = Settings::default;
    let no_states = Settings {
        pattern: Limits {
            states_max: 0,
            ..limits()
        },
        ..settings()
    };
    let no_automaton = Settings {
        pattern: Limits {
            nfa_bytes_max: 0,
            ..limits()
        },
        ..settings()
    };
    let no_budget = Settings {
        command_patterns_bytes_max: 0,
        pattern_cache_bytes: 0,
        ..settings()
    };
    for (settings, tier) in [
        (settings(), Tier::Dfa),
        (no_states, Tier::LargeDfa),
        (no_automaton, Tier::Pcre),
        (no_budget, Tier::Pcre),
    ] {
        let door = with(settings);
        door.insert(
            "c",
            values.iter().map(|value| doc! { "_id": value, "s": value }),
        )
        .await;
        door.cache("c", "s").await;
        for _ in 0..2 {
            let find = doc! { "find": "c", "filter": { "s": { "$regex": pattern } } };
            let found = door.all(find.clone()).await;
            let ids = found.iter().map(|found| found.get_str("_id").unwrap());
            assert!(ids.eq(&values[..2]), "{tier}: {found:?}");
            let explained = door.ok(doc! { "explain": find }).await.to_string();
            assert!(
                explained.contains(&format!("\"tier\": \"{tier}\"")),
                "{tier}: {explained}"
            );
        }
    }
}
