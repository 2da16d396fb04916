//! The socket of a client's connection. Other threads can check whether the client is still connected.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use forebay_documents::Link;
use forebay_net::tcp;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Linux's `POLLRDHUP`: the peer has closed the connection, or its sending side.
const READ_CLOSED: PollFlags = PollFlags::from_bits_retain(0x2000);

/// A socket that only its connection reads and writes. It is closed when the connection drops it.
#[derive(Debug)]
pub struct Socket(Arc<TcpStream>);

/// Checks whether a socket's client has disconnected. Does not keep the socket open.
#[derive(Debug)]
struct Watch(Weak<TcpStream>);

impl Socket {
    /// Takes over an accepted socket.
    pub fn new(stream: TcpStream) -> Socket {
        if let Err(error) = tcp::prepare(&stream) {
            tracing::debug!(%error, "the TCP options of a socket cannot be set");
        }
        Socket(Arc::new(stream))
    }

    /// Returns the handle through which commands check whether their client is still connected.
    pub fn link(&self) -> Arc<dyn Link> {
        Arc::new(Watch(Arc::downgrade(&self.0)))
    }
}

impl Link for Watch {
    fn is_lost(&self) -> bool {
        let Some(stream) = self.0.upgrade() else {
            return true;
        };
        // Polls the system instead of the runtime, which knows only events that its threads have processed. The system
        // reports the end of the stream at once, even if unread bytes precede it.
        let mut ends = [PollFd::new(stream.as_fd(), READ_CLOSED)];
        poll(&mut ends, PollTimeout::ZERO).is_ok() && ends[0].any().unwrap_or(true)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match read_once(&self.0, buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }
}

/// Reads the available bytes. If they do not fill the buffer, marks the socket as drained, which saves another read.
fn read_once(stream: &TcpStream, buffer: &mut ReadBuf<'_>) -> io::Result<()> {
    let mut outcome = Err(io::ErrorKind::WouldBlock.into());
    let _ = stream.try_io(Interest::READABLE, || {
        outcome = stream.try_read_buf(buffer);
        match outcome {
            Ok(1..) if buffer.remaining() > 0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    });
    outcome.map(drop)
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: written bytes are already in the system's buffer.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Closes the sending side. The connection can still receive.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the listener is open");
        let client = TcpStream::connect(address)
            .await
            .expect("the listener is open");
        let (server, _) = listener.accept().await.expect("the client is there");
        (client, Socket::new(server))
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_end() {
        let (mut client, mut server) = pair().await;
        let sent: Vec<u8> = (0..1_000_000_u32).map(|index| index as u8).collect();
        let echo = tokio::spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                match server.read(&mut buffer).await.expect("the client is there") {
                    0 => return,
                    count => server
                        .write_all(&buffer[..count])
                        .await
                        .expect("the client reads"),
                }
            }
        });
        let (mut reader, mut writer) = client.split();
        let mut received = vec![0; sent.len()];
        let (wrote, read) = tokio::join!(writer.write_all(&sent), reader.read_exact(&mut received));
        wrote.expect("the server reads");
        read.expect("the server answers");
        assert_eq!(received, sent);
        drop(client);
        echo.await.expect("the server sees the end of the stream");
    }

    #[tokio::test]
    async fn a_vanished_client_is_noticed() {
        let (_client, server) = pair().await;
        let socket = SockRef::from(&*server.0);
        assert!(socket.keepalive().expect("the system tells"));
        let silence = socket.tcp_keepalive_time().expect("the system tells");
        assert_eq!(silence, tcp::SILENCE_MAX);
    }

    #[tokio::test]
    async fn a_closed_client_is_noticed_before_its_bytes_are_read() {
        let (mut client, server) = pair().await;
        let link = server.link();
        assert!(!link.is_lost());
        client.write_all(b"unread").await.expect("there is room");
        drop(client);
        while !link.is_lost() {
            tokio::task::yield_now().await;
        }
        drop(server);
        assert!(link.is_lost());
    }
}
