//! Aggregation: pipelines of stages over streams of documents.
//!
//! [`Pipeline::parse`] parses a pipeline. Its [`Stage`]s are public, so that a planner can answer leading stages from
//! an index or a cache. [`Pipeline::run`] chains the remaining stages over an iterator. Streaming stages hold one
//! document. `$group` and `$sort` hold documents or groups up to [`Limits::stage_memory_bytes_max`], charged to
//! [`Limits::memory`].

mod accumulator;
mod group;
mod parse;
mod sample;
mod sort;
mod transform;
mod unwind;

use std::sync::Arc;

use bson::DateTime;
use bson::raw::{RawArray, RawBson, RawDocumentBuf};
use forebay_cancel::SharedStop;
use forebay_memory::Share;

use crate::element::Writer;
use crate::error::Error;
use crate::filter::Filter;
use crate::limits::Limits;
use crate::sort::Sort;

pub use accumulator::AccumulatorKind;
pub use group::{Accumulation, Group};
pub use transform::Transform;
pub use unwind::Unwind;

pub(crate) use parse::parse_update_pipeline;

/// One parsed stage.
#[derive(Debug, Clone)]
pub enum Stage {
    /// `$match`
    Match(Filter),
    /// `$project`, `$set`, `$unset`, `$replaceRoot`: one output document for each input document.
    Transform(Transform),
    /// `$group`. `$sortByCount` is parsed to a `$group` and a `$sort`.
    Group(Group),
    /// `$sort`, with the count of the `$limit` that directly follows it, if any.
    Sort {
        /// The order.
        sort: Sort,
        /// Maximum number of documents, if there is a limit.
        limit: Option<u64>,
    },
    /// `$skip`
    Skip(u64),
    /// `$limit`
    Limit(u64),
    /// `$count`, with the name of the output field.
    Count(String),
    /// `$unwind`
    Unwind(Unwind),
    /// `$sample`, with the number of documents.
    Sample(u64),
}

/// A parsed pipeline.
#[derive(Debug, Clone, Default)]
pub struct Pipeline {
    /// The stages, in order.
    pub stages: Vec<Stage>,
}

/// A stream of documents between stages.
pub type Stream<'a, E> = Box<dyn Iterator<Item = Result<RawDocumentBuf, E>> + Send + 'a>;

/// The input of a pipeline's execution besides the documents.
#[derive(Clone)]
pub struct Run {
    /// Value of `$$NOW`.
    pub now: DateTime,
    /// Limits of the execution. Each stage checks their [cancellation token](Limits::stop) before each document.
    pub limits: Limits,
    /// The seed for `$sample`.
    pub seed: u64,
}

impl Run {
    /// Creates the input of an execution, with a fixed seed for `$sample`.
    pub fn new(now: DateTime, limits: Limits) -> Run {
        Run {
            now,
            limits,
            seed: 0,
        }
    }
}

impl Pipeline {
    /// Parses the stages of an `aggregate` command.
    ///
    /// # Errors
    /// 40324 for a stage that does not exist, `NotImplemented` for a stage that this server does not support, and the
    /// errors of single stages.
    pub fn parse(stages: &RawArray, limits: &Limits) -> Result<Pipeline, Error> {
        parse::pipeline(stages, limits)
    }

    /// Applies the stages to `input`. Nothing is executed until the returned stream is read.
    pub fn run<'a, E: From<Error> + Send + 'a>(
        self,
        input: Stream<'a, E>,
        run: &Run,
    ) -> Stream<'a, E> {
        let run = run.clone();
        let mut stream = checked(input, &run);
        let mut stages = self.stages.into_iter();
        Box::new(std::iter::from_fn(move || {
            // The stages begin one after the other, so that a blocking stage does not read its input within the call
            // stack of another blocking stage.
            for stage in stages.by_ref() {
                let input = std::mem::replace(&mut stream, Box::new(std::iter::empty()));
                match stage.begin(input, &run) {
                    Ok(output) => stream = checked(output, &run),
                    Err(error) => {
                        stages = Vec::new().into_iter();
                        return Some(Err(error));
                    }
                }
            }
            stream.next()
        }))
    }
}

impl Stage {
    /// Applies the stage to `input`. A blocking stage reads its whole input first.
    fn begin<'a, E: From<Error> + Send + 'a>(
        self,
        input: Stream<'a, E>,
        run: &Run,
    ) -> Result<Stream<'a, E>, E> {
        let now = run.now;
        Ok(match self {
            Stage::Match(filter) => Box::new(input.filter_map(move |document| match document {
                Ok(document) => match filter.try_matches(&document) {
                    Ok(true) => Some(Ok(document)),
                    Ok(false) => None,
                    Err(error) => Some(Err(error.into())),
                },
                Err(error) => Some(Err(error)),
            })),
            Stage::Transform(transform) => Box::new(
                input.map(move |document| transform.apply(&document?, now).map_err(E::from)),
            ),
            Stage::Skip(count) => {
                Box::new(input.skip(usize::try_from(count).unwrap_or(usize::MAX)))
            }
            Stage::Limit(count) => {
                Box::new(input.take(usize::try_from(count).unwrap_or(usize::MAX)))
            }
            Stage::Unwind(unwind) => unwind::run(unwind, input, run.limits.memory.share()),
            Stage::Group(group) => held(run, |share| group::run(&group, input, run, share))?,
            Stage::Sort { sort, limit } => {
                held(run, |share| sort::run(&sort, limit, input, run, share))?
            }
            Stage::Count(name) => held(run, |_| count(&name, input))?,
            Stage::Sample(size) => held(run, |share| sample::run(size, input, run, share))?,
        })
    }
}

/// Returns the output of a blocking stage. Its reservation in the memory account is held until the last document is
/// returned.
fn held<'a, E: 'a>(
    run: &Run,
    work: impl FnOnce(&Share) -> Result<Vec<RawDocumentBuf>, E>,
) -> Result<Stream<'a, E>, E> {
    let share = run.limits.memory.share();
    let mut held = Some((work(&share)?.into_iter(), share));
    Ok(Box::new(std::iter::from_fn(move || {
        let (documents, _) = held.as_mut()?;
        let document = documents.next().map(Ok);
        if document.is_none() {
            held = None;
        }
        document
    })))
}

/// Counts documents. Returns a document with the count. If the count is 0, returns no document, as MongoDB does.
fn count<E>(name: &str, input: Stream<'_, E>) -> Result<Vec<RawDocumentBuf>, E> {
    let mut count = 0_i64;
    for document in input {
        document?;
        count += 1;
    }
    let mut writer = Writer::new();
    writer.owned(
        name,
        &i32::try_from(count).map_or(RawBson::Int64(count), RawBson::Int32),
    );
    Ok(if count == 0 {
        Vec::new()
    } else {
        vec![writer.finish()]
    })
}

/// Checks the cancellation token before each document.
struct Checked<'a, E> {
    input: Stream<'a, E>,
    stop: Arc<SharedStop>,
}

fn checked<'a, E: From<Error> + Send + 'a>(input: Stream<'a, E>, run: &Run) -> Stream<'a, E> {
    let stop = run.limits.stop().clone();
    Box::new(Checked { input, stop })
}

impl<E: From<Error>> Iterator for Checked<'_, E> {
    type Item = Result<RawDocumentBuf, E>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.stop.check() {
            Ok(()) => self.input.next(),
            Err(stopped) => Some(Err(Error::from(stopped).into())),
        }
    }
}
