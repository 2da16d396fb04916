//! Server start: settings from flags, environment and file, and a one-line error if the server cannot start.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use anyhow::{Context, Result, ensure};
use forebay_peers::process::ServerProcess;
use forebay_testkit::{Server, own_address};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");

fn serve(arguments: &[&str]) -> Result<Output> {
    Ok(Command::new(BINARY).arg("serve").args(arguments).output()?)
}

/// Checks that the server fails with exit code 1 and one line that contains all of `expected`.
fn refused(arguments: &[&str], expected: &[&str]) -> Result<()> {
    let output = serve(arguments)?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.code() == Some(1),
        "{arguments:?} ended with {}: {text}",
        output.status
    );
    let complaints: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("forebay: "))
        .collect();
    ensure!(complaints.len() == 1, "{arguments:?} said: {text}");
    for part in expected {
        ensure!(
            complaints[0].contains(part),
            "{arguments:?}: {part:?} is missing: {text}"
        );
    }
    Ok(())
}

#[test]
fn a_port_in_use_is_named() -> Result<()> {
    let other = TcpListener::bind("127.0.0.1:0")?;
    let address = other.local_addr()?;
    let port = address.port().to_string();
    refused(
        &["--memory", "--mongodb-listen", &address.to_string()],
        &["port", &port, "in use", "--mongodb-listen"],
    )
}

#[test]
fn an_open_address_needs_authentication() -> Result<()> {
    let hints = ["0.0.0.0:0 can be reached", "forebay user add", "--auth"];
    refused(&["--memory", "--mongodb-listen", "0.0.0.0:0"], &hints)?;
    let process = ServerProcess::serve(
        Path::new(BINARY),
        &["--memory", "--auth", "--mongodb-listen", "0.0.0.0:0"],
    )?;
    process.stop()
}

#[test]
fn a_server_cannot_be_its_own_proxy() -> Result<()> {
    let own = own_address()?;
    let upstream = format!("mongodb://{own}/");
    refused(
        &[
            "--memory",
            "--mongodb-listen",
            &own.to_string(),
            "--upstream",
            &upstream,
        ],
        &["--upstream", "this server itself"],
    )
}

#[test]
fn two_servers_cannot_share_data() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let folder = server.folder().to_string_lossy().into_owned();
    refused(
        &["--data", &folder, "--mongodb-listen", "127.0.0.1:0"],
        &["in use"],
    )
}

#[test]
fn data_must_be_a_directory_that_can_be_written() -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    let below = file.path().join("data");
    let below = below.to_string_lossy();
    refused(
        &["--data", &below, "--mongodb-listen", "127.0.0.1:0"],
        &[&below],
    )
}

/// Tests both a server with a store and a proxy. The proxy keeps its list of caches in the data directory.
#[test]
fn data_of_another_program_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("mongod.lock"), "")?;
    let data = folder.path().to_string_lossy();
    let own = ["--data", &data, "--mongodb-listen", "127.0.0.1:0"];
    let upstream = ["--upstream", "mongodb://127.0.0.1:9/"];
    let expected = [
        "files that are not Forebay's",
        "mongod.lock",
        "empty or new",
    ];
    refused(&own, &expected)?;
    refused(&[&own[..], &upstream].concat(), &expected)?;
    ensure!(std::fs::read_dir(&folder)?.count() == 1);
    Ok(())
}

#[test]
fn a_store_does_not_take_the_data_of_a_proxy_nor_a_proxy_those_of_a_store() -> Result<()> {
    for (file, content, arguments, expected) in [
        ("upstream-caches.jsonl", "", &[][..], "FOREBAY_UPSTREAM"),
        (
            "FORMAT",
            "forebay store 1\n",
            &["--upstream", "mongodb://127.0.0.1:9/"],
            "start without --upstream",
        ),
    ] {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join(file), content)?;
        let data = folder.path().to_string_lossy();
        let own = ["--data", &data, "--mongodb-listen", "127.0.0.1:0"];
        refused(&[&own[..], arguments].concat(), &[expected])?;
        ensure!(std::fs::read_dir(&folder)?.count() == 1, "{file}");
    }
    Ok(())
}

#[test]
fn the_directory_of_a_proxy_is_for_one_server() -> Result<()> {
    let upstream = ["--upstream", "mongodb://127.0.0.1:9/"];
    let proxy = Server::start(BINARY, &upstream)?;
    let data = proxy.folder().to_string_lossy();
    let own = ["--data", &data, "--mongodb-listen", "127.0.0.1:0"];
    refused(&own, &["in use by another server"])?;
    refused(
        &[&own[..], &upstream].concat(),
        &["in use by another server"],
    )?;
    proxy.stop()
}

#[test]
fn wrong_settings_are_named() -> Result<()> {
    refused(
        &[
            "--memory",
            "--mongodb-listen",
            "127.0.0.1:0",
            "--devices",
            "gpu:7",
        ],
        &["--devices", "gpu:7"],
    )?;
    refused(
        &["--memory", "--data", "d"],
        &["--data has no effect together with --memory"],
    )?;
    refused(
        &["--memory", "--upstream-serve-stale"],
        &["--upstream-serve-stale has no effect without --upstream"],
    )?;
    refused(
        &["--memory", "--upstream", "nowhere"],
        &[
            "--upstream: connection string contains no scheme",
            "mongodb://",
        ],
    )?;
    refused(
        &["--memory", "--upstream", "mongodb+srv://db.example.invalid"],
        &["--upstream: mongodb+srv is not supported", "mongodb://HOST"],
    )?;
    refused(&["--memory", "--log", "=,="], &["--log"])?;
    refused(
        &["--memory", "--documents-bucket-values-max", "1"],
        &["--documents-bucket-values-max must be from 2"],
    )?;
    refused(
        &["--memory", "--memory-bytes-max", "1XB"],
        &[
            "--memory-bytes-max must be a whole number of bytes",
            "512MiB",
        ],
    )?;
    refused(
        &["--memory", "--memory-bytes-max", "1MiB"],
        &["--memory-bytes-max must be at least 256MiB"],
    )?;
    refused(
        &["--memory", "--mongodb-replica-set", "a b"],
        &["--mongodb-replica-set must be NAME or NAME/HOST:PORT"],
    )?;
    refused(&["--memory", "--tls-cert", "/nonexistent"], &["--tls-key"])?;
    let nothing = ["--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"];
    refused(&[&["--memory"][..], &nothing].concat(), &["/nonexistent"])
}

#[test]
#[cfg(feature = "tables")]
fn a_folder_of_tables_is_checked_or_has_no_effect() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let missing = folder.path().join("missing");
    let missing = missing.to_string_lossy();
    let memory = ["--memory", "--mongodb-listen", "127.0.0.1:0"];
    let tables = ["--tables", &*missing, "--until-stdin-ends"];
    let arguments = [&memory[..], &tables].concat();
    let output = serve(&arguments)?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{text}");
    ensure!(
        text.contains("--tables has no effect without --postgres-listen or --flight-listen"),
        "{text}"
    );
    refused(
        &[&arguments[..], &["--postgres-listen", "127.0.0.1:0"]].concat(),
        &["--tables: there is no folder", &missing],
    )
}

#[test]
fn environment_and_file_apply_where_no_flag_is_given() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("forebay.toml");
    std::fs::write(
        &config,
        "memory = true\nmongodb_listen = \"127.0.0.1:0\"\nlog_format = \"json\"\n",
    )?;
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--config"])
        .arg(&config)
        .env("FOREBAY_DEVICES", "none:1");
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        text.contains("none:1"),
        "the environment's devices were not used: {text}"
    );
    command.args(["--devices", "host:1"]);
    let process = ServerProcess::start(command, |line| {
        Some(line.split_once("mongodb://")?.1.to_owned())
    })?;
    process.stop()
}

#[test]
fn a_child_server_stops_when_its_input_ends() -> Result<()> {
    let mut server = Command::new(BINARY)
        .args(["serve", "--memory", "--until-stdin-ends"])
        .args(["--mongodb-listen", "127.0.0.1:0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(server.stdout.take().context("the output")?).lines();
    let line = lines.next().context("a line")??;
    ensure!(line.contains("mongodb://"), "{line}");
    ensure!(
        server.try_wait()?.is_none(),
        "stopped before its input ended"
    );
    drop(server.stdin.take());
    let status = server.wait()?;
    ensure!(status.success(), "exit status {status}");
    Ok(())
}

#[test]
fn a_signal_stops_a_server_cleanly() -> Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut server = Command::new(BINARY)
            .args(["serve", "--memory", "--mongodb-listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(server.stdout.take().context("the output")?).lines();
        let line = lines.next().context("a line")??;
        ensure!(line.contains("mongodb://"), "{line}");
        let status = ended_by(&mut server, signal)?;
        ensure!(status.success(), "{signal}: {status}");
    }
    Ok(())
}

#[test]
fn a_log_that_cannot_be_written_ends_no_server() -> Result<()> {
    let mut server = Command::new(BINARY)
        .args(["serve", "--memory", "--mongodb-listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(File::options().write(true).open("/dev/full")?)
        .spawn()?;
    let mut lines = BufReader::new(server.stdout.take().context("the output")?).lines();
    let line = lines.next().context("a line")??;
    ensure!(line.contains("mongodb://"), "{line}");
    let status = ended_by(&mut server, Signal::SIGTERM)?;
    ensure!(status.success(), "{status}");
    Ok(())
}

#[test]
fn a_file_of_queries_needs_a_gpu() -> Result<()> {
    let sql = ["--memory", "--mongodb-listen", "127.0.0.1:0"];
    let sql = [&sql[..], &["--postgres-listen", "127.0.0.1:0"]].concat();
    let missing = ["--tables-gpu-warm", "/nonexistent.sql"];
    let expected = ["--tables-gpu-warm: /nonexistent.sql: No such file"];
    refused(&[&sql[..], &missing].concat(), &expected)?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), "SELECT 1;\n")?;
    let mut server = Command::new(BINARY)
        .arg("serve")
        .args(&sql)
        .args(["--devices", "host:1", "--tables-gpu-warm"])
        .arg(file.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let log = BufReader::new(server.stderr.take().context("the log")?);
    let mut lines = log.lines().map_while(|line| line.ok());
    let told = lines.find(|line| line.contains("--tables-gpu-warm do not run"));
    ensure!(told.is_some_and(|line| line.contains("this process has no GPU")));
    let status = ended_by(&mut server, Signal::SIGTERM)?;
    ensure!(status.success(), "{status}");
    Ok(())
}

#[test]
fn a_signal_ends_other_commands() -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let uri = format!("mongodb://{}", silent.local_addr()?);
    let mut client = Command::new(BINARY)
        .args(["devices", "list", "--uri", &uri])
        .spawn()?;
    let _connection = silent.accept()?;
    let status = ended_by(&mut client, Signal::SIGTERM)?;
    let signal = status.signal();
    ensure!(signal == Some(Signal::SIGTERM as i32), "{status}");
    Ok(())
}

fn ended_by(process: &mut Child, signal: Signal) -> Result<ExitStatus> {
    kill(Pid::from_raw(process.id().try_into()?), signal)?;
    Ok(process.wait()?)
}

#[test]
fn the_reference_is_what_the_program_prints() -> Result<()> {
    for page in ["settings", "commands"] {
        let output = Command::new(BINARY).args(["reference", page]).output()?;
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/reference/{page}.md"));
        let committed = std::fs::read_to_string(&path)?;
        let remedy = format!(
            "docs/reference/{page}.md is out of date: forebay reference {page} > docs/reference/{page}.md"
        );
        ensure!(committed == String::from_utf8_lossy(&output.stdout), remedy);
    }
    Ok(())
}
