//! Random documents, built from names and values that some parser treats specially, and the functions that receive
//! them.

use bson::raw::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use bson::{Bson, DateTime, Document};
use fastrand::Rng;
use forebay_documents_query::element::Writer;
use forebay_documents_query::stage::{Run, Stream};
use forebay_documents_query::{
    Error, Filter, Limits, Pipeline, Projection, ProjectionContext, Sort, Update, UpdateContext,
    key,
};

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

pub(crate) fn document(rng: &mut Rng, depth: usize) -> Document {
    (0..rng.usize(..4))
        .map(|_| {
            (
                (*rng.choice(NAMES).expect("a choice")).to_owned(),
                value(rng, depth),
            )
        })
        .collect()
}

pub(crate) fn raw(document: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(document).expect("names have no NUL")
}

/// Parses `hostile` as a filter, an update and every other kind of input, and applies the parsed results to `target`.
pub(crate) fn exercise(hostile: &RawDocument, target: &RawDocument) {
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
pub(crate) struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with FOREBAY_SEED={}", self.0);
        }
    }
}

pub(crate) fn seeded() -> (Seed, Rng) {
    let seed = std::env::var("FOREBAY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_261_121);
    (Seed(seed), Rng::with_seed(seed))
}
