//! Fail points: simulated failures, to test how drivers handle them. Enabled by `mongodb-test-commands`.

use std::collections::HashMap;
use std::time::Duration;

use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_documents::{ClientContext, Command, error_label, may_be_repeated};
use parking_lot::Mutex;

use super::{Code, Refusal};

/// The command that sets fail points.
pub const COMMAND: &str = "configureFailPoint";

/// Fail point for the commands whose names the client lists.
const FAIL_COMMAND: &str = "failCommand";
/// Fail point for writes with a transaction number (`txnNumber`). The write fails before or after it is applied.
const FAIL_NUMBERED_WRITE: &str = "onPrimaryTransactionalWrite";
/// Fail point for commands with `maxTimeMS`: they fail as if their time limit had expired.
const FAIL_TIME_LIMIT: &str = "maxTimeAlwaysTimeOut";
/// Fail point for `getMore`, for instance of a change stream.
const FAIL_GET_MORE: &str = "failGetMoreAfterCursorCheckout";
const NAMES: [&str; 4] = [
    FAIL_COMMAND,
    FAIL_GET_MORE,
    FAIL_NUMBERED_WRITE,
    FAIL_TIME_LIMIT,
];

/// MongoDB's error code MaxTimeMSExpired.
const MAX_TIME_EXPIRED: i32 = 50;

/// Maximum delay (`blockTimeMS`) of a command.
const BLOCK_MAX: Duration = Duration::from_secs(600);

/// The fail points of a server.
#[derive(Debug, Default)]
pub struct FailPoints {
    points: Mutex<HashMap<&'static str, FailPoint>>,
}

#[derive(Debug)]
struct FailPoint {
    mode: Mode,
    data: RawDocumentBuf,
    /// Number of commands failed so far.
    count: i64,
}

/// Which of the matching commands are to fail.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Off,
    AlwaysOn,
    /// Only the next commands. The value is their number.
    Times(i64),
    /// All commands except the next ones. The value is the number of these exceptions.
    Skip(i64),
    /// Each command, with this probability.
    Probability(f64),
}

/// The effect of a fail point on one command.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Delay before the command.
    pub delay: Duration,
    /// Outcome after the delay.
    pub end: End,
}

/// The outcome of a command that matches a fail point.
#[derive(Debug, Clone)]
pub enum End {
    /// The same as without a fail point.
    Normal,
    /// The connection is closed, and the command does not run.
    Closed,
    /// The command runs. Then the connection is closed if [`FailPoints::trigger_for_applied`] returns true.
    ClosedIfApplied,
    /// The command does not run, and this error is its reply.
    Error(RawDocumentBuf),
    /// The command runs, and these fields are added to its reply.
    ErrorAdded(RawDocumentBuf),
}

impl FailPoints {
    /// Runs `configureFailPoint`.
    ///
    /// # Errors
    /// `CommandFailed` for an unknown fail point, `BadValue` and `TypeMismatch` for a wrong mode.
    pub fn configure(&self, body: &RawDocument) -> Result<RawDocumentBuf, Refusal> {
        let name = body.get_str(COMMAND).unwrap_or_default();
        let Some(name) = NAMES.into_iter().find(|known| *known == name) else {
            let message = format!("{name} is not a fail point of this server");
            return Err(Refusal::new(Code::BadValue, message));
        };
        let mode = Mode::read(body.get("mode").ok().flatten())?;
        let data = body.get_document("data").map(ToOwned::to_owned);
        let point = FailPoint {
            mode,
            data: data.unwrap_or_default(),
            count: 0,
        };
        let before = self.points.lock().insert(name, point);
        let count = before.map_or(0, |before| before.count);
        Ok(rawdoc! { "count": count, "ok": 1.0 })
    }

    /// Returns the effect that a fail point has on a command; `None` if no fail point matches the command.
    pub fn failure(&self, client: &ClientContext, command: &Command) -> Option<Failure> {
        if command.name == COMMAND {
            return None;
        }
        let mut points = self.points.lock();
        NAMES.iter().find_map(|name| {
            let point = points.get_mut(name)?;
            let is_meant = match *name {
                FAIL_COMMAND => point.matches(client, command),
                FAIL_GET_MORE => command.name == "getMore",
                FAIL_TIME_LIMIT => command
                    .body
                    .get("maxTimeMS")
                    .is_ok_and(|limit| limit.is_some()),
                _ => may_be_repeated(command),
            };
            // Trigger `FAIL_NUMBERED_WRITE` after the write: only then is it known whether the write applied statements
            // or was a retry.
            let waits = is_meant && *name == FAIL_NUMBERED_WRITE && !point.fails_before();
            (waits || is_meant && point.trigger()).then(|| point.failure(name, command))
        })
    }

    /// Counts the statements of a write with a transaction number, each as one command. Does not count statements that
    /// an earlier attempt of the write has applied. Returns true if the write is to fail.
    pub fn trigger_for_applied(&self, statements: usize, reply: &RawDocument) -> bool {
        let repeated = reply.get_array("retriedStmtIds");
        let repeated = repeated.map_or(0, |ids| ids.into_iter().count());
        let mut points = self.points.lock();
        let point = points.get_mut(FAIL_NUMBERED_WRITE);
        let trigger_each = |point: &mut FailPoint| {
            let steps = (repeated..statements).map(|_| point.trigger());
            steps.fold(false, |any, fails| any | fails)
        };
        point.is_some_and(trigger_each)
    }
}

impl Mode {
    fn read(value: Option<RawBsonRef<'_>>) -> Result<Mode, Refusal> {
        let wrong = || Refusal::new(Code::BadValue, "unknown mode for a fail point");
        match value {
            Some(RawBsonRef::String("off")) => Ok(Mode::Off),
            Some(RawBsonRef::String("alwaysOn")) => Ok(Mode::AlwaysOn),
            Some(RawBsonRef::Document(mode)) => {
                let (name, value) = mode.iter().next().and_then(Result::ok).ok_or_else(wrong)?;
                let number = number(value).ok_or_else(wrong)?;
                match name.as_str() {
                    "times" => Ok(Mode::Times(number as i64)),
                    "skip" => Ok(Mode::Skip(number as i64)),
                    "activationProbability" => Ok(Mode::Probability(number)),
                    _ => Err(wrong()),
                }
            }
            _ => Err(wrong()),
        }
    }

    /// Counts one command. Returns true if this command is to fail.
    fn step(&mut self) -> bool {
        match self {
            Mode::Off => false,
            Mode::AlwaysOn => true,
            Mode::Times(left) | Mode::Skip(left) if *left > 0 => {
                *left -= 1;
                matches!(self, Mode::Times(_))
            }
            Mode::Times(_) => false,
            Mode::Skip(_) => true,
            Mode::Probability(share) => fastrand::f64() < *share,
        }
    }
}

impl FailPoint {
    /// Returns whether `failCommand` applies to this command and this client.
    fn matches(&self, client: &ClientContext, command: &Command) -> bool {
        let names = self.data.get_array("failCommands");
        let mut names = names.into_iter().flatten().flatten();
        let of_app = match self.data.get_str("appName") {
            Ok(app) => client.app_name.as_deref() == Some(app),
            Err(_) => true,
        };
        of_app && names.any(|name| name.as_str() == Some(&*command.name))
    }

    fn fails_before(&self) -> bool {
        self.number("failBeforeCommitExceptionCode").is_some()
    }

    /// Decides whether the next command is to fail, and returns the decision. Counts the commands that are to fail.
    fn trigger(&mut self) -> bool {
        let fails = self.mode.step();
        self.count += i64::from(fails);
        fails
    }

    fn failure(&self, name: &str, command: &Command) -> Failure {
        let end = match name {
            FAIL_COMMAND | FAIL_GET_MORE => self.command_end(name, command),
            FAIL_TIME_LIMIT => End::Error(self.error((name, MAX_TIME_EXPIRED), command)),
            _ => self.write_end(name, command),
        };
        let blocks = self.flag("blockConnection").unwrap_or(false);
        let block_ms = self.number("blockTimeMS").filter(|_| blocks);
        Failure {
            delay: Duration::from_millis(block_ms.unwrap_or(0.0) as u64).min(BLOCK_MAX),
            end,
        }
    }

    fn command_end(&self, name: &str, command: &Command) -> End {
        if self.flag("closeConnection").unwrap_or(false) {
            return End::Closed;
        }
        if let Some(code) = self.number("errorCode") {
            return End::Error(self.error((name, code as i32), command));
        }
        match self.data.get_document("writeConcernError") {
            Ok(error) => End::ErrorAdded(self.write_concern_error(error, command)),
            Err(_) => End::Normal,
        }
    }

    fn write_end(&self, name: &str, command: &Command) -> End {
        let closes = self.flag("closeConnection").unwrap_or(true);
        match self.number("failBeforeCommitExceptionCode") {
            Some(_) if closes => End::Closed,
            Some(code) => End::Error(self.error((name, code as i32), command)),
            None if closes => End::ClosedIfApplied,
            None => End::Normal,
        }
    }

    fn error(&self, (name, code): (&str, i32), command: &Command) -> RawDocumentBuf {
        let code_name = forebay_documents::code_name(code);
        let message = format!("Failing command via '{name}' failpoint");
        let mut reply =
            rawdoc! { "ok": 0.0, "errmsg": message, "code": code, "codeName": code_name };
        self.append_labels(&mut reply, (name, code), command);
        reply
    }

    fn write_concern_error(&self, error: &RawDocument, command: &Command) -> RawDocumentBuf {
        let mut added = rawdoc! { "writeConcernError": error.to_owned() };
        let code = error.get("code").ok().flatten().and_then(number);
        let code = code.unwrap_or(0.0) as i32;
        self.append_labels(&mut added, (FAIL_COMMAND, code), command);
        added
    }

    /// Appends the fail point's error labels; by default, the labels that the server would add for this error code.
    fn append_labels(
        &self,
        reply: &mut RawDocumentBuf,
        (name, code): (&str, i32),
        command: &Command,
    ) {
        // A getMore that fails before it finds its cursor cannot know whether the cursor is a change stream's.
        let knows = command.name != "getMore" || name == FAIL_GET_MORE;
        match self.data.get_array("errorLabels") {
            Ok(labels) if labels.is_empty() => {}
            Ok(labels) => reply.append(cstr!("errorLabels"), labels.to_owned()),
            Err(_) => {
                if let Some(label) = error_label(command, code).filter(|_| knows) {
                    reply.append(cstr!("errorLabels"), RawArrayBuf::from_iter([label]));
                }
            }
        }
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.data.get_bool(name).ok()
    }

    fn number(&self, name: &str) -> Option<f64> {
        number(self.data.get(name).ok()??)
    }
}

/// Returns the number of statements in a write command.
pub fn statements(command: &Command) -> usize {
    let sequences: usize = command.sequences.iter().map(|(_, them)| them.len()).sum();
    let arrays = ["documents", "updates", "deletes"];
    let arrays = arrays
        .iter()
        .filter_map(|name| command.body.get_array(name).ok());
    let embedded: usize = arrays.map(|them| them.into_iter().count()).sum();
    (sequences + embedded).max(1)
}

fn number(value: RawBsonRef<'_>) -> Option<f64> {
    match value {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number as f64),
        RawBsonRef::Double(number) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns for each of five commands whether a fail point with this mode fails it.
    fn trigger(mode: RawDocumentBuf) -> Vec<bool> {
        let points = FailPoints::default();
        let data = rawdoc! { "failCommands": ["find"], "errorCode": 6 };
        let mut set = rawdoc! { "configureFailPoint": "failCommand", "data": data };
        if let Ok(Some(mode)) = mode.get("mode") {
            set.append(cstr!("mode"), mode);
        }
        points.configure(&set).expect("a mode");
        let find = Command::from_body(rawdoc! { "find": "c" });
        let client = ClientContext::default();
        let fails = |_| points.failure(&client, &find).is_some();
        (0..5).map(fails).collect()
    }

    #[test]
    fn modes_say_which_commands_fail() {
        let (t, f) = (true, false);
        assert_eq!(trigger(rawdoc! { "mode": "off" }), [f; 5]);
        assert_eq!(trigger(rawdoc! { "mode": "alwaysOn" }), [t; 5]);
        let times = trigger(rawdoc! { "mode": { "times": 2 } });
        assert_eq!(times, [t, t, f, f, f]);
        let skip = trigger(rawdoc! { "mode": { "skip": 2 } });
        assert_eq!(skip, [f, f, t, t, t]);
        let never = trigger(rawdoc! { "mode": { "activationProbability": 0.0 } });
        assert_eq!(never, [f; 5]);
        let points = FailPoints::default();
        let unknown = rawdoc! { "configureFailPoint": "frob", "mode": "off" };
        assert!(points.configure(&unknown).is_err());
        let wrong = rawdoc! { "configureFailPoint": "failCommand", "mode": "frob" };
        assert!(points.configure(&wrong).is_err());
    }

    #[test]
    fn only_the_commands_and_the_client_that_are_named_fail() {
        let points = FailPoints::default();
        let data = rawdoc! { "failCommands": ["insert"], "errorCode": 91, "appName": "app" };
        let set = rawdoc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data };
        points.configure(&set).expect("a fail point");
        let app = ClientContext {
            app_name: Some("app".to_owned()),
            ..ClientContext::default()
        };
        let insert = Command::from_body(rawdoc! { "insert": "c", "txnNumber": 1_i64 });
        let find = Command::from_body(rawdoc! { "find": "c" });
        assert!(points.failure(&ClientContext::default(), &insert).is_none());
        assert!(points.failure(&app, &find).is_none());
        let Some(Failure {
            end: End::Error(reply),
            ..
        }) = points.failure(&app, &insert)
        else {
            panic!("the command fails with an error reply");
        };
        assert_eq!(reply.get_str("codeName").ok(), Some("ShutdownInProgress"));
        assert!(reply.get_array("errorLabels").is_ok());
        let off = rawdoc! { "configureFailPoint": "failCommand", "mode": "off" };
        let count = points.configure(&off).expect("a fail point");
        assert_eq!(count, rawdoc! { "count": 1_i64, "ok": 1.0 });
    }
}
