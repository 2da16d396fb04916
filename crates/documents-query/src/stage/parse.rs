//! Parsing a pipeline's BSON to stages.

use bson::raw::{RawArray, RawBson, RawBsonRef, RawDocument};

use super::{Accumulation, AccumulatorKind, Group, Pipeline, Stage, Transform, Unwind};
use crate::display;
use crate::element::{Element, array_values, check_depth, elements, get, type_name};
use crate::error::{Code, Error};
use crate::expr::Expression;
use crate::filter::Filter;
use crate::key::Direction;
use crate::limits::Limits;
use crate::number::Number;
use crate::path::Path;
use crate::projection::Projection;
use crate::sort::Sort;

/// Stages that MongoDB has but this server does not support.
const NOT_SUPPORTED: [&str; 24] = [
    "$bucket",
    "$bucketAuto",
    "$changeStream",
    "$collStats",
    "$currentOp",
    "$densify",
    "$facet",
    "$fill",
    "$geoNear",
    "$graphLookup",
    "$indexStats",
    "$listLocalSessions",
    "$listSessions",
    "$lookup",
    "$planCacheStats",
    "$redact",
    "$search",
    "$searchMeta",
    "$setWindowFields",
    "$sharedDataDistribution",
    "$unionWith",
    "$vectorSearch",
    "$listSampledQueries",
    "$querySettings",
];

pub(super) fn pipeline(stages: &RawArray, limits: &Limits) -> Result<Pipeline, Error> {
    check_depth(RawBsonRef::Array(stages))?;
    let mut parsed = Vec::new();
    for value in array_values(stages) {
        limits.hold(2 * size_of::<Stage>())?;
        let RawBsonRef::Document(spec) = value else {
            return Err(Error::type_mismatch(
                "Each element of the 'pipeline' array must be an object",
            ));
        };
        add_stage(spec, limits, &mut parsed)?;
        if parsed.len() > limits.pipeline_stages_max {
            let max = limits.pipeline_stages_max;
            return Err(Error::parse(format!(
                "Pipeline length must be no longer than {max} stages"
            )));
        }
    }
    push_limits_down(&mut parsed);
    Ok(Pipeline { stages: parsed })
}

/// Parses the stages of an update's pipeline, which change one document.
pub(crate) fn parse_update_pipeline(
    stages: &RawArray,
    limits: &Limits,
) -> Result<Vec<Transform>, Error> {
    let mut transforms = Vec::new();
    for (stage, value) in pipeline(stages, limits)?
        .stages
        .into_iter()
        .zip(array_values(stages))
    {
        let Stage::Transform(transform) = stage else {
            let first = value.as_document().and_then(|spec| elements(spec).next());
            let name = first.map_or("", |first| first.key);
            let message = format!("{name} is not allowed to be used within an update");
            return Err(Error::new(Code::InvalidOptions, message));
        };
        transforms.push(transform);
    }
    Ok(transforms)
}

/// Copies the count of a `$limit` to a `$sort` directly before it, so that the sort keeps no more documents than the
/// limit.
fn push_limits_down(stages: &mut [Stage]) {
    for index in 1..stages.len() {
        if let Stage::Limit(count) = stages[index]
            && let Stage::Sort { limit, .. } = &mut stages[index - 1]
        {
            *limit = Some(count);
        }
    }
}

fn add_stage(spec: &RawDocument, limits: &Limits, stages: &mut Vec<Stage>) -> Result<(), Error> {
    let mut fields = elements(spec);
    let (Some(stage), None) = (fields.next(), fields.next()) else {
        return Err(Error::new(
            Code::Location40323,
            "A pipeline stage specification object must contain exactly one field.",
        ));
    };
    if stage.key == "$sortByCount" {
        return sort_by_count(stage.value(), limits, stages);
    }
    stages.push(parse_stage(&stage, limits)?);
    Ok(())
}

fn parse_stage(stage: &Element<'_>, limits: &Limits) -> Result<Stage, Error> {
    let operand = stage.value();
    Ok(match stage.key {
        "$match" => match operand {
            RawBsonRef::Document(query) => Stage::Match(Filter::parse(query, limits)?),
            _ => {
                return Err(Error::new(
                    Code::Location15959,
                    "the match filter must be an expression in an object",
                ));
            }
        },
        "$project" => match operand {
            RawBsonRef::Document(spec) => {
                Stage::Transform(Transform::Project(Projection::parse_project(spec, limits)?))
            }
            _ => {
                return Err(Error::new(
                    Code::Location15969,
                    "$project specification must be an object",
                ));
            }
        },
        name @ ("$set" | "$addFields") => match operand {
            RawBsonRef::Document(spec) => {
                Stage::Transform(Transform::Project(Projection::parse_add(spec, limits)?))
            }
            other => {
                let kind = type_name(other.element_type());
                return Err(Error::new(
                    Code::Location40272,
                    format!("{name} specification stage must be an object, got {kind}"),
                ));
            }
        },
        "$unset" => Stage::Transform(Transform::Project(unset(operand, limits)?)),
        "$replaceRoot" => Stage::Transform(Transform::ReplaceRoot(replace_root(operand, limits)?)),
        "$replaceWith" => {
            Stage::Transform(Transform::ReplaceRoot(Expression::parse(operand, limits)?))
        }
        "$group" => Stage::Group(Group::parse(operand, limits)?),
        "$sort" => sort(operand)?,
        "$skip" => Stage::Skip(skip(operand)?),
        "$limit" => Stage::Limit(limit(operand)?),
        "$count" => {
            limits.hold_value(operand)?;
            Stage::Count(count(operand)?)
        }
        "$unwind" => Stage::Unwind(unwind(operand)?),
        "$sample" => Stage::Sample(sample(operand)?),
        name => return Err(no_stage(name)),
    })
}

fn no_stage(name: &str) -> Error {
    match name {
        // The caller has already removed a final `$out` or `$merge`, so this one is not the last stage.
        "$out" | "$merge" => Error::new(
            Code::Location40601,
            format!("{name} can only be the final stage in the pipeline"),
        ),
        "$documents" => Error::new(
            Code::Location40602,
            "$documents is only valid as the first stage in a pipeline",
        ),
        _ if NOT_SUPPORTED.contains(&name) => Error::new(
            Code::NotImplemented,
            format!("{name} is not supported by this server"),
        ),
        _ => Error::new(
            Code::Location40324,
            format!("Unrecognized pipeline stage name: '{name}'"),
        ),
    }
}

fn unset(operand: RawBsonRef<'_>, limits: &Limits) -> Result<Projection, Error> {
    const NOT_STRINGS: &str =
        "$unset specification must be a string or an array containing only string values";
    let paths = match operand {
        RawBsonRef::String(path) => vec![path],
        RawBsonRef::Array(array) if array.is_empty() => {
            return Err(Error::new(
                Code::Location31119,
                "$unset specification must be a string or an array with at least one field",
            ));
        }
        RawBsonRef::Array(array) => array_values(array)
            .map(|value| {
                limits.hold(2 * size_of::<&str>())?;
                value
                    .as_str()
                    .ok_or_else(|| Error::new(Code::Location31120, NOT_STRINGS))
            })
            .collect::<Result<_, _>>()?,
        _ => {
            return Err(Error::new(
                Code::Location31002,
                "$unset specification must be a string or an array",
            ));
        }
    };
    for path in &paths {
        check_field_path(path)?;
    }
    Projection::excluding(paths.into_iter(), limits)
}

fn check_field_path(path: &str) -> Result<(), Error> {
    if path.is_empty() {
        return Err(Error::new(
            Code::Location40352,
            "FieldPath cannot be constructed with empty string",
        ));
    }
    if path.starts_with('$') {
        let message =
            "FieldPath field names may not start with '$'. Consider using $getField or $setField.";
        return Err(Error::new(Code::Location16410, message));
    }
    if path.contains('\0') {
        let message = "FieldPath field names may not contain '\\0'.";
        return Err(Error::new(Code::Location16411, message));
    }
    match path.split('.').any(str::is_empty) {
        true => Err(Error::new(
            Code::Location15998,
            "FieldPath field names may not be empty strings.",
        )),
        false => Ok(()),
    }
}

fn replace_root(operand: RawBsonRef<'_>, limits: &Limits) -> Result<Expression, Error> {
    let RawBsonRef::Document(spec) = operand else {
        let kind = type_name(operand.element_type());
        let message =
            format!("expected an object as specification for $replaceRoot stage, got {kind}");
        return Err(Error::new(Code::Location40229, message));
    };
    if let Some(other) = elements(spec).find(|element| element.key != "newRoot") {
        return Err(Error::new(
            Code::Location40230,
            format!("unrecognized option to $replaceRoot stage: {}", other.key),
        ));
    }
    match get(spec, "newRoot") {
        Some(expression) => Expression::parse(expression, limits),
        None => Err(Error::new(
            Code::Location40231,
            "no newRoot specified for the $replaceRoot stage",
        )),
    }
}

fn sort(operand: RawBsonRef<'_>) -> Result<Stage, Error> {
    let RawBsonRef::Document(spec) = operand else {
        return Err(Error::new(
            Code::Location15973,
            "the $sort key specification must be an object",
        ));
    };
    let sort = Sort::parse(spec)?;
    match sort.is_empty() {
        true => Err(Error::new(
            Code::Location15976,
            "$sort stage must have at least one sort key",
        )),
        false => Ok(Stage::Sort { sort, limit: None }),
    }
}

/// Parses a non-negative integer.
fn whole(name: &str, code: Code, operand: RawBsonRef<'_>) -> Result<u64, Error> {
    let fail = |why: &str| {
        let shown = display::field(name, operand);
        Error::new(
            code,
            format!("invalid argument to {name} stage: {why}: {shown}"),
        )
    };
    let number = Number::of(operand).ok_or_else(|| fail("Expected a number in"))?;
    let number = number
        .to_i64_exact()
        .ok_or_else(|| fail("Expected an integer"))?;
    u64::try_from(number).map_err(|_| fail("Expected a non-negative number in"))
}

fn skip(operand: RawBsonRef<'_>) -> Result<u64, Error> {
    whole("$skip", Code::Location5107200, operand)
}

fn limit(operand: RawBsonRef<'_>) -> Result<u64, Error> {
    match whole("$limit", Code::Location5107201, operand)? {
        0 => Err(Error::new(
            Code::Location15958,
            "the limit must be positive",
        )),
        count => Ok(count),
    }
}

fn count(operand: RawBsonRef<'_>) -> Result<String, Error> {
    match operand {
        RawBsonRef::String("") => Err(Error::new(
            Code::Location40157,
            "the count field must be a non-empty string",
        )),
        RawBsonRef::String(name) if name.starts_with('$') => Err(Error::new(
            Code::Location40158,
            "the count field cannot be a $-prefixed path",
        )),
        RawBsonRef::String(name) if name.contains('\0') => Err(Error::new(
            Code::Location40159,
            "the count field cannot contain a null byte",
        )),
        RawBsonRef::String(name) if name.contains('.') => Err(Error::new(
            Code::Location40160,
            "the count field cannot contain '.'",
        )),
        RawBsonRef::String(name) => Ok(name.to_owned()),
        _ => Err(Error::new(
            Code::Location40156,
            "the count field must be a non-empty string",
        )),
    }
}

fn sample(operand: RawBsonRef<'_>) -> Result<u64, Error> {
    let RawBsonRef::Document(spec) = operand else {
        return Err(Error::new(
            Code::Location28745,
            "the $sample stage specification must be an object",
        ));
    };
    if let Some(other) = elements(spec).find(|element| element.key != "size") {
        return Err(Error::new(
            Code::Location28748,
            format!("unrecognized option to $sample: {}", other.key),
        ));
    }
    let size = get(spec, "size")
        .ok_or_else(|| Error::new(Code::Location28749, "$sample stage must specify a size"))?;
    let size = Number::of(size).ok_or_else(|| {
        Error::new(
            Code::Location28746,
            "size argument to $sample must be a number",
        )
    })?;
    let negative = || {
        Error::new(
            Code::Location28747,
            "size argument to $sample must not be negative",
        )
    };
    u64::try_from(size.to_i64_truncated()).map_err(|_| negative())
}

fn unwind(operand: RawBsonRef<'_>) -> Result<Unwind, Error> {
    let mut path = None;
    let mut unwind = Unwind {
        path: Path::empty(),
        index_field: None,
        preserve_empty: false,
    };
    match operand {
        RawBsonRef::String(text) => path = Some(text),
        RawBsonRef::Document(spec) => {
            for element in elements(spec) {
                unwind_option(&element, &mut path, &mut unwind)?;
            }
        }
        other => {
            let kind = type_name(other.element_type());
            let message = format!(
                "expected either a string or an object as specification for $unwind stage, got {kind}"
            );
            return Err(Error::new(Code::Location15981, message));
        }
    }
    let path =
        path.ok_or_else(|| Error::new(Code::Location28812, "no path specified to $unwind stage"))?;
    let Some(name) = path.strip_prefix('$') else {
        return Err(Error::new(
            Code::Location28818,
            format!("path option to $unwind stage should be prefixed with a '$': {path}"),
        ));
    };
    check_field_path(name)?;
    unwind.path = Path::new(name)?;
    Ok(unwind)
}

fn unwind_option<'a>(
    element: &Element<'a>,
    path: &mut Option<&'a str>,
    unwind: &mut Unwind,
) -> Result<(), Error> {
    let kind = type_name(element.kind());
    match (element.key, element.value()) {
        ("path", RawBsonRef::String(text)) => *path = Some(text),
        ("path", _) => {
            return Err(Error::new(
                Code::Location28808,
                format!("expected a string as the path for $unwind stage, got {kind}"),
            ));
        }
        ("preserveNullAndEmptyArrays", RawBsonRef::Boolean(flag)) => unwind.preserve_empty = flag,
        ("preserveNullAndEmptyArrays", _) => {
            let message = format!(
                "expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got {kind}"
            );
            return Err(Error::new(Code::Location28809, message));
        }
        ("includeArrayIndex", RawBsonRef::String(name)) if name.starts_with('$') => {
            let message = format!(
                "includeArrayIndex option to $unwind stage should not be prefixed with a '$': {name}"
            );
            return Err(Error::new(Code::Location28822, message));
        }
        ("includeArrayIndex", RawBsonRef::String(name)) if !name.is_empty() => {
            check_field_path(name)?;
            unwind.index_field = Some(Path::new(name)?)
        }
        ("includeArrayIndex", _) => {
            let message = format!(
                "expected a non-empty string for the includeArrayIndex  option to $unwind stage, got {kind}"
            );
            return Err(Error::new(Code::Location28810, message));
        }
        (name, _) => {
            return Err(Error::new(
                Code::Location28811,
                format!("unrecognized option to $unwind stage: {name}"),
            ));
        }
    }
    Ok(())
}

/// Builds a `$group` that counts the documents for each value of the expression, and a `$sort` by that count, largest
/// first.
fn sort_by_count(
    operand: RawBsonRef<'_>,
    limits: &Limits,
    stages: &mut Vec<Stage>,
) -> Result<(), Error> {
    const NOT_EXPRESSION: &str = "the sortByCount field must be defined as a $-prefixed path or an expression inside an object";
    let valid = match operand {
        RawBsonRef::String(text) => text.starts_with('$'),
        RawBsonRef::Document(document) => elements(document)
            .next()
            .is_some_and(|first| first.key.starts_with('$')),
        _ => {
            return Err(Error::new(
                Code::Location40149,
                "the sortByCount field must be specified as a string or as an object",
            ));
        }
    };
    if !valid {
        return Err(Error::new(Code::Location40148, NOT_EXPRESSION));
    }
    let one = Expression::literal(RawBson::Int32(1));
    let count = Accumulation {
        name: "count".to_owned(),
        kind: AccumulatorKind::Sum,
        operand: one,
    };
    stages.push(Stage::Group(Group {
        id: Expression::parse(operand, limits)?,
        accumulations: vec![count],
    }));
    stages.push(Stage::Sort {
        sort: Sort::by("count", Direction::Descending),
        limit: None,
    });
    Ok(())
}
