//! What connections to clients and to the store behind have in common.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// How long the other machine may be silent before it is asked for a sign of life.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How often it is asked then, and how many times.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// Sends small messages at once, and closes the connection when the other machine is gone without a word.
///
/// # Errors
/// If the system refuses.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let probes = TcpKeepalive::new()
        .with_time(SILENCE_MAX)
        .with_interval(PROBE_INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&probes.with_retries(PROBES))
}
