//! Users, passwords and TLS, through the official Rust driver.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Result, ensure};
use bson::{Document, doc};
use forebay_testkit::Server;
use mongodb::Client;
use mongodb::error::ErrorKind;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
/// A password with characters that must be escaped in a connection string. SASLprep replaces the last one by `IX`.
const PASSWORD: &str = "p@ss:w%rd \u{2168}";
const PASSWORD_IN_URI: &str = "p%40ss%3Aw%25rd%20%E2%85%A8";

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn user(arguments: &[&str], password: &str) -> Result<Output> {
    Ok(Command::new(BINARY)
        .arg("user")
        .args(arguments)
        .env("FOREBAY_PASSWORD", password)
        .output()?)
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Returns the error code of a `find`; 0 if it succeeds.
async fn find_code(uri: &str) -> Result<i32> {
    let client = Client::with_uri_str(format!("{uri}&serverSelectionTimeoutMS=5000")).await?;
    match client
        .database("d")
        .collection::<Document>("c")
        .find_one(doc! {})
        .await
    {
        Ok(_) => Ok(0),
        Err(error) => match &*error.kind {
            ErrorKind::Command(error) => Ok(error.code),
            ErrorKind::Authentication { .. } => Ok(18),
            other => anyhow::bail!("{other:?}"),
        },
    }
}

fn with_credentials(server: &Server, password: &str) -> String {
    format!(
        "mongodb://ada:{password}@{}/?authSource=admin",
        server.process().address()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_auth_accepts_the_right_password_only() -> Result<()> {
    let server = Server::start(BINARY, &["--auth"])?;
    let open = format!("{}/?appName=stranger", server.uri());
    assert_eq!(find_code(&open).await?, 13);
    assert_eq!(
        find_code(&with_credentials(&server, "guess")).await?,
        18,
        "no user exists yet"
    );
    let listed = user(&["list", "--uri", server.uri()], "")?;
    ensure!(
        text(&listed).contains("no user exists yet") && text(&listed).contains("user add NAME"),
        "{}",
        text(&listed)
    );

    let added = user(&["add", "ada", "--uri", server.uri()], PASSWORD)?;
    ensure!(
        added.status.success(),
        "the first user is created from this machine: {}",
        text(&added)
    );
    let again = user(&["add", "eve", "--uri", server.uri()], "secret")?;
    ensure!(
        !again.status.success()
            && text(&again).contains("requires authentication (put user and password in"),
        "{}",
        text(&again)
    );

    assert_eq!(
        find_code(&with_credentials(&server, PASSWORD_IN_URI)).await?,
        0
    );
    assert_eq!(
        find_code(&with_credentials(&server, "p%40ss%3Aw%25rd%20IX")).await?,
        0,
        "SASLprep maps both to the same"
    );
    assert_eq!(find_code(&with_credentials(&server, "guess")).await?, 18);
    assert_eq!(find_code(&open).await?, 13);
    let guessed = user(&["list", "--uri", &with_credentials(&server, "guess")], "")?;
    let said = text(&guessed);
    ensure!(
        said.ends_with("the user or the password is wrong\n") && said.lines().count() == 1,
        "{said}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_know_their_user() -> Result<()> {
    let server = Server::start(BINARY, &["--auth"])?;
    user(&["add", "ada", "--uri", server.uri()], PASSWORD)?;
    let client = Client::with_uri_str(with_credentials(&server, PASSWORD_IN_URI)).await?;
    let status = client
        .database("admin")
        .run_command(doc! { "connectionStatus": 1 })
        .await?;
    let users = status
        .get_document("authInfo")?
        .get_array("authenticatedUsers")?;
    assert_eq!(users, &vec![doc! { "user": "ada", "db": "admin" }.into()]);
    let listed = user(
        &["list", "--uri", &with_credentials(&server, PASSWORD_IN_URI)],
        "",
    )?;
    assert_eq!(text(&listed), "ada@admin  root@admin\n");
    Ok(())
}

fn refuses_without_store(data: &str) -> Result<()> {
    for action in [&["list"][..], &["add", "ada"], &["remove", "ada"]] {
        let output = user(&[action, &["--data", data]].concat(), "secret")?;
        ensure!(!output.status.success() && !Path::new(data).exists());
        let no_store = format!("there is no store in {data}");
        ensure!(text(&output).contains(&no_store), "{}", text(&output));
    }
    Ok(())
}

/// Creates a store: starts a server, and stops it again.
fn create_store(data: &str) -> Result<()> {
    let served = Command::new(BINARY)
        .args(["serve", "--until-stdin-ends", "--data", data])
        .args(["--mongodb-listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .output()?;
    ensure!(served.status.success(), "{}", text(&served));
    Ok(())
}

#[test]
fn users_are_kept_in_the_data_directory() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let data = data.to_str().unwrap_or_default();
    refuses_without_store(data)?;
    create_store(data)?;
    let steps: [(&[&str], bool, &str); 13] = [
        (&["list", "--data", data], true, "no user exists yet"),
        (&["add", "ada", "--data", data], true, "user ada added"),
        (&["add", "ada", "--data", data], false, "already exists"),
        (
            &["add", "eve", "--role", "read@shop", "--data", data],
            true,
            "user eve added",
        ),
        (
            &["list", "--db", "shop", "--data", data],
            true,
            "database shop has no user",
        ),
        (
            &["list", "--json", "--db", "admin", "--data", data],
            true,
            r#"[{"user":"ada","#,
        ),
        (
            &["add", "bob", "--role", "raed@shop", "--data", data],
            false,
            "there is no role raed@shop: roles are read, ",
        ),
        (&["list", "--data", data], true, "eve@admin  read@shop"),
        (
            &["list", "--json", "--data", data],
            true,
            r#"{"user":"ada","db":"admin","roles":["root@admin"]}"#,
        ),
        (
            &["remove", "ada", "--data", data],
            true,
            "user ada removed\nwarning: no user with the role root@admin is left",
        ),
        (&["remove", "ada", "--data", data], false, "not found"),
        (
            &["remove", "eve", "--data", data],
            true,
            "user eve removed\nwarning: no user is left",
        ),
        (
            &["add", "", "--data", data],
            false,
            "the user name is empty",
        ),
    ];
    for (arguments, succeeds, expected) in steps {
        let output = user(arguments, "secret")?;
        ensure!(
            output.status.success() == succeeds,
            "{arguments:?}: {}",
            text(&output)
        );
        ensure!(
            text(&output).contains(expected),
            "{arguments:?}: {}",
            text(&output)
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_and_a_password_together() -> Result<()> {
    let (certificate, key, authority) = (
        data("tls_cert.pem"),
        data("tls_key.pem"),
        data("tls_ca.pem"),
    );
    let (certificate, key) = (certificate.to_string_lossy(), key.to_string_lossy());
    let server = Server::start(
        BINARY,
        &["--auth", "--tls-cert", &certificate, "--tls-key", &key],
    )?;
    let tls = format!("tls=true&tlsCAFile={}", authority.display());
    let added = user(
        &[
            "add",
            "ada",
            "--uri",
            &format!("mongodb://{}/?{tls}", server.process().address()),
        ],
        PASSWORD,
    )?;
    ensure!(added.status.success(), "{}", text(&added));
    let uri = format!("{}&{tls}", with_credentials(&server, PASSWORD_IN_URI));
    assert_eq!(find_code(&uri).await?, 0);
    let plain = Client::with_uri_str(format!(
        "{}&serverSelectionTimeoutMS=500",
        with_credentials(&server, "x")
    ))
    .await?;
    ensure!(
        plain.list_database_names().await.is_err(),
        "a client without TLS connected"
    );
    let address = server.process().address();
    let plain = format!("mongodb://{address}/?serverSelectionTimeoutMS=500");
    let listed = user(&["list", "--uri", &plain], "")?;
    ensure!(text(&listed).contains("tls=true"), "{}", text(&listed));
    Ok(())
}
