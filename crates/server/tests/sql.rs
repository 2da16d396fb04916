//! `forebay sql` as a user runs it: statements of arguments, files and standard input, and the shell.
#![cfg(feature = "tables")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_testkit::wait_for;
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");

/// A query that takes longer than any test.
const ENDLESS: &str =
    "SELECT count(*) FROM generate_series(1, 1000000000000) AS t(a) WHERE a % 3 = 1";

/// Makes a folder with a table of orders.
fn folder() -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    fs::write(
        folder.path().join("orders.csv"),
        "id,name,price\n1,\"käse, alt\",2.5\n2,,10.25\n3,\"a\u{1b}[31mb\",7\n",
    )?;
    Ok(folder)
}

fn sql(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .arg("sql")
        .args(arguments)
        .current_dir(folder)
        .env("HOME", folder)
        .env("TMPDIR", folder)
        .env_remove("XDG_STATE_HOME")
        .stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns what a command wrote to standard output. It must say nothing else.
fn printed(mut command: Command) -> Result<String> {
    let output = command.output()?;
    let said = said(&output);
    ensure!(output.status.success(), "{}: {said}", output.status);
    ensure!(said.is_empty(), "{said}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns what a command that fails wrote to standard error and standard output.
fn refused(mut command: Command) -> Result<(String, String)> {
    let output = command.output()?;
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    ensure!(said.starts_with("forebay: "), "{said}");
    Ok((said, String::from_utf8(output.stdout)?))
}

/// Returns what a command printed that read `input` from standard input.
fn piped(folder: &Path, arguments: &[&str], input: &str) -> Result<Output> {
    let mut child = sql(folder, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    Ok(child.wait_with_output()?)
}

#[test]
fn a_file_is_a_table_in_each_format() -> Result<()> {
    let folder = folder()?;
    let query = "SELECT * FROM 'orders.csv' ORDER BY id";
    assert_eq!(
        printed(sql(folder.path(), &[query]))?,
        concat!(
            " id | name         | price\n",
            "----+--------------+-------\n",
            "  1 | käse, alt    |   2.5\n",
            "  2 | NULL         | 10.25\n",
            "  3 | a\\u{1b}[31mb |   7.0\n",
        )
    );
    assert_eq!(
        printed(sql(folder.path(), &["--json", query]))?,
        concat!(
            "{\"id\":1,\"name\":\"käse, alt\",\"price\":2.5}\n",
            "{\"id\":2,\"name\":null,\"price\":10.25}\n",
            "{\"id\":3,\"name\":\"a\\u001b[31mb\",\"price\":7.0}\n",
        )
    );
    assert_eq!(
        printed(sql(folder.path(), &["--csv", query]))?,
        "id,name,price\n1,\"käse, alt\",2.5\n2,,10.25\n3,a\u{1b}[31mb,7.0\n"
    );
    Ok(())
}

#[test]
fn statements_come_from_arguments_files_and_standard_input() -> Result<()> {
    let folder = folder()?;
    fs::write(
        folder.path().join("a.sql"),
        "SELECT 1 AS a; -- ;\nSELECT ';' AS b",
    )?;
    let arguments = ["--csv", "-f", "a.sql", "SELECT 2 AS c"];
    assert_eq!(
        printed(sql(folder.path(), &arguments))?,
        "a\n1\nb\n;\nc\n2\n"
    );
    for arguments in [&["--csv"][..], &["--csv", "-"], &["--csv", "-f", "-"]] {
        let output = piped(folder.path(), arguments, "SELECT 3 AS d;\n\n;")?;
        ensure!(output.status.success(), "{}", said(&output));
        assert_eq!(String::from_utf8(output.stdout)?, "d\n3\n", "{arguments:?}");
    }
    let nothing = piped(folder.path(), &[], "-- nothing\n")?;
    ensure!(
        nothing.status.success() && nothing.stdout.is_empty(),
        "{}",
        said(&nothing)
    );
    let (said, _) = refused(sql(folder.path(), &["-f", "missing.sql"]))?;
    ensure!(said.contains("cannot read missing.sql"), "{said}");
    Ok(())
}

#[test]
fn the_first_error_ends_the_command_and_shows_its_place() -> Result<()> {
    let folder = folder()?;
    let text = "SELECT 1 AS a;\n\nSELECT nmae\nFROM 'orders.csv'; SELECT 2 AS b";
    let (said, printed) = refused(sql(folder.path(), &["--csv", text]))?;
    assert_eq!(printed, "a\n1\n");
    let lines: Vec<&str> = said.lines().collect();
    ensure!(lines[0].starts_with("forebay: ERROR: "), "{said}");
    assert_eq!(
        lines[1..3],
        ["LINE 3: SELECT nmae", "               ^"],
        "{said}"
    );
    let (said, _) = refused(sql(folder.path(), &["SELECT 1; SELEC 2"]))?;
    ensure!(said.contains("LINE 1: SELEC 2\n        ^"), "{said}");
    let (said, _) = refused(sql(folder.path(), &["SELECT * FROM 'missing.csv'"]))?;
    ensure!(said.contains("missing.csv"), "{said}");
    Ok(())
}

#[test]
fn files_of_a_folder_are_tables() -> Result<()> {
    let folder = folder()?;
    let arguments = ["--tables", ".", "--csv", "SELECT count(*) AS n FROM orders"];
    assert_eq!(printed(sql(folder.path(), &arguments))?, "n\n3\n");
    let (said, _) = refused(sql(folder.path(), &["--tables", "nowhere", "SELECT 1"]))?;
    ensure!(
        said.contains("--tables: there is no folder nowhere"),
        "{said}"
    );
    Ok(())
}

#[test]
fn definitions_stay_in_the_data_directory() -> Result<()> {
    let folder = folder()?;
    let create = "CREATE VIEW cheap AS SELECT * FROM 'orders.csv' WHERE price < 5";
    assert_eq!(printed(sql(folder.path(), &["--data", "d", create]))?, "");
    let query = "SELECT id FROM cheap";
    assert_eq!(
        printed(sql(folder.path(), &["--data", "d", "--csv", query]))?,
        "id\n1\n"
    );
    let mode = fs::metadata(folder.path().join("d"))?.permissions().mode();
    assert_eq!(
        mode & 0o777,
        0o700,
        "the directory of a server is as private"
    );
    refused(sql(folder.path(), &[query]))?;
    Ok(())
}

#[test]
fn a_data_directory_has_one_user() -> Result<()> {
    let folder = folder()?;
    let mut first = sql(folder.path(), &["--data", "d"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut stdin = first.stdin.take().context("a pipe")?;
    stdin.write_all(format!("SELECT 1; {ENDLESS}").as_bytes())?;
    drop(stdin);
    let mut line = String::new();
    BufReader::new(first.stdout.take().context("a pipe")?).read_line(&mut line)?;
    let (said, _) = refused(sql(folder.path(), &["--data", "d", "SELECT 1"]))?;
    ensure!(
        said.contains("in use") || said.contains("is using"),
        "{said}"
    );
    kill(pid(&first)?, Signal::SIGINT)?;
    first.wait()?;
    Ok(())
}

#[test]
fn a_reader_that_ends_is_no_failure() -> Result<()> {
    let folder = folder()?;
    for format in ["--csv", "--json", "--rows=0"] {
        let query = "SELECT * FROM generate_series(1, 100000000)";
        let mut child = sql(folder.path(), &[format, query])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("a pipe")?).read_line(&mut line)?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "{format}: {}", output.status);
        ensure!(said(&output).is_empty(), "{format}: {}", said(&output));
    }
    Ok(())
}

#[test]
fn signals_cancel_a_query() -> Result<()> {
    let folder = folder()?;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let text = format!("SELECT 1 AS begun; {ENDLESS}");
        let mut child = sql(folder.path(), &["--csv", &text])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        // The first result was written, so the signals are handled.
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("a pipe")?).read_line(&mut line)?;
        kill(pid(&child)?, signal)?;
        let output = child.wait_with_output()?;
        assert_eq!(output.status.code(), Some(1), "{signal}");
        assert_eq!(said(&output), "forebay: interrupted\n");
    }
    Ok(())
}

#[test]
fn large_cells_are_whole() -> Result<()> {
    let folder = folder()?;
    let query = "SELECT repeat('é', 100000) || 'end' AS a, 1 AS b UNION ALL SELECT 'short', 2";
    let text = printed(sql(folder.path(), &[query]))?;
    ensure!(text.contains("éend | "), "a cell was cut");
    ensure!(
        text.len() < 210_000,
        "a large cell does not widen the others"
    );
    Ok(())
}

#[test]
fn rows_and_memory_have_limits() -> Result<()> {
    let folder = folder()?;
    let query = "SELECT * FROM generate_series(1, 1000) AS t(a)";
    let text = printed(sql(folder.path(), &["--rows", "4", query]))?;
    let rows: Vec<&str> = text.lines().skip(2).map(str::trim).collect();
    assert_eq!(rows, ["1", "2", "…", "999", "1000"]);
    assert_eq!(
        printed(sql(folder.path(), &[query]))?.lines().count(),
        1_002
    );
    let large = "SELECT array_agg(a) FROM generate_series(1, 100000000) AS t(a)";
    let (said, _) = refused(sql(folder.path(), &["--memory-bytes-max", "128MiB", large]))?;
    ensure!(said.contains("HINT: raise --memory-bytes-max"), "{said}");
    // A sort of more than that uses temporary files.
    let sorted = "SELECT a FROM generate_series(1, 10000000) AS t(a) ORDER BY -a";
    let arguments = ["--csv", "--memory-bytes-max", "128MiB", sorted];
    let rows = printed(sql(folder.path(), &arguments))?;
    ensure!(rows.starts_with("a\n10000000\n9999999\n") && rows.ends_with("\n2\n1\n"));
    let wrong = sql(folder.path(), &["--memory-bytes-max", "1MiB", query]).output()?;
    assert_eq!(wrong.status.code(), Some(2));
    ensure!(String::from_utf8_lossy(&wrong.stderr).contains("from 128 MiB"));
    Ok(())
}

#[tokio::test]
async fn temporary_files_are_removed() -> Result<()> {
    let folder = folder()?;
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch)?;
    let sorted = "SELECT a FROM generate_series(1, 300000000) AS t(a) ORDER BY -a";
    let child = sql(
        folder.path(),
        &["--csv", "--memory-bytes-max", "128MiB", sorted],
    )
    .env("TMPDIR", &scratch)
    .stdout(Stdio::null())
    .stderr(Stdio::piped())
    .spawn()?;
    let file = async || Ok(has_file(&scratch).then_some(()));
    wait_for("a temporary file", Duration::from_secs(60), file).await?;
    kill(pid(&child)?, Signal::SIGINT)?;
    assert_eq!(said(&child.wait_with_output()?), "forebay: interrupted\n");
    assert_eq!(fs::read_dir(&scratch)?.count(), 0);
    Ok(())
}

/// A process with a data directory, and one without, which has a folder for itself.
#[tokio::test]
async fn temporary_files_of_a_killed_process_are_removed_by_the_next() -> Result<()> {
    let folder = folder()?;
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch)?;
    let data = folder.path().join("d/sql/spill");
    let sorted = "SELECT a FROM generate_series(1, 300000000) AS t(a) ORDER BY -a";
    let sort = ["--csv", "--memory-bytes-max", "128MiB", sorted];
    let places: [(&[&str], &Path); 2] = [(&["--data", "d"], &data), (&[], &scratch)];
    for (place, files) in places {
        let mut child = sql(folder.path(), &[place, &sort].concat())
            .env("TMPDIR", &scratch)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let file = async || Ok(has_file(files).then_some(()));
        wait_for("a temporary file", Duration::from_secs(60), file).await?;
        child.kill()?;
        child.wait()?;
        ensure!(has_file(files), "a kill leaves files");
        let mut next = sql(folder.path(), &[place, &["SELECT 1"]].concat());
        next.env("TMPDIR", &scratch);
        printed(next)?;
        ensure!(!has_file(files), "files are left in {}", files.display());
    }
    Ok(())
}

/// Returns whether there is a file in a folder, or in the folders below it, that is no lock.
fn has_file(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut others = paths.filter(|path| {
        !path.ends_with("forebay-scratch.lock") && !path.ends_with("forebay-scratch.new")
    });
    others.any(|path| path.is_file() || has_file(&path))
}

fn pid(child: &Child) -> Result<Pid> {
    Ok(Pid::from_raw(child.id().try_into()?))
}

const PROMPT: &str = "forebay> ";

/// A shell at a pseudo-terminal of 60 columns.
struct Shell {
    child: Child,
    terminal: File,
    output: Receiver<Vec<u8>>,
    /// What the terminal shows, as far as it was not awaited.
    text: String,
}

impl Shell {
    fn start(folder: &Path, arguments: &[&str]) -> Result<Shell> {
        let size = Winsize {
            ws_row: 50,
            ws_col: 60,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let ends = openpty(Some(&size), None)?;
        let other = File::from(ends.slave);
        let child = sql(folder, arguments)
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .stdin(other.try_clone()?)
            .stdout(other.try_clone()?)
            .stderr(other)
            .spawn()?;
        let terminal = File::from(ends.master);
        let mut reader = terminal.try_clone()?;
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The terminal has an error when the shell has ended.
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut shell = Shell {
            child,
            terminal,
            output,
            text: String::new(),
        };
        shell.wait_for(PROMPT)?;
        Ok(shell)
    }

    fn send(&mut self, text: &str) -> Result<()> {
        Ok(self.terminal.write_all(text.as_bytes())?)
    }

    /// Waits until the terminal shows `part`. Returns what it showed up to its end.
    fn wait_for(&mut self, part: &str) -> Result<String> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = self.text.find(part) {
                let rest = self.text.split_off(found + part.len());
                return Ok(std::mem::replace(&mut self.text, rest));
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => bail!("{part:?} is missing in {:?}", self.text),
            }
        }
    }

    /// Sends a line of a statement that goes on.
    fn begin(&mut self, text: &str) -> Result<()> {
        self.send(&format!("{text}\r"))?;
        self.wait_for(text).map(drop)
    }

    /// Sends a line, and waits for the next prompt. Returns what the terminal showed up to `part`.
    fn line(&mut self, text: &str, part: &str) -> Result<String> {
        self.send(&format!("{text}\r"))?;
        let shown = self.wait_for(part)?;
        self.wait_for(PROMPT)?;
        Ok(shown)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_shell_runs_statements_and_commands() -> Result<()> {
    let folder = folder()?;
    let mut shell = Shell::start(folder.path(), &["--tables", "."])?;
    shell.begin("SELECT count(*) AS n")?;
    let shown = shell.line("FROM orders;", "(1 row; 0.")?;
    ensure!(shown.contains("\r\n 3\r\n"), "{shown}");
    shell.line("\\d", "orders")?;
    shell.line("\\d orders", "double precision")?;
    shell.line("\\timing", "not shown")?;
    shell.line("\\json", "")?;
    let shown = shell.line("SELECT 'x' AS y;", "(1 row)")?;
    ensure!(shown.contains("{\"y\":\"x\"}\r\n"), "{shown}");
    shell.line("\\nonsense", "there is no command \\nonsense")?;
    shell.line("SELECT nothing;", "ERROR: ")?;
    shell.line("CREATE VIEW v AS SELECT 1 AS a;", "(CREATE VIEW)")?;
    shell.line("\\?", "list tables")?;
    // Ctrl-C clears what was typed, Ctrl-D ends.
    shell.send("SELECT wrong \x03")?;
    shell.wait_for(PROMPT)?;
    shell.send("\x04")?;
    ensure!(shell.child.wait()?.success());
    let history = folder.path().join(".local/state/forebay/sql_history");
    ensure!(fs::read_to_string(&history)?.contains("SELECT count(*) AS n\\nFROM orders;\n"));
    assert_eq!(fs::metadata(&history)?.permissions().mode() & 0o777, 0o600);
    Ok(())
}

#[test]
fn the_shell_goes_on_after_an_interrupt() -> Result<()> {
    let folder = folder()?;
    let mut shell = Shell::start(folder.path(), &[])?;
    for _ in 0..3 {
        // The progress line shows that the query runs.
        shell.send(&format!("{ENDLESS};\r"))?;
        shell.wait_for("Ctrl-C cancels")?;
        kill(pid(&shell.child)?, Signal::SIGINT)?;
        shell.wait_for("cancelled")?;
        shell.wait_for(PROMPT)?;
    }
    shell.line("SELECT 40 + 2 AS a;", " 42\r\n")?;
    shell.send("\\q\r")?;
    ensure!(shell.child.wait()?.success());
    Ok(())
}

#[test]
fn the_shell_completes_names() -> Result<()> {
    let folder = folder()?;
    let mut shell = Shell::start(folder.path(), &["--tables", "."])?;
    shell.line("sel\t max(pri\t) FROM ord\t;", "column pri does not exist")?;
    shell.line("sel\t max(price) FROM ord\t;", " 10.25\r\n")?;
    // The columns of a table that is named already.
    shell.send("SELECT  FROM orders;\x01\x1bf\x06pri\t\r")?;
    shell.wait_for("(3 rows")?;
    shell.wait_for(PROMPT)?;
    shell.line("SELECT 7 AS x FROM 'ord\t' LIMIT 1;", " 7\r\n")?;
    shell.line("\\d ord\t", "double precision")?;
    Ok(())
}

#[test]
fn a_terminal_gets_what_fits() -> Result<()> {
    let folder = folder()?;
    let mut shell = Shell::start(folder.path(), &[])?;
    let shown = shell.line(
        "SELECT a, repeat('x', 100) AS text FROM generate_series(1, 500) AS t(a);",
        "(500 rows, 40 shown; 0.",
    )?;
    ensure!(
        shown.contains("x… \r\n") || shown.contains("x…\r\n"),
        "{shown}"
    );
    ensure!(shown.contains("\r\n 500 |"), "{shown}");
    let columns: Vec<String> = (0..50)
        .map(|index| format!("{index} AS column_{index}"))
        .collect();
    let shown = shell.line(&format!("SELECT {};", columns.join(", ")), "50 columns, ")?;
    ensure!(shown.contains("column_49"), "{shown}");
    let shown = shell.line("SELECT chr(27) || '[31m' AS a;", "(1 row")?;
    ensure!(shown.contains("\\u{1b}[31m"), "{shown}");
    Ok(())
}
