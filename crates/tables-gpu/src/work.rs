//! The work of a fragment on a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use forebay_device::cuda::Program;
use forebay_tables::GpuOptions;

use crate::columns::{Columns, Read, Resident, files};
use crate::engine::{KernelLaunch, Launch};
use crate::fragment::{Fragment, Rows};
use crate::load::{load, tables};
use crate::program::Compiled;
use crate::reason::Reason;
use crate::result;
use crate::scanned::Scanned;
use crate::source::{Build, Kernel};

/// Maximum bytes of the tables of a fragment's joins.
const AREAS_BYTES_MAX: u64 = 8 << 30;
/// Bytes behind the elements of a table, so that kernels read whole words.
const AREA_BYTES_BEHIND: u64 = 8;

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
        let sources = self.fragment.sources.iter();
        let reads = sources.map(|source| Ok((Arc::clone(source), files(&source.scan)?)));
        let resident = self.resident(reads.collect::<Result<_>>()?).await?;
        let stop = StopOnDrop::default();
        let scanned = scanned(&self.fragment.rows, &resident, &stop.0)?;
        let rows: u64 = scanned.iter().map(|it| it.rows).sum();
        let compiled = self.compiled(scanned).await?;
        let launch = self.launch(&resident, &compiled)?;
        let kernels = launch.kernels.len();
        let columns: usize = launch.kernels.iter().map(KernelLaunch::columns).sum();
        let ran = self.columns.engine.run(launch).await?;
        let batch = result::batch(&compiled, &ran.totals, &self.schema).map_err(Reason::of)?;
        let figures = format!(
            "{rows} rows of {columns} columns by {} in {:.3} ms, {:.3} ms with what is before and after",
            if kernels == 1 {
                "a kernel".to_owned()
            } else {
                format!("{kernels} kernels")
            },
            ran.took.as_secs_f64() * 1e3,
            began.elapsed().as_secs_f64() * 1e3
        );
        Ok((batch, figures))
    }

    /// Returns the columns of each source, brought to the device before if the session wants that.
    async fn resident(&self, reads: Vec<Read>) -> Result<Vec<Resident>> {
        if !self.options.loads && !Columns::are_worth_it(&reads) {
            return Err(Reason::new("its files are small"));
        }
        let is_often_read = match self.columns.resident(&reads)? {
            Ok(resident) => return Ok(resident),
            Err(is_often_read) => is_often_read,
        };
        let load = |loading| {
            let columns = Arc::clone(&self.columns);
            load(columns, reads.clone(), Arc::clone(&self.context), loading)
        };
        let loading = Arc::clone(&self.columns.loading);
        if self.options.loads {
            load(loading.lock_owned().await).await?;
            let loaded = self.columns.resident(&reads)?;
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

    /// Writes the kernels, on a thread for work that blocks: expressions are computed for all values of a column.
    async fn compiled(&self, scanned: Vec<Scanned>) -> Result<Arc<Compiled>> {
        let fragment = Arc::clone(&self.fragment);
        let work = move || Compiled::new(&fragment, &scanned).map(Arc::new);
        let written = tokio::task::spawn_blocking(work).await;
        written.map_err(Reason::of)?
    }

    fn launch(&self, resident: &[Resident], compiled: &Arc<Compiled>) -> Result<Launch> {
        let mut launch = Launch {
            compiled: Arc::clone(compiled),
            kernels: Vec::new(),
            areas: Vec::new(),
            _held: Vec::new(),
            waits: self.options.waits,
        };
        launch.add(resident, &compiled.kernel, None)?;
        Ok(launch)
    }
}

/// Returns what is known of each source of rows and of their joins.
fn scanned(rows: &Rows, resident: &[Resident], stop: &Arc<AtomicBool>) -> Result<Vec<Scanned>> {
    let mut all = vec![resident[rows.source].scanned(rows, stop)?];
    for join in &rows.joins {
        all.extend(scanned(&join.rows, resident, stop)?);
    }
    Ok(all)
}

impl Launch {
    /// Adds a kernel, behind those that fill the tables of its joins. `build` is what the kernel stores.
    fn add(
        &mut self,
        resident: &[Resident],
        kernel: &Kernel,
        build: Option<&Build>,
    ) -> Result<Vec<usize>> {
        let mut words = Vec::new();
        for build in &kernel.builds {
            words.extend(self.add(resident, &build.kernel, Some(build))?);
        }
        let resident = &resident[kernel.of_source];
        let chunks = resident.chunks()?;
        let (tables, table_offsets) = tables(kernel, &chunks);
        let mut parts = Vec::new();
        for (columns, chunks) in resident.files.iter().zip(&chunks) {
            for chunk in 0..chunks.len() {
                for column in &kernel.columns {
                    let chunk = &columns[column].chunks[chunk];
                    parts.push(chunk.part());
                    self._held.push(chunk.memory.clone());
                }
            }
        }
        let mut area = |bits: u64, elements: u64| {
            self.areas
                .push(elements.saturating_mul(bits).div_ceil(8) + AREA_BYTES_BEHIND);
            self.areas.len() - 1
        };
        let seen = build.map(|build| area(1, build.elements));
        let mut own_words = Vec::new();
        if let Some(build) = build {
            let words = build.words.iter().map(|bits| match bits {
                // The first word is the bit that tells whether there is a row.
                1 => seen.unwrap_or_default(),
                bits => area((*bits).into(), build.elements),
            });
            own_words.extend(words);
        }
        if self.areas.iter().sum::<u64>() > AREAS_BYTES_MAX {
            return Err(Reason::new("the tables of its joins are too large"));
        }
        self.kernels.push(KernelLaunch {
            program: Program::new(kernel.spec()),
            chunks: chunks.into_iter().flatten().collect(),
            parts,
            tables,
            table_offsets,
            constants: kernel.constants.clone(),
            words,
            own_words: own_words.clone(),
            seen,
        });
        Ok(own_words)
    }
}

impl KernelLaunch {
    /// Returns the number of columns that the kernel reads.
    fn columns(&self) -> usize {
        self.parts.len() / self.chunks.len().max(1)
    }
}

/// Sets a flag when it is dropped, so that what a statement computes ends with it.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
