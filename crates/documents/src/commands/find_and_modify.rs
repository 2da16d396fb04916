//! `findAndModify`: updates or removes one document and returns it.

use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_documents_query::{Code, Filter, Projection, ProjectionContext, Sort, Update};

use super::{read, update};
use crate::arguments::Known;
use crate::batch::check_size;
use crate::changes::{self, Deleted, Reach, Updated};
use crate::collections::OpenCollection;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::namespace;
use crate::plan::{Plan, PlanRequirements};
use crate::request::Request;
use crate::retry::Keep;
use crate::searches::Search;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "findAndModify",
    help: "changes or removes one document and returns it",
    known: Known::Only(&[
        "query",
        "sort",
        "remove",
        "update",
        "new",
        "fields",
        "upsert",
        "bypassDocumentValidation",
        "collation",
        "arrayFilters",
        "hint",
        "let",
    ]),
    effect: Effect::Writes,
    run: Run::Async(start),
};

/// The older, lower-case spelling of the command.
pub const LOWER_CASE: Spec = Spec {
    name: "findandmodify",
    ..SPEC
};

/// Maximum attempts of an upsert if other clients change the same documents.
const UPSERT_TRIES: u32 = 4;

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    namespace::check_writable(&namespace)?;
    let modification = Modification::read(request)?;
    if let Some(retry) = &request.retry
        && let Some(reply) = retry.outcome(0)?
    {
        return Ok(reply);
    }
    let collections = request.documents.collections();
    let mut collection = match collections.get(&namespace) {
        Some(collection) => collection,
        None if modification.upsert => collections.get_or_create(&namespace)?,
        None => return Ok(modification.nothing()),
    };
    loop {
        let outcome = match &modification.update {
            Some(update) => modification.update(request, &collection, update).await,
            None => modification.remove(request, &collection).await,
        };
        match outcome {
            // If the collection was dropped, an upsert tries again, which creates the collection.
            Err(error) if modification.upsert && collection.was_dropped(&error) => {
                request.stop().check()?;
                collection = collections.settled(&namespace)?;
            }
            outcome => return outcome,
        }
    }
}

/// The arguments.
struct Modification {
    filter: Arc<Filter>,
    sort: Option<Sort>,
    fields: Option<Projection>,
    /// `None` for a removal.
    update: Option<Update>,
    upsert: bool,
    wants_new: bool,
}

impl Modification {
    fn read(request: &Request<'_>) -> Result<Modification, CommandError> {
        let arguments = &request.arguments;
        arguments.simple_collation()?;
        let limits = read::limits(request)?;
        let update = arguments
            .get("update")
            .filter(|update| !matches!(update, RawBsonRef::Null));
        let (remove, upsert, wants_new) = (
            arguments.flag("remove")?,
            arguments.flag("upsert")?,
            arguments.flag("new")?,
        );
        check_combination(update.is_some(), remove, upsert, wants_new)?;
        let sort = arguments.document("sort")?.filter(|sort| !sort.is_empty());
        let fields = arguments
            .document("fields")?
            .filter(|fields| !fields.is_empty());
        let filters = arguments.array("arrayFilters")?;
        Ok(Modification {
            filter: read::filter(request, "query")?,
            sort: sort.map(Sort::parse).transpose()?,
            fields: fields
                .map(|fields| Projection::parse(fields, &limits))
                .transpose()?,
            update: update
                .map(|update| Update::parse(update, filters, &limits))
                .transpose()?,
            upsert,
            wants_new,
        })
    }

    fn plan(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
    ) -> Result<Arc<Plan>, CommandError> {
        let hint = crate::plan::hint(collection, request.arguments.get("hint"))?;
        let requirements = PlanRequirements {
            sort: self.sort.as_ref(),
            hint,
            strict: request.strict(),
        };
        Plan::new(collection.clone(), self.filter.clone(), &requirements)
    }

    async fn update(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
        update: &Update,
    ) -> Reply {
        let plan = self.plan(request, collection)?;
        request.begin_search(Search::Documents(plan.clone()));
        let keep = self.keep(request);
        for tries_left in (0..UPSERT_TRIES).rev() {
            let updated = self.update_first(request, &plan, update, keep.as_ref());
            if let Some((old, new)) = updated.await? {
                return self.reply(Some(&old), Some(&new));
            }
            if !self.upsert {
                return Ok(self.nothing());
            }
            match update::upsert(collection, &self.filter, update, keep.as_ref(), request) {
                Ok(made) => return self.reply(None, Some(&made)),
                Err(error) if error.code() == Code::DuplicateKey && tries_left > 0 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.nothing())
    }

    /// Updates the first match. Returns the document before and after the update.
    async fn update_first(
        &self,
        request: &Request<'_>,
        plan: &Plan,
        update: &Update,
        keep: Option<&Keep<'_>>,
    ) -> Result<Option<(RawDocumentBuf, RawDocumentBuf)>, CommandError> {
        while let Some(number) = plan.first_number(self.sort.as_ref(), request).await? {
            let mut done = Updated::default();
            changes::update(
                &plan.collection,
                &self.filter,
                update,
                &[number],
                Reach::First(keep),
                request,
                &mut done,
            )?;
            if done.last.is_some() {
                return Ok(done.last);
            }
        }
        Ok(None)
    }

    async fn remove(&self, request: &Request<'_>, collection: &Arc<OpenCollection>) -> Reply {
        let plan = self.plan(request, collection)?;
        request.begin_search(Search::Documents(plan.clone()));
        let keep = self.keep(request);
        while let Some(number) = plan.first_number(self.sort.as_ref(), request).await? {
            let mut done = Deleted::default();
            changes::delete(
                collection,
                &self.filter,
                &[number],
                Reach::First(keep.as_ref()),
                request,
                &mut done,
            )?;
            if let Some(removed) = done.last {
                return self.reply(Some(&removed), None);
            }
        }
        Ok(self.nothing())
    }

    /// Returns the object that records the reply for retries, if this is a retryable write.
    fn keep<'a>(&'a self, request: &'a Request<'_>) -> Option<Keep<'a>> {
        let reply =
            |before: Option<&RawDocument>, after: Option<&RawDocument>| self.reply(before, after);
        Keep::new(request.retry.as_ref(), 0, reply)
    }

    /// Returns the reply for a document that changed from `before` to `after`. An insertion has no `before`, a removal
    /// no `after`.
    fn reply(&self, before: Option<&RawDocument>, after: Option<&RawDocument>) -> Reply {
        let mut last = rawdoc! { "n": 1 };
        if let Some(after) = after {
            last.append(cstr!("updatedExisting"), before.is_some());
            if let (None, Ok(Some(id))) = (before, after.get("_id")) {
                last.append(cstr!("upserted"), id);
            }
        }
        let shown = if self.wants_new { after } else { before };
        let shown = shown.map(|document| self.shown(document.to_owned()));
        Ok(reply(last, shown.transpose()?.unwrap_or(RawBson::Null)))
    }

    fn shown(&self, document: RawDocumentBuf) -> Result<RawBson, CommandError> {
        let Some(fields) = &self.fields else {
            return Ok(RawBson::Document(document));
        };
        let context = ProjectionContext {
            now: bson::DateTime::now(),
            position: read::position(fields, &self.filter, &document)?,
        };
        let shown = fields.apply(&document, &context)?;
        check_size(&shown)?;
        Ok(RawBson::Document(shown))
    }

    fn nothing(&self) -> RawDocumentBuf {
        let last = if self.update.is_some() {
            rawdoc! { "n": 0, "updatedExisting": false }
        } else {
            rawdoc! { "n": 0 }
        };
        reply(last, RawBson::Null)
    }
}

fn reply(last_error: RawDocumentBuf, value: RawBson) -> RawDocumentBuf {
    rawdoc! { "lastErrorObject": last_error, "value": value, "ok": 1.0 }
}

fn check_combination(
    update: bool,
    remove: bool,
    upsert: bool,
    wants_new: bool,
) -> Result<(), CommandError> {
    let message = match (update, remove) {
        (true, true) => "Cannot specify both an update and remove=true",
        (false, false) => "Either an update or remove=true must be specified",
        (false, true) if upsert => "Cannot specify both upsert=true and remove=true",
        (false, true) if wants_new => {
            "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document"
        }
        _ => return Ok(()),
    };
    Err(CommandError::refused(Code::FailedToParse, message))
}
