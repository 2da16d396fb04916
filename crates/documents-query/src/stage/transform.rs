//! Stages with one output document for each input document: `$project`, `$set`, `$unset`, `$replaceRoot`.

use bson::DateTime;
use bson::raw::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use forebay_memory::{Account, FREE_BYTES, Held};

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

/// Memory for the bytes that stages or a projection have added to a document, reserved until they make the next
/// document. The bytes of their input are reserved where it was read.
#[derive(Debug)]
pub struct Grown(Held);

impl Grown {
    /// Creates a reservation of nothing.
    pub fn new(memory: &Account) -> Grown {
        Grown(Held::new(memory, FREE_BYTES))
    }

    /// Makes a document from a document of `bytes`, and reserves memory for the growth. Releases the memory of the
    /// document made before.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the memory account has no room; the errors of `make`.
    pub fn make<E: From<Error>>(
        &mut self,
        bytes: usize,
        make: impl FnOnce() -> Result<RawDocumentBuf, E>,
    ) -> Result<RawDocumentBuf, E> {
        self.0.give_back(self.0.bytes());
        let made = make()?;
        let grown_bytes = made.as_bytes().len().saturating_sub(bytes);
        self.0.set(grown_bytes).map_err(Error::from)?;
        Ok(made)
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
