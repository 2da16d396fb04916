//! A stream through the stages of a pipeline.

use std::sync::Arc;

use bson::{DateTime, RawDocumentBuf};
use forebay_cancel::{SharedStop, Stop};
use forebay_documents_query::stage::Run;
use forebay_documents_query::{Limits, Pipeline};
use parking_lot::Mutex;

use super::{Row, Stream};
use crate::error::CommandError;

/// A stream that a pipeline reads; `None` after its end, so that it holds no memory.
type Source = Arc<Mutex<Option<Box<dyn Stream>>>>;

/// A pipeline over a stream.
pub struct Piped {
    output: forebay_documents_query::stage::Stream<'static, CommandError>,
    /// The stream that the first stage reads.
    source: Source,
    /// The cancellation token of the command that reads the stream, for the stages and the source.
    stop: Arc<SharedStop>,
}

impl Piped {
    /// Returns a stream of the output of `pipeline` over `source`. Nothing runs until the stream is read.
    pub fn new(source: impl Stream + 'static, pipeline: Pipeline, limits: Limits) -> Piped {
        let stop = limits.stop().clone();
        let source: Source = Arc::new(Mutex::new(Some(Box::new(source))));
        let input = Input {
            source: source.clone(),
            stop: stop.clone(),
        };
        let run = Run {
            seed: fastrand::u64(..),
            ..Run::new(DateTime::now(), limits)
        };
        Piped {
            output: pipeline.run(Box::new(input), &run),
            source,
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

    fn rest(&mut self) {
        if let Some(source) = &mut *self.source.lock() {
            source.rest();
        }
    }
}

/// Adapts the source to the pipeline's input.
struct Input {
    source: Source,
    stop: Arc<SharedStop>,
}

impl Iterator for Input {
    type Item = Result<RawDocumentBuf, CommandError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut source = self.source.lock();
        let row = source.as_mut()?.next(&self.stop.current()).transpose();
        if row.is_none() {
            *source = None;
        }
        row.map(|row| row.map(Row::into_buf))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use bson::RawArrayBuf;

    use super::*;
    use crate::streams::{Limited, Skip};

    struct Endless(Arc<AtomicBool>);

    impl Stream for Endless {
        fn next(&mut self, _stop: &Stop) -> Result<Option<Row>, CommandError> {
            Ok(Some(Row::Built(RawDocumentBuf::new())))
        }

        fn rest(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_rest_reaches_the_source_until_its_end() {
        let rested = Arc::new(AtomicBool::new(false));
        let source = Limited::new(Skip::new(Endless(rested.clone()), 1), 1);
        let limits = Limits::default();
        let pipeline = Pipeline::parse(&RawArrayBuf::new(), &limits).expect("no stages are valid");
        let stream: &mut dyn Stream = &mut Piped::new(source, pipeline, limits);
        assert!(stream.next(&Stop::never()).expect("no error").is_some());
        stream.rest();
        assert!(rested.load(Ordering::Relaxed));
        assert_eq!(Arc::strong_count(&rested), 2);
        assert!(stream.next(&Stop::never()).expect("no error").is_none());
        assert_eq!(Arc::strong_count(&rested), 1, "the source is dropped");
        stream.rest();
    }
}
