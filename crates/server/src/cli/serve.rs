//! `forebay serve`: opens the data and serves clients until a stop is requested.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents::{DirectoryLock, Documents, Location, holds_store, lock_directory};
use forebay_documents_proxy::{Proxy, ProxySettings, ReplicaSettings, Upstream};

use super::memory::{self, Division};
use crate::doors::documents::{self, Door, Listener};
use crate::doors::tables::Door as TablesDoor;
use crate::settings::{Settings, Sources, flags, unknown_variables};
use crate::status::Process;
use crate::stop::Stop;
use crate::{auth, descriptors, logging, status, tls};
use forebay_terminal::print_line;

/// Flag that stops the server when its standard input ends. A parent process that holds the other end of that input
/// sets this flag: when the parent ends, even by a crash, the system closes the input.
const UNTIL_STDIN_ENDS: &str = "until-stdin-ends";

/// Serve MongoDB, PostgreSQL and Flight SQL clients until Ctrl-C or SIGTERM
#[derive(Debug)]
pub struct ServeArgs {
    matches: ArgMatches,
}

impl Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        command
            .about("Serve MongoDB, PostgreSQL and Flight SQL clients until Ctrl-C or SIGTERM")
            .args(flags())
            .arg(
                Arg::new(UNTIL_STDIN_ENDS)
                    .long(UNTIL_STDIN_ENDS)
                    .action(ArgAction::SetTrue)
                    .hide(true)
                    .help("Stop when standard input ends, as it does when the parent process ends"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(ServeArgs {
            matches: matches.clone(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.matches = matches.clone();
        Ok(())
    }
}

/// Runs the server.
///
/// # Errors
/// If the settings are wrong, the port is in use, or the data cannot be opened.
pub async fn run(args: &ServeArgs, stop: &Stop) -> Result<()> {
    super::keep_files_private();
    let sources = Sources::gather(&args.matches)?;
    let mut settings = sources.resolve()?;
    logging::start(&settings)?;
    warn_of_unknown_variables();
    refuse_open_door(&settings)?;
    refuse_foreign_data(&settings)?;
    let _lock = lock_of_proxy(&settings)?;
    settings.connections_max = connections_max(&settings, sources.has("connections-max"))?;
    let tls = tls::acceptor(&settings)?;
    let scheme = if tls.is_some() { "/?tls=true" } else { "" };
    let listener = Listener::bind(settings.mongodb_listen, tls.clone()).await?;
    let status = match settings.status_listen {
        Some(address) => Some(status::Listener::bind(address).await?),
        None => None,
    };
    let upstream = upstream(&settings, listener.address()?).await?;
    let documents = tokio::task::block_in_place(|| open(&settings))?;
    let proxy = match upstream {
        Some(upstream) => Some(proxy(&settings, upstream, &documents).await?),
        None => None,
    };
    let tables = TablesDoor::open(&settings, tls, &documents).await?;
    tell_where_data_is(&settings);
    warn_without_users(&settings, &documents);
    // Listen for a stop before the address is printed: a program that reads the address may request a stop at once.
    let stopped = stop.listen();
    stop.end_after(settings.shutdown_timeout)?;
    if args.matches.get_flag(UNTIL_STDIN_ENDS) {
        stop.on_stdin_end()?;
    }
    // A server also serves if its output is not read.
    if let Some(status) = &status {
        let _ = print_line(format_args!(
            "The status page is at http://{}/",
            status.address()
        ));
    }
    tables.announce()?;
    let address = listener.address()?;
    let _ = print_line(format_args!(
        "Forebay listens on mongodb://{address}{scheme}"
    ));
    let door = || Door::new(documents.clone(), proxy, &settings);
    let door = Arc::new(tokio::task::block_in_place(door));
    let devices = documents.devices().clone();
    let process = Process::new(devices.clone(), documents.settings().memory.clone());
    let of_tables = tables.status();
    let serve_status =
        |status: status::Listener| status.serve(process, door.clone(), of_tables, stopped.clone());
    let watched = status.map(|status| tokio::spawn(serve_status(status)));
    let documents_served = listener.serve(door.clone(), stopped.clone(), settings.shutdown_timeout);
    tokio::join!(documents_served, tables.serve(door, stopped, &settings));
    stop.served();
    if let Some(watched) = watched {
        // Wait for the status listener, which stops too, so that its port is free.
        watched.await.context("the status listener")?;
    }
    tokio::task::block_in_place(|| documents.shutdown()).context("closing the data")?;
    tokio::task::block_in_place(|| devices.halt());
    tracing::info!("stopped");
    Ok(())
}

fn warn_of_unknown_variables() {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = unknown_variables(names);
    if !unknown.is_empty() {
        tracing::warn!(names = ?unknown, "environment variables that name no setting have no effect");
    }
}

/// Returns the maximum number of connections: the setting, or fewer if the limit of file descriptors allows fewer. Logs
/// a warning if the number is less than the operator has set.
fn connections_max(settings: &Settings, is_set: bool) -> Result<usize> {
    let each = match &*settings.upstream {
        "" => descriptors::OF_CONNECTION,
        _ => descriptors::OF_PROXIED_CONNECTION,
    };
    let limit = descriptors::raise()?;
    let (wanted, room) = (settings.connections_max, descriptors::room(limit, each));
    if room < wanted && is_set {
        tracing::warn!(
            wanted,
            connections = room,
            open_files_max = limit,
            "the limit of open files allows fewer connections than connections-max: raise the limit (ulimit -Hn, or LimitNOFILE= of systemd)"
        );
    } else if room < wanted {
        tracing::info!(
            connections = room,
            open_files_max = limit,
            "the limit of open files determines the maximum number of connections"
        );
    }
    Ok(room.min(wanted))
}

/// Refuses an address that other machines can reach, unless authentication is required.
fn refuse_open_door(settings: &Settings) -> Result<()> {
    let of_tables = [settings.postgres_listen, settings.flight_listen];
    if cfg!(not(feature = "tables")) && of_tables.iter().any(Option::is_some) {
        bail!(
            "this build has no SQL: remove --postgres-listen and --flight-listen, or build with the feature `tables`"
        );
    }
    let listens = [Some(settings.mongodb_listen)].into_iter().chain(of_tables);
    let is_open = |listen: &SocketAddr| !listen.ip().to_canonical().is_loopback();
    let Some(listen) = listens.flatten().find(is_open) else {
        return Ok(());
    };
    if settings.auth {
        return Ok(());
    }
    if !settings.upstream.is_empty() {
        bail!("{listen} can be reached from other machines: with --upstream, listen on 127.0.0.1");
    }
    bail!(
        "{listen} can be reached from other machines, so clients must authenticate: start with --auth (preferably \
         also --tls-cert and --tls-key) and add the first user with `forebay user add NAME` on this machine, or \
         listen on 127.0.0.1"
    )
}

/// Name of the file that lists the caches of an upstream. The file is in the data directory.
const UPSTREAM_CACHES: &str = "upstream-caches.jsonl";

/// Refuses a data directory with the files of another program. Also refuses the directory of a proxy if there is no
/// upstream (the user has probably forgotten `--upstream`), and the directory of a store if there is one.
fn refuse_foreign_data(settings: &Settings) -> Result<()> {
    if settings.memory {
        return Ok(());
    }
    let holds_store = holds_store(&settings.data)?;
    let data = settings.data.display();
    if !settings.upstream.is_empty() && holds_store {
        bail!(
            "{data} holds documents, and a proxy would not serve them: start without --upstream, or choose another \
             --data"
        );
    }
    if settings.upstream.is_empty() && !holds_store && settings.data.join(UPSTREAM_CACHES).exists()
    {
        bail!(
            "{data} holds the list of caches of a proxy: start with --upstream (or FOREBAY_UPSTREAM), or choose another \
             --data for documents"
        );
    }
    Ok(())
}

/// Locks the data directory of a proxy, so that no other server uses it. A store locks its directory itself.
fn lock_of_proxy(settings: &Settings) -> Result<Option<DirectoryLock>> {
    let is_needed = !settings.memory && !settings.upstream.is_empty();
    Ok(is_needed
        .then(|| lock_directory(&settings.data))
        .transpose()?)
}

/// Parses the upstream of the settings, if there is one.
async fn upstream(settings: &Settings, own: SocketAddr) -> Result<Option<Upstream>> {
    if settings.upstream.is_empty() {
        return Ok(None);
    }
    if settings.auth {
        bail!("--auth and --upstream exclude each other: the upstream authenticates the clients");
    }
    if !settings.mongodb_replica_set.is_empty() || settings.mongodb_test_commands {
        bail!(
            "--mongodb-replica-set and --mongodb-test-commands are for Forebay's own store: remove them, or --upstream"
        );
    }
    let upstream = Upstream::parse(&settings.upstream, own).await?;
    tracing::info!(%upstream, "this server is a proxy");
    Ok(Some(upstream))
}

/// Opens the proxy, and starts to load the caches of the upstream.
async fn proxy(
    settings: &Settings,
    upstream: Upstream,
    documents: &Arc<Documents>,
) -> Result<Arc<Proxy>> {
    let file = if settings.memory {
        None
    } else {
        Some(settings.data.join(UPSTREAM_CACHES))
    };
    let memory = documents.settings().memory.clone();
    let of_proxy = ProxySettings {
        replicas: ReplicaSettings {
            exclusive: settings.upstream_writes == "exclusive",
            load_documents_per_second: settings.upstream_load_documents_per_second,
            file,
            compare_percent: settings.upstream_compare_percent,
            serve_stale: settings.upstream_serve_stale,
        },
        timeouts: documents::timeouts(settings),
        strangers: documents::strangers(&memory),
        memory,
    };
    let opened = Proxy::open(documents.clone(), upstream, &settings.upstream, of_proxy);
    Ok(Arc::new(opened.await?))
}

fn open(settings: &Settings) -> Result<Arc<Documents>> {
    let spec: DeviceSpec = settings.devices.parse().context("--devices")?;
    let options = device_options(settings)?;
    let devices = Devices::new(&spec, options).context("starting the devices")?;
    let documents = open_documents(settings, devices)?;
    let memory = &documents.settings().memory;
    forebay_device::keep_free_memory(memory.figures().limit_bytes);
    memory::watch(memory.clone(), Arc::downgrade(&documents))?;
    Ok(documents)
}

/// Opens the documents according to the settings.
///
/// # Errors
/// If the data cannot be opened.
pub fn open_documents(settings: &Settings, devices: Devices) -> Result<Arc<Documents>> {
    Ok(Documents::open(
        document_settings(settings)?,
        Arc::new(devices),
    )?)
}

fn device_options(settings: &Settings) -> Result<DeviceOptions> {
    let set = Some(settings.device_memory_bytes).filter(|bytes| *bytes > 0);
    Ok(DeviceOptions {
        memory_budget_bytes: Division::new(settings)?.host_cache_bytes,
        cuda_memory_budget_bytes: set,
        ..DeviceOptions::default()
    })
}

fn document_settings(settings: &Settings) -> Result<forebay_documents::Settings> {
    let division = Division::new(settings)?;
    // Caches of an upstream are kept for the next start only if a change stream can bring them up to date.
    let location = match (
        settings.memory,
        &*settings.upstream,
        &*settings.upstream_writes,
    ) {
        (true, ..) => Location::Memory,
        (_, "", _) => Location::Directory(settings.data.clone()),
        (_, _, "exclusive") => Location::Memory,
        _ => Location::Directory(settings.data.join("upstream-caches")),
    };
    Ok(forebay_documents::Settings {
        memory: division.account(matches!(location, Location::Directory(_)))?,
        write_buffers_bytes: division.write_buffers_bytes,
        store_cache_bytes: division.store_cache_bytes,
        sync_interval: settings.documents_sync_interval,
        location,
        // With an upstream, no history is kept here, because the upstream keeps its own.
        change_history_bytes_max: match &*settings.upstream {
            "" => settings.documents_change_history_bytes_max,
            _ => 0,
        },
        retryable_writes: !settings.mongodb_replica_set.is_empty(),
        test_commands: settings.mongodb_test_commands,
        bucket_values_max: settings.documents_bucket_values_max,
        device_share_percent: match settings.tables_gpu_share_percent {
            0 => 100,
            percent => 100 - percent,
        },
        strict: settings.documents_strict,
        cursor_timeout: settings.documents_cursor_timeout,
        stage_memory_bytes_max: settings.documents_stage_memory_bytes_max,
        pattern: settings.pattern_limits(),
        command_patterns_bytes_max: settings.command_patterns_bytes_max,
        pattern_cache_bytes: settings.pattern_cache_bytes,
        slow_search: settings.documents_slow_search,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// Logs where the documents are kept. Logs nothing if there is an upstream, because the upstream keeps the documents.
fn tell_where_data_is(settings: &Settings) {
    if !settings.upstream.is_empty() {
        return;
    }
    if settings.memory {
        tracing::info!(
            "documents are kept in memory only (--memory): they are lost when the server stops"
        );
    } else {
        // Log an absolute path, in case the server is started from another folder next time.
        let data = std::path::absolute(&settings.data).unwrap_or_else(|_| settings.data.clone());
        tracing::info!(data = %data.display(), "documents are kept in a directory");
    }
}

fn warn_without_users(settings: &Settings, documents: &Documents) {
    if settings.auth && !auth::any(documents).unwrap_or(true) {
        tracing::warn!(
            "no user exists yet: add the first one with `forebay user add NAME` on this machine"
        );
    }
}
