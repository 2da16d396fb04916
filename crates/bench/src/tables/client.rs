//! A client of a server that speaks PostgreSQL's protocol, for statements whose answers are read as text. The messages
//! are those of `postgres-protocol`, which `tokio-postgres` sends too.

use anyhow::{Context, Result, bail};
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, ErrorFields, Message};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection, which answers one statement after the other.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    received: BytesMut,
}

/// Values of a row, as text; `None` is NULL.
pub type Row = Vec<Option<String>>;

impl Client {
    /// Connects to a server that asks for no password. `uri` is as in `postgresql://127.0.0.1:5432/forebay`.
    ///
    /// # Errors
    /// If the server cannot be reached, or refuses the connection.
    pub async fn connect(uri: &str) -> Result<Client> {
        let rest = uri.strip_prefix("postgresql://").unwrap_or(uri);
        let (address, database) = rest.split_once('/').context("the database is missing")?;
        let stream = TcpStream::connect(address).await;
        let stream = stream.with_context(|| format!("connecting to {uri}"))?;
        stream.set_nodelay(true)?;
        let mut client = Client {
            stream,
            received: BytesMut::new(),
        };
        let parameters = [
            ("user", "forebay"),
            ("database", database),
            ("client_encoding", "UTF8"),
            ("application_name", "forebay demo"),
        ];
        let mut sent = BytesMut::new();
        frontend::startup_message(parameters, &mut sent)?;
        client.stream.write_all(&sent).await?;
        client.answer().await?;
        Ok(client)
    }

    /// Runs a statement and returns its rows.
    ///
    /// # Errors
    /// If the server refuses the statement, or is gone.
    pub async fn query(&mut self, statement: &str) -> Result<Vec<Row>> {
        let mut sent = BytesMut::new();
        frontend::query(statement, &mut sent)?;
        self.stream.write_all(&sent).await?;
        self.answer().await
    }

    /// Reads messages until the server is ready for the next statement. Returns the rows.
    async fn answer(&mut self) -> Result<Vec<Row>> {
        let (mut rows, mut failure) = (Vec::new(), None);
        loop {
            match self.message().await? {
                Message::DataRow(body) => rows.push(row(&body)?),
                Message::ErrorResponse(body) => failure = Some(error(body.fields())?),
                Message::ReadyForQuery(_) => break,
                Message::AuthenticationCleartextPassword | Message::AuthenticationSasl(_) => {
                    bail!("the server asks for a password")
                }
                _ => {}
            }
        }
        match failure {
            Some(failure) => bail!("the server refuses a statement: {failure}"),
            None => Ok(rows),
        }
    }

    async fn message(&mut self) -> Result<Message> {
        loop {
            if let Some(message) = Message::parse(&mut self.received)? {
                return Ok(message);
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                bail!("the server has closed the connection")
            }
        }
    }
}

fn row(body: &DataRowBody) -> Result<Row> {
    let text = |range: std::ops::Range<usize>| std::str::from_utf8(&body.buffer()[range]);
    let mut row = Row::new();
    let mut ranges = body.ranges();
    while let Some(range) = ranges.next()? {
        row.push(range.map(text).transpose()?.map(str::to_owned));
    }
    Ok(row)
}

/// Returns the message of an error and its SQLSTATE.
fn error(mut fields: ErrorFields<'_>) -> Result<String> {
    let (mut code, mut message) = (String::new(), String::new());
    while let Some(field) = fields.next()? {
        let text = String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'C' => code = text,
            b'M' => message = text,
            _ => {}
        }
    }
    Ok(format!("{message} ({code})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// Returns a message of a server.
    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("a short message");
        [&[kind], &length.to_be_bytes()[..], body].concat()
    }

    /// Answers a connection with `after_startup` and a statement with `after_query`. Returns the client's rows.
    async fn asked(after_startup: Vec<u8>, after_query: Vec<u8>) -> Result<Vec<Row>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let uri = format!("postgresql://{}/forebay", listener.local_addr()?);
        let server = async {
            let (mut stream, _) = listener.accept().await?;
            let mut received = vec![0; 4_096];
            for answer in [after_startup, after_query] {
                let _ = stream.read(&mut received).await?;
                stream.write_all(&answer).await?;
            }
            anyhow::Ok(())
        };
        let client = async { Client::connect(&uri).await?.query("SELECT 1").await };
        let (served, rows) = tokio::join!(server, client);
        served.and(rows)
    }

    fn ready() -> Vec<u8> {
        message(b'Z', b"I")
    }

    #[tokio::test]
    async fn rows_are_read_as_text() {
        let welcome = [message(b'R', &[0; 4]), ready()].concat();
        let row = message(b'D', b"\0\x02\0\0\0\x02ab\xff\xff\xff\xff");
        let answer = [row, message(b'C', b"SELECT 1\0"), ready()].concat();
        let rows = asked(welcome, answer).await.expect("a row");
        assert_eq!(rows, [vec![Some("ab".to_owned()), None]]);
    }

    #[tokio::test]
    async fn an_error_has_its_code() {
        let welcome = [message(b'R', &[0; 4]), ready()].concat();
        let answer = [message(b'E', b"C42P01\0Mno table\0\0"), ready()].concat();
        let error = asked(welcome, answer)
            .await
            .expect_err("the server refuses it");
        assert!(error.to_string().ends_with("no table (42P01)"), "{error}");
    }
}
