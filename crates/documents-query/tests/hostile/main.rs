//! Hostile input: parsing and applying never panic, and nesting is limited.
//!
//! A failing test prints its seed; `FOREBAY_SEED` repeats the test with that seed.

mod random;
mod work;

use bson::raw::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use bson::{Bson, DateTime, Document, doc};
use forebay_documents_query::element::{Writer, nests_deeper};
use forebay_documents_query::stage::{Run, Stream};
use forebay_documents_query::{
    Code, Error, Filter, Limits, Pipeline, Projection, ProjectionContext, Sort, Update,
    UpdateContext, key,
};
use random::{document, exercise, raw, seeded};

const ROUNDS: usize = 20_000;

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

pub(crate) fn nested(levels: usize, name: &str, innermost: Bson) -> Document {
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

/// Builds an expression that starts with `initial` and applies `step` `levels` times. `step` refers to the previous
/// value as `$$value`.
fn grown(levels: i32, initial: Bson, step: impl Into<Bson>) -> Document {
    doc! { "$reduce": { "input": { "$range": [0, levels] }, "initialValue": initial, "in": step.into() } }
}

/// Runs a pipeline on `{_id: 1, x: [], s: 1}`. Returns the output documents or the error code.
pub(crate) fn run_stages(stages: &[Document]) -> Result<Vec<RawDocumentBuf>, Code> {
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
    // Paths through arrays create documents inside values that already nest deep.
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

/// Builds a document whose field `x` nests 100,000 levels deep, in documents or in arrays.
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
