//! Import and export of files in every format, through the command line.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bson::{Bson, Document, doc, rawdoc};
use forebay_testkit::{Server, wait_for};
use mongodb::Collection;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");

/// Makes a command on `d.COLLECTION`.
fn command(verb: &str, uri: &str, collection: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args([verb, "--uri", uri, "--db", "d", "--collection", collection])
        .args(arguments);
    command
}

/// Runs `forebay import` into `d.COLLECTION`, with `input` on its standard input.
fn import(server: &Server, collection: &str, arguments: &[&str], input: &[u8]) -> Result<Output> {
    let mut child = command("import", server.uri(), collection, arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input);
    }
    Ok(child.wait_with_output()?)
}

/// Returns what a command wrote to standard error.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs an import that fails. Returns what it wrote to standard error.
fn failed(server: &Server, arguments: &[&str], input: &[u8]) -> Result<String> {
    let output = import(server, "failed", arguments, input)?;
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    Ok(said(&output))
}

fn imported(
    server: &Server,
    collection: &str,
    arguments: &[&str],
    input: &[u8],
    count: usize,
) -> Result<()> {
    let output = import(server, collection, arguments, input)?;
    let said = said(&output);
    ensure!(output.status.success(), "{arguments:?}: {said}");
    ensure!(
        said.starts_with(&format!("{count} documents imported")),
        "{arguments:?}: {said}"
    );
    Ok(())
}

fn export(server: &Server, collection: &str, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = command("export", server.uri(), collection, arguments).output()?;
    ensure!(output.status.success(), "{arguments:?}: {}", said(&output));
    Ok(output.stdout)
}

/// Returns the collection `d.NAME`.
async fn collection(server: &Server, name: &str) -> Result<Collection<Document>> {
    Ok(server.client().await?.database("d").collection(name))
}

fn write(folder: &Path, name: &str, text: &str) -> Result<String> {
    let path = folder.join(name);
    std::fs::write(&path, text)?;
    Ok(path.to_string_lossy().into_owned())
}

#[test]
fn what_is_exported_can_be_imported_again() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let original = concat!(
        r#"{"_id":1,"text":"käse","nested":{"list":[1,2.5,null,{"deep":true}]}}"#,
        "\n",
        r#"{"_id":{"$oid":"5f43a1b2c3d4e5f601020304"},"date":{"$date":"2020-01-01T00:00:00Z"},"long":5000000000}"#,
        "\n",
        r#"{"_id":"three","binary":{"$binary":{"base64":"AQID","subType":"00"}},"regex":{"$regularExpression":{"pattern":"^a","options":"i"}}}"#,
        "\n",
    );
    imported(&server, "first", &["-"], original.as_bytes(), 3)?;
    assert_eq!(String::from_utf8(export(&server, "first", &[])?)?, original);
    for (format, back) in [
        ("relaxed", "json-lines"),
        ("canonical", "json-lines"),
        ("bson", "bson"),
    ] {
        let bytes = export(&server, "first", &["--format", format])?;
        imported(&server, format, &["--format", back, "-"], &bytes, 3)?;
        assert_eq!(
            export(&server, format, &["--format", "canonical"])?,
            export(&server, "first", &["--format", "canonical"])?
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_format_of_files_is_detected() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let folder = tempfile::tempdir()?;
    let array = write(folder.path(), "array.json", "[{\"a\": 1},\n {\"a\": 2}]")?;
    let lines = write(folder.path(), "lines.json", "{\"a\": 3}\n{\"a\": 4}\n")?;
    let csv = write(folder.path(), "table.csv", "a,b\n5,\"x, y\"\n6,\n")?;
    let tsv = write(folder.path(), "table.tsv", "a\tb\n7\tz\n")?;
    imported(&server, "all", &[&array, &lines, &csv, &tsv], b"", 7)?;
    let all = collection(&server, "all").await?;
    for a in 1..=7 {
        assert_eq!(all.count_documents(doc! { "a": a }).await?, 1, "a: {a}");
    }
    assert_eq!(all.count_documents(doc! { "b": "x, y" }).await?, 1);
    let names = write(folder.path(), "names.json", "[\"left-pad\", \"is-odd\"]")?;
    imported(&server, "names", &["--field", "name", &names], b"", 2)?;
    let names = collection(&server, "names").await?;
    assert_eq!(names.count_documents(doc! { "name": "is-odd" }).await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn large_imports_lose_nothing() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let lines: String = (0..50_000)
        .map(|id| format!("{{\"_id\":{id},\"name\":\"name-{id}\"}}\n"))
        .collect();
    imported(&server, "large", &["-"], lines.as_bytes(), 50_000)?;
    let large = collection(&server, "large").await?;
    assert_eq!(large.count_documents(doc! {}).await?, 50_000);
    assert_eq!(
        large.count_documents(doc! { "name": "name-49999" }).await?,
        1
    );
    Ok(())
}

#[test]
fn faults_name_file_and_line() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let folder = tempfile::tempdir()?;
    let bad = write(folder.path(), "bad.json", "{\"a\": 1}\n{\"a\": }\n")?;
    let said = failed(&server, &[&bad], b"")?;
    ensure!(
        said.starts_with("1 document imported") && said.contains("importing again adds them twice"),
        "{said}"
    );
    ensure!(
        said.contains("bad.json: line 2, column 7: expected value"),
        "{said}"
    );
    let good = write(folder.path(), "good.json", "{\"a\": 1}\n")?;
    let said = failed(&server, &[&good, "/nonexistent.json"], b"")?;
    ensure!(
        said.starts_with("forebay: cannot open /nonexistent.json") && said.lines().count() == 1,
        "{said}"
    );
    ensure!(failed(&server, &["-"], b"what is this?")?.contains("--format"));
    Ok(())
}

#[test]
fn what_an_import_does_not_do_is_said() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let folder = tempfile::tempdir()?;
    let csv = write(folder.path(), "zip.csv", "zip\n00012\n12345\n")?;
    let told = |arguments: &[&str]| -> Result<String> {
        let output = import(&server, "zip", arguments, b"")?;
        ensure!(output.status.success(), "{output:?}");
        Ok(said(&output))
    };
    let mixed = told(&[&csv])?;
    ensure!(
        mixed.contains("zip.csv: column zip has strings beside numbers")
            && mixed.contains("--as-text"),
        "{mixed}"
    );
    let text = told(&["--as-text", &csv])?;
    ensure!(!text.contains("warning"), "{text}");
    let semicolons = write(folder.path(), "semi.csv", "name;age\nx;7\n")?;
    let column = told(&[&semicolons])?;
    ensure!(
        column.contains("semi.csv: there is one column; --delimiter ';' would split"),
        "{column}"
    );
    let columns = told(&["--delimiter", ";", &semicolons])?;
    ensure!(!columns.contains("warning"), "{columns}");
    let lines = write(folder.path(), "names.json", "{\"a\": 1}\n")?;
    let idle = told(&["--as-text", &lines])?;
    ensure!(
        idle.contains("names.json: --as-text is for CSV files"),
        "{idle}"
    );
    let output = command("export", server.uri(), "zpi", &[]).output()?;
    ensure!(!output.status.success());
    let said = said(&output);
    ensure!(said.contains("there is no collection d.zpi"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_import_says_what_stays() -> Result<()> {
    const BATCH: u64 = 10_000;
    let server = Server::start(BINARY, &[])?;
    let mut child = command("import", server.uri(), "c", &["-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // Send one batch and a bit more, and keep the input open.
    let mut input = child.stdin.take().context("the input")?;
    input.write_all("{\"a\": 1}\n".repeat(BATCH as usize + 1).as_bytes())?;
    input.flush()?;
    let collection = collection(&server, "c").await?;
    wait_for(
        "the batch is imported",
        Duration::from_secs(60),
        async || {
            let count = collection.count_documents(doc! {}).await?;
            Ok((count == BATCH).then_some(()))
        },
    )
    .await?;
    kill(Pid::from_raw(child.id().try_into()?), Signal::SIGINT)?;
    let output = child.wait_with_output()?;
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    ensure!(
        said.starts_with("10000 documents imported")
            && said.contains("documents stay: importing again"),
        "{said}"
    );
    ensure!(said.ends_with("forebay: interrupted\n"), "{said}");
    drop(input);
    Ok(())
}

#[test]
fn an_export_replaces_the_old_file() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    imported(&server, "c", &["-"], b"{\"_id\":1}\n{\"_id\":2}\n", 2)?;
    let folder = tempfile::tempdir()?;
    let out = write(folder.path(), "out.json", "old")?;
    export(&server, "c", &["--out", &out])?;
    assert_eq!(std::fs::read_to_string(&out)?, "{\"_id\":1}\n{\"_id\":2}\n");
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
    let piped = export(&server, "c", &["--out", "/dev/stdout"])?;
    assert_eq!(piped, std::fs::read(&out)?);
    Ok(())
}

#[test]
fn refused_documents_are_named() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let one = b"{\"_id\": 1}\n{\"_id\": 1}\n{\"_id\": 2}\n";
    let said = failed(&server, &["-"], one)?;
    ensure!(
        said.contains("2 documents imported") && said.contains("1 refused"),
        "{said}"
    );
    let alone = "forebay: 1 document was refused: -: line 2: E11000 duplicate key";
    ensure!(said.contains(alone), "{said}");
    let folder = tempfile::tempdir()?;
    let table = write(folder.path(), "table.csv", "_id\n3\n2\n4\n")?;
    let many = "{\"_id\": 1}\n".repeat(12) + "{\"_id\": }\n";
    let many = write(folder.path(), "many.json", &many)?;
    let said = failed(&server, &[&table, &many], b"")?;
    for expected in [
        "2 documents imported",
        "13 refused",
        "table.csv: line 3: E11000 duplicate key",
        "many.json: line 1: E11000 duplicate key",
        "many.json: line 9: E11000 duplicate key",
        "13 documents were refused; the first 10 are listed above",
        "many.json: line 13, column 9: expected value",
    ] {
        ensure!(said.contains(expected), "{expected}: {said}");
    }
    ensure!(!said.contains("many.json: line 10:"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_too_large_document_is_refused_alone() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let folder = tempfile::tempdir()?;
    let large = "x".repeat(17 << 20);
    let lines = format!("{{\"a\":1}}\n{{\"a\":\"{large}\"}}\n{{\"a\":2}}\n");
    let table = format!("a\n3\n4\n{large}\n5\n");
    let dump = [
        rawdoc! { "a": &*large }.into_bytes(),
        rawdoc! { "a": 6 }.into_bytes(),
    ];
    let lines = write(folder.path(), "lines.json", &lines)?;
    let table = write(folder.path(), "table.csv", &table)?;
    let (dumped, array) = (folder.path().join("dump.bson"), "[{\"a\":7}]");
    std::fs::write(&dumped, dump.concat())?;
    let array = write(folder.path(), "array.json", array)?;
    let dumped = dumped.to_string_lossy();
    let said = failed(&server, &[&lines, &table, &dumped, &array], b"")?;
    for expected in [
        "lines.json: line 2: the document has 178",
        "table.csv: line 4: the document has 178",
        "dump.bson: document 1: the document has 178",
        "7 documents imported",
        "3 refused",
        "forebay: 3 documents were refused, as listed above",
    ] {
        ensure!(said.contains(expected), "{expected}: {said}");
    }
    let collection = collection(&server, "failed").await?;
    let values = collection.distinct("a", doc! {}).await?;
    assert_eq!(values, (1..=7).map(Bson::Int32).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn fields_that_queries_cannot_address_are_refused() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let text = "cannot be a field name";
    for name in ["a.b", "$a", ""] {
        let output = import(&server, "c", &["--field", name, "-"], b"[\"x\"]")?;
        let said = said(&output);
        ensure!(
            !output.status.success() && said.contains(&format!("{name:?} {text}")),
            "{name:?}: {said}"
        );
    }
    let said = failed(&server, &["--format", "csv", "-"], b"a.b\n1\n")?;
    ensure!(said.contains(&format!("\"a.b\" {text}")), "{said}");
    Ok(())
}

#[test]
fn without_a_server_the_remedy_is_named() -> Result<()> {
    let uri = "mongodb://127.0.0.1:9/?connectTimeoutMS=100";
    let output = command("import", uri, "c", &["-"])
        .stdin(Stdio::null())
        .output()?;
    let said = said(&output);
    ensure!(
        said.contains("no server listens at 127.0.0.1:9") && said.contains("forebay serve"),
        "{said}"
    );
    Ok(())
}

#[test]
fn the_other_commands_work() -> Result<()> {
    let server = Server::start(BINARY, &["--devices", "host:2"])?;
    let output = |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(arguments).env("FOREBAY_URI", server.uri());
        command.output()
    };
    let run = |arguments: &[&str]| -> Result<String> {
        let output = output(arguments)?;
        ensure!(output.status.success(), "{arguments:?}: {}", said(&output));
        Ok(String::from_utf8(output.stdout)?)
    };
    let refused = |arguments: &[&str]| -> Result<String> {
        let output = output(arguments)?;
        ensure!(!output.status.success(), "{arguments:?} succeeded");
        Ok(said(&output))
    };
    assert_eq!(run(&["devices", "list"])?.lines().count(), 3);
    ensure!(run(&["devices", "add", "host"])?.contains("host:2 joined"));
    ensure!(run(&["devices", "remove", "host:1"])?.contains("host:1 left"));
    ensure!(run(&["devices", "remove", "0"])?.contains("host:0 left"));
    ensure!(run(&["devices", "list", "--json"])?.contains(r#""name":"host:2""#));
    ensure!(refused(&["devices", "add", "host:1"])?.contains("host --count 1"));
    ensure!(refused(&["devices", "add", "gpu"])?.contains("use `host`, `cuda:N`"));
    let counted = ["devices", "add", "cuda", "--count", "2"];
    ensure!(refused(&counted)?.contains("--count is for host devices"));
    let unknown = refused(&["devices", "remove", "host:9"])?;
    ensure!(
        unknown.starts_with("forebay: there is no device host:9: the devices are host:2"),
        "{unknown}"
    );
    ensure!(refused(&["debug", "buckets", "d.c"])?.contains("DATABASE.COLLECTION.FIELD"));
    let last = refused(&["devices", "remove", "host:2"])?;
    ensure!(
        last.contains("this is the last device") && last.contains("--yes"),
        "{last}"
    );
    ensure!(run(&["devices", "remove", "host:2", "--yes"])?.contains("host:2 left"));
    ensure!(run(&["devices", "add", "host", "--count", "2"])?.contains("host:3, host:4 joined"));
    ensure!(run(&["debug", "pattern", "^abc", "--options", "i"])?.contains("tier"));
    ensure!(run(&["version"])?.starts_with("forebay "));
    ensure!(run(&["doctor"])?.contains("host devices"));
    assert_eq!(output(&["debug", "pattern", "("])?.status.code(), Some(1));
    Ok(())
}

#[test]
fn output_and_notes_that_are_not_read_are_no_failure() -> Result<()> {
    let server = Server::start(BINARY, &["--memory"])?;
    let folder = tempfile::tempdir()?;
    let lines: String = (0..5_000)
        .map(|id| format!("{{\"_id\": {id}}}\n"))
        .collect();
    let file = write(folder.path(), "lines.jsonl", &lines)?;
    let full = || File::options().write(true).open("/dev/full");
    let imported = command("import", server.uri(), "c", &[&file])
        .stderr(full()?)
        .status()?;
    ensure!(imported.success(), "{imported}");
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let output = command("export", server.uri(), "c", &[])
        .stdout(writer)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.is_empty(), "{said}");
    let exported = command("export", server.uri(), "c", &[])
        .stdout(Stdio::null())
        .stderr(full()?)
        .status()?;
    ensure!(exported.success(), "{exported}");
    server.stop()
}
