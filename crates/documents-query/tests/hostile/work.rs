//! Tests of work that a client could make endless: the work is linear in the size of its input, or can be stopped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
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

use crate::random::raw;
use crate::{nested, run_stages};

#[test]
fn an_expression_may_bind_many_variables() {
    let vars: Document = (0..100_000)
        .map(|index| (format!("v{index}"), Bson::Int32(index)))
        .collect();
    let stage = doc! { "$project": { "x": { "$let": { "vars": vars, "in": "$$v99999" } } } };
    let documents = run_stages(&[stage]).expect("the pipeline runs");
    assert_eq!(documents[0].get_i32("x").expect("a number"), 99_999);
}

/// Returns about as many names as fit into a message of a few megabytes.
fn many_names() -> impl Iterator<Item = String> {
    (0..200_000).map(|number| format!("name{number}"))
}

/// Checks that work is linear in the size of its input, not quadratic: fails if it takes more than a few seconds of
/// processor time. A visit of each pair of names would take minutes.
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
        assert_linear(|| {
            run_stages(&[stage]).map_err(|code| Error::new(code, "the pipeline failed"))
        });
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
        .follow(&Stop::at(Instant::now() + Duration::from_millis(5)));
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
    let update = Update::parse(RawBsonRef::Document(&update), None, &Limits::default())
        .expect("the input parses");
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
    let update =
        Update::parse(RawBsonRef::Document(&update), None, &limits).expect("the input parses");
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
    assert_eq!(
        run_with(few, limits, |_| {})
            .expect("a few documents fit in memory")
            .len(),
        3
    );
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
    let pipeline = Pipeline::parse(&stages, &limits).expect("the input parses");
    let run = Run::new(DateTime::from_millis(0), limits);
    let input: Stream<'_, Error> = Box::new([Ok(input)].into_iter());
    let first: Vec<i32> = pipeline
        .run(input, &run)
        .take(10)
        .map(|document| document.expect("no error").get_i32("a").expect("a number"))
        .collect();
    assert_eq!(first, (0..10).collect::<Vec<i32>>());
}

#[test]
fn an_array_takes_time_by_its_elements() {
    let numbers = Bson::Array((0..200_000).map(Bson::Int32).collect());
    let input = raw(&doc! { "a": numbers });
    let stages = RawArrayBuf::from_iter([raw(&doc! { "$unwind": "$a" })]);
    let pipeline = Pipeline::parse(&stages, &Limits::default()).expect("the input parses");
    let run = Run::new(DateTime::from_millis(0), Limits::default());
    let input: Stream<'_, Error> = Box::new([Ok(input)].into_iter());
    let unwound: Vec<_> = assert_linear(|| pipeline.run(input, &run).collect());
    assert_eq!(unwound.len(), 200_000);
    assert_eq!(unwound[199_999], raw(&doc! { "a": 199_999 }));
}

#[test]
fn an_update_takes_time_by_its_fields() {
    let names: Document = many_names().map(|name| (name, Bson::Int32(1))).collect();
    let moves = many_names().map(|name| (name.clone(), Bson::String(format!("{name}x"))));
    let moves: Document = moves.collect();
    for (update, input, count) in [
        (doc! { "$set": names.clone() }, doc! {}, 200_000),
        (doc! { "$unset": names.clone() }, names.clone(), 0),
        (doc! { "$rename": moves }, names, 200_000),
    ] {
        let update = raw(&update);
        let update = Update::parse(RawBsonRef::Document(&update), None, &Limits::default());
        let update = update.expect("the input parses");
        let (input, now) = (raw(&input), DateTime::from_millis(0));
        let changed = assert_linear(|| update.apply(&input, &UpdateContext::new(now, None)));
        assert_eq!(changed.expect("a change").iter().count(), count);
    }
}

/// Returns a text and a filter. PCRE2 would take hours to match them, because its limit applies to each start position.
fn endless() -> (String, Document) {
    let pattern = doc! { "$regex": r"(*ANYCRLF)(a)(?:a?){15}\1[yz]" };
    ("a".repeat(100_000), pattern)
}

/// Returns the limits of a command whose deadline is in 20 ms.
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
        doc! { "$expr": { "$regexMatch": { "input": "$s", "regex": pattern.get_str("$regex").expect("a pattern") } } },
    ] {
        let parsed = Filter::parse(&raw(&filter), &limits_that_end()).expect("the input parses");
        let outcome = parsed.try_matches(&document);
        let error = outcome.expect_err(&format!("stopped: {filter}"));
        assert_eq!(error.code, Code::MaxTimeMSExpired);
    }
}

#[test]
fn a_stopped_match_does_not_count_when_the_next_command_of_its_cursor_has_begun() {
    let (text, pattern) = endless();
    let document = raw(&doc! { "s": text });
    let limits = Limits::default();
    let filter = Filter::parse(&raw(&doc! { "s": pattern }), &limits).expect("the input parses");
    let first = Stop::never();
    limits.stop().follow(&first);
    let outcome = std::thread::scope(|scope| {
        let held = Arc::strong_count(&first.cancelled);
        let matching = scope.spawn(|| filter.try_matches(&document));
        // Wait until the match has begun: it holds a clone of the token while it runs.
        while Arc::strong_count(&first.cancelled) == held {
            std::thread::yield_now();
        }
        limits.stop().follow(&Stop::never());
        first.cancelled.store(true, Ordering::Relaxed);
        matching.join().expect("the match does not panic")
    });
    assert_eq!(outcome.expect_err("stopped").code, Code::Interrupted);
}

/// Checks that work on one document ends soon after its command is stopped. The work matches no patterns.
fn assert_is_stopped<T: std::fmt::Debug>(limits: &Limits, work: impl FnOnce() -> Result<T, Error>) {
    let soon = Instant::now() + Duration::from_millis(20);
    limits.stop().follow(&Stop::at(soon));
    let worked = time_worked();
    let outcome = work();
    let worked = time_worked() - worked;
    limits.stop().follow(&Stop::never());
    assert_eq!(outcome.expect_err("stopped").code, Code::MaxTimeMSExpired);
    assert!(worked < Duration::from_millis(500), "{worked:?}");
}

#[test]
fn many_conditions_are_stopped_in_one_document() {
    let limits = Limits::default();
    let parse = |filter: &Document| Filter::parse(&raw(filter), &limits).expect("the input parses");
    let conditions = |name: &str| {
        let conditions = (0..20_000).map(|n| doc! { name: { "$gt": n, "$lt": 0 } });
        doc! { "$or": conditions.collect::<Vec<Document>>() }
    };
    let elements = raw(&doc! { "a": (0..100_000).collect::<Vec<i32>>() });
    let of_values = parse(&conditions("a"));
    assert_is_stopped(&limits, || of_values.try_matches(&elements));
    assert_is_stopped(&limits, || of_values.match_position(&elements));
    // Each condition on `z` searches all fields of the document.
    let fields = raw(&(0..300_000)
        .map(|n| (format!("f{n}"), Bson::Int32(n)))
        .collect());
    let of_fields = parse(&conditions("z"));
    assert_is_stopped(&limits, || of_fields.try_matches(&fields));
    let documents = raw(&doc! { "a": vec![doc! { "b": 1 }; 100_000] });
    let of_documents = parse(&doc! { "a": { "$elemMatch": conditions("b") } });
    assert_is_stopped(&limits, || of_documents.try_matches(&documents));
    let pull = raw(&doc! { "$pull": { "a": conditions("b") } });
    let update =
        Update::parse(RawBsonRef::Document(&pull), None, &limits).expect("the input parses");
    let context = UpdateContext::new(DateTime::from_millis(0), None);
    assert_is_stopped(&limits, || update.apply(&documents, &context));
}

#[test]
fn many_short_matches_are_stopped_in_one_document() {
    let patterns = (0..200).map(|n| doc! { "a": { "$regex": format!("[ab]x{n}c") } });
    let filter = raw(&doc! { "$or": patterns.collect::<Vec<Document>>() });
    let document = raw(&doc! { "a": vec!["ababababababababab"; 20_000] });
    let limits = Limits::default();
    let filter = Filter::parse(&filter, &limits).expect("the input parses");
    let soon = Instant::now() + Duration::from_millis(20);
    limits.stop().follow(&Stop::at(soon));
    let worked = time_worked();
    let outcome = filter.try_matches(&document);
    let worked = time_worked() - worked;
    assert_eq!(outcome.expect_err("stopped").code, Code::MaxTimeMSExpired);
    assert!(worked < Duration::from_millis(500), "{worked:?}");
}

#[test]
fn a_match_by_pcre2_is_stopped_in_projections_and_updates() {
    let (text, pattern) = endless();
    let document = raw(&doc! { "a": [text] });
    let shape = raw(&doc! { "a": { "$elemMatch": pattern.clone() } });
    let projection = Projection::parse(&shape, &limits_that_end()).expect("the input parses");
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
        let parsed = Update::parse(whole, filters, &limits_that_end()).expect("the input parses");
        let outcome = parsed.apply(
            &document,
            &UpdateContext::new(DateTime::from_millis(0), None),
        );
        let error = outcome.expect_err(&format!("stopped: {update}"));
        assert_eq!(error.code, Code::MaxTimeMSExpired);
    }
}

/// Checks that a pipeline that would take a billion steps on one document ends soon after its command is stopped.
fn assert_stops(stages: &[Document], input: &RawDocument) {
    let limits = Limits::default();
    let worked = time_worked();
    limits
        .stop()
        .follow(&Stop::at(Instant::now() + Duration::from_millis(50)));
    let stages = RawArrayBuf::from_iter(stages.iter().map(raw));
    let pipeline = Pipeline::parse(&stages, &limits).expect("the input parses");
    let run = Run::new(DateTime::from_millis(0), limits);
    let input: Stream<'_, Error> = Box::new([Ok(input.to_owned())].into_iter());
    let result: Result<Vec<_>, Error> = pipeline.run(input, &run).collect();
    assert_eq!(result.expect_err("stopped").code, Code::MaxTimeMSExpired);
    assert!(time_worked() - worked < Duration::from_millis(500));
}

/// Returns the processor time of this thread, which does not depend on the machine's load.
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

/// Applies `{$set: {n: 1}}` to a document.
fn with_n_set(document: &RawDocument) -> RawDocumentBuf {
    let update = raw(&doc! { "$set": { "n": 1 } });
    let update = Update::parse(RawBsonRef::Document(&update), None, &Limits::default());
    let context = UpdateContext::new(DateTime::from_millis(0), None);
    let changed = update.expect("an update").apply(document, &context);
    changed
        .expect("the update applies")
        .expect("the document changes")
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
