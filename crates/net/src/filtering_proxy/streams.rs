//! Streams around sockets: one that notes when bytes move, and one that begins with bytes that were read before.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

/// A connection to a client, directly or inside of another protocol.
pub(super) trait ProxyStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ProxyStream for S {}

pub(super) type BoxedStream = Box<dyn ProxyStream>;

/// The time at which a byte moved last.
#[derive(Debug, Clone)]
pub(super) struct ActivityClock {
    start: Instant,
    /// Milliseconds since the start.
    last: Arc<AtomicU64>,
}

impl ActivityClock {
    pub(super) fn start() -> Self {
        Self { start: Instant::now(), last: Arc::default() }
    }

    fn note_activity(&self) {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(elapsed, Ordering::Relaxed);
    }

    /// Waits until no byte has moved for this long.
    pub(super) async fn wait_idle(&self, limit: Duration) {
        loop {
            let last = self.last.load(Ordering::Relaxed);
            sleep_until(self.start + Duration::from_millis(last) + limit).await;
            if self.last.load(Ordering::Relaxed) == last {
                return;
            }
        }
    }
}

/// The socket of a client. All that moves in a connection of the proxy moves here, too.
#[derive(Debug)]
pub(super) struct IdleStream {
    stream: TcpStream,
    activity: ActivityClock,
}

impl IdleStream {
    pub(super) fn new(stream: TcpStream, activity: ActivityClock) -> Self {
        Self { stream, activity }
    }
}

impl AsyncRead for IdleStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.activity.note_activity();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for IdleStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.activity.note_activity();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A stream that begins with bytes which were read from it before.
pub(super) struct RewoundStream {
    /// Those from `at` on are still to be given.
    bytes: Vec<u8>,
    at: usize,
    stream: BoxedStream,
}

impl RewoundStream {
    pub(super) fn new(bytes: Vec<u8>, stream: BoxedStream) -> Self {
        Self { bytes, at: 0, stream }
    }
}

impl AsyncRead for RewoundStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let left = self.bytes.get(self.at..).unwrap_or_default();
        if left.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(left.get(..count).unwrap_or_default());
        self.at += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for RewoundStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
