//! Server processes: start, output, stop and kill.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

/// Timeout of starting a server, including recovery of a large data folder.
const READY_SECONDS_MAX: u64 = 120;
/// Timeout of stopping a server.
const STOP_SECONDS_MAX: u64 = 60;
/// Number of the latest output lines that are kept for error messages.
const LINES_KEPT: usize = 40;
/// Timeout of waiting until a server is idle.
const REST_SECONDS_MAX: u64 = 60;
/// Interval in milliseconds over which processor time is measured, to decide whether a server is idle.
const REST_MILLISECONDS: u64 = 300;
/// Maximum processor time of an idle server within [`REST_MILLISECONDS`].
const REST_PROCESSOR_TIME_MAX: Duration = Duration::from_millis(10);
/// Milliseconds per tick of Linux's processor times.
const TICK_MILLISECONDS: u64 = 10;

/// A server process, killed when this value is dropped.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    uri: String,
    lines: Lines,
}

impl ServerProcess {
    /// Starts `binary serve` on a free port of the loopback interface and waits until it listens.
    ///
    /// `arguments` are those of `serve`, for example `["--data", "/var/lib/forebay"]`. Without `--mongodb-listen`, the
    /// server picks a free port. The server stops when this program ends, for whatever reason.
    ///
    /// # Errors
    /// If the binary cannot be started, ends, or does not listen in time. The error contains its last lines of output.
    pub fn serve(binary: &Path, arguments: &[&str]) -> Result<ServerProcess> {
        let mut command = Command::new(binary);
        command
            .args(["serve", "--until-stdin-ends"])
            .args(arguments);
        // Removes settings such as FOREBAY_UPSTREAM from the environment, because the user meant them for another
        // server.
        let settings = std::env::vars_os().map(|(name, _)| name).filter(|name| {
            name != "FOREBAY_KERNEL_CACHE" && name.as_encoded_bytes().starts_with(b"FOREBAY_")
        });
        settings.for_each(|name| {
            command.env_remove(name);
        });
        if !arguments.contains(&"--mongodb-listen") {
            command.args(["--mongodb-listen", "127.0.0.1:0"]);
        }
        // The server stops when its input ends. The child's handle keeps the pipe open; the system closes it when this
        // program ends.
        ServerProcess::start_with_input(command, Stdio::piped(), uri_in_line)
    }

    /// Starts `command` and waits for a line of output in which `uri_of` finds a connection string.
    ///
    /// # Errors
    /// As for [`ServerProcess::serve`].
    pub fn start(command: Command, uri_of: fn(&str) -> Option<String>) -> Result<ServerProcess> {
        ServerProcess::start_with_input(command, Stdio::null(), uri_of)
    }

    fn start_with_input(
        mut command: Command,
        input: Stdio,
        uri_of: fn(&str) -> Option<String>,
    ) -> Result<ServerProcess> {
        command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {command:?}"))?;
        let (lines, found) = Lines::watch(&mut child, uri_of);
        match wait_for_uri(&mut child, &found) {
            Ok(uri) => Ok(ServerProcess { child, uri, lines }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error.context(format!("{command:?} said:\n{}", lines.last())))
            }
        }
    }

    /// Returns the clients' connection string, as in `mongodb://127.0.0.1:41234`.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Returns host and port, as in `127.0.0.1:41234`.
    pub fn address(&self) -> &str {
        let rest = self.uri.strip_prefix("mongodb://").unwrap_or(&self.uri);
        rest.split(['/', '?']).next().unwrap_or(rest)
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the address of the server's status page, as in `http://127.0.0.1:41235/`, if it has one. Searches only
    /// the last lines of output, so the caller must call this function early.
    pub fn status_page(&self) -> Option<String> {
        let lines = self.last_lines();
        let (_, rest) = lines.split_once("The status page is at ")?;
        rest.lines().next().map(str::to_owned)
    }

    /// Returns the connection string of SQL clients, as in `postgresql://127.0.0.1:41236/forebay`, if the server has
    /// one. Searches only the last lines of output, as [`ServerProcess::status_page`] does.
    pub fn sql_uri(&self) -> Option<String> {
        let lines = self.last_lines();
        let (_, rest) = lines.split_once("SQL is at ")?;
        rest.lines().next().map(str::to_owned)
    }

    /// Returns the last lines of output, for messages.
    pub fn last_lines(&self) -> String {
        self.lines.last()
    }

    /// Returns the resident memory of the process in bytes, if the system reports it.
    pub fn resident_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kibibytes * 1024)
    }

    /// Waits, at most a minute, until the server has no background work that could disturb the next measurement.
    /// Returns at once if the system does not report processor times.
    pub async fn wait_until_idle(&self) {
        let deadline = Instant::now() + Duration::from_secs(REST_SECONDS_MAX);
        let mut before = self.processor_time();
        while before.is_some() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(REST_MILLISECONDS)).await;
            let now = self.processor_time();
            if now <= before.map(|time| time + REST_PROCESSOR_TIME_MAX) {
                return;
            }
            before = now;
        }
    }

    /// Returns the processor time of all threads so far, in steps of 10 ms, if the system reports it.
    pub fn processor_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).ok()?;
        let (_, figures) = stat.rsplit_once(')')?;
        let mut figures = figures.split_whitespace().skip(11);
        let mut next = || figures.next()?.parse::<u64>().ok();
        Some(Duration::from_millis(
            (next()? + next()?) * TICK_MILLISECONDS,
        ))
    }

    /// Returns whether the process is still running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the process, as `kill -9` does, and waits until it has ended.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks the process to stop and waits until it has ended.
    ///
    /// # Errors
    /// If the process does not stop in time (it is then killed) or ends with a failure.
    pub fn stop(mut self) -> Result<()> {
        self.terminate()
    }

    /// Stops the process like [`ServerProcess::stop`], but keeps `self`.
    ///
    /// # Errors
    /// As for [`ServerProcess::stop`].
    pub fn terminate(&mut self) -> Result<()> {
        Command::new("kill")
            .arg("-TERM")
            .arg(self.id().to_string())
            .status()
            .context("running kill")?;
        let deadline = Instant::now() + Duration::from_secs(STOP_SECONDS_MAX);
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!(
                    "the server ended with {status}; its last lines of output:\n{}",
                    self.lines.last()
                ),
                None if Instant::now() > deadline => {
                    bail!(
                        "the server did not stop in time; its last lines of output:\n{}",
                        self.lines.last()
                    )
                }
                None => std::thread::park_timeout(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the connection string in a line of Forebay's log, if there is one.
fn uri_in_line(line: &str) -> Option<String> {
    let start = line.find("mongodb://")?;
    let uri: String = line[start..]
        .chars()
        .take_while(|c| !c.is_whitespace() && !"\"',;)".contains(*c))
        .collect();
    uri.contains(':')
        .then(|| uri.trim_end_matches(['.', '/']).to_owned())
}

/// Waits for the connection string, or for the end of both output pipes, which means that the server has ended.
fn wait_for_uri(child: &mut Child, found: &Receiver<String>) -> Result<String> {
    match found.recv_timeout(Duration::from_secs(READY_SECONDS_MAX)) {
        Ok(uri) => Ok(uri),
        Err(RecvTimeoutError::Timeout) => {
            bail!("the server does not listen after {READY_SECONDS_MAX} s")
        }
        Err(RecvTimeoutError::Disconnected) => Err(anyhow!("ended with {}", child.wait()?)),
    }
}

/// The last lines of standard output and standard error. Both are read until the process ends, because full pipes would
/// block the process.
#[derive(Clone, Debug, Default)]
struct Lines {
    kept: Arc<Mutex<VecDeque<String>>>,
}

impl Lines {
    fn watch(child: &mut Child, uri_of: fn(&str) -> Option<String>) -> (Lines, Receiver<String>) {
        let lines = Lines::default();
        let (found, receiver) = channel();
        if let Some(output) = child.stdout.take() {
            lines.clone().read(output, found.clone(), uri_of);
        }
        if let Some(output) = child.stderr.take() {
            lines.clone().read(output, found, uri_of);
        }
        (lines, receiver)
    }

    fn read(
        self,
        output: impl Read + Send + 'static,
        found: Sender<String>,
        uri_of: fn(&str) -> Option<String>,
    ) {
        std::thread::spawn(move || {
            for line in BufReader::new(output)
                .lines()
                .map_while(std::result::Result::ok)
            {
                if let Some(uri) = uri_of(&line) {
                    // Fails for any further URI, because the receiver is dropped after the first one.
                    let _ = found.send(uri);
                }
                self.keep(line);
            }
        });
    }

    fn keep(&self, line: String) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == LINES_KEPT {
            kept.pop_front();
        }
        kept.push_back(line);
    }

    fn last(&self) -> String {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_is_found_in_a_log_line() {
        let line = "INFO listening uri=\"mongodb://127.0.0.1:27017/\" devices=2";
        assert_eq!(
            uri_in_line(line).as_deref(),
            Some("mongodb://127.0.0.1:27017")
        );
        assert_eq!(
            uri_in_line("mongodb://[::1]:5, ready").as_deref(),
            Some("mongodb://[::1]:5")
        );
        assert_eq!(uri_in_line("nothing here"), None);
    }

    #[test]
    fn a_process_that_ends_is_reported_with_its_last_lines() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no room on the disk >&2; exit 3"]);
        let error =
            ServerProcess::start(command, uri_in_line).expect_err("the server never listens");
        assert!(
            format!("{error:#}").contains("no room on the disk"),
            "{error:#}"
        );
        assert!(format!("{error:#}").contains("exit status: 3"), "{error:#}");
    }

    #[test]
    fn a_process_that_listens_runs_until_it_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo mongodb://127.0.0.1:1; exec tail -f /dev/null"]);
        let mut process = ServerProcess::start(command, uri_in_line).expect("sh is there");
        assert_eq!(process.address(), "127.0.0.1:1");
        assert!(process.is_running());
        process.kill();
        assert!(!process.is_running());
    }
}
