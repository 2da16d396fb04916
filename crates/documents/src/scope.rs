//! The scope of the running command: its client, whose permits are counted, and the size of its largest document, for
//! which memory is reserved.
//!
//! The scope is a task-local value, so that searches need not pass it down to the code that takes a permit.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, OnceLock};

use bson::RawDocument;
use forebay_documents_store::largest_document_bytes;

use crate::command::{ClientContext, Command};
use crate::commands::output;
use crate::documents::Documents;
use crate::namespace::Namespace;

tokio::task_local! {
    static CURRENT: CommandScope;
}

static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Identifies a client across its connections, by its user and its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientKey(u64);

impl ClientKey {
    /// Returns the key of a client, or `None` for the server itself.
    pub fn of(client: &ClientContext) -> Option<ClientKey> {
        let host = client.peer.map(|peer| peer.ip().to_canonical());
        if host.is_none() && client.user.is_none() {
            return None;
        }
        Some(ClientKey(KEYS.hash_one((&client.user, host))))
    }
}

/// The command that a task runs.
pub struct CommandScope {
    client: Option<ClientKey>,
    documents: Arc<Documents>,
    command: Arc<Command>,
    document_bytes: OnceLock<usize>,
}

impl CommandScope {
    /// Returns the scope of a client's command.
    pub fn new(
        documents: &Arc<Documents>,
        client: &ClientContext,
        command: &Arc<Command>,
    ) -> CommandScope {
        CommandScope {
            client: ClientKey::of(client),
            documents: documents.clone(),
            command: command.clone(),
            document_bytes: OnceLock::new(),
        }
    }

    /// Runs the command's future in this scope.
    pub async fn run<T>(self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self, work).await
    }

    /// Returns the size in bytes of the largest document that the command may read or write, as far as the server knows
    /// before it runs the command. Later calls return the same size.
    fn document_bytes(&self) -> usize {
        *self
            .document_bytes
            .get_or_init(|| self.known_document_bytes())
    }

    fn known_document_bytes(&self) -> usize {
        let body = &*self.command.body;
        let given = match self.command.name.as_str() {
            "update" => self.largest_statement_bytes("updates"),
            "findAndModify" | "findandmodify" => body.as_bytes().len(),
            _ => 0,
        };
        given.max(self.stored_bytes(body))
    }

    fn largest_statement_bytes(&self, name: &str) -> usize {
        let mut sequences = self.command.sequences.iter();
        let bytes = |statement: &RawDocument| statement.as_bytes().len();
        if let Some((_, statements)) = sequences.find(|(known, _)| known == name) {
            let statements = statements.iter().map(|statement| bytes(statement));
            return statements.max().unwrap_or(0);
        }
        let statements = self.command.body.get_array(name).into_iter().flatten();
        let statements = statements.filter_map(|value| value.ok()?.as_document().map(bytes));
        statements.max().unwrap_or(0)
    }

    /// Returns the size in bytes of the largest document in the command's collection, or in all collections if the
    /// command writes to another collection or names none.
    fn stored_bytes(&self, body: &RawDocument) -> usize {
        let collection = match self.command.name.as_str() {
            "getMore" => body.get_str("collection").ok(),
            "explain" => body.get_document("explain").ok().and_then(subject),
            _ => subject(body),
        };
        let writes_elsewhere = body.get_array("pipeline").is_ok_and(output::writes);
        match collection {
            Some(name) if !writes_elsewhere && !name.starts_with("$cmd") => {
                let namespace = Namespace {
                    db: self.command.db.clone(),
                    collection: name.to_owned(),
                };
                let collection = self.documents.collections().get(&namespace);
                collection.map_or(0, |collection| collection.store.largest_document_bytes())
            }
            _ => largest_document_bytes(),
        }
    }
}

/// Returns the collection that a command's first field names.
fn subject(body: &RawDocument) -> Option<&str> {
    body.iter().next()?.ok()?.1.as_str()
}

/// Returns the client whose command this task runs, or `None` for work of the server itself.
pub fn client() -> Option<ClientKey> {
    CURRENT.try_with(|scope| scope.client).ok().flatten()
}

/// Returns the size in bytes of the largest document that this task's command may read or write, as far as the server
/// knows before it runs the command. Outside a command, returns the size of the largest document of all collections.
pub fn document_bytes() -> usize {
    let bytes = CURRENT.try_with(CommandScope::document_bytes);
    bytes.unwrap_or_else(|_| largest_document_bytes())
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, rawdoc};
    use forebay_device::{DeviceOptions, DeviceSpec, Devices};

    use super::*;
    use crate::settings::Settings;

    const LARGE_BYTES: usize = 1 << 20;

    fn large() -> String {
        "x".repeat(LARGE_BYTES)
    }

    async fn documents() -> Arc<Documents> {
        let spec: DeviceSpec = "host:1".parse().expect("right");
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("a device");
        let documents = Documents::open(Settings::default(), Arc::new(devices)).expect("in memory");
        for (collection, text) in [("large", large()), ("small", "x".to_owned())] {
            let insert = rawdoc! { "insert": collection, "documents": [{ "_id": 1, "text": text }], "$db": "d" };
            let client = ClientContext::default();
            let reply = documents.run(&client, Command::from_body(insert)).await;
            assert_eq!(reply.get_i32("n").ok(), Some(1));
        }
        documents
    }

    fn bytes(documents: &Arc<Documents>, command: RawDocumentBuf) -> usize {
        let command = Arc::new(Command::from_body(command));
        CommandScope::new(documents, &ClientContext::default(), &command).document_bytes()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn room_is_for_the_documents_of_the_commands_own_collection() {
        let documents = documents().await;
        let update = |collection: &str, text: &str| rawdoc! { "update": collection, "updates": [{ "q": {}, "u": { "$set": { "text": text } } }], "$db": "d" };
        let meets_large = |command: RawDocumentBuf| bytes(&documents, command) > LARGE_BYTES;
        for (command, expected) in [
            (update("small", "y"), false),
            (update("large", "y"), true),
            (update("small", &large()), true),
            (rawdoc! { "find": "small", "$db": "d" }, false),
            (rawdoc! { "find": "large", "$db": "d" }, true),
            (rawdoc! { "find": "absent", "$db": "d" }, false),
            (rawdoc! { "find": "large", "$db": "other" }, false),
            (rawdoc! { "explain": { "find": "large" }, "$db": "d" }, true),
            (
                rawdoc! { "explain": { "find": "small" }, "$db": "d" },
                false,
            ),
            (
                rawdoc! { "getMore": 7_i64, "collection": "small", "$db": "d" },
                false,
            ),
            (
                rawdoc! { "getMore": 7_i64, "collection": "large", "$db": "d" },
                true,
            ),
            (
                rawdoc! { "getMore": 7_i64, "collection": "$cmd.aggregate", "$db": "d" },
                true,
            ),
            (
                rawdoc! { "aggregate": "small", "pipeline": [{ "$match": {} }], "$db": "d" },
                false,
            ),
            (
                rawdoc! { "aggregate": "small", "pipeline": [{ "$out": "large" }], "$db": "d" },
                true,
            ),
            (
                rawdoc! { "findAndModify": "small", "update": { "text": large() }, "$db": "d" },
                true,
            ),
        ] {
            let shown = command.iter().next().expect("a name").expect("BSON").0;
            let shown = shown.as_str().to_owned();
            assert_eq!(meets_large(command), expected, "{shown}");
        }
    }

    #[test]
    fn a_client_is_a_user_on_a_host() {
        let client = |host: [u8; 4], port, user: &str| {
            let user = (!user.is_empty()).then(|| crate::command::User {
                name: user.to_owned(),
                db: "admin".to_owned(),
            });
            ClientKey::of(&ClientContext {
                peer: Some((host, port).into()),
                user,
                ..ClientContext::default()
            })
        };
        let ada = client([10, 0, 0, 1], 1, "ada");
        assert_eq!(client([10, 0, 0, 1], 2, "ada"), ada);
        assert_ne!(client([10, 0, 0, 2], 1, "ada"), ada);
        assert_ne!(client([10, 0, 0, 1], 1, "bob"), ada);
        assert_ne!(client([10, 0, 0, 1], 1, ""), ada);
        assert_eq!(ClientKey::of(&ClientContext::default()), None);
    }
}
