//! Reads of Parquet files whose bytes the kernel reads ahead.
//!
//! A thread reads the columns of a row group one after the other, and the kernel reads ahead by some hundred kilobytes:
//! too little for a disk that is fast only with many requests. Here the kernel is told of all columns of the row group
//! first (decision 0048).

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::physical_plan::{
    FileScanConfig, FileScanConfigBuilder, ParquetFileReaderFactory, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::parquet::arrow::arrow_reader::ArrowReaderOptions;
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::errors::Result as ParquetResult;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use object_store::local::LocalFileSystem;

/// Bytes of a call. The kernel reads no more for one than a disk reads ahead, by default these.
const STEP_BYTES: u64 = 128 << 10;

/// The rule. It comes before those that put scans on a GPU, which loads columns by the same reads.
#[derive(Debug)]
pub(crate) struct ReadAhead;

impl PhysicalOptimizerRule for ReadAhead {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        advised(plan)
    }

    fn name(&self) -> &str {
        "read_ahead"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Returns a plan whose reads of local Parquet files are advised.
///
/// # Errors
/// As of a rule.
pub(crate) fn advised(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| match with_advice(&node) {
        Some(scan) => Ok(Transformed::yes(scan)),
        None => Ok(Transformed::no(node)),
    })
    .data()
}

/// Returns a scan whose reads are advised; `None` if the plan is no scan of local Parquet files.
fn with_advice(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    let scan = scan.data_source().downcast_ref::<FileScanConfig>()?;
    let source = scan.file_source.downcast_ref::<ParquetSource>()?;
    if scan.object_store_url != ObjectStoreUrl::local_filesystem() {
        return None;
    }
    let readers = Arc::new(AdvisedReaders {
        readers: Arc::clone(source.parquet_file_reader_factory()?),
        files: LocalFileSystem::new(),
    });
    let source = source.clone().with_parquet_file_reader_factory(readers);
    let scan = FileScanConfigBuilder::from(scan.clone())
        .with_source(Arc::new(source))
        .build();
    Some(DataSourceExec::from_data_source(scan))
}

/// A factory of readers of local files.
#[derive(Debug)]
struct AdvisedReaders {
    readers: Arc<dyn ParquetFileReaderFactory>,
    /// What tells the paths of files.
    files: LocalFileSystem,
}

impl ParquetFileReaderFactory for AdvisedReaders {
    fn create_reader(
        &self,
        partition_index: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let path = self.files.path_to_filesystem(&file.object_meta.location)?;
        let reader =
            self.readers
                .create_reader(partition_index, file, metadata_size_hint, metrics)?;
        Ok(Box::new(AdvisedReader { reader, path }))
    }
}

/// A reader of a local file.
struct AdvisedReader {
    reader: Box<dyn AsyncFileReader + Send>,
    path: PathBuf,
}

/// Tells the kernel that these bytes of a file will be read. Its failure is that of the read, or none.
fn advise(path: PathBuf, ranges: Vec<Range<u64>>) {
    let Ok(file) = File::open(path) else { return };
    for Range { start, end } in ranges {
        for start in (start..end).step_by(STEP_BYTES as usize) {
            let len = STEP_BYTES.min(end - start);
            if let (Ok(start), Ok(len)) = (i64::try_from(start), i64::try_from(len)) {
                let _ = posix_fadvise(&file, start, len, PosixFadviseAdvice::POSIX_FADV_WILLNEED);
            }
        }
    }
}

impl AsyncFileReader for AdvisedReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, ParquetResult<Bytes>> {
        self.reader.get_bytes(range)
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, ParquetResult<Vec<Bytes>>> {
        let (path, advised) = (self.path.clone(), ranges.clone());
        async move {
            let advising = tokio::task::spawn_blocking(move || advise(path, advised));
            // It only panics if the runtime stops, and then the read fails too.
            let _ = advising.await;
            self.reader.get_byte_ranges(ranges).await
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, ParquetResult<Arc<ParquetMetaData>>> {
        self.reader.get_metadata(options)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Int64Array, RecordBatch};
    use datafusion::parquet::arrow::ArrowWriter;
    use datafusion::physical_plan::collect;
    use datafusion::prelude::SessionContext;

    use super::*;

    /// Returns whether a scan of a plan has advised readers.
    fn is_advised(plan: &Arc<dyn ExecutionPlan>) -> bool {
        let scan = plan.downcast_ref::<DataSourceExec>();
        let scan = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
        let source = scan.and_then(|scan| scan.file_source.downcast_ref::<ParquetSource>());
        let readers = source.and_then(|source| source.parquet_file_reader_factory());
        readers.is_some_and(|it| format!("{it:?}").starts_with("AdvisedReaders"))
            || plan.children().into_iter().any(is_advised)
    }

    #[tokio::test]
    async fn local_files_of_any_name_are_advised_and_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let numbers = Arc::new(Int64Array::from_iter_values(0..10_000)) as _;
        let batch = RecordBatch::try_from_iter([("n", numbers)]).expect("a batch");
        for name in ["a.parquet", "a b%20é#.parquet"] {
            let file = File::create(folder.path().join(name)).expect("room");
            let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a file");
            writer.write(&batch).expect("room");
            writer.close().expect("room");
        }
        let context = SessionContext::new();
        let path = folder.path().to_str().expect("a path");
        let registered = context.register_parquet("t", path, Default::default());
        registered.await.expect("two files");
        let frame = context.sql("SELECT sum(n) FROM t WHERE n > 1").await;
        let frame = frame.expect("a plan");
        let of_task = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await.expect("a plan");
        let advised = ReadAhead.optimize(plan, &ConfigOptions::new());
        let advised = advised.expect("a plan");
        assert!(is_advised(&advised));
        let rows = collect(advised, of_task).await.expect("rows");
        let sum = rows[0].column(0).as_any().downcast_ref::<Int64Array>();
        assert_eq!(sum.map(|it| it.value(0)), Some(2 * (9_999 * 5_000 - 1)));
    }

    #[test]
    fn a_file_that_is_gone_is_no_error_of_the_advice() {
        let two = vec![0..7, 9..9];
        advise(PathBuf::from("/no such file"), two);
    }
}
