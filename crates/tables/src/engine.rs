//! The engine: DataFusion with the declared tables, its memory and its threads.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datafusion::catalog::CatalogProviderList;
use datafusion::catalog::information_schema::INFORMATION_SCHEMA;
use datafusion::common::config::ConfigOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::optimizer::{Analyzer, AnalyzerRule};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_pg_catalog::pg_catalog::context::EmptyContextProvider;
use datafusion_pg_catalog::pg_catalog::setup_pg_catalog;
use forebay_memory::Account;
use tokio::runtime::{Handle, Runtime};

use crate::activity::{Activity, Figures, RunningStatement, SlowStatement};
use crate::attributes::{PG_CATALOG, PgCatalog};
use crate::balanced::BalancedScans;
use crate::catalogue::{Catalogue, PUBLIC};
use crate::conditions::CheapConditions;
use crate::declared::{self, Declared};
use crate::dynamic::DynamicFilters;
use crate::error::{Code, Result, SqlError};
use crate::gpu::{GpuColumns, GpuFigures, GpuRule};
use crate::information::InformationSchema;
use crate::managed::Place;
use crate::memory::AccountPool;
use crate::nan::NanRule;
use crate::parse::{Parsed, TEXT_BYTES_MAX, parse};
use crate::paths::Paths;
use crate::planned::Plans;
use crate::provider::{Catalogs, DATABASE, Folder};
use crate::read_ahead::ReadAhead;
use crate::relations::Listed;
use crate::rows::Running;
use crate::scans::NamedScans;
use crate::scratch::Scratch;
use crate::semantics::{AfterTypes, BeforeTypes};
use crate::session::Session;
use crate::sized::Limits;
use crate::sliced::Sliced;
use crate::source::Source;
use crate::subqueries::Subqueries;
use crate::variables::Variables;
use crate::{guards, stop};

/// Rows of a batch.
const BATCH_ROWS: usize = 8_192;
/// Maximum bytes of a text that is parsed at once.
const SHORT_TEXT_BYTES_MAX: usize = 1_000;
/// Bytes that a statement takes while it is planned, for each byte of its text. A list of a million numbers took 450.
const TREE_BYTES: usize = 512;
/// Number of threads for each core. A function that computes for long without waiting holds its thread until it is
/// done, also if its query was cancelled.
const THREADS_OF_CORE: usize = 4;
/// Stack of the threads that run queries. Plans of long chains of operators are deep.
const STACK_BYTES: usize = 64 << 20;
/// Maximum bytes of cached footers of Parquet files.
const METADATA_CACHE_BYTES: usize = 32 << 20;

/// Rows and bytes of a join's hash table that one thread fills, times the number of threads (decision 0032).
const COLLECTED_ROWS: usize = 2 << 20;
const COLLECTED_BYTES: usize = 32 << 20;
/// Range of keys for which a join has an array instead of a hash table: it takes at most 1 MiB.
const ARRAY_KEYS: usize = 256 << 10;

/// The settings of the engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folder in which declarations of tables and managed tables are kept. With `None`, declarations are in memory, and
    /// managed tables in a temporary folder until the engine is dropped.
    pub folder: Option<PathBuf>,
    /// Directory whose files and subdirectories are tables.
    pub tables: Option<PathBuf>,
    /// Tables besides those of files.
    pub source: Option<Arc<dyn Source>>,
    /// Rules that give parts of plans to GPUs.
    pub gpu_rules: Vec<Arc<dyn GpuRule>>,
    /// Files that statements may name.
    pub paths: Paths,
    /// The account from which queries take memory.
    pub memory: Account,
    /// Maximum memory of all queries together, in bytes. Sorts, joins and groups that need more use the disk.
    pub memory_bytes_max: usize,
    /// Maximum bytes on disk of all queries together.
    pub spill_bytes_max: u64,
    /// Number of threads that run queries.
    pub threads: usize,
    /// Statements that take this long or longer are logged, under the target `slow_statement`.
    pub slow_statement: Duration,
}

/// The engine. Queries run on threads of its own.
#[derive(Debug)]
pub struct Tables {
    shared: Arc<Shared>,
    /// `None` only while the engine is dropped.
    runtime: Option<Runtime>,
}

/// What all sessions share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) catalogue: Catalogue,
    pub(crate) folder: Folder,
    /// Where managed tables are.
    pub(crate) place: Place,
    pub(crate) source: Option<Arc<dyn Source>>,
    pub(crate) paths: Paths,
    pub(crate) memory: Account,
    pub(crate) plans: Plans,
    pub(crate) activity: Arc<Activity>,
    pub(crate) gpu_rules: Vec<Arc<dyn GpuRule>>,
    pub(crate) declared: Declared,
    base: OnceLock<SessionState>,
    /// The temporary files of queries, without a data directory.
    _scratch: Option<Scratch>,
}

impl Shared {
    /// Returns whether parts of plans may be given to a GPU.
    pub(crate) fn has_gpu(&self) -> bool {
        !self.gpu_rules.is_empty()
    }

    /// Returns the state from which those of sessions are made.
    pub(crate) fn base(&self) -> &SessionState {
        self.base.get().expect("set when the engine was opened")
    }
}

impl Tables {
    /// Opens the engine.
    ///
    /// # Errors
    /// If the declarations cannot be read, or threads cannot be started.
    pub fn open(settings: Settings) -> io::Result<Arc<Tables>> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(settings.threads.saturating_mul(THREADS_OF_CORE))
            .thread_name("tables")
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()?;
        stop::follow_tasks();
        let scratch = match settings.folder {
            Some(_) => None,
            // Without it, only queries that need it fail.
            None => Scratch::new().ok(),
        };
        let environment = environment(&settings, scratch.as_ref().map(Scratch::path));
        let environment = environment.map_err(io::Error::other)?;
        let catalogue = Catalogue::open(settings.folder.as_deref())?;
        let shared = Arc::new(Shared {
            place: Place::open(settings.folder.as_deref(), &catalogue)?,
            catalogue,
            folder: Folder::new(settings.tables),
            source: settings.source,
            paths: settings.paths,
            plans: Plans::new(&settings.memory),
            activity: Activity::new(settings.slow_statement),
            memory: settings.memory,
            gpu_rules: settings.gpu_rules,
            declared: Declared::default(),
            base: OnceLock::new(),
            _scratch: scratch,
        });
        let state = state(&shared, Arc::new(environment), settings.threads);
        let state = state.map_err(io::Error::other)?;
        let is_first = shared.base.set(state).is_ok();
        debug_assert!(is_first, "only this function sets the state");
        if shared.has_gpu() || shared.source.is_some() {
            runtime.spawn(declared::keep(Arc::downgrade(&shared)));
        }
        Ok(Arc::new(Tables {
            shared,
            runtime: Some(runtime),
        }))
    }

    /// Starts a session of a user.
    pub fn session(self: &Arc<Self>, user: &str) -> Session {
        Session::new(Arc::clone(self), user)
    }

    /// Parses statements as [`parse`](crate::parse) does, on a thread of its own if the text is long.
    ///
    /// # Errors
    /// If a statement cannot be parsed, or there is no memory for a long text.
    pub async fn parse(&self, text: &str) -> Result<Vec<Parsed>> {
        // A text that is too long is refused before it is parsed.
        if text.len() <= SHORT_TEXT_BYTES_MAX || text.len() > TEXT_BYTES_MAX {
            return parse(text);
        }
        let share = self.shared.memory.share();
        if share
            .try_grow(text.len().saturating_mul(TREE_BYTES))
            .is_err()
        {
            let message = format!("there is no memory for a statement of {} bytes", text.len());
            return Err(SqlError::new(Code::OutOfMemory, message)
                .with_hint("try again later, or raise --memory-bytes-max"));
        }
        let text = text.to_owned();
        let work = async move { parse(&text) };
        let mut parsed = Running::start_blocking(self.threads(), work)
            .end()
            .await??;
        let share = Arc::new(share);
        for statement in &mut parsed {
            statement.share = Some(Arc::clone(&share));
        }
        Ok(parsed)
    }

    /// Returns the statements that run, the oldest first, at most `limit`.
    pub fn running(&self, limit: usize) -> Vec<RunningStatement> {
        self.shared.activity.running(limit)
    }

    /// Returns the last statements that were slow, the newest first.
    pub fn slow(&self) -> Vec<SlowStatement> {
        self.shared.activity.slow()
    }

    /// Cancels a statement by its number. Returns whether it was running.
    pub fn cancel(&self, number: u64) -> bool {
        self.shared.activity.cancel(number)
    }

    /// Returns counts since the start.
    pub fn figures(&self) -> Figures {
        self.shared.activity.figures()
    }

    /// Returns what each GPU does for queries.
    pub fn gpu_figures(&self) -> Vec<GpuFigures> {
        let rules = self.shared.gpu_rules.iter();
        rules.map(|rule| rule.figures()).collect()
    }

    /// Returns the largest columns that each GPU reads, at most `limit` of each.
    pub fn gpu_columns(&self, limit: usize) -> Vec<GpuColumns> {
        let rules = self.shared.gpu_rules.iter();
        let mut all: Vec<_> = rules.map(|rule| rule.columns(limit)).collect();
        for column in all.iter_mut().flat_map(|it| &mut it.largest) {
            let folder = column.file.rsplit('/').nth(1);
            column.table = folder.and_then(|it| self.shared.catalogue.table_of_folder(it));
        }
        all
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the threads that run queries.
    pub(crate) fn threads(&self) -> &Handle {
        let runtime = self.runtime.as_ref();
        runtime
            .expect("it is there until the engine is dropped")
            .handle()
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Returns what queries share. Their temporary files are in the data directory, or in `scratch` without one.
fn environment(
    settings: &Settings,
    scratch: Option<&Path>,
) -> datafusion::error::Result<RuntimeEnv> {
    let mode = match (&settings.folder, scratch) {
        (Some(folder), _) => {
            let folder = folder.join("spill");
            // What a process left that was killed.
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder)?;
            DiskManagerMode::Directories(vec![folder])
        }
        (None, Some(scratch)) => DiskManagerMode::Directories(vec![scratch.to_owned()]),
        (None, None) => DiskManagerMode::OsTmpDirectory,
    };
    let disk = DiskManagerBuilder::default()
        .with_mode(mode)
        .with_max_temp_directory_size(settings.spill_bytes_max);
    let pool = AccountPool::new(&settings.memory, settings.memory_bytes_max);
    RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(pool))
        .with_disk_manager_builder(disk)
        .with_metadata_cache_limit(METADATA_CACHE_BYTES)
        // A query sees the files as they are when it starts.
        .with_object_list_cache_limit(0)
        .build()
}

/// Returns the rules that tell what a plan means, in their order.
fn analyzer_rules(limits: Limits) -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    let mut rules: Vec<Arc<dyn AnalyzerRule + Send + Sync>> = vec![
        Arc::new(NamedScans),
        Arc::new(Subqueries),
        Arc::new(BeforeTypes),
    ];
    rules.extend(Analyzer::new().rules);
    rules.push(Arc::new(AfterTypes(limits)));
    rules
}

/// Lets joins have one hash table for all threads if its rows are few enough for the thread that fills it. Otherwise
/// the rows of both inputs are moved between threads by their keys, which takes longer with few threads.
fn collect_build_sides(options: &mut ConfigOptions, threads: usize) {
    let options = &mut options.optimizer;
    let bytes = &mut options.hash_join_single_partition_threshold;
    *bytes = (COLLECTED_BYTES / threads).max(*bytes);
    let rows = &mut options.hash_join_single_partition_threshold_rows;
    *rows = (COLLECTED_ROWS / threads).max(*rows);
}

/// Returns the state of a session before its first statement.
fn state(
    shared: &Arc<Shared>,
    environment: Arc<RuntimeEnv>,
    threads: usize,
) -> datafusion::error::Result<SessionState> {
    let limits = Limits::new(&shared.memory);
    let mut config = SessionConfig::new()
        .with_default_catalog_and_schema(DATABASE, PUBLIC)
        .with_create_default_catalog_and_schema(false)
        .with_batch_size(BATCH_ROWS)
        .with_extension(Arc::new(limits.clone()))
        .with_target_partitions(threads.max(1));
    let options = config.options_mut();
    // `1.5` is a numeric, as PostgreSQL has it.
    options.sql_parser.parse_float_as_decimal = true;
    options.sql_parser.collect_spans = true;
    // Views are planned without the settings of a session.
    options.execution.time_zone = Some("UTC".to_owned());
    options.sql_parser.default_null_ordering = "nulls_max".to_owned();
    // Only the nullability of columns differs.
    options.execution.skip_physical_aggregate_schema_check = true;
    // `SELECT min(b), max(a + b)` over several files lost rows that the minimum alone does not need.
    options.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    options.execution.perfect_hash_join_small_build_threshold = ARRAY_KEYS;
    collect_build_sides(options, threads.max(1));
    options.extensions.insert(Variables::default().gpu());
    let catalogs = Catalogs::new(Arc::downgrade(shared));
    let listed: Arc<dyn CatalogProviderList> = Arc::new(catalogs.lenient());
    let rules = shared.source.iter().flat_map(|source| source.rules());
    let mut physical_rules = guards::physical_rules();
    physical_rules.push(Arc::new(ReadAhead));
    for rule in &shared.gpu_rules {
        let rule: Arc<dyn GpuRule> = Arc::clone(rule);
        physical_rules.push(rule);
    }
    let state = rules
        .fold(SessionStateBuilder::new(), |builder, rule| {
            builder.with_optimizer_rule(rule)
        })
        .with_default_features()
        .with_config(config)
        .with_runtime_env(environment)
        .with_catalog_list(Arc::clone(&listed))
        .with_analyzer_rules(analyzer_rules(limits))
        .with_optimizer_rules(guards::optimizer_rules())
        .with_physical_optimizer_rules(physical_rules)
        .with_physical_optimizer_rule(Arc::new(BalancedScans))
        .with_physical_optimizer_rule(Arc::new(DynamicFilters))
        .with_physical_optimizer_rule(Arc::new(NanRule::Filters))
        .with_physical_optimizer_rule(Arc::new(CheapConditions))
        .with_physical_optimizer_rule(Arc::new(Sliced))
        .build();
    let context = SessionContext::new_with_state(state);
    setup_pg_catalog(&context, DATABASE, EmptyContextProvider).map_err(|error| *error)?;
    crate::functions::register(&context);
    if let Some(database) = listed.catalog(DATABASE) {
        let listed = Listed {
            databases: listed,
            shared: Arc::downgrade(shared),
        };
        let schema = Arc::new(PgCatalog::new(listed.clone())?);
        database.register_schema(PG_CATALOG, schema)?;
        database.register_schema(INFORMATION_SCHEMA, Arc::new(InformationSchema::new(listed)))?;
    }
    Ok(SessionStateBuilder::new_from_existing(context.state())
        .with_catalog_list(Arc::new(catalogs))
        .build())
}
