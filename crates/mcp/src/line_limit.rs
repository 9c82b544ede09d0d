//! End a server that writes a line longer than the message limit.
//!
//! The library drops such a line together with the id of the call that it answers. Ending the server ends its calls
//! too, with a reason.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::instance::{InstanceShutdown, ServerInstance};

/// The maximum size of a message from a server.
pub(super) const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// A reader that ends its server when a line is too long.
pub(super) struct LineLimitReader<R> {
    inner: R,
    instance: Arc<ServerInstance>,
    /// The length of the current line so far.
    line_bytes: usize,
}

impl<R> LineLimitReader<R> {
    pub(super) fn new(inner: R, instance: &Arc<ServerInstance>) -> Self {
        Self { inner, instance: Arc::clone(instance), line_bytes: 0 }
    }

    fn count_line_bytes(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line_bytes = self.line_bytes.saturating_add(piece.len());
            if self.line_bytes > MAX_MESSAGE_BYTES {
                let limit_mib = MAX_MESSAGE_BYTES / (1024 * 1024);
                self.instance.request_shutdown(InstanceShutdown::EndNow(
                    format!("it sent a message of more than {limit_mib} MiB").into(),
                ));
            }
            if piece.ends_with(b"\n") {
                self.line_bytes = 0;
            }
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for LineLimitReader<R> {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(task, buffer))?;
        self.count_line_bytes(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}
