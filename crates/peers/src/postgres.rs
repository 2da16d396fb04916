//! PostgreSQL: a cluster in a temporary folder, queried through `psql`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Folder in which Debian installs the programs of each PostgreSQL release, outside `PATH`.
const DEBIAN_FOLDER: &str = "/usr/lib/postgresql";
/// Timeout of starting the server.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Text printed after every statement to mark the end of its output.
const END: &str = "-- end --";
/// Settings that differ from the defaults, because the defaults suit small machines. Memory is set as the manual
/// advises. Commits reach the disk shortly after the reply, as in Forebay.
const SETTINGS: [&str; 6] = [
    "shared_buffers=2GB",
    "maintenance_work_mem=1GB",
    "max_wal_size=8GB",
    "synchronous_commit=off",
    "listen_addresses=",
    "autovacuum=off",
];

/// A running cluster with one session.
#[derive(Debug)]
pub struct Postgres {
    session: Session,
    version: String,
    server: Child,
    _folder: tempfile::TempDir,
}

impl Postgres {
    /// Creates a cluster and starts its server.
    ///
    /// # Errors
    /// If PostgreSQL is not installed, or does not start.
    pub fn start() -> Result<Postgres> {
        let programs = programs_folder()?;
        let folder = tempfile::tempdir()?;
        let user = User::of_server()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700))?;
        user.own(folder.path())?;
        let cluster = folder.path().join("cluster");
        let mut initdb = user.command(&programs.join("initdb"));
        initdb
            .args([
                "--username=bench",
                "--auth=trust",
                "--locale=C",
                "--encoding=UTF8",
                "-D",
            ])
            .arg(&cluster);
        let output = initdb.output().context("starting initdb")?;
        ensure!(
            output.status.success(),
            "initdb failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let mut server = user.command(&programs.join("postgres"));
        server.arg("-D").arg(&cluster).arg("-k").arg(folder.path());
        for setting in SETTINGS {
            server.args(["-c", setting]);
        }
        let server = server.stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = server.spawn().context("starting postgres")?;
        let session = wait_for_session(&mut server, folder.path());
        if session.is_err() {
            quit(&mut server);
        }
        let mut postgres = Postgres {
            session: session?,
            version: String::new(),
            server,
            _folder: folder,
        };
        let (version, _) = postgres.execute("SHOW server_version")?;
        let number = version.split(' ').next().unwrap_or(&version);
        postgres.version = format!("PostgreSQL {number}");
        Ok(postgres)
    }

    /// Returns the name and version.
    pub fn name(&self) -> &str {
        &self.version
    }

    /// Runs a statement, or a command of psql. Returns the output and the time that psql reports, in milliseconds.
    ///
    /// # Errors
    /// If the server refuses the statement.
    pub fn execute(&mut self, statement: &str) -> Result<(String, f64)> {
        self.session.execute(statement)
    }

    /// Runs a statement whose result is a count; returns the count and the time in milliseconds.
    ///
    /// # Errors
    /// If the server refuses the statement, or the result is not a count.
    pub fn count(&mut self, statement: &str) -> Result<(u64, f64)> {
        let (count, time) = self.execute(statement)?;
        Ok((
            count
                .parse()
                .with_context(|| format!("{statement}: {count}"))?,
            time,
        ))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        quit(&mut self.server);
    }
}

/// Ends all processes of a server with SIGQUIT. After SIGKILL, the server's child processes would run until
/// they noticed that the server had ended.
fn quit(server: &mut Child) {
    let id = server.id().to_string();
    let _ = Command::new("kill").args(["-QUIT", &id]).status();
    let _ = server.wait();
}

/// Returns the folder that contains `initdb` and `postgres`: the first one in `PATH`, or else the folder of Debian's
/// newest release.
fn programs_folder() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if let Ok(releases) = fs::read_dir(DEBIAN_FOLDER) {
        let mut releases: Vec<PathBuf> = releases.flatten().map(|entry| entry.path()).collect();
        releases.sort();
        folders.extend(releases.iter().rev().map(|release| release.join("bin")));
    }
    let found = folders
        .into_iter()
        .find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists());
    found.context("PostgreSQL is not installed (on Debian: postgresql)")
}

/// Operating-system account that runs the server, because PostgreSQL refuses to run as root.
struct User {
    ids: Option<(u32, u32)>,
}

impl User {
    fn of_server() -> Result<User> {
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let ids_of = |name: &str| -> Option<(u32, u32)> {
            let line = passwd
                .lines()
                .find(|line| line.split(':').next() == Some(name))?;
            let mut fields = line.split(':').skip(2);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        let own =
            fs::metadata("/proc/self").map(|file| std::os::unix::fs::MetadataExt::uid(&file))?;
        let ids = match own {
            0 => Some(
                ids_of("postgres")
                    .or_else(|| ids_of("nobody"))
                    .context("there is no account that can run PostgreSQL")?,
            ),
            _ => None,
        };
        Ok(User { ids })
    }

    fn own(&self, folder: &Path) -> Result<()> {
        if let Some((user, group)) = self.ids {
            chown(folder, Some(user), Some(group))?;
        }
        Ok(())
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir("/").env("LC_ALL", "C");
        if let Some((user, group)) = self.ids {
            command.uid(user).gid(group);
        }
        command
    }
}

/// Opens a session. Retries until the server answers, has ended or takes too long.
fn wait_for_session(server: &mut Child, folder: &Path) -> Result<Session> {
    let end = Instant::now() + READY_WITHIN;
    while Instant::now() < end {
        if let Some(status) = server.try_wait()? {
            bail!("postgres ended with {status}");
        }
        let mut session = Session::start(folder)?;
        if session.execute("SELECT 1").is_ok() {
            return Ok(session);
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    bail!("postgres does not answer")
}

/// A `psql` process that stays open.
#[derive(Debug)]
struct Session {
    child: Child,
    statements: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Session {
    fn start(folder: &Path) -> Result<Session> {
        let mut command = Command::new("psql");
        command
            .args([
                "-X",
                "-q",
                "-t",
                "-A",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "bench",
                "-d",
                "postgres",
                "-h",
            ])
            .arg(folder)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().context("starting psql")?;
        let statements = child
            .stdin
            .take()
            .context("the standard input of psql is not a pipe")?;
        let lines = BufReader::new(
            child
                .stdout
                .take()
                .context("the standard output of psql is not a pipe")?,
        );
        Ok(Session {
            child,
            statements,
            lines,
        })
    }

    fn execute(&mut self, statement: &str) -> Result<(String, f64)> {
        let end = if statement.starts_with('\\') { "" } else { ";" };
        let asked = format!("\\timing on\n{statement}{end}\n\\timing off\n\\echo {END}\n");
        let written = self.statements.write_all(asked.as_bytes());
        let refused = || format!("PostgreSQL refuses {statement}");
        written.with_context(refused)?;
        let (mut answer, mut time) = (String::new(), 0.0);
        loop {
            let mut line = String::new();
            ensure!(self.lines.read_line(&mut line)? > 0, refused());
            let line = line.trim_end();
            if line == END {
                return Ok((answer, time));
            }
            match line
                .strip_prefix("Time: ")
                .and_then(|rest| rest.split(' ').next())
            {
                Some(milliseconds) => time = milliseconds.parse()?,
                None => answer.push_str(line),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_answers_and_is_gone_afterwards() {
        if programs_folder().is_err() {
            eprintln!("skipped: no PostgreSQL");
            return;
        }
        let mut postgres = Postgres::start().expect("PostgreSQL starts");
        assert!(
            postgres.name().starts_with("PostgreSQL "),
            "{}",
            postgres.name()
        );
        let (count, time) = postgres
            .count("SELECT count(*) FROM generate_series(1, 5)")
            .expect("PostgreSQL counts");
        assert_eq!(count, 5);
        assert!(time > 0.0);
        assert!(postgres.execute("SELEC 1").is_err());
        let folder = postgres._folder.path().to_owned();
        drop(postgres);
        assert!(!folder.exists());
    }
}
