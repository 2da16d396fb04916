//! A trial of cuFile in a child process: on some machines the library crashes, and the crash must not end this process.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::driver::LOG_VARIABLE;

/// Maximum time of the child; opening the driver takes about half a second.
const TRIAL_TIME: Duration = Duration::from_secs(60);

/// Prefix of this program's errors on standard error, among which the library writes too.
const ERROR_PREFIX: &str = "forebay: ";

/// Why a trial of cuFile failed: this process must not open the library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CuFileTrialError {
    /// The child process cannot be started or watched.
    #[error("a child process that tries cuFile cannot be run: {0}")]
    Child(#[from] io::Error),
    /// The child ended with an error.
    #[error("{why}")]
    Failed {
        /// The child's error.
        why: String,
    },
    /// The child crashed.
    #[error("cuFile crashed a child process ({status}); {log}")]
    Crashed {
        /// How the child ended.
        status: ExitStatus,
        /// The last line of cuFile's log.
        log: String,
    },
    /// The child did not end in time, and was killed.
    #[error("cuFile did not answer within {} s in a child process", TRIAL_TIME.as_secs())]
    Silent,
}

/// Runs this program with other arguments as a child process that tries cuFile, and returns what the child prints. It
/// has a time limit, and its log of cuFile is a temporary file.
///
/// # Errors
/// If the child fails, crashes or does not end.
pub fn try_in_child<A: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = A>,
) -> Result<String, CuFileTrialError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments);
    run(command, TRIAL_TIME)
}

fn run(mut command: Command, limit: Duration) -> Result<String, CuFileTrialError> {
    let log = tempfile::NamedTempFile::new()?;
    // Files, because the library could fill a pipe, which is read only at the end.
    let (mut printed, mut errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command
        .env(LOG_VARIABLE, log.path())
        .stdin(Stdio::null())
        .stdout(printed.try_clone()?)
        .stderr(errors.try_clone()?)
        .spawn()?;
    let Some(status) = wait(&mut child, limit)? else {
        child.kill()?;
        child.wait()?;
        return Err(CuFileTrialError::Silent);
    };
    if status.success() {
        return Ok(text(&mut printed)?.trim().to_owned());
    }
    match reason(&text(&mut errors)?) {
        Some(why) if status.code().is_some() => Err(CuFileTrialError::Failed {
            why: why.to_owned(),
        }),
        _ => Err(CuFileTrialError::Crashed {
            status,
            log: last_line(log.path()),
        }),
    }
}

/// Waits for the child; returns `None` if it takes too long.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if began.elapsed() >= limit {
            return Ok(None);
        }
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// Returns what was written to a file.
fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns this program's error in the text of the child.
fn reason(text: &str) -> Option<&str> {
    let mut lines = text.lines().rev();
    lines.find_map(|line| line.strip_prefix(ERROR_PREFIX))
}

/// Returns the last line of cuFile's log.
fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("the last line of its log: {}", line.trim()),
        None => "its log is empty".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<String, CuFileTrialError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, limit)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_child_prints_its_answer() {
        let answer = shell("echo works", LONG).expect("it succeeds");
        assert_eq!(answer, "works");
        // More than a pipe holds.
        let much = shell(
            "head -c 300000 /dev/zero | tr '\\0' x >&2; echo works",
            LONG,
        );
        assert_eq!(much.expect("it succeeds"), "works");
    }

    #[test]
    fn the_childs_error_is_found_among_the_librarys_messages() {
        let script = "echo dlopen error >&2; echo forebay: cuFileDriverOpen failed >&2; exit 1";
        let error = shell(script, LONG).expect_err("it fails");
        assert_eq!(error.to_string(), "cuFileDriverOpen failed");
        assert_eq!(reason("Segmentation fault\n"), None);
    }

    #[test]
    fn a_crash_quotes_the_log_of_the_library() {
        let script =
            "printf 'first\\nERROR no such entry\\n\\n' > $CUFILE_LOGFILE_PATH; kill -SEGV $$";
        let text = shell(script, LONG).expect_err("it crashes").to_string();
        assert!(text.contains("signal: 11"), "{text}");
        assert!(text.ends_with(": ERROR no such entry"), "{text}");
        let text = shell("kill -SEGV $$", LONG).expect_err("it crashes");
        assert!(text.to_string().ends_with("its log is empty"), "{text}");
    }

    #[test]
    fn a_child_that_does_not_end_is_killed() {
        let error = shell("exec tail -f /dev/null", Duration::from_millis(50));
        assert!(matches!(error, Err(CuFileTrialError::Silent)), "{error:?}");
    }
}
