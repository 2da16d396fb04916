//! The work of a fragment on a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use forebay_device::cuda::Program;
use forebay_tables::GpuOptions;

use crate::columns::{Columns, FileKey, Resident, files};
use crate::engine::Launch;
use crate::fragment::Fragment;
use crate::load::{load, tables};
use crate::program::Compiled;
use crate::reason::Reason;
use crate::result;
use crate::scanned::Scanned;

type Result<T> = std::result::Result<T, Reason>;

/// What computed a fragment.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    Device { batch: RecordBatch, figures: String },
    Cpu(Reason),
}

/// What is needed to compute a fragment on a device.
pub(crate) struct Work {
    pub(crate) schema: SchemaRef,
    pub(crate) fragment: Arc<Fragment>,
    pub(crate) columns: Arc<Columns>,
    pub(crate) options: GpuOptions,
    pub(crate) metrics: ExecutionPlanMetricsSet,
    pub(crate) context: Arc<TaskContext>,
}

impl Work {
    pub(crate) async fn outcome(&self) -> Outcome {
        match self.on_device().await {
            Ok((batch, figures)) => {
                MetricBuilder::new(&self.metrics)
                    .output_rows(0)
                    .add(batch.num_rows());
                Outcome::Device { batch, figures }
            }
            Err(reason) => Outcome::Cpu(reason),
        }
    }

    async fn on_device(&self) -> Result<(RecordBatch, String)> {
        let began = Instant::now();
        let resident = self.resident(files(&self.fragment.scan)?).await?;
        let scanned = resident.scanned(&self.fragment)?;
        let rows = scanned.rows;
        let compiled = self.compiled(scanned).await?;
        let launch = self.launch(&resident, &compiled)?;
        let ran = self.columns.engine.run(launch).await?;
        let batch = result::batch(&compiled, &ran.totals, &self.schema).map_err(Reason::of)?;
        let figures = format!(
            "{rows} rows of {} columns in {:.3} ms, {:.3} ms with what is before and after",
            compiled.columns.len(),
            ran.took.as_secs_f64() * 1e3,
            began.elapsed().as_secs_f64() * 1e3
        );
        Ok((batch, figures))
    }

    /// Returns the columns of the fragment, brought to the device before if the session wants that.
    async fn resident(&self, files: Vec<(FileKey, PartitionedFile)>) -> Result<Resident> {
        if !self.options.loads && !Columns::are_worth_it(&files) {
            return Err(Reason::new("its files are small"));
        }
        let is_often_read = match self.columns.resident(&files, &self.fragment)? {
            Ok(resident) => return Ok(resident),
            Err(is_often_read) => is_often_read,
        };
        let load = |loading| {
            load(
                Arc::clone(&self.columns),
                files.clone(),
                Arc::clone(&self.fragment),
                Arc::clone(&self.context),
                loading,
            )
        };
        let loading = Arc::clone(&self.columns.loading);
        if self.options.loads {
            load(loading.lock_owned().await).await?;
            let loaded = self.columns.resident(&files, &self.fragment)?;
            return loaded.map_err(|_| Reason::new("there is no room for its columns"));
        }
        // If another load runs, a later query brings the columns there.
        if is_often_read && let Ok(loading) = loading.try_lock_owned() {
            let load = load(loading);
            tokio::spawn(async move {
                if let Err(reason) = load.await {
                    tracing::debug!(%reason, "columns stay on the CPU");
                }
            });
        }
        Err(Reason::new("its columns are not in device memory yet"))
    }

    /// Writes the kernel, on a thread for work that blocks: expressions are computed for all values of a column. It
    /// stops when this future is dropped.
    async fn compiled(&self, scanned: Scanned) -> Result<Arc<Compiled>> {
        let _stop = StopOnDrop(Arc::clone(&scanned.stop));
        let fragment = Arc::clone(&self.fragment);
        let work = move || Compiled::new(&fragment, &scanned).map(Arc::new);
        let written = tokio::task::spawn_blocking(work).await;
        written.map_err(Reason::of)?
    }

    fn launch(&self, resident: &Resident, compiled: &Arc<Compiled>) -> Result<Launch> {
        let chunks = resident.chunks()?;
        let (words, table_offsets) = tables(compiled, &chunks);
        let (mut parts, mut held) = (Vec::new(), Vec::new());
        for (columns, chunks) in resident.files.iter().zip(&chunks) {
            for chunk in 0..chunks.len() {
                for column in &compiled.columns {
                    let chunk = &columns[column].chunks[chunk];
                    parts.push(chunk.part());
                    held.push(chunk.memory.clone());
                }
            }
        }
        Ok(Launch {
            program: Program::new(compiled.spec()),
            compiled: Arc::clone(compiled),
            chunks: chunks.into_iter().flatten().collect(),
            parts,
            tables: words,
            table_offsets,
            _held: held,
            waits: self.options.waits,
        })
    }
}

/// Sets a flag when it is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
