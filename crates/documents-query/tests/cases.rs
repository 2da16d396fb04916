//! Runs the case files in `tests/cases`: tables of inputs and MongoDB's results.

use std::fmt::Debug;

use bson::raw::{RawArrayBuf, RawBson, RawBsonRef, RawDocumentBuf};
use bson::{Bson, DateTime};
use forebay_documents_query::filter::Match;
use forebay_documents_query::stage::{Run, Stream};
use forebay_documents_query::{
    Error, Expression, Filter, Limits, Pipeline, Projection, ProjectionContext, Scope, Update,
    UpdateContext,
};
use serde::Deserialize;

/// Value of `$$NOW` in all cases, in milliseconds since 1970.
const NOW_MS: i64 = 1_000_000;

fn value(json: &str) -> RawBson {
    let json: serde_json::Value =
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{json}: {error}"));
    let value = Bson::try_from(json).expect("cases are extended JSON");
    RawBson::try_from(value).expect("names in cases have no NUL")
}

fn document(json: &str) -> RawDocumentBuf {
    match value(json) {
        RawBson::Document(document) => document,
        other => panic!("{json} is no document but {other:?}"),
    }
}

fn array(json: &str) -> RawArrayBuf {
    match value(json) {
        RawBson::Array(array) => array,
        other => panic!("{json} is no array but {other:?}"),
    }
}

fn shown(document: &RawDocumentBuf) -> String {
    forebay_documents_query::display::document(document)
}

/// Checks that `result` is the error that a case expects.
fn check_error<T: Debug>(case: &str, result: Result<T, Error>, code: i32, message: Option<&str>) {
    let error = match result {
        Err(error) => error,
        Ok(value) => panic!("{case}: expected code {code}, got {value:?}"),
    };
    assert_eq!(error.code.number(), code, "{case}: {}", error.message);
    if let Some(message) = message {
        assert!(
            error.message.starts_with(message),
            "{case}: {}",
            error.message
        );
    }
}

fn check_document(case: &str, result: Result<RawDocumentBuf, Error>, expected: &str) {
    let result = result.unwrap_or_else(|error| panic!("{case}: {error:?}"));
    let expected = document(expected);
    assert_eq!(
        result.as_bytes(),
        expected.as_bytes(),
        "{case}: got {}",
        shown(&result)
    );
}

#[derive(Deserialize)]
struct File<T> {
    case: Vec<T>,
}

fn cases<T: for<'de> Deserialize<'de>>(text: &str) -> Vec<T> {
    let file: File<T> = toml::from_str(text).expect("the case file is TOML");
    file.case
}

#[derive(Deserialize)]
struct FilterCase {
    name: String,
    filter: String,
    #[serde(default)]
    yes: Vec<String>,
    #[serde(default)]
    no: Vec<String>,
}

#[test]
fn filters_match_as_mongodb_does() {
    let limits = Limits::default();
    for case in cases::<FilterCase>(include_str!("cases/filter.toml")) {
        let filter = Filter::parse(&document(&case.filter), &limits)
            .unwrap_or_else(|error| panic!("{}: {error:?}", case.name));
        for (documents, expected) in [(&case.yes, true), (&case.no, false)] {
            for json in documents {
                assert_eq!(
                    filter.matches(&document(json)),
                    expected,
                    "{}: {} on {json}",
                    case.name,
                    case.filter
                );
            }
        }
    }
}

#[derive(Deserialize)]
struct FilterError {
    filter: String,
    code: i32,
    message: Option<String>,
}

#[test]
fn filters_are_refused_as_mongodb_does() {
    for case in cases::<FilterError>(include_str!("cases/filter_errors.toml")) {
        let result = Filter::parse(&document(&case.filter), &Limits::default());
        check_error(&case.filter, result, case.code, case.message.as_deref());
    }
}

#[derive(Deserialize)]
struct UpdateFile {
    case: Vec<UpdateCase>,
    upsert: Vec<UpdateCase>,
}

#[derive(Deserialize)]
struct UpdateCase {
    name: String,
    query: Option<String>,
    update: String,
    array_filters: Option<String>,
    before: Option<String>,
    after: Option<String>,
    code: Option<i32>,
    message: Option<String>,
}

impl UpdateCase {
    fn parse(&self) -> Result<Update, Error> {
        let filters = self.array_filters.as_deref().map(array);
        Update::parse(
            value(&self.update).as_raw_bson_ref(),
            filters.as_deref(),
            &Limits::default(),
        )
    }

    fn filter(&self) -> Filter {
        let query = document(self.query.as_deref().unwrap_or("{}"));
        Filter::parse(&query, &Limits::default()).expect("queries of update cases parse")
    }

    fn update(&self) -> Result<Option<RawDocumentBuf>, Error> {
        let before = document(
            self.before
                .as_deref()
                .expect("update cases have a document"),
        );
        let Match::Yes { index } = self.filter().match_position(&before)? else {
            panic!("{}: the query does not match", self.name);
        };
        self.parse()?.apply(
            &before,
            &UpdateContext::new(DateTime::from_millis(NOW_MS), index),
        )
    }

    fn upsert(&self) -> Result<RawDocumentBuf, Error> {
        self.parse()?.upsert_document(
            &self.filter(),
            &UpdateContext::new(DateTime::from_millis(NOW_MS), None),
        )
    }
}

fn update_cases() -> UpdateFile {
    toml::from_str(include_str!("cases/update.toml")).expect("the case file is TOML")
}

#[test]
fn updates_change_documents_as_mongodb_does() {
    for case in update_cases().case {
        let result = case.update();
        match (case.code, &case.after) {
            (Some(code), _) => check_error(&case.name, result, code, case.message.as_deref()),
            (None, Some(after)) => {
                let changed = result
                    .map(|changed| changed.unwrap_or_else(|| panic!("{}: unchanged", case.name)));
                check_document(&case.name, changed, after);
            }
            (None, None) => {
                let changed = result.unwrap_or_else(|error| panic!("{}: {error:?}", case.name));
                assert!(
                    changed.is_none(),
                    "{}: changed to {}",
                    case.name,
                    changed.as_ref().map_or_else(String::new, shown)
                );
            }
        }
    }
}

#[test]
fn upserts_make_documents_as_mongodb_does() {
    for case in update_cases().upsert {
        match (case.code, &case.after) {
            (Some(code), _) => {
                check_error(&case.name, case.upsert(), code, case.message.as_deref())
            }
            (None, after) => check_document(
                &case.name,
                case.upsert(),
                after.as_deref().expect("a document comes out"),
            ),
        }
    }
}

#[derive(Deserialize)]
struct ProjectionCase {
    spec: String,
    query: Option<String>,
    before: String,
    after: Option<String>,
    code: Option<i32>,
    message: Option<String>,
}

impl ProjectionCase {
    fn project(&self) -> Result<RawDocumentBuf, Error> {
        let (limits, before) = (Limits::default(), document(&self.before));
        let filter = Filter::parse(&document(self.query.as_deref().unwrap_or("{}")), &limits)?;
        let position = match filter.match_position(&before)? {
            Match::Yes { index } => index,
            Match::No => None,
        };
        let context = ProjectionContext {
            now: DateTime::from_millis(NOW_MS),
            position,
        };
        Projection::parse(&document(&self.spec), &limits)?.apply(&before, &context)
    }
}

#[test]
fn projections_show_what_mongodb_shows() {
    for case in cases::<ProjectionCase>(include_str!("cases/projection.toml")) {
        let name = format!("{} on {}", case.spec, case.before);
        match (case.code, &case.after) {
            (Some(code), _) => check_error(&name, case.project(), code, case.message.as_deref()),
            (None, after) => check_document(
                &name,
                case.project(),
                after.as_deref().expect("a document comes out"),
            ),
        }
    }
}

#[derive(Deserialize)]
struct ExpressionCase {
    expression: String,
    doc: Option<String>,
    value: Option<String>,
    code: Option<i32>,
    message: Option<String>,
}

impl ExpressionCase {
    fn evaluate(&self) -> Result<Option<RawBson>, Error> {
        let document = document(self.doc.as_deref().unwrap_or("{}"));
        let expression = Expression::parse(
            value(&self.expression).as_raw_bson_ref(),
            &Limits::default(),
        )?;
        let result = expression.evaluate(&Scope::new(&document, DateTime::from_millis(NOW_MS)))?;
        Ok(result.get().map(RawBson::from))
    }
}

#[test]
fn expressions_give_what_mongodb_gives() {
    for case in cases::<ExpressionCase>(include_str!("cases/expression.toml")) {
        match case.code {
            Some(code) => check_error(
                &case.expression,
                case.evaluate(),
                code,
                case.message.as_deref(),
            ),
            None => {
                let result = case
                    .evaluate()
                    .unwrap_or_else(|error| panic!("{}: {error:?}", case.expression));
                assert_eq!(
                    result,
                    case.value.as_deref().map(value),
                    "{}",
                    case.expression
                );
            }
        }
    }
}

#[derive(Deserialize)]
struct PipelineCase {
    pipeline: String,
    input: Option<String>,
    output: Option<String>,
    code: Option<i32>,
    message: Option<String>,
}

fn documents(json: &str) -> Vec<RawDocumentBuf> {
    let documents = array(json);
    let documents = documents.into_iter().map(|value| match value {
        Ok(RawBsonRef::Document(document)) => document.to_owned(),
        other => panic!("{json} holds {other:?}"),
    });
    documents.collect()
}

impl PipelineCase {
    fn run(&self) -> Result<Vec<RawDocumentBuf>, Error> {
        let pipeline = Pipeline::parse(&array(&self.pipeline), &Limits::default())?;
        let input = documents(self.input.as_deref().unwrap_or("[]"));
        let input: Stream<'_, Error> = Box::new(input.into_iter().map(Ok));
        pipeline
            .run(
                input,
                &Run::new(DateTime::from_millis(NOW_MS), Limits::default()),
            )
            .collect()
    }
}

#[test]
fn pipelines_give_what_mongodb_gives() {
    for case in cases::<PipelineCase>(include_str!("cases/pipeline.toml")) {
        if let Some(code) = case.code {
            check_error(&case.pipeline, case.run(), code, case.message.as_deref());
            continue;
        }
        let output = case
            .run()
            .unwrap_or_else(|error| panic!("{}: {error:?}", case.pipeline));
        let expected = documents(
            case.output
                .as_deref()
                .expect("a pipeline case has output or a code"),
        );
        let bytes = |documents: &[RawDocumentBuf]| {
            documents
                .iter()
                .map(|document| document.as_bytes().to_vec())
                .collect::<Vec<_>>()
        };
        let found: Vec<String> = output.iter().map(shown).collect();
        assert_eq!(
            bytes(&output),
            bytes(&expected),
            "{}: got {found:?}",
            case.pipeline
        );
    }
}
