//! Pass received bytes to the decoder one WebSocket frame at a time, so that it frees large buffers.
//!
//! It passes the header of a frame alone, then the payload, and never two frames at once. The decoder keeps one buffer,
//! grows it to the largest frame, and reuses the rest of it. After a payload that came alone nothing is left of the
//! buffer, so the decoder allocates a new one, and the memory of a large frame is freed with its message.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

const READ_AHEAD_BYTES: usize = 8 * 1024;
/// Length of the longest frame header in bytes (RFC 6455, 5.2).
const MAX_HEADER_BYTES: usize = 14;

/// Position in the client's stream of frames.
#[derive(Debug)]
pub(super) struct FrameSplitter {
    read_ahead: BytesMut,
    /// Bytes of the header that have not been passed on.
    header_left: usize,
    /// Bytes of the payload that have not been passed on.
    payload_left: u64,
    /// Bytes that were read and not returned to the caller as read yet.
    unreported: usize,
}

impl FrameSplitter {
    pub(super) fn new() -> Self {
        Self { read_ahead: BytesMut::with_capacity(READ_AHEAD_BYTES), header_left: 0, payload_left: 0, unreported: 0 }
    }

    /// Reads the next part of a frame, and returns how many bytes were read from the client.
    pub(super) fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        loop {
            if self.header_left == 0 && self.payload_left == 0 {
                (self.header_left, self.payload_left) = parse_header(&self.read_ahead).unwrap_or_default();
            }
            let next = if self.header_left > 0 { self.header_left as u64 } else { self.payload_left };
            if next > 0 && !self.read_ahead.is_empty() {
                let bytes = usize::try_from(next).unwrap_or(usize::MAX).min(self.read_ahead.len()).min(buf.remaining());
                buf.put_slice(&self.read_ahead[..bytes]);
                self.read_ahead.advance(bytes);
                self.advance_frame(bytes);
                return Poll::Ready(Ok(std::mem::take(&mut self.unreported)));
            }
            if self.header_left == 0 && self.payload_left > READ_AHEAD_BYTES as u64 {
                let max_bytes = usize::try_from(self.payload_left).unwrap_or(usize::MAX).min(buf.remaining());
                let mut direct = ReadBuf::new(buf.initialize_unfilled_to(max_bytes));
                ready!(Pin::new(stream).poll_read(cx, &mut direct))?;
                let bytes = direct.filled().len();
                buf.advance(bytes);
                self.advance_frame(bytes);
                return Poll::Ready(Ok(bytes + std::mem::take(&mut self.unreported)));
            }
            let bytes = ready!(self.poll_fill(stream, cx))?;
            if bytes == 0 {
                // The client has closed: pass on an unfinished header as it is.
                let bytes = self.read_ahead.len().min(buf.remaining());
                buf.put_slice(&self.read_ahead[..bytes]);
                self.read_ahead.advance(bytes);
                return Poll::Ready(Ok(std::mem::take(&mut self.unreported)));
            }
            self.unreported += bytes;
        }
    }

    fn advance_frame(&mut self, bytes: usize) {
        if self.header_left > 0 {
            self.header_left -= bytes;
        } else {
            self.payload_left = self.payload_left.saturating_sub(bytes as u64);
        }
    }

    fn poll_fill<S: AsyncRead + Unpin>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let before = self.read_ahead.len();
        self.read_ahead.resize(before + READ_AHEAD_BYTES - before.min(MAX_HEADER_BYTES), 0);
        let mut room = ReadBuf::new(&mut self.read_ahead[before..]);
        let outcome = Pin::new(stream).poll_read(cx, &mut room).map_ok(|()| room.filled().len());
        let bytes = if let Poll::Ready(Ok(bytes)) = outcome { bytes } else { 0 };
        self.read_ahead.truncate(before + bytes);
        outcome
    }
}

/// Lengths of the header that begins here and of its payload; `None` if the header is incomplete.
fn parse_header(bytes: &[u8]) -> Option<(usize, u64)> {
    let second = *bytes.get(1)?;
    let mask = if second & 0x80 == 0 { 0 } else { 4 };
    let (length, payload) = match second & 0x7F {
        126 => (4, u64::from(u16::from_be_bytes(*bytes.get(2..4)?.first_chunk()?))),
        127 => (10, u64::from_be_bytes(*bytes.get(2..10)?.first_chunk()?)),
        short => (2, u64::from(short)),
    };
    (bytes.len() >= length + mask).then_some((length + mask, payload))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    fn frame(payload: usize) -> Vec<u8> {
        let mut frame = vec![0x81];
        match payload {
            0..126 => frame.push(0x80 | u8::try_from(payload).unwrap()),
            126..0x10000 => {
                frame.push(0x80 | 126);
                frame.extend(u16::try_from(payload).unwrap().to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend((payload as u64).to_be_bytes());
            }
        }
        frame.extend([1, 2, 3, 4]);
        frame.extend((0..payload).map(|at| u8::try_from(at % 251).unwrap()));
        frame
    }

    #[tokio::test]
    async fn frames_are_handed_on_one_by_one_and_whole() {
        for piece in [1, 3, 1000, 100_000] {
            let lengths = [0, 1, 125, 126, 9000, 70_000, 5, 8192, 8193];
            let sent: Vec<u8> = lengths.iter().flat_map(|length| frame(*length)).collect();
            let (mut client, mut server) = duplex(1 << 20);
            let writing = sent.clone();
            let write = async move {
                for piece in writing.chunks(piece) {
                    client.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let read = async {
                let (mut frames, mut all, mut ends, mut counted) = (FrameSplitter::new(), Vec::new(), Vec::new(), 0);
                loop {
                    let mut space = vec![0; 8192];
                    let mut buf = ReadBuf::new(&mut space);
                    counted += poll_fn(|cx| frames.poll_read(&mut server, cx, &mut buf)).await.unwrap();
                    if buf.filled().is_empty() {
                        return (all, ends, counted);
                    }
                    all.extend_from_slice(buf.filled());
                    ends.push(all.len());
                }
            };
            let ((), (all, ends, counted)) = tokio::join!(write, read);
            assert!(all == sent && counted == sent.len(), "pieces of {piece}");
            let mut at = 0;
            for length in lengths {
                let whole = frame(length).len();
                assert!(ends.contains(&(at + whole - length)) && ends.contains(&(at + whole)), "{length} at {at}");
                at += whole;
            }
        }
    }

    #[tokio::test]
    async fn half_a_header_is_handed_on_at_the_end() {
        let (mut client, mut server) = duplex(64);
        client.write_all(&frame(300)[..3]).await.unwrap();
        drop(client);
        let (mut frames, mut space) = (FrameSplitter::new(), [0; 64]);
        let mut buf = ReadBuf::new(&mut space);
        poll_fn(|cx| frames.poll_read(&mut server, cx, &mut buf)).await.unwrap();
        assert_eq!(buf.filled(), &frame(300)[..3]);
    }
}
