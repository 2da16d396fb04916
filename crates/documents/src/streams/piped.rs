//! A stream through the stages of a pipeline.

use std::sync::Arc;

use bson::{DateTime, RawDocumentBuf};
use forebay_cancel::{SharedStop, Stop};
use forebay_documents_query::stage::Run;
use forebay_documents_query::{Limits, Pipeline};
use parking_lot::Mutex;

use super::{Row, Stream};
use crate::error::CommandError;

/// A pipeline over a stream.
pub struct Piped {
    output: forebay_documents_query::stage::Stream<'static, CommandError>,
    /// The stream that the first stage reads.
    source: Arc<Mutex<dyn Stream>>,
    /// The cancellation token of the command that reads the stream, for the stages and the source.
    stop: Arc<SharedStop>,
}

impl Piped {
    /// Returns a stream of the output of `pipeline` over `source`. Nothing runs until the stream is read.
    pub fn new(source: impl Stream + 'static, pipeline: Pipeline, limits: Limits) -> Piped {
        let stop = limits.stop().clone();
        let source = Arc::new(Mutex::new(source));
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
        self.source.lock().rest();
    }
}

/// Adapts the source to the pipeline's input.
struct Input<S> {
    source: Arc<Mutex<S>>,
    stop: Arc<SharedStop>,
}

impl<S: Stream> Iterator for Input<S> {
    type Item = Result<RawDocumentBuf, CommandError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.source.lock().next(&self.stop.current()).transpose()?;
        Some(row.map(Row::into_buf))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use bson::RawArrayBuf;

    use super::*;
    use crate::streams::{Limited, Skip};

    struct Source(Arc<AtomicBool>);

    impl Stream for Source {
        fn next(&mut self, _stop: &Stop) -> Result<Option<Row>, CommandError> {
            Ok(None)
        }

        fn rest(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_rest_reaches_the_source() {
        let rested = Arc::new(AtomicBool::new(false));
        let source = Limited::new(Skip::new(Source(rested.clone()), 1), 1);
        let limits = Limits::default();
        let pipeline = Pipeline::parse(&RawArrayBuf::new(), &limits).expect("no stages are valid");
        let stream: &mut dyn Stream = &mut Piped::new(source, pipeline, limits);
        assert!(stream.next(&Stop::never()).expect("no error").is_none());
        stream.rest();
        assert!(rested.load(Ordering::Relaxed));
    }
}
