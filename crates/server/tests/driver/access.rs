//! Access control: file permissions, roles, dropped users, and connection permits for unauthenticated clients.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::raw::Raw;
use anyhow::{Context, Result, ensure};
use bson::spec::BinarySubtype;
use bson::{Binary, Document, RawDocumentBuf, doc, rawdoc};
use forebay_testkit::Server;
use forebay_wire_mongo::{Compressor, HEADER_BYTES, OpMsg, compress};
use mongodb::Client;
use mongodb::error::{Error, ErrorKind};

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
/// Timeout for a reply.
const TIMEOUT: Duration = Duration::from_secs(30);
const UNAUTHORIZED: i32 = 13;
const AUTHENTICATION_FAILED: i32 = 18;
const CURSOR_NOT_FOUND: i32 = 43;

/// Runs the program with a umask that lets other users read its files.
fn with_open_umask(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 022; exec \"$0\" \"$@\"", BINARY])
        .args(arguments);
    command
}

/// Returns a path and, for a folder, all files and folders in it.
fn all_below(path: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = vec![path.to_owned()];
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            found.extend(all_below(&entry?.path())?);
        }
    }
    Ok(found)
}

fn ensure_private(folder: &Path) -> Result<()> {
    let all = all_below(folder)?;
    ensure!(all.len() > 3, "few files in {folder:?}: {all:?}");
    for path in all {
        let mode = fs::metadata(&path)?.permissions().mode() & 0o777;
        ensure!(mode & 0o077 == 0, "{path:?} has mode {mode:o}");
    }
    Ok(())
}

#[test]
fn other_accounts_cannot_read_the_data() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let path = data.to_str().context("a plain name")?;
    let mut server = with_open_umask(&["serve", "--until-stdin-ends"])
        .args(["--data", path, "--mongodb-listen", "127.0.0.1:0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    drop(server.stdin.take());
    ensure!(server.wait()?.success());
    ensure_private(&data)?;

    let added = with_open_umask(&["user", "add", "ada", "--data", path])
        .env("FOREBAY_PASSWORD", "secret")
        .output()?;
    ensure!(added.status.success(), "{added:?}");
    ensure_private(&data)
}

/// Starts a server that requires authentication, with a user `root`.
async fn with_root(arguments: &[&str]) -> Result<(Server, Client)> {
    let server = Server::start(BINARY, &[&["--auth"], arguments].concat())?;
    let added = Command::new(BINARY)
        .args(["user", "add", "root", "--uri", server.uri()])
        .env("FOREBAY_PASSWORD", "secret")
        .output()?;
    ensure!(added.status.success(), "{added:?}");
    let root = login(&server, "root").await?;
    Ok((server, root))
}

/// Connects as a user with the password `secret`.
async fn login(server: &Server, user: &str) -> Result<Client> {
    let address = server.process().address();
    // Use a single connection, so that a later login replaces the user of this connection.
    let options = "authSource=admin&maxPoolSize=1&retryReads=false&retryWrites=false";
    Ok(Client::with_uri_str(format!("mongodb://{user}:secret@{address}/?{options}")).await?)
}

async fn add_user(root: &Client, name: &str, role: &str, db: &str) -> Result<()> {
    let roles = [doc! { "role": role, "db": db }];
    let command = doc! { "createUser": name, "pwd": "secret", "roles": roles };
    root.database("admin").run_command(command).await?;
    Ok(())
}

fn code(error: &Error) -> i32 {
    match &*error.kind {
        ErrorKind::Command(error) => error.code,
        ErrorKind::Authentication { .. } => AUTHENTICATION_FAILED,
        _ => -1,
    }
}

async fn code_of(client: &Client, db: &str, command: Document) -> i32 {
    let ran = client.database(db).run_command(command).await;
    ran.err().map_or(0, |error| code(&error))
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_are_granted_shown_and_revoked_while_connections_are_open() -> Result<()> {
    let (server, root) = with_root(&[]).await?;
    let insert = doc! { "insert": "things", "documents": [{ "a": 1 }] };
    assert_eq!(code_of(&root, "shop", insert.clone()).await, 0);
    add_user(&root, "ada", "read", "shop").await?;
    let ada = login(&server, "ada").await?;
    assert_eq!(code_of(&ada, "shop", doc! { "find": "things" }).await, 0);
    assert_eq!(
        code_of(&ada, "bank", doc! { "find": "things" }).await,
        UNAUTHORIZED
    );
    assert_eq!(code_of(&ada, "shop", insert.clone()).await, UNAUTHORIZED);
    assert_eq!(ada.list_database_names().await?, ["shop"]);

    let admin = root.database("admin");
    let more = doc! { "grantRolesToUser": "ada", "roles": [{ "role": "readWrite", "db": "shop" }] };
    admin.run_command(more.clone()).await?;
    assert_eq!(code_of(&ada, "shop", insert.clone()).await, 0);
    let status = ada
        .database("admin")
        .run_command(doc! { "connectionStatus": 1 })
        .await?;
    let shown = status
        .get_document("authInfo")?
        .get_array("authenticatedUserRoles")?;
    let role = |role: &str| doc! { "role": role, "db": "shop" }.into();
    assert_eq!(shown, &vec![role("read"), role("readWrite")]);
    let info = ada
        .database("admin")
        .run_command(doc! { "usersInfo": "ada" })
        .await?;
    let user = info.get_array("users")?[0]
        .as_document()
        .context("a user")?;
    assert_eq!(user.get_array("roles")?, shown);
    assert_eq!(
        code_of(&ada, "admin", doc! { "usersInfo": 1 }).await,
        UNAUTHORIZED
    );
    for command in [
        doc! { "createUser": "eve", "pwd": "x", "roles": ["root"] },
        doc! { "grantRolesToUser": "ada", "roles": ["root"] },
        doc! { "dropUser": "root" },
    ] {
        assert_eq!(code_of(&ada, "admin", command).await, UNAUTHORIZED);
    }

    let less =
        doc! { "revokeRolesFromUser": "ada", "roles": [{ "role": "readWrite", "db": "shop" }] };
    admin.run_command(less).await?;
    assert_eq!(code_of(&ada, "shop", insert).await, UNAUTHORIZED);
    assert_eq!(code_of(&ada, "shop", doc! { "find": "things" }).await, 0);
    for (roles, expected) in [("readd", 31), ("readAnyDatabase", 31)] {
        let command = doc! { "createUser": "bob", "pwd": "x", "roles": [roles] };
        assert_eq!(code_of(&root, "shop", command).await, expected, "{roles}");
    }
    let without = doc! { "createUser": "bob", "pwd": "x" };
    assert_eq!(code_of(&root, "shop", without).await, 40414);
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn users_that_are_dropped_or_get_another_password_lose_their_rights() -> Result<()> {
    let (server, root) = with_root(&[]).await?;
    let documents: Vec<Document> = (0..200).map(|id| doc! { "_id": id }).collect();
    root.database("shop")
        .collection("things")
        .insert_many(documents)
        .await?;
    let changes = [
        doc! { "dropUser": "ada" },
        doc! { "updateUser": "ada", "pwd": "another" },
    ];
    for change in changes {
        add_user(&root, "ada", "root", "admin").await?;
        let ada = login(&server, "ada").await?;
        let find = doc! { "find": "things", "batchSize": 1 };
        let reply = ada.database("shop").run_command(find.clone()).await?;
        let cursor = reply.get_document("cursor")?.get_i64("id")?;

        root.database("admin").run_command(change.clone()).await?;
        let create = doc! { "createUser": "eve", "pwd": "x", "roles": ["root"] };
        assert_eq!(
            code_of(&ada, "admin", create).await,
            UNAUTHORIZED,
            "{change}"
        );
        assert_eq!(code_of(&ada, "shop", find).await, UNAUTHORIZED, "{change}");
        let more = doc! { "getMore": cursor, "collection": "things" };
        assert_eq!(
            code_of(&ada, "shop", more.clone()).await,
            UNAUTHORIZED,
            "{change}"
        );
        assert_eq!(
            code_of(&root, "shop", more).await,
            CURSOR_NOT_FOUND,
            "{change}"
        );
        let again = login(&server, "ada").await?;
        assert_eq!(
            code_of(&again, "admin", doc! { "ping": 1 }).await,
            AUTHENTICATION_FAILED
        );
        let _ = root
            .database("admin")
            .run_command(doc! { "dropUser": "ada" })
            .await;
    }
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_in_progress_end_when_their_user_is_dropped() -> Result<()> {
    let (server, root) = with_root(&["--documents-change-history-bytes-max", "10MiB"]).await?;
    root.database("shop").create_collection("things").await?;
    add_user(&root, "ada", "read", "shop").await?;
    let ada = login(&server, "ada").await?;
    let shop = ada.database("shop");
    let open = doc! { "aggregate": "things", "pipeline": [{ "$changeStream": {} }], "cursor": {} };
    // Without a session of its own, each of the two commands takes any session of the driver's pool. A cursor belongs
    // to the session that opened it.
    let mut session = ada.start_session().await?;
    let reply = shop.run_command(open).session(&mut session).await?;
    let cursor = reply.get_document("cursor")?.get_i64("id")?;
    let wait = doc! { "getMore": cursor, "collection": "things", "maxTimeMS": 3_600_000 };
    let waiting = tokio::spawn(async move { shop.run_command(wait).session(&mut session).await });
    let admin = root.database("admin");
    let is_waiting = doc! { "currentOp": 1, "command.getMore": cursor };
    let begins = async {
        while admin
            .run_command(is_waiting.clone())
            .await?
            .get_array("inprog")?
            .is_empty()
        {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(TIMEOUT, begins).await??;
    admin.run_command(doc! { "dropUser": "ada" }).await?;
    let ended = tokio::time::timeout(TIMEOUT, waiting).await??;
    ensure!(ended.is_err(), "{ended:?}");
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_user_can_add_the_next() -> Result<()> {
    let server = Server::start(BINARY, &["--auth"])?;
    let stranger = server.client().await?;
    let create = |roles: &[&str]| doc! { "createUser": "ada", "pwd": "secret", "roles": roles };
    assert_eq!(code_of(&stranger, "admin", create(&["read"])).await, 2);
    assert_eq!(
        code_of(&stranger, "admin", create(&["read", "root"])).await,
        0
    );
    assert_eq!(
        code_of(&stranger, "admin", create(&["root"])).await,
        UNAUTHORIZED
    );
    server.stop()
}

fn connect(server: &Server) -> Result<Raw> {
    Raw::connect(server.process().address(), TIMEOUT)
}

impl Raw {
    fn run(&mut self, command: &Document) -> Result<Document> {
        let reply = self.ask(RawDocumentBuf::try_from(command)?)?;
        Ok(Document::try_from(reply)?)
    }

    /// Waits until the server closes the connection.
    fn wait_for_end(&mut self) -> Result<()> {
        match self.0.read(&mut [0]) {
            Ok(0) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
            other => anyhow::bail!("the connection is not closed: {other:?}"),
        }
    }

    /// Returns the salt that the server sends for a user.
    fn salt(&mut self, user: &str, db: &str) -> Result<String> {
        let first = self.sasl("saslStart", &format!("n,,n={user},r=abc"), db)?;
        let payload = String::from_utf8(first.get_binary_generic("payload")?.clone())?;
        let salt = payload
            .split(',')
            .find_map(|field| field.strip_prefix("s="));
        Ok(salt.context("a salt")?.to_owned())
    }

    /// Sends a wrong password and returns the reply.
    fn guess(&mut self, user: &str) -> Result<Document> {
        let first = self.sasl("saslStart", &format!("n,,n={user},r=abc"), "admin")?;
        let payload = String::from_utf8(first.get_binary_generic("payload")?.clone())?;
        let nonce = payload.split(',').next().context("a nonce")?;
        let proof = "A".repeat(43);
        self.sasl(
            "saslContinue",
            &format!("c=biws,{nonce},p={proof}="),
            "admin",
        )
    }

    fn sasl(&mut self, command: &str, payload: &str, db: &str) -> Result<Document> {
        let payload = Binary {
            subtype: BinarySubtype::Generic,
            bytes: payload.as_bytes().to_vec(),
        };
        self.run(&doc! { command: 1, "conversationId": 1, "mechanism": "SCRAM-SHA-256", "payload": payload, "$db": db })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_do_not_keep_out_clients_with_a_password() -> Result<()> {
    // The limit leaves room for the connections over which drivers monitor the server. Those connections never
    // authenticate.
    let (server, root) = with_root(&["--connections-max", "12"]).await?;
    drop(root);
    let mut strangers = Vec::new();
    for _ in 0..30 {
        let mut stranger = connect(&server)?;
        stranger.run(&doc! { "hello": 1, "$db": "admin" })?;
        strangers.push(stranger);
    }
    let root = login(&server, "root").await?;
    root.database("admin")
        .run_command(doc! { "hello": 1 })
        .await?;
    strangers[0].wait_for_end()?;
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_must_authenticate_in_time() -> Result<()> {
    let (server, _root) = with_root(&["--handshake-timeout-ms", "3000"]).await?;
    let (mut watcher, mut idler) = (connect(&server)?, connect(&server)?);
    watcher.run(&doc! { "hello": 1, "$db": "admin" })?;
    idler.run(&doc! { "ping": 1, "$db": "admin" })?;
    idler.wait_for_end()?;
    watcher.run(&doc! { "hello": 1, "$db": "admin" })?;
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_that_claims_to_send_much_is_refused_without_a_wait_for_memory() -> Result<()> {
    let (server, _root) = with_root(&["--memory-bytes-max", "256MiB"]).await?;
    let mut stranger = connect(&server)?;
    let ping = OpMsg::new(rawdoc! { "ping": 1, "$db": "admin" }).encode(1, 0);
    let mut message = compress(&ping, Compressor::Zlib)?;
    let claimed = HEADER_BYTES + size_of::<i32>();
    message[claimed..claimed + 4].copy_from_slice(&47_000_000_i32.to_le_bytes());
    stranger.send(&message)?;
    // The server closes the connection without a reply. If it had waited for memory, it would have sent an error reply.
    stranger.wait_for_end()?;
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_has_three_guesses() -> Result<()> {
    let (server, _root) = with_root(&["--status-listen", "127.0.0.1:0"]).await?;
    let mut guesser = connect(&server)?;
    for user in ["root", "nobody", "root"] {
        let reply = guesser.guess(user)?;
        assert_eq!(reply.get_i32("code")?, AUTHENTICATION_FAILED, "{reply}");
    }
    guesser.wait_for_end()?;
    ensure!(metrics(&server)?.contains("\nforebay_wrong_passwords_total 3\n"));
    server.stop()
}

/// Returns the Prometheus metrics page.
fn metrics(server: &Server) -> Result<String> {
    let page = server.process().status_page().context("a status page")?;
    let address = page
        .strip_prefix("http://")
        .context("the status page's URL has no http://")?;
    let mut page = TcpStream::connect(address.trim_end_matches('/'))?;
    page.set_read_timeout(Some(TIMEOUT))?;
    page.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    page.read_to_string(&mut text)?;
    Ok(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn salts_do_not_reveal_which_users_exist() -> Result<()> {
    let (mut server, _root) = with_root(&[]).await?;
    let salts = |server: &Server| -> Result<Vec<String>> {
        let asked = [
            ("root", "admin"),
            ("root", "shop"),
            ("nobody", "admin"),
            ("nobody", "shop"),
        ];
        let salt = |(user, db): (&str, &str)| connect(server)?.salt(user, db);
        asked.into_iter().map(salt).collect()
    };
    let before = salts(&server)?;
    let mut different = before.clone();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), 4, "{before:?}");
    server.shutdown_and_restart()?;
    assert_eq!(salts(&server)?, before);
    server.stop()
}
