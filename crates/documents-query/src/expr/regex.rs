//! `$regexMatch`.

use bson::raw::RawBsonRef;

use super::parse::{Fields, Parser};
use super::{Node, Scope, Value};
use crate::error::{Code, Error};
use crate::filter::Regex;
use crate::limits::Limits;

/// `$regexMatch`. A literal pattern is compiled only once.
#[derive(Debug, Clone)]
pub(crate) struct RegexMatch {
    input: Node,
    pattern: Pattern,
    limits: Box<Limits>,
}

#[derive(Debug, Clone)]
enum Pattern {
    /// A literal pattern; `None` for null, which matches nothing.
    Fixed(Option<Regex>),
    Computed {
        regex: Node,
        options: Option<Node>,
    },
}

impl RegexMatch {
    pub fn parse(parser: &mut Parser<'_>, operand: RawBsonRef<'_>) -> Result<RegexMatch, Error> {
        let kind = crate::element::type_name(operand.element_type());
        let not_object = Error::new(
            Code::Location51103,
            format!("$regexMatch expects an object of named arguments but found: {kind}"),
        );
        let unknown = |name: &str| {
            Error::new(
                Code::Location31024,
                format!("$regexMatch found an unknown argument: {name}"),
            )
        };
        let fields = Fields::read(operand, &["input", "regex", "options"], not_object, unknown)?;
        let need = |name: &str, code| {
            fields
                .get(name)
                .ok_or_else(|| Error::new(code, format!("$regexMatch requires '{name}' parameter")))
        };
        let input = parser.expression(need("input", Code::Location31022)?)?;
        let regex = parser.expression(need("regex", Code::Location31023)?)?;
        let options = fields
            .get("options")
            .map(|options| parser.expression(options))
            .transpose()?;
        let limits = Box::new(parser.limits().clone());
        Ok(RegexMatch {
            input,
            pattern: Pattern::new(regex, options, &limits)?,
            limits,
        })
    }

    pub fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Value<'s>, Error> {
        let input = self.input.evaluate(scope)?;
        if input.as_text().is_none() && !input.is_nullish() {
            return Err(Error::new(
                Code::Location51104,
                "$regexMatch needs 'input' to be of type string",
            ));
        }
        let matches = |regex: Option<&Regex>| match (regex, input.as_text()) {
            (Some(regex), Some(text)) => regex.is_match(text),
            _ => Ok(false),
        };
        let found = match &self.pattern {
            Pattern::Fixed(regex) => matches(regex.as_ref())?,
            Pattern::Computed { regex, options } => {
                let options = options
                    .as_ref()
                    .map(|options| options.evaluate(scope))
                    .transpose()?;
                let regex = compile(
                    &regex.evaluate(scope)?,
                    &options.unwrap_or(Value::Missing),
                    &self.limits,
                )?;
                matches(regex.as_ref())?
            }
        };
        Ok(found.into())
    }

    pub fn children(&self) -> Vec<&Node> {
        match &self.pattern {
            Pattern::Fixed(_) => vec![&self.input],
            Pattern::Computed { regex, options } => {
                [&self.input, regex].into_iter().chain(options).collect()
            }
        }
    }
}

impl Pattern {
    fn new(regex: Node, options: Option<Node>, limits: &Limits) -> Result<Pattern, Error> {
        let fixed_options = match &options {
            None => Some(Value::Missing),
            Some(Node::Literal(value)) => Some(Value::Ref(value.as_raw_bson_ref())),
            Some(_) => None,
        };
        match (&regex, fixed_options) {
            (Node::Literal(value), Some(options)) => Ok(Pattern::Fixed(compile(
                &Value::Ref(value.as_raw_bson_ref()),
                &options,
                limits,
            )?)),
            _ => Ok(Pattern::Computed { regex, options }),
        }
    }
}

fn compile(
    pattern: &Value<'_>,
    options: &Value<'_>,
    limits: &Limits,
) -> Result<Option<Regex>, Error> {
    let given = match options.as_text() {
        Some(text) => text,
        None if options.is_nullish() => "",
        None => {
            return Err(Error::new(
                Code::Location51106,
                "$regexMatch needs 'options' to be of type string",
            ));
        }
    };
    let (source, flags) = match pattern.get() {
        _ if pattern.is_nullish() => return Ok(None),
        Some(RawBsonRef::String(text)) => (text, ""),
        Some(RawBsonRef::RegularExpression(regex)) => {
            (regex.pattern.as_str(), regex.options.as_str())
        }
        _ => {
            return Err(Error::new(
                Code::Location51105,
                "$regexMatch needs 'regex' to be of type string or regex",
            ));
        }
    };
    if !flags.is_empty() && !given.is_empty() {
        let message =
            "$regexMatch: found regex option(s) specified in both 'regex' and 'option' fields";
        return Err(Error::new(Code::Location51107, message));
    }
    Regex::new(source, if given.is_empty() { flags } else { given }, limits).map(Some)
}
