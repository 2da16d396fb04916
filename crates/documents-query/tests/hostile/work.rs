<<<<<<< HEAD:crates/documents-query/tests/hostile.rs
//! Hostile input: parsing and applying never panic, and nesting is bounded.
//!
//! The seed is printed when a run fails; `FOREBAY_SEED` repeats it.
=======
//! Work that a client could make endless: it is bounded by the size of the input, or stopped.
>>>>>>> integration:crates/documents-query/tests/hostile/work.rs

use std::time::{Duration, Instant};

use bson::raw::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf};
use bson::{Bson, DateTime, Document, cstr, doc};
use forebay_cancel::Stop;
use forebay_documents_query::stage::{Run, Stream};
use forebay_documents_query::{
    Code, Error, Filter, Limits, Pipeline, Projection, ProjectionContext, Update, UpdateContext,
    Variables,
};
use nix::time::{ClockId, clock_gettime};

<<<<<<< HEAD:crates/documents-query/tests/hostile.rs
const ROUNDS: usize = 20_000;

const NAMES: &[&str] = &[
    "",
    "_id",
    "a",
    "a.b",
    "a.0",
    "a.$",
    "a.$[]",
    "a.$[x]",
    "x",
    "x.y",
    "$and",
    "$or",
    "$nor",
    "$not",
    "$eq",
    "$ne",
    "$gt",
    "$in",
    "$nin",
    "$exists",
    "$type",
    "$regex",
    "$options",
    "$mod",
    "$all",
    "$elemMatch",
    "$size",
    "$expr",
    "$comment",
    "$bitsAllSet",
    "$set",
    "$unset",
    "$inc",
    "$mul",
    "$min",
    "$max",
    "$rename",
    "$push",
    "$each",
    "$slice",
    "$position",
    "$sort",
    "$addToSet",
    "$pull",
    "$pullAll",
    "$pop",
    "$setOnInsert",
    "$currentDate",
    "$bit",
    "and",
    "$match",
    "$project",
    "$addFields",
    "$group",
    "$limit",
    "$skip",
    "$count",
    "$unwind",
    "$sortByCount",
    "$replaceRoot",
    "newRoot",
    "$sum",
    "$avg",
    "$first",
    "$add",
    "$divide",
    "$cond",
    "$switch",
    "branches",
    "case",
    "then",
    "default",
    "$map",
    "$filter",
    "input",
    "as",
    "in",
    "cond",
    "$reduce",
    "initialValue",
    "$let",
    "vars",
    "$concat",
    "$substrCP",
    "$split",
    "$trim",
    "$toString",
    "$toInt",
    "$toDate",
    "$year",
    "date",
    "$dateToString",
    "format",
    "$literal",
    "$arrayToObject",
    "k",
    "v",
    "$range",
    "$indexOfCP",
    "$regexMatch",
    "path",
    "includeArrayIndex",
    "size",
    "$sample",
    "$arrayElemAt",
    "$mergeObjects",
    "$round",
    "$pow",
    "$substrBytes",
    "$subtract",
    "$setUnion",
    "$ref",
    "$id",
];

const TEXTS: &[&str] = &[
    "", "a", "$a", "$$this", "$$ROOT", "$$", "$", "x", "(", "^a.*b$", "[", "é", "\0", "string",
    "number", "i", "%Y%", "1", "-1",
];

fn value(rng: &mut Rng, depth: usize) -> Bson {
    let kinds = if depth == 0 { 15 } else { 21 };
    match rng.usize(..kinds) {
        0 => Bson::Null,
        1 => Bson::Int32(rng.i32(-3..12)),
        2 => Bson::Int64(
            *rng.choice(&[i64::MIN, i64::MAX, -1, 0, 1, 1 << 33])
                .expect("a choice"),
        ),
        3 => Bson::Double(
            *rng.choice(&[0.0, -0.0, 1.5, f64::NAN, f64::INFINITY, 1e300, -1.0, 5e-324])
                .expect("a choice"),
        ),
        4 => Bson::Boolean(rng.bool()),
        5..=8 => Bson::String((*rng.choice(TEXTS).expect("a choice")).to_owned()),
        9 => Bson::Undefined,
        10 => Bson::DateTime(DateTime::from_millis(
            *rng.choice(&[0, i64::MAX, i64::MIN, 1_700_000_000_000])
                .expect("a choice"),
        )),
        11 => Bson::Decimal128("1.5E3".parse().expect("a decimal")),
        12 => Bson::MaxKey,
        13 => Bson::ObjectId([7; 12].into()),
        14 => Bson::Symbol("a".to_owned()),
        15..=16 => Bson::Array((0..rng.usize(..4)).map(|_| value(rng, depth - 1)).collect()),
        _ => Bson::Document(document(rng, depth - 1)),
    }
}

fn document(rng: &mut Rng, depth: usize) -> Document {
    (0..rng.usize(..4))
        .map(|_| {
            (
                (*rng.choice(NAMES).expect("a choice")).to_owned(),
                value(rng, depth),
            )
        })
        .collect()
}

fn raw(document: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(document).expect("names have no NUL")
}

/// Parses `hostile` in each role it could have, and applies what parses to `target`.
fn exercise(hostile: &RawDocument, target: &RawDocument) {
    let limits = Limits::default();
    let now = DateTime::from_millis(0);
    key::encode(RawBsonRef::Document(hostile));
    forebay_documents_query::compare(RawBsonRef::Document(hostile), RawBsonRef::Document(target));
    if let Ok(filter) = Filter::parse(hostile, &limits) {
        let _ = filter.try_matches(target);
        let _ = filter.match_position(target);
    }
    if let Ok(projection) = Projection::parse(hostile, &limits) {
        let _ = projection.apply(
            target,
            &ProjectionContext {
                now,
                position: Some(0),
            },
        );
    }
    if let Ok(sort) = Sort::parse(hostile) {
        sort.key(target);
    }
    if let Ok(update) = Update::parse(RawBsonRef::Document(hostile), None, &limits) {
        let _ = update.apply(target, &UpdateContext::new(now, Some(0)));
        let _ = update.upsert_document(&Filter::all(), &UpdateContext::new(now, None));
    }
    pipeline(hostile, target, &limits);
}

fn pipeline(hostile: &RawDocument, target: &RawDocument, limits: &Limits) {
    let mut stages = RawArrayBuf::new();
    for element in forebay_documents_query::element::elements(hostile) {
        let mut writer = Writer::new();
        writer.element(&element);
        stages.push(RawBson::Document(writer.finish()));
    }
    let Ok(pipeline) = Pipeline::parse(&stages, limits) else {
        return;
    };
    let input: Stream<'_, Error> =
        Box::new([target.to_owned(), target.to_owned()].into_iter().map(Ok));
    for document in pipeline
        .run(input, &Run::new(DateTime::from_millis(0), limits.clone()))
        .take(100)
    {
        let _ = document;
    }
}

/// Prints the seed if the test panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with FOREBAY_SEED={}", self.0);
        }
    }
}

fn seeded() -> (Seed, Rng) {
    let seed = std::env::var("FOREBAY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_261_121);
    (Seed(seed), Rng::with_seed(seed))
}

#[test]
fn random_documents_never_panic() {
    let (_seed, mut rng) = seeded();
    for _ in 0..ROUNDS {
        let (hostile, target) = (document(&mut rng, 4), document(&mut rng, 3));
        exercise(&raw(&hostile), &raw(&target));
    }
}

#[test]
fn damaged_bytes_never_panic() {
    let (_seed, mut rng) = seeded();
    for _ in 0..ROUNDS {
        let mut bytes = raw(&document(&mut rng, 4)).into_bytes();
        for _ in 0..rng.usize(1..4) {
            let place = rng.usize(..bytes.len());
            bytes[place] = rng.u8(..);
        }
        let target = raw(&document(&mut rng, 2));
        if let Ok(hostile) = RawDocument::from_bytes(&bytes) {
            exercise(hostile, &target);
            exercise(&target, hostile);
        }
    }
}

fn nested(levels: usize, name: &str, innermost: Bson) -> Document {
    (0..levels).fold(doc! { "a": innermost }, |inner, _| doc! { name: inner })
}

#[test]
fn nesting_is_bounded_everywhere() {
    let limits = Limits::default();
    let mut deep = Writer::new();
    (0..100_000).for_each(|_| deep.begin_document("a"));
    let deep = deep.finish();
    let code = |error: Option<Error>| error.map(|error| error.code);
    assert_eq!(
        code(Filter::parse(&deep, &limits).err()),
        Some(Code::Overflow)
    );
    assert_eq!(
        code(Projection::parse(&deep, &limits).err()),
        Some(Code::Overflow)
    );
    assert_eq!(
        code(Update::parse(RawBsonRef::Document(&deep), None, &limits).err()),
        Some(Code::Overflow)
    );
    let mut stages = RawArrayBuf::new();
    stages.push(RawBson::Document(deep));
    assert_eq!(
        code(Pipeline::parse(&stages, &limits).err()),
        Some(Code::Overflow)
    );
}

/// `initial`, wrapped in `step` `levels` times; `step` refers to the value so far as `$$value`.
fn grown(levels: i32, initial: Bson, step: impl Into<Bson>) -> Document {
    doc! { "$reduce": { "input": { "$range": [0, levels] }, "initialValue": initial, "in": step.into() } }
}

/// The documents of a pipeline over `{_id: 1, x: [], s: 1}`, or its error code.
fn run_stages(stages: &[Document]) -> Result<Vec<RawDocumentBuf>, Code> {
    let limits = Limits::default();
    let stages = RawArrayBuf::from_iter(stages.iter().map(raw));
    let input: Stream<'_, Error> =
        Box::new([Ok(raw(&doc! { "_id": 1, "x": [], "s": 1 }))].into_iter());
    Pipeline::parse(&stages, &limits)
        .and_then(|pipeline| {
            let run = Run::new(DateTime::from_millis(0), limits);
            pipeline.run(input, &run).collect()
        })
        .map_err(|error| error.code)
}

#[test]
fn what_expressions_build_nests_no_deeper_than_a_document_may() {
    let (none, empty) = (Bson::Array(Vec::new()), Bson::Document(doc! {}));
    let value = || Bson::from("$$value");
    let one = || Bson::Array(vec![value()]);
    for (initial, step) in [
        (&none, one()),
        (&none, doc! { "$concatArrays": [[value()]] }.into()),
        (
            &none,
            doc! { "$map": { "input": [1], "in": value() } }.into(),
        ),
        (&none, doc! { "$slice": [[value()], 1] }.into()),
        (&none, doc! { "$setUnion": [[value()]] }.into()),
        (&empty, doc! { "a": value() }.into()),
        (
            &empty,
            doc! { "$arrayToObject": [[{ "k": "a", "v": value() }]] }.into(),
        ),
        (&empty, doc! { "$mergeObjects": [{ "a": value() }] }.into()),
        (
            &empty,
            doc! { "$setField": { "field": "a", "input": {}, "value": value() } }.into(),
        ),
        (&none, doc! { "$objectToArray": { "a": value() } }.into()),
        (
            &none,
            doc! { "$let": { "vars": { "v": value() }, "in": ["$$v"] } }.into(),
        ),
    ] {
        let deep = grown(5000, initial.clone(), step.clone());
        for stage in [
            doc! { "$project": { "x": deep.clone() } },
            doc! { "$project": { "x": { "$eq": [deep.clone(), deep.clone()] } } },
            doc! { "$group": { "_id": deep.clone() } },
            doc! { "$match": { "$expr": { "$in": [deep.clone(), [deep.clone()]] } } },
        ] {
            assert_eq!(run_stages(&[stage]), Err(Code::Overflow), "{step}");
        }
    }
}

#[test]
fn a_value_may_nest_as_deep_as_its_document_may() {
    let project = |levels, step: Document| {
        let grown = grown(levels, Bson::Document(doc! {}), step);
        run_stages(&[doc! { "$project": { "x": grown } }])
    };
    let step = doc! { "a": "$$value" };
    let documents = project(198, step.clone()).expect("200 levels");
    let deep = RawBsonRef::Document(&documents[0]);
    assert!(nests_deeper(deep, 199) && !nests_deeper(deep, 200));
    assert_eq!(project(199, step), Err(Code::Overflow));
}

#[test]
fn a_thousand_stages_nest_no_deeper_than_a_document_may() {
    let path = |name: &str| format!("x{}", format!(".{name}").repeat(150));
    for stage in [
        doc! { "$set": { "x": ["$x"] } },
        doc! { "$set": { "x": { "$mergeObjects": [{ "a": "$x" }] } } },
        doc! { "$project": { "x": ["$x"] } },
        doc! { "$replaceWith": { "a": "$$ROOT" } },
        doc! { "$replaceRoot": { "newRoot": { "a": "$$ROOT" } } },
        doc! { "$group": { "_id": ["$_id"] } },
        doc! { "$group": { "_id": null, "x": { "$push": "$x" } } },
        doc! { "$group": { "_id": null, "x": { "$addToSet": "$x" } } },
        doc! { "$group": { "_id": null, "x": { "$first": [["$x"]] } } },
        doc! { "$group": { "_id": null, "x": { "$max": [["$x"]] } } },
        doc! { "$group": { "_id": null, "x": { "$mergeObjects": { "a": "$x" } } } },
    ] {
        let stages = vec![stage.clone(); 1000];
        assert_eq!(run_stages(&stages), Err(Code::Overflow), "{stage}");
    }
    // Through arrays, paths create documents inside values that are already deep.
    let mut through = vec![doc! { "$set": { "x": "$s" } }];
    through.extend(vec![doc! { "$set": { "x": ["$x"] } }; 100]);
    through.push(doc! { "$set": { path("a"): 1 } });
    assert_eq!(run_stages(&through), Err(Code::Overflow));
}

#[test]
fn a_thousand_stages_of_each_kind_run() {
    for stage in [
        doc! { "$group": { "_id": "$_id" } },
        doc! { "$sort": { "s": 1 } },
        doc! { "$sample": { "size": 5 } },
        doc! { "$count": "n" },
        doc! { "$set": { "s": ["$_id"] } },
        doc! { "$replaceWith": "$$ROOT" },
        doc! { "$match": { "_id": { "$exists": true } } },
        doc! { "$unwind": "$_id" },
        doc! { "$skip": 0 },
        doc! { "$limit": 5 },
    ] {
        let documents = run_stages(&vec![stage.clone(); 1000]).map(|documents| documents.len());
        assert_eq!(documents, Ok(1), "{stage}");
    }
}

#[test]
fn documents_that_nest_too_deep_on_disk_are_refused_or_read() {
    let deep_document = nested_bytes(false);
    let deep_array = nested_bytes(true);
    let now = DateTime::from_millis(0);
    let limits = Limits::default();
    for deep in [&deep_document, &deep_array] {
        let value = RawBsonRef::Document(deep);
        assert!(forebay_documents_query::compare(value, value).is_eq());
        assert_eq!(key::encode(value), key::encode(value));
        assert!(nests_deeper(value, 200));
        assert!(forebay_documents_query::display::value(value).len() < 1000);
        let sort = Sort::parse(&raw(&doc! { "x": -1, "_id": 1 })).expect("a sort");
        assert_eq!(sort.key(deep), sort.key(deep));
        let filter = raw(&doc! { "x": { "$gte": [], "$ne": { "a": 1 } }, "x.a.x": null });
        Filter::parse(&filter, &limits)
            .expect("a filter")
            .try_matches(deep)
            .expect("no expression fails");
        let update = raw(&doc! { "$set": { "y": 1 } });
        let update = Update::parse(RawBsonRef::Document(&update), None, &limits);
        let changed = update
            .expect("an update")
            .apply(deep, &UpdateContext::new(now, None));
        assert_eq!(changed.expect_err("too deep").code, Code::Overflow);
        forebay_documents_query::update::describe(deep, &raw(&doc! { "x": { "x": 2 } }));
    }
    let context = ProjectionContext {
        now,
        position: None,
    };
    for spec in [doc! { "x.y": 1 }, doc! { "x.y": 0 }, doc! { "z": "$x.y" }] {
        let projection = Projection::parse(&raw(&spec), &limits).expect("a projection");
        let error = projection
            .apply(&deep_array, &context)
            .expect_err("too deep");
        assert_eq!(error.code, Code::Overflow, "{spec}");
    }
}

/// `x` nested in itself 100,000 times, as a document or as an array.
fn nested_bytes(arrays: bool) -> RawDocumentBuf {
    let mut writer = Writer::new();
    for level in 0..100_000 {
        match (arrays, level) {
            (true, 0) => writer.begin_array("x"),
            (true, _) => writer.begin_array("0"),
            (false, _) => writer.begin_document("x"),
        }
    }
    writer.finish()
}
=======
use crate::random::raw;
use crate::{nested, run_stages};
>>>>>>> integration:crates/documents-query/tests/hostile/work.rs

#[test]
fn an_expression_may_bind_many_variables() {
    let vars: Document = (0..100_000)
        .map(|index| (format!("v{index}"), Bson::Int32(index)))
        .collect();
    let stage = doc! { "$project": { "x": { "$let": { "vars": vars, "in": "$$v99999" } } } };
    let documents = run_stages(&[stage]).expect("it runs");
    assert_eq!(documents[0].get_i32("x").expect("a number"), 99_999);
}

/// As many names as a message of some MB can hold.
fn many_names() -> impl Iterator<Item = String> {
    (0..200_000).map(|number| format!("name{number}"))
}

/// Checks that work is linear in its input, not quadratic: it takes at most some seconds of processor time, while
/// visiting each pair of names would take minutes.
#[track_caller]
fn assert_linear<T>(work: impl FnOnce() -> Result<T, Error>) -> T {
    let worked = time_worked();
    let made = work().expect("nothing is refused");
    assert!(time_worked() - worked < Duration::from_secs(20));
    made
}

#[test]
fn many_names_take_time_by_their_number() {
    let limits = Limits::default();
    let flags: Document = many_names().map(|name| (name, Bson::Int32(1))).collect();
    assert_linear(|| Projection::parse(&raw(&flags), &limits));
    let update = raw(&doc! { "$set": flags.clone() });
    assert_linear(|| Update::parse(RawBsonRef::Document(&update), None, &limits));
    let pairs = many_names().map(|name| doc! { "k": name, "v": 1 });
    let pairs = Bson::Array(pairs.map(Bson::Document).collect());
    for stage in [
        doc! { "$project": { "x": { "$arrayToObject": { "$literal": pairs } } } },
        doc! { "$project": { "x": { "$mergeObjects": { "$literal": flags.clone() } } } },
        doc! { "$group": { "_id": null, "x": { "$mergeObjects": { "$literal": flags.clone() } } } },
    ] {
        assert_linear(|| run_stages(&[stage]).map_err(|code| Error::new(code, "it failed")));
    }
    let sees = |name: String| (name.clone(), Bson::String(format!("$${name}")));
    let vars: Document = many_names()
        .map(|name| (name, Bson::Int32(1)))
        .chain(
            many_names()
                .map(sees)
                .map(|(name, seen)| (format!("{name}x"), seen)),
        )
        .collect();
    let now = DateTime::from_millis(0);
    assert_linear(|| Variables::parse(&raw(&vars), now, &limits));
    let document = raw(&doc! { "a": (0..200_000).map(Bson::Int32).collect::<Vec<_>>() });
    let gone =
        raw(&doc! { "$pullAll": { "a": (0..200_000).map(Bson::Int32).collect::<Vec<_>>() } });
    let gone = Update::parse(RawBsonRef::Document(&gone), None, &limits).expect("an update");
    assert_linear(|| gone.apply(&document, &UpdateContext::new(now, None)));
}

#[test]
fn an_update_of_many_fields_is_stopped() {
    let limits = Limits::default();
    let fields: Document = many_names().map(|name| (name, Bson::Int32(1))).collect();
    let update = raw(&doc! { "$set": fields });
    let update = Update::parse(RawBsonRef::Document(&update), None, &limits).expect("an update");
    limits
        .stop()
        .follow(&Stop::at(Instant::now() + Duration::from_millis(50)));
    let context = UpdateContext::new(DateTime::from_millis(0), None);
    let stopped = update.apply(&raw(&doc! { "_id": 1 }), &context);
    assert_eq!(stopped.expect_err("stopped").code, Code::MaxTimeMSExpired);
}

#[test]
fn a_filter_of_too_many_levels_is_refused() {
    let nots = (0..101).fold(doc! { "$gt": 1 }, |inner, _| doc! { "$not": inner });
    let error = Filter::parse(&raw(&doc! { "a": nots }), &Limits::default()).expect_err("too deep");
    assert_eq!(error.code, Code::BadValue);
    assert!(
        error
            .message
            .starts_with("exceeded maximum query tree depth of 100"),
        "{}",
        error.message
    );
}

#[test]
fn an_update_that_nests_too_deep_is_refused() {
    let path = vec!["a"; 150].join(".");
    let update = raw(&doc! { "$set": { path: nested(100, "b", Bson::Int32(1)) } });
    let update =
        Update::parse(RawBsonRef::Document(&update), None, &Limits::default()).expect("it parses");
    let error = update.apply(
        &raw(&doc! { "_id": 1 }),
        &UpdateContext::new(DateTime::from_millis(0), None),
    );
    assert_eq!(error.expect_err("too deep").code, Code::Overflow);
}

#[test]
fn an_update_that_makes_a_document_too_large_is_refused() {
    let update = raw(&doc! { "$set": { "b": "x".repeat(1000) } });
    let limits = Limits {
        document_bytes_max: 500,
        ..Limits::default()
    };
    let update = Update::parse(RawBsonRef::Document(&update), None, &limits).expect("it parses");
    let error = update.apply(
        &raw(&doc! { "_id": 1 }),
        &UpdateContext::new(DateTime::from_millis(0), None),
    );
    assert_eq!(error.expect_err("too large").code, Code::BSONObjectTooLarge);
}

fn run_with(
    stages: Vec<Bson>,
    limits: Limits,
    run: impl FnOnce(&mut Run),
) -> Result<Vec<RawDocumentBuf>, Error> {
    let stages = RawArrayBuf::try_from(stages).expect("names have no NUL");
    let mut settings = Run::new(DateTime::from_millis(0), limits.clone());
    run(&mut settings);
    let documents =
        (0..5000).map(|number| Ok(raw(&doc! { "_id": number, "text": "x".repeat(50) })));
    Pipeline::parse(&stages, &limits)?
        .run(Box::new(documents) as Stream<'_, Error>, &settings)
        .collect()
}

#[test]
fn blocking_stages_keep_to_their_memory() {
    let limits = Limits {
        stage_memory_bytes_max: 100_000,
        ..Limits::default()
    };
    for stage in [
        doc! { "$sort": { "text": 1 } },
        doc! { "$group": { "_id": "$_id" } },
        doc! { "$group": { "_id": null, "all": { "$push": "$text" } } },
        doc! { "$group": { "_id": null, "all": { "$addToSet": "$_id" } } },
    ] {
        let result = run_with(vec![Bson::Document(stage.clone())], limits.clone(), |_| {});
        assert_eq!(
            result.expect_err("too much memory").code,
            Code::QueryExceededMemoryLimitNoDiskUseAllowed,
            "{stage}"
        );
    }
    let few = vec![
        Bson::Document(doc! { "$sort": { "_id": -1 } }),
        Bson::Document(doc! { "$limit": 3 }),
    ];
    assert_eq!(run_with(few, limits, |_| {}).expect("a few fit").len(), 3);
}

#[test]
fn a_check_stops_a_run() {
    let stages = vec![Bson::Document(
        doc! { "$group": { "_id": null, "n": { "$sum": 1 } } },
    )];
    let late = Stop::at(Instant::now());
    let result = run_with(stages, Limits::default(), |run| {
        run.limits.stop().follow(&late);
    });
    assert_eq!(result.expect_err("stopped").code, Code::MaxTimeMSExpired);
}

#[test]
fn a_stage_that_makes_many_documents_of_one_is_stopped() {
    let numbers = Bson::Array((0..1000).map(Bson::Int32).collect());
    let input = raw(&doc! { "a": numbers.clone(), "b": numbers.clone(), "c": numbers });
    let stages = [
        doc! { "$unwind": "$a" },
        doc! { "$unwind": "$b" },
        doc! { "$unwind": "$c" },
        doc! { "$match": { "d": 1 } },
    ];
    assert_stops(&stages, &input);
}

#[test]
fn an_expression_that_evaluates_another_often_is_stopped() {
    let range = doc! { "$range": [0, 1000] };
    let map = |body: Document| doc! { "$map": { "input": range.clone(), "in": body } };
    let filter =
        doc! { "$filter": { "input": range.clone(), "cond": map(doc! { "$add": [1, 1] }) } };
    let reduce = doc! { "$reduce": { "input": range.clone(), "initialValue": 0, "in": map(doc! { "$add": [1, 1] }) } };
    for expression in [map(map(doc! { "$add": [1, 1] })), filter, reduce] {
        assert_stops(
            &[doc! { "$project": { "n": map(expression) } }],
            &raw(&doc! {}),
        );
    }
}

#[test]
fn a_large_document_is_unwound_as_it_is_read() {
    let numbers = Bson::Array((0..100_000).map(Bson::Int32).collect());
    let input = raw(&doc! { "a": numbers, "text": "x".repeat(7 << 20) });
    let limits = Limits::default();
    let stages = RawArrayBuf::from_iter([raw(&doc! { "$unwind": "$a" })]);
    let pipeline = Pipeline::parse(&stages, &limits).expect("it parses");
    let run = Run::new(DateTime::from_millis(0), limits);
    let input: Stream<'_, Error> = Box::new([Ok(input)].into_iter());
    let first: Vec<i32> = pipeline
        .run(input, &run)
        .take(10)
        .map(|document| document.expect("no error").get_i32("a").expect("a number"))
        .collect();
    assert_eq!(first, (0..10).collect::<Vec<i32>>());
}

/// PCRE2 takes hours over this text: its limit applies to each start of a match.
fn endless() -> (String, Document) {
    let pattern = doc! { "$regex": r"(*ANYCRLF)(a)(?:a?){15}\1[yz]" };
    ("a".repeat(100_000), pattern)
}

/// Limits of a command that has to end soon.
fn limits_that_end() -> Limits {
    let limits = Limits::default();
    let soon = Instant::now() + Duration::from_millis(20);
    limits.stop().follow(&Stop::at(soon));
    limits
}

#[test]
fn a_match_by_pcre2_is_stopped_in_filters() {
    let (text, pattern) = endless();
    let document = raw(&doc! { "s": text.clone(), "a": [text] });
    for filter in [
        doc! { "s": pattern.clone() },
        doc! { "s": { "$not": pattern.clone() } },
        doc! { "$nor": [{ "a": { "$elemMatch": pattern.clone() } }] },
        doc! { "s": { "$in": [bson::Regex { pattern: cstr!(r"(*ANYCRLF)(a)(?:a?){15}\1[yz]").into(), options: cstr!("").into() }] } },
        doc! { "$expr": { "$regexMatch": { "input": "$s", "regex": pattern.get_str("$regex").expect("it is there") } } },
    ] {
        let parsed = Filter::parse(&raw(&filter), &limits_that_end()).expect("it parses");
        let outcome = parsed.try_matches(&document);
        let error = outcome.expect_err(&format!("stopped: {filter}"));
        assert_eq!(error.code, Code::MaxTimeMSExpired);
    }
}

#[test]
fn a_match_by_pcre2_is_stopped_in_projections_and_updates() {
    let (text, pattern) = endless();
    let document = raw(&doc! { "a": [text] });
    let shape = raw(&doc! { "a": { "$elemMatch": pattern.clone() } });
    let projection = Projection::parse(&shape, &limits_that_end()).expect("it parses");
    let context = ProjectionContext {
        now: DateTime::from_millis(0),
        position: None,
    };
    let outcome = projection.apply(&document, &context);
    assert_eq!(outcome.expect_err("stopped").code, Code::MaxTimeMSExpired);

    let filters = RawArrayBuf::from_iter([raw(&doc! { "x": pattern.clone() })]);
    for (update, filters) in [
        (doc! { "$pull": { "a": pattern } }, None),
        (doc! { "$set": { "a.$[x]": 1 } }, Some(&*filters)),
    ] {
        let raw_update = raw(&update);
        let whole = RawBsonRef::Document(&raw_update);
        let parsed = Update::parse(whole, filters, &limits_that_end()).expect("it parses");
        let outcome = parsed.apply(
            &document,
            &UpdateContext::new(DateTime::from_millis(0), None),
        );
        let error = outcome.expect_err(&format!("stopped: {update}"));
        assert_eq!(error.code, Code::MaxTimeMSExpired);
    }
}

/// Checks that a run of a billion steps over one document ends soon after its command has to end.
fn assert_stops(stages: &[Document], input: &RawDocument) {
    let limits = Limits::default();
    let worked = time_worked();
    limits
        .stop()
        .follow(&Stop::at(Instant::now() + Duration::from_millis(50)));
    let stages = RawArrayBuf::from_iter(stages.iter().map(raw));
    let pipeline = Pipeline::parse(&stages, &limits).expect("it parses");
    let run = Run::new(DateTime::from_millis(0), limits);
    let input: Stream<'_, Error> = Box::new([Ok(input.to_owned())].into_iter());
    let result: Result<Vec<_>, Error> = pipeline.run(input, &run).collect();
    assert_eq!(result.expect_err("stopped").code, Code::MaxTimeMSExpired);
    assert!(time_worked() - worked < Duration::from_millis(500));
}

/// Processor time of this thread, which does not depend on the machine's load.
fn time_worked() -> Duration {
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    clock_gettime(clock).expect("threads have clocks").into()
}

#[test]
fn strings_that_are_not_utf8_survive_updates_and_match_nothing() {
    let mut bytes = raw(&doc! { "_id": 1, "s": "abcd" }).into_bytes();
    let place = bytes
        .windows(4)
        .position(|window| window == b"abcd")
        .expect("the string is there");
    bytes[place] = 0xFF;
    let document = RawDocumentBuf::from_bytes(bytes.clone()).expect("the frame is right");
    let limits = Limits::default();
    let filter = |query: Document| Filter::parse(&raw(&query), &limits).expect("a filter");
    assert!(filter(doc! { "s": { "$exists": true } }).matches(&document));
    assert!(!filter(doc! { "s": { "$regex": "" } }).matches(&document));
    assert!(!filter(doc! { "s": Bson::Null }).matches(&document));
    let changed = with_n_set(&document);
    assert!(
        changed
            .as_bytes()
            .windows(4)
            .any(|window| window == [0xFF, b'b', b'c', b'd'])
    );
}

/// The document after `{$set: {n: 1}}`.
fn with_n_set(document: &RawDocument) -> RawDocumentBuf {
    let update = raw(&doc! { "$set": { "n": 1 } });
    let update = Update::parse(RawBsonRef::Document(&update), None, &Limits::default());
    let context = UpdateContext::new(DateTime::from_millis(0), None);
    let changed = update.expect("an update").apply(document, &context);
    changed.expect("it applies").expect("it changes")
}

#[test]
fn binary_of_any_subtype_survives_an_update_beside_it() {
    for subtype in 0..=u8::MAX {
        let binary = bson::Binary {
            subtype: subtype.into(),
            bytes: b"hello".to_vec(),
        };
        let before = doc! { "_id": 1, "b": binary, "z": 1 };
        let mut expected = before.clone();
        expected.insert("n", 1);
        let changed = with_n_set(&raw(&before));
        assert_eq!(changed, raw(&expected), "subtype {subtype:#04x}");
    }
}

#[test]
fn values_that_cannot_be_read_keep_type_and_bytes() {
    let unreadable = [
        &b"\x0Cp\0\x02\0\0\0\xFF\0"[..], // A database pointer whose name is not UTF-8.
        &[7; 12],
        b"\x05o\0\x04\0\0\0\x02\x09\0\0\0", // Old binary with a wrong inner length.
        b"\x0Ds\0\x02\0\0\0\xFE\0",
    ]
    .concat();
    let length = (4 + unreadable.len() + 1) as u32;
    let bytes = [&length.to_le_bytes()[..], &unreadable, &[0]].concat();
    let document = RawDocumentBuf::from_bytes(bytes).expect("the frame is right");
    let changed = with_n_set(&document);
    assert_eq!(changed.as_bytes()[4..][..unreadable.len()], unreadable);
}

#[test]
fn the_padding_of_all_arrays_together_is_bounded() {
    let empty = || Bson::Array(Vec::new());
    let document = raw(&doc! { "a": empty(), "b": empty() });
    let update = raw(&doc! { "$set": { "a.1400000": 1, "b.1400000": 1 } });
    let update = Update::parse(RawBsonRef::Document(&update), None, &Limits::default());
    let context = UpdateContext::new(DateTime::from_millis(0), None);
    let changed = update.expect("an update").apply(&document, &context);
    let error = changed.expect_err("the padding is refused");
    assert_eq!(error.code, Code::CannotBackfillArray);
}

#[test]
fn a_pattern_of_many_states_stops_between_values() {
    let limits = Limits::default();
    let filter = bson::rawdoc! { "v": { "$regex": "a[a-z]{300}b[a-z]{300}cq" } };
    let filter = Filter::parse(&filter, &limits).expect("a filter");
    let document = bson::rawdoc! { "v": "abcq" };
    assert!(!filter.try_matches(&document).expect("not stopped"));
    limits.stop().follow(&Stop::at(Instant::now()));
    assert!(filter.try_matches(&document).is_err());
}
