//! What a process writes, measured by the line. The library drops a line that is too long together with the id of the call
//! that it answers, so such a process is ended: its calls then end too, and say why.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::slot::{Order, Slot};
use super::start::MAX_MESSAGE;

/// A reader that ends its server at a line which is too long.
pub(super) struct Measured<R> {
    inner: R,
    slot: Arc<Slot>,
    /// Of the line that is being read.
    length: usize,
}

impl<R> Measured<R> {
    pub(super) fn new(inner: R, slot: &Arc<Slot>) -> Self {
        Self { inner, slot: Arc::clone(slot), length: 0 }
    }

    fn measure(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.length = self.length.saturating_add(piece.len());
            if self.length > MAX_MESSAGE {
                let most = MAX_MESSAGE / (1024 * 1024);
                self.slot.tell(Order::End(format!("it sent a message of more than {most} MiB").into()));
            }
            if piece.ends_with(b"\n") {
                self.length = 0;
            }
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Measured<R> {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(task, buffer))?;
        self.measure(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}
