//! Where the rows of a fragment are from.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::physical_plan::ExecutionPlan;
use forebay_tables::VersionedTable;

use crate::file_key::{FileKey, files};
use crate::floats::is_float;
use crate::packed::is_packable;
use crate::reason::Reason;

/// Where rows are from.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    Files(Arc<FileScanConfig>),
    /// A versioned table.
    Table(Arc<dyn VersionedTable>),
    /// The rows that a plan returns, and why kernels do not compute the plan with what is above it.
    Plan(Arc<dyn ExecutionPlan>, Reason),
}

impl Origin {
    pub(crate) fn is_plan(&self) -> bool {
        matches!(self, Origin::Plan(..))
    }

    /// Returns the columns of the table, or of the plan.
    pub(crate) fn schema(&self) -> SchemaRef {
        match self {
            Origin::Files(scan) => Arc::clone(scan.file_source.table_schema().table_schema()),
            Origin::Table(table) => table.schema(),
            Origin::Plan(plan, _) => plan.schema(),
        }
    }

    /// Returns the same without the values of partitions, which belong to a scan: the same file may have others in
    /// the next.
    pub(crate) fn own_schema(&self) -> SchemaRef {
        match self {
            Origin::Files(scan) => Arc::clone(scan.file_source.table_schema().file_schema()),
            Origin::Table(_) | Origin::Plan(..) => self.schema(),
        }
    }

    /// Returns the index of a column that takes the fewest bytes, of those that can be kept; `None` if there is none.
    pub(crate) fn narrowest(&self) -> Option<usize> {
        let schema = self.own_schema();
        let columns = schema.fields().iter().enumerate();
        let kept = columns.filter(|(_, field)| is_packable(field.data_type()));
        // Kernels cannot read some columns of floats and of texts.
        let narrowest = kept.min_by_key(|(_, field)| match field.data_type() {
            DataType::Boolean => (false, 0),
            other => (
                is_float(other),
                other.primitive_width().unwrap_or(usize::MAX),
            ),
        });
        narrowest.map(|(index, _)| index)
    }

    /// Returns the files, each once. A versioned table counts as one file, which nothing opens.
    ///
    /// # Errors
    /// If a scan reads only a part of a file.
    pub(crate) fn files(&self) -> Result<Vec<(FileKey, PartitionedFile)>, Reason> {
        match self {
            Origin::Files(scan) => files(scan),
            Origin::Table(table) => {
                let key = FileKey::of_version(table.version());
                let file = PartitionedFile::new(key.path.clone(), key.bytes);
                Ok(vec![(key, file)])
            }
            Origin::Plan(..) => Ok(Vec::new()),
        }
    }

    /// Returns the bytes that are read of the files, or those of the table; 0 of a plan.
    pub(crate) fn bytes(&self) -> u64 {
        let scan = match self {
            Origin::Files(scan) => scan,
            Origin::Table(table) => return table.version().bytes,
            Origin::Plan(..) => return 0,
        };
        let files = scan.file_groups.iter().flat_map(|group| group.iter());
        let bytes = files.map(|file| match &file.range {
            Some(range) => (range.end - range.start).unsigned_abs(),
            None => file.object_meta.size,
        });
        bytes.sum()
    }

    /// Returns whether this is a versioned table that has another version by now.
    pub(crate) fn has_changed(&self) -> bool {
        matches!(self, Origin::Table(table) if !table.is_current())
    }

    /// Returns the path of the first file, or the name of the table or of the plan's operator.
    pub(crate) fn name(&self) -> String {
        match self {
            Origin::Files(scan) => {
                let mut files = scan.file_groups.iter().flat_map(|it| it.iter());
                let first = files.next().map(|it| it.object_meta.location.to_string());
                first.unwrap_or_default()
            }
            Origin::Table(table) => table.version().name.clone(),
            Origin::Plan(plan, _) => plan.name().to_owned(),
        }
    }
}
