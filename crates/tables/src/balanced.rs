//! Ranges of Parquet files that threads read.
//!
//! DataFusion 55 gives each partition one range of a file's bytes, and a row group belongs to the range in which it
//! starts. Because of the footer, two partitions read 5 and 3 of a file's 8 row groups. Partitions of a scan take their
//! ranges from a common queue, so that smaller ranges keep all of them busy.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

/// Number of ranges for each of DataFusion's.
const PARTS: i64 = 8;
/// Minimum bytes of a range. An empty range is opened too.
const RANGE_BYTES_MIN: i64 = 4 << 20;

/// The rule.
#[derive(Debug)]
pub(crate) struct BalancedScans;

impl PhysicalOptimizerRule for BalancedScans {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| match balanced(&node) {
            Some(scan) => Ok(Transformed::yes(scan)),
            None => Ok(Transformed::no(node)),
        })
        .data()
    }

    fn name(&self) -> &str {
        "balanced_scans"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Returns a scan with smaller ranges; `None` if the plan is not a scan of parts of files, or its rows have an order.
fn balanced(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    let scan = scan.data_source().downcast_ref::<FileScanConfig>()?;
    let is_ordered = scan.preserve_order
        || scan.output_partitioning.is_some()
        || !scan.output_ordering.is_empty();
    let groups = &scan.file_groups;
    let is_split = groups
        .iter()
        .any(|group| group.iter().any(|file| file.range.is_some()));
    if is_ordered || groups.len() < 2 || !is_split || !scan.file_source.is::<ParquetSource>() {
        return None;
    }
    let groups = groups
        .iter()
        .map(|group| FileGroup::new(group.iter().flat_map(parts).collect()));
    let groups = groups.collect();
    let scan = FileScanConfigBuilder::from(scan.clone())
        .with_file_groups(groups)
        .build();
    Some(DataSourceExec::from_data_source(scan))
}

/// Returns the parts of a file's range.
fn parts(file: &PartitionedFile) -> Vec<PartitionedFile> {
    let Some(FileRange { start, end }) = file.range else {
        return vec![file.clone()];
    };
    let count = ((end - start) / RANGE_BYTES_MIN).clamp(1, PARTS);
    let bound = |index: i64| start + (end - start) * index / count;
    let ranges = (0..count).map(|index| FileRange {
        start: bound(index),
        end: bound(index + 1),
    });
    let parts = ranges.map(|range| PartitionedFile {
        range: Some(range),
        ..file.clone()
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_range_once() {
        let bounds = |start: i64, end: i64| -> Vec<(i64, i64)> {
            let file = PartitionedFile::new("a.parquet", 1 << 40).with_range(start, end);
            let ranges = parts(&file).into_iter().filter_map(|part| part.range);
            ranges.map(|range| (range.start, range.end)).collect()
        };
        assert_eq!(bounds(3, RANGE_BYTES_MIN), [(3, RANGE_BYTES_MIN)]);
        let (start, end) = (5, 1_000_000_007);
        let ranges = bounds(start, end);
        assert_eq!(i64::try_from(ranges.len()), Ok(PARTS));
        assert_eq!((ranges[0].0, ranges[ranges.len() - 1].1), (start, end));
        assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0));
        let whole = PartitionedFile::new("a.parquet", 1 << 40);
        assert!(parts(&whole)[0].range.is_none());
    }
}
