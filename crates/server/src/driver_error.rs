//! Formats errors of the MongoDB driver as readable sentences.

use mongodb::error::{Error, ErrorKind, InsertManyError, WriteFailure};

/// End of the message with which servers refuse an unauthenticated client.
const NOT_LOGGED_IN: &str = "requires authentication";
const LOG_IN: &str =
    "put user and password in the connection string, as in mongodb://USER:PASSWORD@HOST:PORT";

/// Describes the error in a sentence without the driver's internal terms.
pub fn sentence(error: &Error) -> String {
    let kind = &*error.kind;
    match kind {
        ErrorKind::Authentication { .. } => "the user or the password is wrong".to_owned(),
        ErrorKind::Command(error) if error.message.ends_with(NOT_LOGGED_IN) => {
            format!("{} ({LOG_IN})", error.message)
        }
        ErrorKind::Command(error) => error.message.clone(),
        ErrorKind::Write(WriteFailure::WriteError(error)) => error.message.clone(),
        ErrorKind::Write(WriteFailure::WriteConcernError(error)) => error.message.clone(),
        ErrorKind::InsertMany(error) => of_inserts(error),
        ErrorKind::InvalidArgument { message, .. } => of_argument(message),
        ErrorKind::Io(error) => of_connection(&error.to_string()),
        kind => of_connection(&kind.to_string()),
    }
}

/// Describes what is wrong with a connection string.
fn of_argument(message: &str) -> String {
    if message.contains("mongodb+srv") {
        return "mongodb+srv is not supported: name the server as in mongodb://HOST:PORT"
            .to_owned();
    }
    match message {
        "connection string contains no scheme" => {
            format!("{message}: it must begin as in mongodb://HOST:PORT")
        }
        _ => message.to_owned(),
    }
}

fn of_inserts(error: &InsertManyError) -> String {
    let first = error
        .write_errors
        .as_ref()
        .and_then(|errors| errors.first());
    let concern = error.write_concern_error.as_ref();
    let message = first
        .map(|error| &error.message)
        .or_else(|| concern.map(|error| &error.message));
    message.map_or_else(|| "the server refused documents".to_owned(), Clone::clone)
}

/// Message for a closed connection, typically because only one side uses TLS.
const CLOSED: &str = "the server closed the connection, often because only one side uses TLS (tls=true in the connection string)";

/// Returns a readable sentence for the driver's text of a connection error. That text may describe every server of the
/// topology.
fn of_connection(text: &str) -> String {
    let known = [
        ("Connection refused", "no server listens there"),
        ("unexpected end of file", CLOSED),
        ("handshake eof", CLOSED),
        ("Connection reset", CLOSED),
        ("InvalidContentType", "the server does not speak TLS"),
        (
            "UnknownIssuer",
            "the issuer of the server's certificate is not trusted (tlsCAFile)",
        ),
        (
            "invalid peer certificate",
            "the server's certificate is not valid for this name, or has expired",
        ),
        (
            "failed to lookup address",
            "the name of the server cannot be resolved",
        ),
        ("Server selection timeout", "the server does not answer"),
    ];
    let found = known.iter().find(|(part, _)| text.contains(part));
    match found {
        Some((_, sentence)) => (*sentence).to_owned(),
        None => plain(text).to_owned(),
    }
}

/// Returns the text without the driver's internal fields.
fn plain(text: &str) -> &str {
    let text = text.split(", labels: {").next().unwrap_or_default();
    text.trim_start_matches("Kind: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_driver_is_shown() {
        let topology = "Server selection timeout: No available servers. Topology: { Type: Unknown, Servers: [ { Address: \
                        127.0.0.1:9, Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111), labels: {} } ] }";
        assert_eq!(of_connection(topology), "no server listens there");
        assert_eq!(of_connection("Kind: odd, labels: {}, source: None"), "odd");
        let error = Error::from(std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        assert!(sentence(&error).contains("TLS"), "{}", sentence(&error));
    }
}
