//! `saslStart` and `saslContinue`, including `speculativeAuthenticate` in a hello.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::{Documents, User};
use forebay_net::random_bytes;

use super::{Code, Refusal};
use crate::auth::scram::{ClientFirst, Credentials, Exchange, ScramError};
use crate::auth::users;

/// The only supported mechanism.
pub const MECHANISM: &str = "SCRAM-SHA-256";
/// Id of a connection's only conversation.
const CONVERSATION_ID: i32 = 1;

/// An authentication in progress.
#[derive(Debug)]
pub struct Conversation {
    login: Login,
    exchange: Exchange,
    skip_empty_exchange: bool,
    /// Whether the client's proof was correct. If so, only the client's last, empty message is missing.
    proven: bool,
}

/// An authenticated user, and the credentials stored for this user at the login. The login ends when the stored
/// credentials change.
#[derive(Debug, Clone)]
pub struct Login {
    /// The authenticated user.
    pub user: User,
    /// The stored credentials at the time of the login.
    pub credentials: Credentials,
}

impl Conversation {
    /// Returns the user that the client claims to be.
    pub fn user(&self) -> &User {
        &self.login.user
    }
}

/// The result of a step of a conversation.
#[derive(Debug)]
pub struct Step {
    /// The reply to the client.
    pub reply: RawDocumentBuf,
    /// The conversation, if it continues.
    pub conversation: Option<Conversation>,
    /// The login, if this step completed the proof.
    pub login: Option<Login>,
}

/// The secret used to derive the salts of users that do not exist.
pub struct Secret(Vec<u8>);

impl Secret {
    /// Reads the secret from the store, or creates and stores it. It is stored so that the salts of users that do not
    /// exist stay the same after a restart, as those of existing users do. Waits for the disk.
    pub fn load(documents: &Documents) -> Secret {
        let mut fresh = [0; 32];
        random_bytes(&mut fresh);
        let kept = documents.users().secret(&fresh);
        let lost = |error| tracing::warn!(%error, "the secret for salts of unknown users cannot be stored");
        Secret(kept.map_err(lost).unwrap_or_else(|()| fresh.to_vec()))
    }

    /// Returns the credentials of a user that does not exist.
    pub fn missing(&self, user: &User) -> Credentials {
        Credentials::of_missing_user(&user.name, &user.db, &self.0)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Answers `saslStart`.
///
/// # Errors
/// `MechanismUnavailable` for an unsupported mechanism, `AuthenticationFailed` for a malformed message.
pub fn start(
    documents: &Documents,
    secret: &Secret,
    db: &str,
    body: &RawDocument,
) -> Result<Step, Refusal> {
    let mechanism = body.get_str("mechanism").unwrap_or_default();
    if mechanism != MECHANISM {
        let message =
            format!("Received authentication for mechanism {mechanism} which is not enabled");
        return Err(Refusal::new(Code::MechanismUnavailable, message));
    }
    let first = ClientFirst::parse(payload(body)?).map_err(failed)?;
    let user = users::user(&first.user, db);
    let stored = users::account(documents, &user)
        .map_err(|error| Refusal::new(Code::OperationFailed, error.to_string()))?;
    let credentials = match stored {
        Some(account) => account.credentials,
        None => secret.missing(&user),
    };
    let (exchange, message) = Exchange::start(&first, credentials.clone());
    let options = body.get_document("options").ok();
    let skip_empty_exchange =
        options.is_some_and(|options| options.get_bool("skipEmptyExchange").unwrap_or(false));
    let conversation = Conversation {
        login: Login { user, credentials },
        exchange,
        skip_empty_exchange,
        proven: false,
    };
    Ok(Step {
        reply: reply(&message, false),
        conversation: Some(conversation),
        login: None,
    })
}

/// Answers `saslContinue`.
///
/// # Errors
/// `ProtocolError` if there is no conversation, `AuthenticationFailed` if the proof is wrong.
pub fn go_on(conversation: Option<Conversation>, body: &RawDocument) -> Result<Step, Refusal> {
    let no_conversation = || Refusal::new(Code::ProtocolError, "No SASL session state found");
    let conversation = conversation.ok_or_else(no_conversation)?;
    let message = payload(body)?;
    if conversation.proven {
        return Ok(Step {
            reply: reply("", true),
            conversation: None,
            login: Some(conversation.login),
        });
    }
    let answer = conversation.exchange.finish(message).map_err(failed)?;
    let done = conversation.skip_empty_exchange;
    let (conversation, login) = if done {
        (None, Some(conversation.login))
    } else {
        (
            Some(Conversation {
                proven: true,
                ..conversation
            }),
            None,
        )
    };
    Ok(Step {
        reply: reply(&answer, done),
        conversation,
        login,
    })
}

fn payload(body: &RawDocument) -> Result<&[u8], Refusal> {
    match body.get("payload") {
        Ok(Some(RawBsonRef::Binary(payload))) => Ok(payload.bytes),
        _ => Err(Refusal::new(
            Code::TypeMismatch,
            "BSON field 'payload' must be binary",
        )),
    }
}

fn reply(message: &str, done: bool) -> RawDocumentBuf {
    let payload = bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic,
        bytes: message.as_bytes().to_vec(),
    };
    rawdoc! { "conversationId": CONVERSATION_ID, "done": done, "payload": payload, "ok": 1.0 }
}

/// Returns an error that reveals nothing except that authentication failed.
fn failed(error: ScramError) -> Refusal {
    tracing::debug!(%error, "authentication failed");
    Refusal::new(Code::AuthenticationFailed, "Authentication failed.")
}
