//! Authorization: the roles of users, and the privileges that each command needs.
//!
//! The roles have MongoDB's names and privileges, restricted to the commands that this server has. A role covers one
//! database, all databases, or the whole server. No role covers a single collection.

use std::fmt::{self, Write};
use std::sync::Arc;

use bson::{RawArray, RawBsonRef, RawDocument};
use forebay_documents_query::Code;

use crate::arguments::truth;
use crate::command::Command;
use crate::commands::aggregate::first_element;
use crate::error::CommandError;
use crate::namespace;

/// The only database with roles that cover more than one database.
const ADMIN: &str = "admin";
/// Maximum bytes of the command that an authorization error quotes.
const SHOWN_BYTES_MAX: usize = 512;

/// A kind of access to a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Reading the names, options, indexes and statistics of collections.
    Inspect,
    /// Reading documents.
    Read,
    /// Inserting, changing and deleting documents.
    Write,
    /// Creating, renaming and dropping collections and indexes.
    Define,
    /// Dropping the database, validating collections, reading the usage of indexes.
    Administer,
}

/// The scope of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The role's own database.
    Database,
    /// Every database.
    AllDatabases,
    /// The server and everything in it.
    Server,
}

/// A built-in role.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    name: &'static str,
    reach: Reach,
    actions: &'static [Action],
}

const READ: &[Action] = &[Action::Inspect, Action::Read];
const READ_WRITE: &[Action] = &[Action::Inspect, Action::Read, Action::Write, Action::Define];
const ADMINISTER: &[Action] = &[Action::Inspect, Action::Define, Action::Administer];

static KINDS: &[Kind] = &[
    Kind::new("read", Reach::Database, READ),
    Kind::new("readWrite", Reach::Database, READ_WRITE),
    Kind::new("dbAdmin", Reach::Database, ADMINISTER),
    Kind::new("readAnyDatabase", Reach::AllDatabases, READ),
    Kind::new("readWriteAnyDatabase", Reach::AllDatabases, READ_WRITE),
    Kind::new("dbAdminAnyDatabase", Reach::AllDatabases, ADMINISTER),
    Kind::new("root", Reach::Server, &[]),
];

impl Kind {
    const fn new(name: &'static str, reach: Reach, actions: &'static [Action]) -> Kind {
        Kind {
            name,
            reach,
            actions,
        }
    }
}

/// A role of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    kind: &'static Kind,
    db: String,
}

impl Role {
    /// Returns the role `name` of database `db`, or `None` if that database has no such role. Roles that cover more
    /// than one database exist only in `admin`.
    pub fn new(name: &str, db: &str) -> Option<Role> {
        let kind = KINDS.iter().find(|kind| kind.name == name)?;
        let is_there = kind.reach == Reach::Database || db == ADMIN;
        is_there.then(|| Role {
            kind,
            db: db.to_owned(),
        })
    }

    /// Returns the role `root`, which has all privileges.
    pub fn root() -> Role {
        Role::new("root", ADMIN).expect("`root` is a role of the database `admin`")
    }

    /// Returns the role's name.
    pub fn name(&self) -> &'static str {
        self.kind.name
    }

    /// Returns the role's database.
    pub fn db(&self) -> &str {
        &self.db
    }

    /// Returns the names of all roles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KINDS.iter().map(|kind| kind.name)
    }

    fn allows(&self, need: &Need) -> bool {
        match (self.kind.reach, need) {
            (Reach::Server, _) => true,
            (_, Need::Root) => false,
            (Reach::AllDatabases, Need::On(action, _) | Need::OnAll(action)) => {
                self.kind.actions.contains(action)
            }
            (Reach::Database, Need::On(action, db)) => {
                self.db == *db && self.kind.actions.contains(action)
            }
            (Reach::Database, Need::OnAll(_)) => false,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name(), self.db)
    }
}

/// The privileges of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Rights {
    /// All privileges: the server requires no authentication.
    #[default]
    Everything,
    /// The privileges of these roles.
    Roles(Arc<[Role]>),
}

impl Rights {
    /// Returns whether the client has all privileges.
    pub fn is_root(&self) -> bool {
        self.allow(&Need::Root)
    }

    /// Returns whether the client may perform `action` on database `db`.
    pub fn allow_on(&self, action: Action, db: &str) -> bool {
        self.allow(&Need::On(action, db.to_owned()))
    }

    /// Returns the client's roles. A client with all privileges has the role `root`.
    pub fn roles(&self) -> Vec<Role> {
        match self {
            Rights::Everything => vec![Role::root()],
            Rights::Roles(roles) => roles.to_vec(),
        }
    }

    /// Checks that the client may run a command.
    ///
    /// # Errors
    /// `Unauthorized`, with MongoDB's message.
    pub fn check(&self, command: &Command) -> Result<(), CommandError> {
        match self {
            Rights::Everything => Ok(()),
            Rights::Roles(_) if needs(command).iter().all(|need| self.allow(need)) => Ok(()),
            Rights::Roles(_) => Err(CommandError::refused(Code::Unauthorized, denial(command))),
        }
    }

    fn allow(&self, need: &Need) -> bool {
        match self {
            Rights::Everything => true,
            Rights::Roles(roles) => roles.iter().any(|role| role.allows(need)),
        }
    }
}

/// A privilege that a command needs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Need {
    On(Action, String),
    OnAll(Action),
    Root,
}

/// The privileges that a command needs.
enum Rule {
    /// No privilege: the command concerns the client's own connection, session, cursors and operations, or omits from
    /// its reply all objects that the client may not see.
    AnyUser,
    /// All these actions on the command's database.
    On(&'static [Action]),
    /// The role `root`.
    Root,
    /// The privileges that this function returns for the command.
    Ask(fn(&Command) -> Vec<Need>),
}

/// The privileges that each command needs, by command name. A command that is not in the table needs `root`.
static RULES: &[(&str, Rule)] = &[
    ("abortTransaction", Rule::AnyUser),
    ("aggregate", Rule::Ask(aggregate)),
    ("buildInfo", Rule::AnyUser),
    ("buildinfo", Rule::AnyUser),
    ("collStats", Rule::On(&[Action::Inspect])),
    ("collstats", Rule::On(&[Action::Inspect])),
    ("commitTransaction", Rule::AnyUser),
    ("connectionStatus", Rule::AnyUser),
    ("count", Rule::On(&[Action::Read])),
    ("create", Rule::On(&[Action::Define])),
    ("createIndexes", Rule::On(&[Action::Define])),
    ("currentOp", Rule::Ask(current_op)),
    ("dbStats", Rule::On(&[Action::Inspect])),
    ("dbstats", Rule::On(&[Action::Inspect])),
    ("delete", Rule::On(&[Action::Write])),
    ("deleteIndexes", Rule::On(&[Action::Define])),
    ("distinct", Rule::On(&[Action::Read])),
    ("drop", Rule::On(&[Action::Define])),
    ("dropDatabase", Rule::On(&[Action::Administer])),
    ("dropIndexes", Rule::On(&[Action::Define])),
    ("endSessions", Rule::AnyUser),
    ("explain", Rule::Ask(explain)),
    ("find", Rule::On(&[Action::Read])),
    ("findAndModify", Rule::On(&[Action::Read, Action::Write])),
    ("findandmodify", Rule::On(&[Action::Read, Action::Write])),
    ("forebayBuckets", Rule::Root),
    ("forebayDevices", Rule::Root),
    ("forebayPattern", Rule::Root),
    ("forebayStats", Rule::Root),
    ("getCmdLineOpts", Rule::Root),
    ("getLog", Rule::Root),
    ("getMore", Rule::AnyUser),
    ("getParameter", Rule::Root),
    ("hostInfo", Rule::Root),
    ("insert", Rule::On(&[Action::Write])),
    ("killAllSessions", Rule::Root),
    ("killAllSessionsByPattern", Rule::Root),
    ("killCursors", Rule::AnyUser),
    ("killOp", Rule::AnyUser),
    ("killSessions", Rule::AnyUser),
    ("listCollections", Rule::Ask(list_collections)),
    ("listCommands", Rule::AnyUser),
    ("listDatabases", Rule::Ask(list_databases)),
    ("listIndexes", Rule::On(&[Action::Inspect])),
    ("ping", Rule::AnyUser),
    ("refreshSessions", Rule::AnyUser),
    ("renameCollection", Rule::Ask(rename_collection)),
    ("serverStatus", Rule::Root),
    ("startSession", Rule::AnyUser),
    ("update", Rule::On(&[Action::Write])),
    ("validate", Rule::On(&[Action::Administer])),
    ("whatsmyuri", Rule::AnyUser),
];

fn needs(command: &Command) -> Vec<Need> {
    let rule = RULES.iter().find(|(name, _)| *name == command.name);
    match rule.map(|(_, rule)| rule) {
        Some(Rule::AnyUser) => Vec::new(),
        Some(Rule::On(actions)) => {
            let on = |action: &Action| Need::On(*action, command.db.clone());
            actions.iter().map(on).collect()
        }
        Some(Rule::Ask(ask)) => ask(command),
        Some(Rule::Root) | None => vec![Need::Root],
    }
}

fn is_set(document: &RawDocument, name: &str) -> bool {
    document.get(name).ok().flatten().and_then(truth) == Some(true)
}

fn current_op(command: &Command) -> Vec<Need> {
    if is_set(&command.body, "$ownOps") {
        Vec::new()
    } else {
        vec![Need::Root]
    }
}

/// Returns the privileges that `listCollections` needs. A command that asks only for the names of collections that the
/// user may see needs none.
fn list_collections(command: &Command) -> Vec<Need> {
    let body = &*command.body;
    if is_set(body, "nameOnly") && is_set(body, "authorizedCollections") {
        Vec::new()
    } else {
        vec![Need::On(Action::Inspect, command.db.clone())]
    }
}

/// Returns the privileges that `listDatabases` needs: none, unless it asks for all databases instead of those that the
/// user has access to.
fn list_databases(command: &Command) -> Vec<Need> {
    let authorized = command.body.get("authorizedDatabases").ok().flatten();
    match authorized.and_then(truth) {
        Some(false) => vec![Need::OnAll(Action::Inspect)],
        _ => Vec::new(),
    }
}

fn rename_collection(command: &Command) -> Vec<Need> {
    let named = |field| namespace::parse(command.body.get_str(field).ok()?).ok();
    let (Some(from), Some(to)) = (named("renameCollection"), named("to")) else {
        return vec![Need::Root];
    };
    let mut needs = vec![Need::On(Action::Define, from.db.clone())];
    if from.db != to.db {
        needs.push(Need::On(Action::Read, from.db));
        needs.push(Need::On(Action::Define, to.db.clone()));
        needs.push(Need::On(Action::Write, to.db));
    }
    needs
}

/// Returns the privileges that the explained command needs.
fn explain(command: &Command) -> Vec<Need> {
    let inner = command.body.get_document("explain").ok();
    match inner.map(|body| Command::within(command, body)) {
        Some(inner) if inner.name != "explain" => needs(&inner),
        _ => vec![Need::Root],
    }
}

/// Returns the privileges to read the source of the first stage, and to write the targets of all stages. No supported
/// later stage reads another collection. If such a stage is added, this function must return its privilege too.
fn aggregate(command: &Command) -> Vec<Need> {
    let read = || Need::On(Action::Read, command.db.clone());
    let Ok(pipeline) = command.body.get_array("pipeline") else {
        return vec![read()];
    };
    let mut needs = match first_stage_source(pipeline) {
        Source::Collection => vec![read()],
        Source::Figures(action) => vec![Need::On(action, command.db.clone())],
        Source::EveryDatabase => vec![Need::OnAll(Action::Read)],
        Source::EveryOperation => vec![Need::Root],
        Source::Own => Vec::new(),
    };
    let stages = pipeline.into_iter().flatten().filter_map(first_element);
    needs.extend(stages.filter_map(|stage| written(command, stage)));
    needs
}

/// The source that the first stage of a pipeline reads.
enum Source {
    Collection,
    Figures(Action),
    EveryDatabase,
    EveryOperation,
    /// The command itself (`$documents`), or the client's own operations (`$currentOp`).
    Own,
}

fn first_stage_source(pipeline: &RawArray) -> Source {
    let first = pipeline.into_iter().next().and_then(Result::ok);
    let is_requested = |operand: RawBsonRef<'_>, option| {
        operand
            .as_document()
            .is_some_and(|options| is_set(options, option))
    };
    match first.and_then(first_element) {
        Some(("$changeStream", operand)) if is_requested(operand, "allChangesForCluster") => {
            Source::EveryDatabase
        }
        Some(("$currentOp", operand)) if is_requested(operand, "allUsers") => {
            Source::EveryOperation
        }
        Some(("$currentOp" | "$documents", _)) => Source::Own,
        Some(("$collStats", _)) => Source::Figures(Action::Inspect),
        Some(("$indexStats", _)) => Source::Figures(Action::Administer),
        _ => Source::Collection,
    }
}

/// Returns the privilege to write to a stage's target, or `None` if the stage does not write.
fn written(command: &Command, (name, operand): (&str, RawBsonRef<'_>)) -> Option<Need> {
    let target = match name {
        "$out" => operand,
        "$merge" => match operand {
            RawBsonRef::Document(merge) => merge.get("into").ok().flatten().unwrap_or(operand),
            other => other,
        },
        _ => return None,
    };
    let db = match target {
        RawBsonRef::String(_) => Some(command.db.as_str()),
        RawBsonRef::Document(target) => match target.get("db") {
            Ok(None) => Some(command.db.as_str()),
            Ok(Some(RawBsonRef::String(db))) => Some(db),
            _ => None,
        },
        _ => None,
    };
    Some(db.map_or(Need::Root, |db| Need::On(Action::Write, db.to_owned())))
}

/// Returns the message of an authorization error for `command`.
pub fn denial(command: &Command) -> String {
    let mut shown = String::new();
    for field in command.body.iter().flatten() {
        let separator = if shown.is_empty() { "" } else { ", " };
        let _ = write!(shown, "{separator}{}: {}", field.0, brief(field.1));
        if shown.len() > SHOWN_BYTES_MAX {
            shown.push_str(", ...");
            break;
        }
    }
    let db = &command.db;
    format!("not authorized on {db} to execute command {{ {shown} }}")
}

/// Formats a value without the contents of documents and arrays.
fn brief(value: RawBsonRef<'_>) -> String {
    match value {
        RawBsonRef::Document(_) => "{...}".to_owned(),
        RawBsonRef::Array(_) => "[...]".to_owned(),
        RawBsonRef::String(text) => {
            let text: String = text.chars().take(SHOWN_BYTES_MAX / 4).collect();
            format!("{text:?}")
        }
        RawBsonRef::Boolean(value) => value.to_string(),
        RawBsonRef::Int32(value) => value.to_string(),
        RawBsonRef::Int64(value) => value.to_string(),
        RawBsonRef::Double(value) => value.to_string(),
        other => format!("{:?}", other.element_type()),
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, rawdoc};

    use super::*;
    use crate::commands::COMMANDS;

    fn command(body: RawDocumentBuf) -> Command {
        Command {
            db: "shop".to_owned(),
            ..Command::from_body(body)
        }
    }

    fn on(action: Action, db: &str) -> Need {
        Need::On(action, db.to_owned())
    }

    #[test]
    fn every_command_has_a_rule_and_every_rule_a_command() {
        for spec in COMMANDS {
            let rules = RULES.iter().filter(|(name, _)| *name == spec.name);
            assert_eq!(rules.count(), 1, "{}", spec.name);
        }
        for (name, _) in RULES {
            assert!(COMMANDS.iter().any(|spec| spec.name == *name), "{name}");
        }
        assert_eq!(needs(&command(rawdoc! { "madeUp": 1 })), [Need::Root]);
    }

    #[test]
    fn roles_over_several_databases_are_in_admin() {
        for name in Role::names() {
            assert!(Role::new(name, "admin").is_some(), "{name}");
        }
        assert!(Role::new("read", "shop").is_some());
        for (name, db) in [
            ("root", "shop"),
            ("readAnyDatabase", "shop"),
            ("Read", "shop"),
            ("", "admin"),
        ] {
            assert_eq!(Role::new(name, db), None, "{name}@{db}");
        }
    }

    #[test]
    fn pipelines_need_the_rights_of_what_they_read_and_write() {
        let read = on(Action::Read, "shop");
        for (stage, expected) in [
            (rawdoc! { "$match": {} }, vec![read.clone()]),
            (rawdoc! { "$documents": [] }, vec![]),
            (rawdoc! { "$currentOp": {} }, vec![]),
            (
                rawdoc! { "$currentOp": { "allUsers": true } },
                vec![Need::Root],
            ),
            (
                rawdoc! { "$collStats": {} },
                vec![on(Action::Inspect, "shop")],
            ),
            (
                rawdoc! { "$indexStats": {} },
                vec![on(Action::Administer, "shop")],
            ),
            (rawdoc! { "$changeStream": {} }, vec![read.clone()]),
            (
                rawdoc! { "$changeStream": { "allChangesForCluster": true } },
                vec![Need::OnAll(Action::Read)],
            ),
            (
                rawdoc! { "$out": "x" },
                vec![read.clone(), on(Action::Write, "shop")],
            ),
            (
                rawdoc! { "$out": { "db": "bank", "coll": "x" } },
                vec![read.clone(), on(Action::Write, "bank")],
            ),
            (
                rawdoc! { "$merge": "x" },
                vec![read.clone(), on(Action::Write, "shop")],
            ),
            (
                rawdoc! { "$merge": { "into": "x" } },
                vec![read.clone(), on(Action::Write, "shop")],
            ),
            (
                rawdoc! { "$merge": { "into": { "db": "bank", "coll": "x" } } },
                vec![read.clone(), on(Action::Write, "bank")],
            ),
            (
                rawdoc! { "$merge": { "into": 1 } },
                vec![read.clone(), Need::Root],
            ),
            (rawdoc! { "$out": 1 }, vec![read, Need::Root]),
        ] {
            let body = rawdoc! { "aggregate": "things", "pipeline": [stage.clone()] };
            assert_eq!(needs(&command(body)), expected, "{stage:?}");
            let explained =
                rawdoc! { "explain": { "aggregate": "things", "pipeline": [stage.clone()] } };
            assert_eq!(needs(&command(explained)), expected, "explain of {stage:?}");
        }
    }

    #[test]
    fn a_rename_across_databases_needs_rights_on_both() {
        let rename = |from: &str, to: &str| {
            let needs = needs(&command(rawdoc! { "renameCollection": from, "to": to }));
            let allowed = |role: &str, db: &str| {
                let role = Role::new(role, db).expect("a role");
                needs.iter().all(|need| role.allows(need))
            };
            ["shop", "bank"].map(|db| allowed("readWrite", db))
        };
        assert_eq!(rename("shop.a", "shop.b"), [true, false]);
        assert_eq!(rename("shop.a", "bank.b"), [false, false]);
        assert_eq!(rename("shop", "shop.b"), [false, false]);
    }

    #[test]
    fn a_refusal_shows_the_command_in_brief() {
        let body =
            rawdoc! { "insert": "things\n", "documents": [{ "secret": 1 }], "ordered": true };
        assert_eq!(
            denial(&command(body)),
            "not authorized on shop to execute command { insert: \"things\\n\", documents: [...], ordered: true }"
        );
        let mut long = rawdoc! { "find": "x".repeat(100_000) };
        for number in 0..1_000 {
            let name = bson::raw::CString::try_from(format!("field{number}")).expect("no NUL");
            long.append(name, 1);
        }
        assert!(denial(&command(long)).len() < 2 * SHOWN_BYTES_MAX);
    }
}
