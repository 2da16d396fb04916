//! Options of TCP connections to clients and to an upstream.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Idle time after which the peer is probed (TCP keepalive).
pub const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Interval and number of keepalive probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// Disables Nagle's delay, and enables keepalive, which closes the connection if the peer's machine disappears.
///
/// # Errors
/// If the system refuses an option.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let probes = TcpKeepalive::new()
        .with_time(SILENCE_MAX)
        .with_interval(PROBE_INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&probes.with_retries(PROBES))
}
