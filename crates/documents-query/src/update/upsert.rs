//! Building the document that an upsert inserts.

use bson::oid::ObjectId;
use bson::raw::{RawBson, RawDocument, RawDocumentBuf};

use super::path::Places;
use super::tree::{Outcome, Padding, Tree};
use super::{Kind, Update, UpdateContext};
use crate::element::{Writer, elements, get};
use crate::error::{Code, Error};
use crate::expr::evaluation;
use crate::filter::Filter;

impl Update {
    /// Returns the document to insert if no document matches a query. Starts with the fields that the query requires to
    /// equal a value, then applies the update. Generates an `_id` if neither the query nor the update sets one.
    ///
    /// # Errors
    /// `NotSingleValueField` if the query requires one field to equal two values, and the errors of [`Update::apply`].
    pub fn upsert_document(
        &self,
        filter: &Filter,
        context: &UpdateContext,
    ) -> Result<RawDocumentBuf, Error> {
        let context = UpdateContext {
            is_insert: true,
            ..*context
        };
        let only_id = self.is_replacement();
        let base = evaluation::under(&self.limits, || document_of_query(filter, only_id))?;
        let made = match (&self.kind, self.apply(&base, &context)?) {
            (_, Some(made)) => made,
            (Kind::Replacement(_) | Kind::Operators { .. } | Kind::Pipeline(_), None) => base,
        };
        Ok(with_id_first(&made))
    }
}

fn document_of_query(filter: &Filter, only_id: bool) -> Result<RawDocumentBuf, Error> {
    let empty = RawDocumentBuf::new();
    let mut root = Tree::of(&empty);
    let mut padding = Padding::default();
    let mut places = Places::default();
    for (path, value) in filter.equalities() {
        if path.is_empty() || path.first().starts_with('$') || (only_id && path.first() != "_id") {
            continue;
        }
        let place: Vec<String> = path.components().map(str::to_owned).collect();
        if places.take(path.components()).is_some() {
            let message =
                format!("cannot infer query fields to set, path '{path}' is matched twice");
            return Err(Error::new(Code::NotSingleValueField, message));
        }
        root.change(&place, &mut padding, &mut |_| {
            Ok(Outcome::Put(value.clone().into()))
        })?;
    }
    root.into_document(0)
}

fn with_id_first(document: &RawDocument) -> RawDocumentBuf {
    let mut writer = Writer::with_capacity(document.as_bytes().len() + 32);
    match get(document, "_id") {
        Some(id) => writer.value("_id", id),
        None => writer.owned("_id", &RawBson::ObjectId(ObjectId::new())),
    }
    elements(document)
        .filter(|element| element.key != "_id")
        .for_each(|element| writer.element(&element));
    writer.finish()
}
