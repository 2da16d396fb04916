//! Answers messages: runs commands about the connection itself, and passes all others to `Documents`.

use std::sync::Arc;

use bson::{RawDocumentBuf, rawdoc};
use forebay_documents::{Command, denial};
use forebay_wire_mongo::{OpMsg, OpQuery, Sequence};
use tokio::task::block_in_place;

use super::fail_point::{self, FailPoints};
use super::session::Session;
use super::{Code, Door, Refusal, hello};
use super::{sasl, user_commands};

/// Commands that need no authentication, as in MongoDB.
const OPEN_COMMANDS: &[&str] = &[
    "ping",
    "buildInfo",
    "buildinfo",
    "connectionStatus",
    "whatsmyuri",
    "endSessions",
];

/// Commands that accept a document sequence, each with the name of the sequence.
const SEQUENCES: &[(&str, &str)] = &[
    ("insert", "documents"),
    ("update", "updates"),
    ("delete", "deletes"),
];

/// Decodes the command of an `OP_MSG`.
///
/// # Errors
/// If `$db` is missing, or the command does not accept one of the document sequences.
pub fn command(message: OpMsg) -> Result<Command, Refusal> {
    if message.body.get_str("$db").is_err() {
        return Err(Refusal::new(
            Code::MissingDatabase,
            "OP_MSG requests require a $db argument",
        ));
    }
    let command = Command::from_body(message.body);
    refuse_unknown_sequences(&command.name, &message.sequences)?;
    let sequences = message.sequences.iter();
    let sequences = sequences
        .map(|sequence| (sequence.identifier.clone(), sequence.to_documents()))
        .collect();
    Ok(Command {
        sequences,
        ..command
    })
}

/// Refuses document sequences that the command does not use: they would only take memory.
fn refuse_unknown_sequences(name: &str, sequences: &[Sequence]) -> Result<(), Refusal> {
    let known = |sequence: &&Sequence| SEQUENCES.contains(&(name, &sequence.identifier));
    match sequences.iter().find(|sequence| !known(sequence)) {
        None => Ok(()),
        Some(unknown) => {
            let field = &unknown.identifier;
            let message = format!("BSON field '{name}.{field}' is an unknown field.");
            Err(Refusal::new(Code::UnknownField, message))
        }
    }
}

/// Answers a command. If the command fails, the reply describes the error.
pub async fn answer(door: &Arc<Door>, session: &mut Session, command: Command) -> RawDocumentBuf {
    let name = command.name.as_str();
    session.refresh_rights(door);
    session.start_auth_deadline(door, &command);
    if hello::is_hello(name) {
        return hello::reply(door, session, name, &command.body);
    }
    let own = match name {
        "saslStart" | "saslContinue" => Some(authenticate(door, session, &command).await),
        "logout" => Some(logout(session)),
        name if user_commands::is_user_command(name) => Some(user_command(door, session, &command)),
        fail_point::COMMAND => door
            .fail_points
            .as_ref()
            .map(|points| configure(door, points, session, &command)),
        _ => authorise(door, session, name).err().map(Err),
    };
    match own {
        Some(reply) => reply.unwrap_or_else(|refusal| refusal.to_reply()),
        None => door.documents.run(&session.client, command).await,
    }
}

/// Answers the `OP_QUERY` handshake of an older driver.
pub async fn answer_query(door: &Door, session: &mut Session, query: &OpQuery) -> RawDocumentBuf {
    let body = match query.query.get_document("$query") {
        Ok(inner) => inner.to_owned(),
        Err(_) => query.query.clone(),
    };
    let mut command = Command::from_body(body);
    command.db = query.command_database().unwrap_or_default().to_owned();
    session.start_auth_deadline(door, &command);
    let reply = match command.name.as_str() {
        _ if command.db.is_empty() => return hello::unsupported_query("find"),
        name if hello::is_hello(name) => Ok(hello::reply(door, session, name, &command.body)),
        "saslStart" | "saslContinue" => authenticate(door, session, &command).await,
        name => return hello::unsupported_query(name),
    };
    reply.unwrap_or_else(|refusal| refusal.to_reply())
}

fn configure(
    door: &Door,
    points: &FailPoints,
    session: &Session,
    command: &Command,
) -> Result<RawDocumentBuf, Refusal> {
    authorise(door, session, &command.name)?;
    if !session.client.rights.is_root() {
        return Err(Refusal::new(Code::Unauthorized, denial(command)));
    }
    points.configure(&command.body)
}

fn authorise(door: &Door, session: &Session, name: &str) -> Result<(), Refusal> {
    if !session.is_stranger(door) || OPEN_COMMANDS.contains(&name) {
        return Ok(());
    }
    Err(Refusal::new(
        Code::Unauthorized,
        format!("Command {name} requires authentication"),
    ))
}

/// Runs a step of authentication. Delays the reply to a wrong password; several wrong passwords end the connection.
async fn authenticate(
    door: &Door,
    session: &mut Session,
    command: &Command,
) -> Result<RawDocumentBuf, Refusal> {
    let claimed = session.conversation.as_ref().map(|it| it.user().clone());
    let reply = match command.name.as_str() {
        "saslStart" => sasl_start(door, session, command),
        _ => sasl_continue(session, command),
    };
    let refused = reply.as_ref().err().map(Refusal::code);
    if refused == Some(Code::AuthenticationFailed) {
        session.failures += 1;
        let sender = session.client.peer.map(|peer| peer.ip());
        tokio::time::sleep(door.guesses.record(sender, claimed.as_ref())).await;
    }
    reply
}

fn sasl_start(
    door: &Door,
    session: &mut Session,
    command: &Command,
) -> Result<RawDocumentBuf, Refusal> {
    session.conversation = None;
    let step = sasl::start(&door.documents, &door.secret, &command.db, &command.body)?;
    Ok(apply_step(session, step))
}

fn sasl_continue(session: &mut Session, command: &Command) -> Result<RawDocumentBuf, Refusal> {
    let step = sasl::go_on(session.conversation.take(), &command.body)?;
    Ok(apply_step(session, step))
}

/// Stores the result of an authentication step in the session, and returns the reply.
pub fn apply_step(session: &mut Session, step: sasl::Step) -> RawDocumentBuf {
    session.set_conversation(step.conversation);
    if let Some(login) = step.login {
        session.log_in(login);
    }
    step.reply
}

fn logout(session: &mut Session) -> Result<RawDocumentBuf, Refusal> {
    session.log_out();
    session.conversation = None;
    Ok(rawdoc! { "ok": 1.0 })
}

/// Runs a user-management command for an authenticated user. An unauthenticated client on this machine may add the
/// first user.
fn user_command(
    door: &Door,
    session: &Session,
    command: &Command,
) -> Result<RawDocumentBuf, Refusal> {
    let (documents, changes) = (&door.documents, &door.user_changes);
    if let Err(refusal) = authorise(door, session, &command.name) {
        if !session.is_local() {
            return Err(refusal);
        }
        let first = || user_commands::run_before_first(documents, changes, command);
        return block_in_place(first).unwrap_or(Err(refusal));
    }
    if !user_commands::may_run(&session.client, command) {
        return Err(Refusal::new(Code::Unauthorized, denial(command)));
    }
    block_in_place(|| user_commands::run(documents, changes, command))
}
