//! Aggregation: pipelines of stages over streams of documents.
//!
//! [`Pipeline::parse`] parses a pipeline. Its [`Stage`]s are public, so that a planner can answer leading stages from
//! an index or a cache. [`Pipeline::run`] chains the remaining stages over an iterator. Streaming stages hold one
//! document. `$group` and `$sort` hold documents or groups up to [`Limits::stage_memory_bytes_max`], charged to
//! [`Limits::memory`].

mod accumulator;
mod group;
mod memory;
mod parse;
mod sample;
mod sort;
mod transform;
mod unwind;

use std::sync::Arc;

use bson::DateTime;
use bson::raw::{RawArray, RawBson, RawDocumentBuf};
use forebay_cancel::SharedStop;

use crate::element::Writer;
use crate::error::Error;
use crate::filter::Filter;
use crate::limits::Limits;
use crate::sort::Sort;

pub use accumulator::AccumulatorKind;
pub use group::{Accumulation, Group};
pub use transform::{Grown, Transform};
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
            Stage::Transform(transform) => {
                let mut grown = Grown::new(run.limits.memory());
                Box::new(input.map(move |document| {
                    let document = document?;
                    grown.make(document.as_bytes().len(), || {
                        Ok(transform.apply(&document, now)?)
                    })
                }))
            }
            Stage::Skip(count) => {
                Box::new(input.skip(usize::try_from(count).unwrap_or(usize::MAX)))
            }
            Stage::Limit(count) => {
                Box::new(input.take(usize::try_from(count).unwrap_or(usize::MAX)))
            }
            Stage::Unwind(unwind) => unwind::run(unwind, input, run),
            Stage::Group(group) => group::run(group, input, run)?,
            Stage::Sort { sort, limit } => sort::run(&sort, limit, input, run)?,
            Stage::Count(name) => Box::new(count(&name, input)?.into_iter().map(Ok)),
            Stage::Sample(size) => sample::run(size, input, run)?,
        })
    }
}

/// Counts documents. Returns a document with the count. If the count is 0, returns no document, as MongoDB does.
fn count<E>(name: &str, input: Stream<'_, E>) -> Result<Option<RawDocumentBuf>, E> {
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
    Ok((count > 0).then(|| writer.finish()))
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

#[cfg(test)]
mod tests {
    use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
    use forebay_memory::Account;

    use super::*;
    use crate::error::Code;
    use crate::filter::Compilation;

    /// Runs a pipeline under a memory account of `limit_bytes`. Returns the account and the output.
    fn output(
        stages: &[RawDocumentBuf],
        documents: Vec<RawDocumentBuf>,
        limit_bytes: u64,
    ) -> (Account, Stream<'static, Error>) {
        let limits = Limits::new(Account::new(limit_bytes), Compilation::default());
        let stages: RawArrayBuf = stages.iter().cloned().collect();
        let pipeline = Pipeline::parse(&stages, &limits).expect("it parses");
        let input = Box::new(documents.into_iter().map(Ok));
        let memory = limits.memory().clone();
        (
            memory,
            pipeline.run(input, &Run::new(DateTime::MIN, limits)),
        )
    }

    /// Checks that an account of 2 MiB is too small for a pipeline, and an account without a limit is not.
    #[track_caller]
    fn check_refused(stages: &[RawDocumentBuf], documents: &[RawDocumentBuf]) {
        let (memory, mut stream) = output(stages, documents.to_vec(), 2 << 20);
        let refused = stream
            .find_map(Result::err)
            .expect("the account is too small");
        assert_eq!(refused.code, Code::ExceededMemoryLimit);
        drop(stream);
        assert_eq!(memory.figures().used_bytes, 0);
        let (_, stream) = output(stages, documents.to_vec(), u64::MAX);
        assert!(stream.count() > 0);
    }

    /// Builds a document of `count` fields with the same operand.
    fn fields<'f>(count: usize, operand: impl Fn(&mut Writer, &str) + 'f) -> RawDocumentBuf {
        let mut writer = Writer::new();
        (0..count).for_each(|index| operand(&mut writer, &format!("f{index:05}")));
        writer.finish()
    }

    #[test]
    fn kept_values_of_a_group_take_memory() {
        let range = rawdoc! { "$range": [0, 10_000] };
        for operator in ["$first", "$last", "$max"] {
            let mut group = rawdoc! { "_id": null };
            let kept = fields(30, |writer, name| {
                writer.begin_document(name);
                writer.value(operator, bson::raw::RawBsonRef::Document(&range));
                writer.end();
            });
            for field in kept.iter_elements().flatten() {
                group.append(field.key(), field.value().expect("a document"));
            }
            check_refused(&[rawdoc! { "$group": group }], &[rawdoc! { "_id": 1 }]);
        }
    }

    #[test]
    fn fields_and_elements_that_a_group_collects_take_memory() {
        let wide = fields(10_000, |writer, name| {
            writer.value(name, bson::raw::RawBsonRef::Null);
        });
        let merge = rawdoc! { "$group": { "_id": null, "a": { "$mergeObjects": "$$ROOT" } } };
        check_refused(&[merge], &[wide]);
        let many: Vec<_> = (0..30_000).map(|id| rawdoc! { "_id": id }).collect();
        let set = rawdoc! { "$group": { "_id": null, "a": { "$addToSet": "$_id" } } };
        check_refused(&[set], &many);
    }

    #[test]
    fn a_sort_of_many_small_documents_takes_memory() {
        let many: Vec<_> = (0..20_000).map(|id| rawdoc! { "_id": id }).collect();
        check_refused(&[rawdoc! { "$sort": { "_id": -1 } }], &many);
    }

    #[test]
    fn a_document_that_a_stage_enlarges_takes_memory() {
        let text = rawdoc! { "t": "x".repeat(300_000) };
        let copies = fields(10, |writer, name| {
            writer.value(name, bson::raw::RawBsonRef::String("$t"));
        });
        check_refused(&[rawdoc! { "$project": copies }], &[text]);
        let set = rawdoc! { "$set": { "a": { "$range": [0, 10_000] } } };
        let (memory, mut stream) = output(&[set], vec![rawdoc! { "_id": 1 }], u64::MAX);
        let made = stream.next().expect("a document").expect("it fits");
        assert!(memory.figures().used_bytes >= made.as_bytes().len() as u64 - 100);
        drop(stream);
        assert_eq!(memory.figures().used_bytes, 0);
    }
}
