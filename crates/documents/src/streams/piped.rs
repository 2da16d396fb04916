//! A stream through the stages of a pipeline.

use std::sync::Arc;

use bson::{DateTime, RawDocumentBuf};
use forebay_cancel::{SharedStop, Stop};
use forebay_documents_query::stage::Run;
use forebay_documents_query::{Limits, Pipeline};

use super::{Row, Stream};
use crate::error::CommandError;

/// A pipeline over a stream.
pub struct Piped {
    output: forebay_documents_query::stage::Stream<'static, CommandError>,
    /// The cancellation token of the command that reads the stream, for the stages and the source.
    stop: Arc<SharedStop>,
}

impl Piped {
    /// Returns a stream of the output of `pipeline` over `source`. Nothing runs until the stream is read.
    pub fn new(source: impl Stream + 'static, pipeline: Pipeline, limits: Limits) -> Piped {
        let stop = limits.stop().clone();
        let input = Input {
            source,
            stop: stop.clone(),
        };
        let run = Run {
            seed: fastrand::u64(..),
            ..Run::new(DateTime::now(), limits)
        };
        Piped {
            output: pipeline.run(Box::new(input), &run),
            stop,
        }
    }
}

impl Stream for Piped {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        self.stop.follow(stop);
        self.output
            .next()
            .transpose()
            .map(|document| document.map(Row::Built))
    }
}

/// Adapts the source to the pipeline's input.
struct Input<S> {
    source: S,
    stop: Arc<SharedStop>,
}

impl<S: Stream> Iterator for Input<S> {
    type Item = Result<RawDocumentBuf, CommandError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.source.next(&self.stop.current()).transpose()?;
        Some(row.map(Row::into_buf))
    }
}
