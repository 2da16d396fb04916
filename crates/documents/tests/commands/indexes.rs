//! Ordinary indexes: their definitions, their conflicts, and whether they give the same answers as a scan.

use bson::{Bson, Document, doc};

use crate::door::{Door, door};

async fn index(door: &Door, key: Document, name: &str, options: Document) -> Document {
    let mut entry = doc! { "key": key, "name": name };
    entry.extend(options);
    door.ask(doc! { "createIndexes": "c", "indexes": [entry] })
        .await
}

#[tokio::test]
async fn indexes_are_created_listed_and_dropped() {
    let door = door();
    let reply = index(
        &door,
        doc! { "a": 1, "b": -1 },
        "ab",
        doc! { "unique": true },
    )
    .await;
    let expected = doc! { "numIndexesBefore": 1, "numIndexesAfter": 2, "createdCollectionAutomatically": true, "ok": 1.0 };
    assert_eq!(reply, expected);
    let again = index(
        &door,
        doc! { "a": 1, "b": -1 },
        "ab",
        doc! { "unique": true },
    )
    .await;
    assert_eq!(
        again.get_str("note").ok(),
        Some("all indexes already exist")
    );
    assert_eq!(
        index(
            &door,
            doc! { "a": 1, "b": -1 },
            "other",
            doc! { "unique": true }
        )
        .await
        .get_i32("code")
        .ok(),
        Some(85)
    );
    assert_eq!(
        index(&door, doc! { "z": 1 }, "ab", doc! {})
            .await
            .get_i32("code")
            .ok(),
        Some(86)
    );
    assert_eq!(
        index(&door, doc! { "t": "text" }, "t", doc! {})
            .await
            .get_i32("code")
            .ok(),
        Some(67)
    );
    let listed = door.all(doc! { "listIndexes": "c" }).await;
    let expected = [
        doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" },
        doc! { "v": 2, "key": { "a": 1, "b": -1 }, "name": "ab", "unique": true },
    ];
    assert_eq!(listed, expected);
    assert_eq!(
        door.code(doc! { "dropIndexes": "c", "index": "_id_" })
            .await,
        72
    );
    assert_eq!(
        door.code(doc! { "dropIndexes": "c", "index": "nothing" })
            .await,
        27
    );
    door.ok(doc! { "dropIndexes": "c", "index": { "a": 1, "b": -1 } })
        .await;
    assert_eq!(door.all(doc! { "listIndexes": "c" }).await.len(), 1);
}

#[tokio::test]
async fn the_index_on_id_takes_no_options_and_no_other_direction() {
    let door = door();
    let code = async |direction: Bson, options: Document| {
        let reply = index(&door, doc! { "_id": direction }, "i", options).await;
        reply.get_i32("code").unwrap_or(0)
    };
    assert_eq!(code(1.into(), doc! { "unique": true }).await, 197);
    assert_eq!(code(1.into(), doc! { "sparse": false }).await, 197);
    assert_eq!(code((-1).into(), doc! { "background": true }).await, 197);
    assert_eq!(code((-1).into(), doc! {}).await, 2);
    assert_eq!(code(1.0.into(), doc! {}).await, 0);
    assert_eq!(door.all(doc! { "listIndexes": "c" }).await.len(), 1);
    // An index on `_id` and other fields is an ordinary index.
    let reply = index(
        &door,
        doc! { "_id": -1, "a": 1 },
        "i",
        doc! { "sparse": true },
    )
    .await;
    assert_eq!(reply.get_i32("numIndexesAfter").ok(), Some(2));
}

#[tokio::test]
async fn a_collection_has_at_most_sixty_four_indexes() {
    let door = door();
    for number in 0..63 {
        let name = format!("i{number}");
        assert_eq!(
            index(&door, doc! { &name: 1 }, &name, doc! {})
                .await
                .get_f64("ok")
                .ok(),
            Some(1.0)
        );
    }
    assert_eq!(
        index(&door, doc! { "one": 1 }, "one", doc! {})
            .await
            .get_i32("code")
            .ok(),
        Some(67)
    );
}

#[tokio::test]
async fn unique_indexes_refuse_a_second_key() {
    let door = door();
    index(
        &door,
        doc! { "a": 1 },
        "a_1",
        doc! { "unique": true, "sparse": true },
    )
    .await;
    door.insert(
        "c",
        [
            doc! { "_id": 1, "a": 1 },
            doc! { "_id": 2 },
            doc! { "_id": 3 },
        ],
    )
    .await;
    let reply = door
        .ok(doc! { "insert": "c", "documents": [{ "_id": 4, "a": 1.0 }] })
        .await;
    let error = reply.get_array("writeErrors").unwrap()[0]
        .as_document()
        .unwrap()
        .clone();
    assert_eq!(error.get_document("keyPattern").unwrap(), &doc! { "a": 1 });
    let update =
        doc! { "update": "c", "updates": [{ "q": { "_id": 2 }, "u": { "$set": { "a": 1 } } }] };
    assert_eq!(
        door.ok(update)
            .await
            .get_array("writeErrors")
            .unwrap()
            .len(),
        1
    );
    let upsert = doc! { "update": "c", "updates": [{ "q": { "a": 1, "z": 1 }, "u": { "$set": { "y": 1 } }, "upsert": true }] };
    assert_eq!(
        door.ok(upsert)
            .await
            .get_array("writeErrors")
            .unwrap()
            .len(),
        1
    );
}

fn string(random: &mut fastrand::Rng) -> &'static str {
    ["", "a", "ab", "abc", "a\0c", "b", "ba\nb", "zz"][random.usize(0..8)]
}

/// Returns a random pattern, with or without a literal prefix that an index can use.
fn pattern(random: &mut fastrand::Rng) -> Bson {
    let source = ["^a", "^ab", "^ab?", "^b.*b$", "^(ab|ac)", "b", "^"][random.usize(0..7)];
    let options = ["", "", "s", "i", "m"][random.usize(0..5)];
    Bson::RegularExpression(bson::Regex {
        pattern: source.try_into().unwrap(),
        options: options.try_into().unwrap(),
    })
}

/// Returns a random value of a random type.
fn value(random: &mut fastrand::Rng) -> Bson {
    match random.u32(0..11) {
        0 => Bson::Int32(random.i32(0..6)),
        1 => Bson::Double(f64::from(random.i32(0..12)) / 2.0),
        2 => Bson::String(string(random).to_owned()),
        9 => Bson::Symbol(string(random).to_owned()),
        10 => pattern(random),
        3 => Bson::Null,
        4 => Bson::Array((0..random.usize(0..3)).map(|_| value(random)).collect()),
        5 => Bson::Boolean(random.bool()),
        6 => Bson::Document(doc! { "b": random.i32(0..3) }),
        7 => Bson::Int64(random.i64(0..6)),
        _ => Bson::DateTime(bson::DateTime::from_millis(random.i64(0..4))),
    }
}

/// Returns a random value other than a pattern, for use in comparisons.
fn comparable(random: &mut fastrand::Rng) -> Bson {
    std::iter::repeat_with(|| value(random))
        .find(|value| !matches!(value, Bson::RegularExpression(_)))
        .unwrap()
}

fn condition(random: &mut fastrand::Rng) -> Bson {
    let operand = comparable(random);
    match random.u32(0..9) {
        0 => operand,
        6 => pattern(random),
        7 => doc! { "$regex": pattern(random), "$lt": comparable(random) }.into(),
        1 => doc! { "$gt": operand }.into(),
        2 => doc! { "$lte": operand }.into(),
        3 => doc! { "$gte": operand, "$lt": comparable(random) }.into(),
        4 => doc! { "$in": [operand, value(random)] }.into(),
        5 => doc! { "$ne": operand }.into(),
        _ => doc! { "$exists": random.bool() }.into(),
    }
}

/// Returns random conditions on some of the fields, sometimes with an `$or`.
fn filter(random: &mut fastrand::Rng) -> Document {
    let mut filter = conditions(random);
    if random.u32(0..3) == 0 {
        let branches = (0..random.usize(1..4)).map(|_| conditions(random));
        filter = doc! { "$or": branches.collect::<Vec<_>>() };
        if random.bool() {
            filter.extend(conditions(random));
        }
    }
    filter
}

fn conditions(random: &mut fastrand::Rng) -> Document {
    let mut filter = Document::new();
    for field in ["a", "b", "a.b"] {
        if random.u32(0..3) > 0 {
            filter.insert(field, condition(random));
        }
    }
    filter
}

#[tokio::test]
async fn index_and_scan_give_the_same_documents() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let door = door();
    let documents: Vec<Document> = (0..400)
        .map(|id| {
            let mut document = doc! { "_id": id };
            if random.u32(0..8) > 0 {
                document.insert("a", value(&mut random));
            }
            if random.u32(0..8) > 0 {
                document.insert(
                    "b",
                    if random.bool() {
                        Bson::Int32(random.i32(0..5))
                    } else {
                        value(&mut random)
                    },
                );
            }
            document
        })
        .filter(|document| {
            !(matches!(document.get("a"), Some(Bson::Array(_)))
                && matches!(document.get("b"), Some(Bson::Array(_))))
        })
        .collect();
    door.insert("c", documents.clone()).await;
    for (key, name) in [
        (doc! { "a": 1 }, "a_1"),
        (doc! { "b": -1, "a": 1 }, "ba"),
        (doc! { "a.b": 1 }, "a.b_1"),
    ] {
        assert_eq!(
            index(&door, key, name, doc! {}).await.get_f64("ok").ok(),
            Some(1.0)
        );
    }
    assert_eq!(
        index(&door, doc! { "b": 1 }, "b_sparse", doc! { "sparse": true })
            .await
            .get_f64("ok")
            .ok(),
        Some(1.0)
    );
    for _ in 0..400 {
        let filter = filter(&mut random);
        let scan = door
            .all(doc! { "find": "c", "filter": filter.clone(), "hint": { "$natural": 1 } })
            .await;
        let mut planned = door
            .all(doc! { "find": "c", "filter": filter.clone() })
            .await;
        planned.sort_by_key(|document| document.get_i32("_id").unwrap());
        assert_eq!(planned, scan, "seed {seed}, filter {filter}");
        let count = door.count("c", filter.clone()).await;
        assert_eq!(count as usize, scan.len(), "seed {seed}, filter {filter}");
        let sort = doc! { "b": 1, "a": -1, "_id": 1 };
        let natural = door.all(doc! { "find": "c", "filter": filter.clone(), "sort": sort.clone(), "hint": { "$natural": 1 } }).await;
        let indexed = door
            .all(doc! { "find": "c", "filter": filter.clone(), "sort": sort })
            .await;
        assert_eq!(indexed, natural, "seed {seed}, sorted filter {filter}");
    }
}

/// Returns the stages of a plan, outermost first, with their details.
async fn plan(door: &Door, find: Document) -> String {
    let explained = door.ok(doc! { "explain": find }).await;
    let planner = explained.get_document("queryPlanner").unwrap();
    planner.get_document("winningPlan").unwrap().to_string()
}

#[tokio::test]
async fn an_or_and_a_prefix_use_indexes() {
    let door = door();
    let documents = (0..200)
        .map(|id| doc! { "_id": id, "a": id % 50, "s": format!("s{:03}", id / 2), "n": id % 7 });
    door.insert("c", documents).await;
    for (key, name) in [(doc! { "a": 1 }, "a_1"), (doc! { "s": -1, "n": 1 }, "sn")] {
        index(&door, key, name, doc! {}).await;
    }
    let or = doc! { "$or": [{ "a": 3 }, { "s": { "$regex": "^s00" }, "n": { "$gt": 1 } }, { "a": { "$in": [3, 4] } }] };
    let shown = plan(&door, doc! { "find": "c", "filter": or.clone() }).await;
    assert!(
        shown.contains("\"OR\"") && shown.contains("\"sn\""),
        "{shown}"
    );
    let mut found = door.ids("c", or.clone()).await;
    assert_eq!(door.count("c", or.clone()).await as usize, found.len());
    found.sort_unstable();
    let scan = door.all(doc! { "find": "c", "filter": or.clone(), "hint": { "$natural": 1 }, "projection": { "_id": 1 } }).await;
    assert_eq!(
        found,
        scan.iter()
            .map(|found| found.get_i32("_id").unwrap())
            .collect::<Vec<_>>()
    );
    let unindexed = doc! { "$or": [{ "a": 3 }, { "n": 1 }] };
    let shown = plan(&door, doc! { "find": "c", "filter": unindexed }).await;
    assert!(shown.contains("COLLSCAN"), "{shown}");
    for (sort, scanned) in [(-1, "forward"), (1, "backward")] {
        let find = doc! { "find": "c", "filter": { "s": { "$regex": "^s01[0-9]$" } }, "sort": { "s": sort } };
        let shown = plan(&door, find.clone()).await;
        assert!(
            shown.contains("strings that begin with") && shown.contains(scanned),
            "{shown}"
        );
        assert!(!shown.contains("SORT"), "{shown}");
        let sorted = door.all(find).await;
        assert_eq!(sorted.len(), 20);
        let ordered = sorted.is_sorted_by(|a, b| match sort {
            1 => a.get_str("s").unwrap() <= b.get_str("s").unwrap(),
            _ => a.get_str("s").unwrap() >= b.get_str("s").unwrap(),
        });
        assert!(ordered, "{sorted:?}");
    }
}

#[tokio::test]
async fn an_index_gives_the_order_of_a_sort() {
    let door = door();
    door.insert(
        "c",
        (0..100).map(|id| doc! { "_id": id, "a": id % 10, "b": -id }),
    )
    .await;
    index(&door, doc! { "a": 1, "b": 1 }, "ab", doc! {}).await;
    for (sort, direction) in [
        (doc! { "a": 1, "b": 1 }, 1),
        (doc! { "a": -1, "b": -1 }, -1),
    ] {
        let explained = door
            .ok(doc! { "explain": { "find": "c", "sort": sort.clone() } })
            .await;
        assert!(
            !explained.to_string().contains("\"SORT\""),
            "{direction}: {explained}"
        );
        let indexed = door.all(doc! { "find": "c", "sort": sort.clone() }).await;
        let sorted = door
            .all(doc! { "find": "c", "sort": sort, "hint": "$natural" })
            .await;
        assert_eq!(indexed, sorted);
    }
    let explained = door
        .ok(doc! { "explain": { "find": "c", "filter": { "a": 3 }, "sort": { "b": -1 } } })
        .await;
    assert!(
        !explained.to_string().contains("\"SORT\"") && explained.to_string().contains("IXSCAN"),
        "{explained}"
    );
    let found = door.ids("c", doc! { "a": 3 }).await;
    assert_eq!(found.len(), 10);
}

#[tokio::test]
async fn elements_of_one_array_may_meet_different_fields_of_an_index() {
    let door = door();
    let elements = vec![doc! { "x": 1, "y": 5 }, doc! { "x": 7, "y": 2 }];
    door.insert("c", [doc! { "_id": 1, "a": elements }]).await;
    index(&door, doc! { "a.x": 1, "a.y": 1 }, "axy", doc! {}).await;
    let filter = doc! { "a.x": 1, "a.y": 2 };
    assert_eq!(door.count("c", filter.clone()).await, 1);
    assert_eq!(door.ids("c", filter).await.len(), 1);
}
