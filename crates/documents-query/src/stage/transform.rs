//! Stages with one output document for each input document: `$project`, `$set`, `$unset`, `$replaceRoot`.

use bson::DateTime;
use bson::raw::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::display;
use crate::error::{Code, Error};
use crate::expr::{Expression, Scope, Value};
use crate::projection::{Projection, ProjectionContext};

/// A stage with one output document for each input document.
#[derive(Debug, Clone)]
pub enum Transform {
    /// `$project`, `$set`, `$addFields`, `$unset`.
    Project(Projection),
    /// `$replaceRoot`, `$replaceWith`.
    ReplaceRoot(Expression),
}

impl Transform {
    /// Returns the document that replaces `document`.
    ///
    /// # Errors
    /// Those of expressions; 40228 if a new root is not a document.
    pub fn apply(&self, document: &RawDocument, now: DateTime) -> Result<RawDocumentBuf, Error> {
        match self {
            Transform::Project(projection) => projection.apply(
                document,
                &ProjectionContext {
                    now,
                    position: None,
                },
            ),
            Transform::ReplaceRoot(expression) => new_root(expression, document, now),
        }
    }
}

fn new_root(
    expression: &Expression,
    document: &RawDocument,
    now: DateTime,
) -> Result<RawDocumentBuf, Error> {
    let value = expression.evaluate(&Scope::new(document, now))?;
    let value = match value {
        Value::Owned(RawBson::Document(root)) => return Ok(root),
        Value::Ref(RawBsonRef::Document(root)) => return Ok(root.to_owned()),
        other => other,
    };
    let shown = value
        .get()
        .map_or_else(|| "MISSING".to_owned(), display::value);
    let message = format!(
        "'newRoot' expression must evaluate to an object, but resulting value was: {shown}. Type of resulting value: '{}'. Input document: {}",
        value.type_name(),
        display::document(document)
    );
    Err(Error::new(Code::Location40228, message))
}
