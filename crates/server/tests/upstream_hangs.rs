//! Forebay in front of an upstream that hangs: its connections stay open, and nothing answers on them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bson::{Document, RawDocument, RawDocumentBuf, doc, rawdoc};
use forebay_testkit::{Server, wait_for};
use forebay_wire_mongo::{
    Body, Flags, HEADER_BYTES, Header, Limits, Message, OpMsg, OpReply, ReplyFlags,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
/// Maximum time for anything that these tests wait for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Option of the upstream's connection string. It makes the proxy notice soon that the upstream hangs.
const NOTICED_SOON: &str = "connectTimeoutMS=200";

/// An event that the simulated upstream has seen.
#[derive(Debug, PartialEq)]
enum Noticed {
    /// A command with this name and comment has arrived.
    Asked(String, String),
    /// A connection was closed; its last command had this comment.
    Closed(String),
}

/// A simulated upstream with empty collections that hangs on request: like a stopped process, it accepts connections
/// and commands, but answers them only when it no longer hangs.
struct Store {
    address: SocketAddr,
    hangs: watch::Sender<bool>,
    noticed: mpsc::UnboundedReceiver<Noticed>,
}

impl Store {
    async fn start() -> Result<Store> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (sender, noticed) = mpsc::unbounded_channel();
        let store = Store {
            address: listener.local_addr()?,
            hangs: watch::Sender::new(false),
            noticed,
        };
        let hangs = store.hangs.subscribe();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, hangs.clone(), sender.clone()));
            }
        });
        Ok(store)
    }

    fn proxy(&self, options: &str, arguments: &[&str]) -> Result<Server> {
        let uri = format!("mongodb://{}/?{options}", self.address);
        Server::start(BINARY, &[&["--upstream", &uri][..], arguments].concat())
    }

    /// Waits until the simulated upstream has seen this event.
    async fn wait(&mut self, what: Noticed) -> Result<()> {
        let noticed = &mut self.noticed;
        soon(async {
            while noticed.recv().await.context("the store runs")? != what {}
            Ok(())
        })
        .await
        .with_context(|| format!("{what:?}"))
    }
}

/// Serves one connection to the simulated upstream.
async fn answer(
    stream: TcpStream,
    mut hangs: watch::Receiver<bool>,
    noticed: mpsc::UnboundedSender<Noticed>,
) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let mut last = String::new();
    while let Ok(message) = receive(&mut stream).await {
        let id = message.header.request_id;
        let (body, is_query) = match message.body {
            Body::Msg(asked) => (asked.body, false),
            Body::Query(asked) => (asked.query, true),
            Body::Reply(_) => bail!("a reply"),
        };
        let name = first_key(&body);
        last = body.get_str("comment").unwrap_or_default().to_owned();
        noticed.send(Noticed::Asked(name.clone(), last.clone()))?;
        tokio::select! {
            goes_on = hangs.wait_for(|hangs| !hangs) => drop(goes_on?),
            true = is_closed(&mut stream) => break,
        }
        let reply = match name.as_str() {
            _ if is_query => OpReply {
                flags: ReplyFlags::AWAIT_CAPABLE,
                document: reply(&name),
            }
            .encode(1, id),
            _ => OpMsg::new(reply(&name)).encode(1, id),
        };
        stream.get_mut().write_all(&reply).await?;
    }
    Ok(noticed.send(Noticed::Closed(last))?)
}

/// Waits until there are bytes to read or the stream ends. Returns whether the stream has ended.
async fn is_closed(stream: &mut BufReader<TcpStream>) -> bool {
    stream.fill_buf().await.map_or(true, <[u8]>::is_empty)
}

fn reply(command: &str) -> RawDocumentBuf {
    match command.to_lowercase().as_str() {
        "hello" | "ismaster" => rawdoc! {
            "helloOk": true, "isWritablePrimary": true, "ismaster": true, "minWireVersion": 0, "maxWireVersion": 17,
            "maxBsonObjectSize": 16_777_216, "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000, "ok": 1.0,
        },
        "find" | "listcollections" | "listindexes" => {
            let none = bson::RawArrayBuf::new();
            rawdoc! { "cursor": { "id": 0i64, "ns": "shop.things", "firstBatch": none }, "ok": 1.0 }
        }
        "count" | "insert" | "update" => rawdoc! { "n": 0, "nModified": 0, "ok": 1.0 },
        _ => rawdoc! { "ok": 1.0 },
    }
}

fn first_key(body: &RawDocument) -> String {
    let first = body.into_iter().next().and_then(Result::ok);
    first.map_or_else(String::new, |(name, _)| name.as_str().to_owned())
}

/// A client that can disconnect at any time.
struct Client(BufReader<TcpStream>);

impl Client {
    async fn connect(proxy: &Server) -> Result<Client> {
        let stream = TcpStream::connect(proxy.process().address()).await?;
        Ok(Client(BufReader::new(stream)))
    }

    /// Connects, and waits for the upstream's reply to a hello.
    async fn greet(proxy: &Server) -> Result<Client> {
        let mut client = Client::connect(proxy).await?;
        client.run(doc! { "hello": 1 }).await?;
        Ok(client)
    }

    /// Sends several messages in one write.
    async fn send(&mut self, messages: &[(Document, Flags)]) -> Result<()> {
        let mut bytes = Vec::new();
        for (command, flags) in messages {
            let mut command = command.clone();
            command.insert("$db", "shop");
            let message = OpMsg {
                flags: *flags,
                ..OpMsg::new(RawDocumentBuf::try_from(&command)?)
            };
            bytes.extend(message.encode(1, 0));
        }
        Ok(self.0.get_mut().write_all(&bytes).await?)
    }

    async fn run(&mut self, command: Document) -> Result<RawDocumentBuf> {
        self.send(&[(command, Flags::default())]).await?;
        self.reply().await
    }

    async fn reply(&mut self) -> Result<RawDocumentBuf> {
        soon(async {
            match receive(&mut self.0).await?.body {
                Body::Msg(reply) => Ok(reply.body),
                other => bail!("{other:?}"),
            }
        })
        .await
    }

    /// Waits until the proxy has closed the connection.
    async fn wait_until_closed(&mut self) -> Result<()> {
        ensure!(
            soon(async { Ok(is_closed(&mut self.0).await) }).await?,
            "a reply"
        );
        Ok(())
    }
}

async fn receive(stream: &mut BufReader<TcpStream>) -> Result<Message> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).await?;
    let length = Header::parse(&head, &Limits::default())?.message_bytes;
    let mut frame = head.to_vec();
    frame.resize(length, 0);
    stream.read_exact(&mut frame[HEADER_BYTES..]).await?;
    Ok(Message::decode(frame.into(), &Limits::default())?)
}

/// Waits for `future` at most [`PATIENCE`].
async fn soon<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(PATIENCE, future).await.context("nothing happens")?
}

fn code(reply: &RawDocument) -> i32 {
    reply.get_i32("code").unwrap_or_default()
}

fn find(comment: &str) -> Document {
    doc! { "find": "others", "comment": comment }
}

fn insert(comment: &str) -> Document {
    doc! { "insert": "things", "documents": [{ "name": "x" }], "comment": comment }
}

fn timed(mut command: Document) -> Document {
    command.insert("maxTimeMS", 1);
    command
}

fn asked(name: &str, comment: &str) -> Noticed {
    Noticed::Asked(name.to_owned(), comment.to_owned())
}

fn closed(comment: &str) -> Noticed {
    Noticed::Closed(comment.to_owned())
}

/// Declares a cache and waits until it is loaded.
async fn cache(client: &mut Client) -> Result<()> {
    let index = doc! { "key": { "name": "cache" }, "name": "name_cache" };
    let declared = client
        .run(doc! { "createIndexes": "things", "indexes": [index] })
        .await?;
    ensure!(declared.get_f64("ok")? == 1.0, "{declared:?}");
    wait_for("the cache is loaded", PATIENCE, async || {
        Ok(reason(client).await?.is_none().then_some(()))
    })
    .await
}

/// Returns why the cache does not answer.
async fn reason(client: &mut Client) -> Result<Option<String>> {
    let count = doc! { "count": "things", "query": { "name": "x" } };
    let explained = client.run(doc! { "explain": count }).await?;
    let forebay = explained.get_document("forebay").ok();
    let reason = forebay.and_then(|forebay| forebay.get_str("reason").ok());
    Ok(reason.map(str::to_owned))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_answers_no_hello_cannot_be_reached() -> Result<()> {
    let store = Store::start().await?;
    store.hangs.send_replace(true);
    for arguments in [&[][..], &["--upstream-writes", "exclusive"]] {
        let proxy = store.proxy(NOTICED_SOON, arguments)?;
        let mut client = Client::connect(&proxy).await?;
        let refused = client.run(doc! { "hello": 1 }).await?;
        assert_eq!(code(&refused), 91, "{refused:?}");
        client.wait_until_closed().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_the_time_that_it_says_and_a_grace() -> Result<()> {
    let mut store = Store::start().await?;
    let proxy = store.proxy("", &["--upstream-writes", "exclusive"])?;
    cache(&mut Client::greet(&proxy).await?).await?;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Client::greet(&proxy).await?);
    }
    store.hangs.send_replace(true);
    let commands = [
        find("read"),
        insert("holds the lock of the collection"),
        insert("waits for the lock"),
        doc! { "createIndexes": "things", "indexes": [{ "key": { "other": "cache" }, "name": "o" }] },
    ];
    for (client, command) in clients.iter_mut().zip(commands) {
        client
            .send(&[(timed(command.clone()), Flags::default())])
            .await?;
        if let Ok(comment) = command.get_str("comment")
            && !comment.starts_with("waits")
        {
            store
                .wait(asked(command.keys().next().expect("a name"), comment))
                .await?;
        }
    }
    for mut client in clients {
        let expired = client.reply().await?;
        assert_eq!(code(&expired), 50, "{expired:?}");
        client.wait_until_closed().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_left_give_their_connections_back() -> Result<()> {
    let mut store = Store::start().await?;
    let options = ["--upstream-writes", "exclusive", "--connections-max", "3"];
    let proxy = store.proxy(NOTICED_SOON, &options)?;
    let left = [
        vec![(find("read"), Flags::default())],
        vec![(insert("write"), Flags::default())],
        vec![
            (find("first of two"), Flags::default()),
            (insert("second"), Flags::MORE_TO_COME),
        ],
    ];
    let mut clients = Vec::new();
    for _ in &left {
        clients.push(Client::greet(&proxy).await?);
    }
    store.hangs.send_replace(true);
    for (mut client, messages) in clients.into_iter().zip(left) {
        let comment = messages[0].0.get_str("comment")?.to_owned();
        let name = messages[0].0.keys().next().cloned().unwrap_or_default();
        client.send(&messages).await?;
        store.wait(asked(&name, &comment)).await?;
        drop(client);
        store.wait(closed(&comment)).await?;
    }
    store.hangs.send_replace(false);
    for _ in 0..3 {
        Client::greet(&proxy).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_not_followed_to_its_end_is_loaded() -> Result<()> {
    let mut store = Store::start().await?;
    let proxy = store.proxy(NOTICED_SOON, &["--upstream-writes", "exclusive"])?;
    let mut client = Client::greet(&proxy).await?;
    cache(&mut client).await?;
    for is_timed in [false, true] {
        let mut writer = Client::greet(&proxy).await?;
        store.hangs.send_replace(true);
        let comment = format!("timed: {is_timed}");
        let write = insert(&comment);
        let write = if is_timed { timed(write) } else { write };
        writer.send(&[(write, Flags::default())]).await?;
        store.wait(asked("insert", &comment)).await?;
        if is_timed {
            assert_eq!(code(&writer.reply().await?), 50);
        }
        drop(writer);
        store.wait(closed(&comment)).await?;
        store.hangs.send_replace(false);
        let reason = reason(&mut client).await?.context("its end is unknown")?;
        ensure!(reason.contains("load"), "{reason}");
        wait_for("the cache is loaded", PATIENCE, async || {
            Ok(self::reason(&mut client).await?.is_none().then_some(()))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_sent_before_it_left_arrives() -> Result<()> {
    let mut store = Store::start().await?;
    let proxy = store.proxy("", &["--upstream-writes", "exclusive"])?;
    let mut client = Client::greet(&proxy).await?;
    cache(&mut client).await?;
    let update = doc! {
        "update": "things", "updates": [{ "q": { "name": "x" }, "u": { "$set": { "name": "y" } } }], "comment": "last",
    };
    store.hangs.send_replace(true);
    let silent = [insert("first"), insert("second"), update];
    client
        .send(&silent.map(|command| (command, Flags::MORE_TO_COME)))
        .await?;
    store.wait(asked("insert", "first")).await?;
    drop(client);
    store.hangs.send_replace(false);
    store.wait(asked("insert", "second")).await?;
    store.wait(asked("update", "last")).await?;
    let reason = reason(&mut Client::greet(&proxy).await?).await?;
    ensure!(reason.is_none(), "{reason:?}");
    Ok(())
}
